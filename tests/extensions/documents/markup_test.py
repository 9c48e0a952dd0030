"""Tags survive exactly once, well-formed, and at the right words."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lxml import etree

import keras_transformer as kt
from keras_transformer.extensions.ctranslate2.exporter import EXPORTER
from keras_transformer.extensions.documents.markup import text_token, tokenize
from keras_transformer.extensions.documents.protection import translate_tokens, without_entities
from keras_transformer.inference.engine import Engine
from keras_transformer.text.symbols import SYMBOLS
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.vocabulary import learn_vocabulary
from tests.builders import PHRASES
from tests.export.model_variants import make_run
from tests.extensions.documents.fakes import fake_engine, reverse, rotate
from tests.extensions.documents.protection_test import ENGINES, SPANS, WORDS, spans_in

MARIAN = Path(__file__).parents[2] / "fixtures" / "marian_mt"
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


def assert_tags_and_spans_survive(raws: Sequence[str], model: Engine) -> None:
    outputs, *_ = translate_tokens(model, [tokenize(raw) for raw in raws])
    for raw, output in zip(raws, outputs, strict=True):
        assert Counter(TAGS.findall(output)) == Counter(TAGS.findall(raw))
        assert structure(raw) <= structure(output)
        text = TAGS.sub("", output)
        for span, count in spans_in(TAGS.sub("", raw)).items():
            assert text.count(span) >= count


FRAGMENTS = st.lists(TREES, max_size=6).map(fragment)


# Elements of several sentences, in an engine that reverses the words.
@example('<b n="1">A dog. Two</b> <i n="2">A dog. Two</i>', ENGINES[11])
@example('<b n="1">A dog. Two</b> <b n="2">A dog. Two<br n="3"/></b>', ENGINES[11])
@settings(max_examples=60, deadline=None)
@given(FRAGMENTS, st.sampled_from(ENGINES))
def test_every_tag_survives_every_model(raw: str, model: Engine) -> None:
    assert_tags_and_spans_survive([raw], model)


# Fragments with all kinds of spans, nested and empty elements, and several sentences.
FIXED = [
    'a <b n="1">dog {name}</b> <i n="2">runs</i> on %s ｟0｠ <br n="3"/>',
    '<b n="1"><i n="2">The</i> https://a.b/c?d=e ran. Two {0}</b>: 犬が。 <a n="3"></a>X1 %s',
    f'<i n="1">{" ".join(PLAIN)}</i> <!-- 2 -->',
    '{a} <b n="1">%s</b>',
]


@pytest.mark.parametrize("format", ["run", "saved_model", "litert", "ctranslate2", "marian"])
@pytest.mark.parametrize("examples", [0, pytest.param(20, marks=pytest.mark.long)])
def test_everything_survives_every_engine(
    format: str, examples: int, tmp_path: Path, version_of: Callable[[str], Path]
) -> None:
    if format == "run":  # the vocabulary of this model has symbols
        phrases = [phrase.encode() for phrase in PHRASES]
        tokenizer = Tokenizer(learn_vocabulary(phrases, 80, symbols=SYMBOLS))
        model = kt.load(make_run(tmp_path / "run", tokenizer=tokenizer).path)._model
    elif format == "ctranslate2":
        model = EXPORTER.open(version_of(format))
    else:
        path = MARIAN if format == "marian" else version_of(format)
        model = kt.load(path / ("model.tflite" if format == "litert" else ""))._model
    model.n_best = 1  # some return two
    assert_tags_and_spans_survive(FIXED, model)
    if format == "run":
        assert translate_tokens(model, [tokenize(FIXED[0])])[1] == {"symbols": 1}

    @settings(max_examples=max(1, examples), deadline=None)
    @given(st.lists(FRAGMENTS, min_size=6, max_size=6))
    def check(raws: list[str]) -> None:
        assert_tags_and_spans_survive(raws, model)

    if examples:
        check()


@settings(max_examples=50, deadline=None)
@given(st.text(st.sampled_from("<>/&;abi= \"'!-?\n.X")) | st.lists(TREES, max_size=4).map(fragment))
@example('<b n="1">。</b> {0}')
@example('<b n="1"><b n="2">the</b><b n="4">.the</b></b>')
@example('<b n="1">{name}the<br n="4"/>.the</b>')
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
        ("un<b>believ</b>able dogs", "dogs <b>unbelievable</b>"),
        ("a <br/> b c", "c <br/> b a"),
        ("a<br/> b", "b a<br/>"),
        ("a &amp; &lt; &brand; b", "&brand; b &lt; &amp; a"),
        ("see <code>ls &amp; cd</code> now", "<code>ls &amp; cd</code> now see"),
        ("<b>One dog.</b> Two cats.", "<b>dog. One</b> cats. Two"),
        ("press <enter> to run", "<enter> run to press"),
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


@pytest.mark.parametrize(
    "raw", ["a <b>dog", "a</b> dog", "<b>a <i>dog</b> ran</i>", "<b>a<b>b</b>"]
)
def test_unclosed_and_crossing_tags_are_kept(raw: str) -> None:
    output = translated(raw, fake_engine(str.upper))
    assert Counter(TAGS.findall(output)) == Counter(TAGS.findall(raw))
    assert re.sub(TAGS, "", output) == re.sub(TAGS, "", raw).upper()


def test_elements_of_any_depth_are_kept() -> None:
    raw = "".join(f"<b n='{i}'>w{i} " for i in range(600)) + "end" + "</b>" * 600
    for model in (fake_engine(str.upper), fake_engine(order=reverse, returns_alignments=True)):
        [output], *_ = translate_tokens(model, [tokenize(raw)])
        assert Counter(TAGS.findall(output)) == Counter(TAGS.findall(raw))


def test_a_translation_is_escaped_only_where_entities_exist() -> None:
    model = fake_engine(lambda text: "1 < 2 & 3")
    assert translated("<b>x</b>", model) == "<b>1 &lt; 2 &amp; 3</b>"
    tokens = [[text_token("x", False)]]
    assert translate_tokens(model, tokens, written=without_entities)[0] == ["1 < 2 & 3"]
