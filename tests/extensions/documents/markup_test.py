"""Tags survive exactly once, well-formed, and at the right words."""

from __future__ import annotations

import itertools
import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

import keras_transformer as kt
from keras_transformer.extensions.documents.markup import text_token, tokenize, translate_tokens
from keras_transformer.inference.engine import Engine
from keras_transformer.runs.run_directory import RunDirectory
from tests.extensions.documents.fakes import fake_engine, reverse, rotate
from tests.extensions.documents.protection_test import ENGINES, SPANS, WORDS, assert_kept, spans_in

TAGS = re.compile(r"<[^>]*>")
PLAIN = [text for text in (*SPANS, *WORDS) if not set(text) & set("<>&")]


def translated(raw: str, model: Engine) -> str:
    return translate_tokens(model, [tokenize(raw)])[0][0]


# Trees of elements with texts; each tag gets its own number.
TREES = st.recursive(
    st.sampled_from([*PLAIN, " ", " ", "A dog. Two"]) | st.sampled_from(["<br/>", "<!---->"]),
    lambda parts: st.tuples(st.sampled_from("bia"), st.lists(parts, max_size=6)),
    max_leaves=20,
)


def written(tree: object, numbers: itertools.count[int]) -> str:
    if isinstance(tree, tuple):
        number, (name, parts) = next(numbers), tree
        inner = "".join(written(part, numbers) for part in parts)
        return f'<{name} n="{number}">{inner}</{name}>'
    text = str(tree)
    number = next(numbers)
    return text.replace("<br", f'<br n="{number}"').replace("<!--", f"<!-- {number} ")


def fragment(trees: list[object]) -> str:
    numbers = itertools.count(1)
    return " ".join(written(tree, numbers) for tree in trees)


def structure(raw: str) -> set[tuple[str, str]]:
    """Returns the pairs of numbers of elements and of the elements around them."""
    root = etree.fromstring(f"<root>{raw}</root>")
    return {
        (element.get("n", ""), ancestor.get("n", ""))
        for element in root.iter(etree.Element)
        for ancestor in element.iterancestors()
    }


@settings(max_examples=50, deadline=None)
@given(st.lists(TREES, max_size=6).map(fragment), st.sampled_from(ENGINES))
def test_every_tag_survives_every_model(raw: str, model: Engine) -> None:
    output = translated(raw, model)
    assert Counter(TAGS.findall(output)) == Counter(TAGS.findall(raw))
    assert structure(raw) <= structure(output)
    text = TAGS.sub("", output)
    for span, count in spans_in(TAGS.sub("", raw)).items():
        assert text.count(span) >= count


@settings(max_examples=2, deadline=None)
@given(st.lists(st.lists(TREES, max_size=6).map(fragment), min_size=8, max_size=8))
def test_every_tag_survives_a_random_model(run_directory: RunDirectory, raws: list[str]) -> None:
    model = kt.load(run_directory.path)._model
    outputs, _ = translate_tokens(model, [tokenize(raw) for raw in raws])
    for raw, output in zip(raws, outputs, strict=True):
        assert Counter(TAGS.findall(output)) == Counter(TAGS.findall(raw))
        assert structure(raw) <= structure(output)


@settings(max_examples=50, deadline=None)
@given(st.text(st.sampled_from("<>/&;abi= \"'!-?\n.X")) | st.lists(TREES, max_size=4).map(fragment))
def test_any_text_keeps_its_tags_and_the_identity_changes_nothing(raw: str) -> None:
    tokens = tokenize(raw)
    assert "".join(token.raw for token in tokens) == raw
    assert translated(raw, fake_engine(str)) == raw
    output = translated(raw, fake_engine(str.upper))
    for token, count in Counter(token.raw for token in tokens if token.kind != "text").items():
        assert output.count(token) >= count


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("the <b>red</b> house", "house <b>red</b> the"),
        ("the <b>red house</b> stands", "stands <b>house red</b> the"),
        ("<a><b>all</b> of it</a>", "<a>it of <b>all</b></a>"),
        ("one <b>two</b> <i>three</i>", "<i>three</i> <b>two</b> one"),
        ("un<b>believ</b>able dogs", "dogs <b>unbelievable</b>"),
        ("a <br/> b c", "c <br/> b a"),
        ("a<br/> b", "b a<br/>"),
        ("a &amp; &lt; &brand; b", "&brand; b &lt; &amp; a"),
        ("see <code>ls &amp; cd</code> now", "<code>ls &amp; cd</code> now see"),
        ("the <b> red </b> house", "house <b>red</b> the"),
        ("<b>One dog.</b> Two cats.", "<b>dog. One</b> cats. Two"),
        ('<p title="a>b">x y</p>', '<p title="a>b">y x</p>'),
    ],
)
def test_tags_are_at_the_words_that_translate_theirs(raw: str, expected: str) -> None:
    assert translated(raw, fake_engine(str, reverse, returns_alignments=True)) == expected


def test_without_alignments_tags_are_at_the_same_relative_position() -> None:
    raw = "one two <b>three four</b> <br/>five six"
    assert translated(raw, fake_engine(str, rotate)) == "four five <b>six one</b> <br/>two three"
    double = fake_engine(lambda line: " ".join(f"{word} {word}" for word in line.split()))
    assert translated("one <b>two</b>", double) == "one one <b>two two</b>"


def test_an_element_around_discontinuous_words_gets_most_of_them() -> None:
    model = fake_engine(str, lambda n: [1, 0, 2, 3], returns_alignments=True)
    assert translated("x <b>a b c</b>", model) == "a x <b>b c</b>"


@pytest.mark.parametrize(
    "raw", ["a <b>dog", "a</b> dog", "<b>a <i>dog</b> ran</i>", "<b>a<b>b</b>"]
)
def test_unclosed_and_crossing_tags_are_kept(raw: str) -> None:
    output = translated(raw, fake_engine(str.upper))
    assert Counter(TAGS.findall(output)) == Counter(TAGS.findall(raw))
    assert re.sub(TAGS, "", output) == re.sub(TAGS, "", raw).upper()


def test_a_translation_is_escaped_only_where_entities_exist() -> None:
    model = fake_engine(lambda text: "1 < 2 & 3")
    assert translated("<b>x</b>", model) == "<b>1 &lt; 2 &amp; 3</b>"
    assert translate_tokens(model, [[text_token("x", False)]], has_entities=False)[0] == [
        "1 < 2 & 3"
    ]


def test_spans_and_tags_of_several_sentences() -> None:
    raw = "Hi <b>{name}</b>. You have <i>%d</i> files!  See <a href='#x'>https://a.b</a>"
    outputs, statuses = translate_tokens(fake_engine(str.upper), [tokenize(raw)])
    assert outputs == [
        "HI <b>{name}</b>. YOU HAVE <i>%d</i> FILES!  SEE <a href='#x'>https://a.b</a>"
    ]
    assert statuses == {"kept": 3}
    assert_kept(raw, outputs[0])
