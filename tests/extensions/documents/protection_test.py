"""Every protected span is in the output exactly once, whatever the model does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import keras_transformer as kt
from keras_transformer.extensions.documents.markup import text_token, translate_tokens
from keras_transformer.extensions.documents.placement import slot_of
from keras_transformer.extensions.documents.protection import translate_protected, words_of
from keras_transformer.extensions.documents.spans import find_spans
from keras_transformer.inference.engine import Engine
from keras_transformer.runs.run_directory import RunDirectory
from tests.extensions.documents.fakes import ORDERS, fake_engine, repeat, reverse

SPANS = (
    "{name} {0} {{x.y}} ${v} %s %1$d %(name)s %% :name @bob #tag https://a.b/c?d=%20 www.x.org "
    "a.b@c.de /usr/bin C:\\a\\b README.md v1.2 1.2.3 snake_case camelCase f() AB-12 👍🏽 ｟0｠ X1 "
    "\\n {n,plural,one{{x}}other{#}}"
).split()
WORDS = "the red dogs it's run café 5:30 17 犬が , . ! ? ( ) - 。 — é Ü".split()
TEXTS = (
    st.lists(st.sampled_from(SPANS) | st.sampled_from(WORDS) | st.text(max_size=3), max_size=60)
    .map(lambda parts: " ".join(" ".join(parts).split()))
    .filter(lambda text: text == text.strip())
)
CHANGES: tuple[Callable[[str], str], ...] = (
    str,
    str.upper,
    str.title,
    lambda text: text[::-1],
    lambda text: "",
    lambda text: text + text,
    lambda text: text.replace(" ", ""),
    lambda text: " ".join(word for word in text.split() if word.isalpha()),
    lambda text: text.replace("{", "").replace("%", "").replace("X", "Y"),
    lambda text: "X1 la X2 {la} :",
    lambda text: f"{{name}} {text} %s #tag",
)
ENGINES = [fake_engine(change) for change in CHANGES] + [
    fake_engine(change, order, limit, aligns)
    for change in (str, str.upper)
    for order in ORDERS
    for limit, aligns in ((10**9, True), (8, True), (8, False))
]


def spans_in(text: str, *patterns: str) -> Counter[str]:
    return Counter(text[start:end] for start, end in find_spans(text, patterns))


def assert_kept(source: str, output: str, *patterns: str) -> None:
    needed, found = spans_in(source, *patterns), spans_in(output, *patterns)
    assert {text: found[text] for text in needed} == needed, f"{source!r} became {output!r}"


@settings(max_examples=40, deadline=None)
@given(st.lists(TEXTS, max_size=4), st.sampled_from(ENGINES))
@example(["{name} {name} 犬が {name} {0} :name {name}"], ENGINES[12])  # in two parts
def test_every_span_survives_every_model(texts: list[str], model: Engine) -> None:
    tokens = [[text_token(text, has_entities=False)] for text in texts]
    outputs, _ = translate_tokens(model, tokens, has_entities=False)
    for source, output in zip(texts, outputs, strict=True):
        assert_kept(source, output)


@settings(max_examples=40, deadline=None)
@given(st.lists(TEXTS, max_size=4), st.sampled_from(ENGINES[: len(CHANGES)]))
def test_each_word_has_a_source_word_unless_the_source_has_none(
    texts: list[str], model: Engine
) -> None:
    for source, result in zip(texts, translate_protected(model, texts), strict=True):
        assert result.status in (None, "empty") or find_spans(source)
        assert result.status is not None or not find_spans(source)
        count = len(words_of(source))
        assert all(0 <= word.source < count for word in result.words)


@settings(max_examples=3, deadline=None)
@given(st.lists(TEXTS, min_size=12, max_size=12))
def test_every_span_survives_a_random_model(run_directory: RunDirectory, texts: list[str]) -> None:
    model = kt.load(run_directory.path)._model
    results = translate_protected(model, texts, needs_words=True)
    for source, result in zip(texts, results, strict=True):
        assert_kept(source, result.text)
    assert {result.status for result in results} <= {None, "kept", "aligned", "empty"}


@pytest.mark.long
@pytest.mark.parametrize("format", ["saved_model", "litert"])
def test_every_span_survives_exports(format: str, version_of: Callable[[str], Path]) -> None:
    version = version_of(format)
    path = version / "model.tflite" if format == "litert" else version
    model = kt.load(path)._model
    texts = [" ".join(SPANS[start::7] + WORDS[start::5]) for start in range(7)]
    for source, result in zip(texts, translate_protected(model, texts), strict=True):
        assert_kept(source, result.text)
        assert result.status != ("appended" if format == "saved_model" else "aligned")


def one(text: str, model: Engine, *patterns: str) -> tuple[str, str | None]:
    [result] = translate_protected(model, [text], patterns)
    return result.text, result.status


def test_the_ways_in_their_order() -> None:
    text = "Hello {name}, you have %d files."
    assert one(text, fake_engine(str.lower)) == ("hello {name}, you have %d files.", "kept")
    # Capitals change %d, but not the stand-in X2.
    assert one(text, fake_engine(str.upper)) == ("HELLO {name}, YOU HAVE %d FILES.", "kept")

    def lose(line: str) -> str:
        return " ".join(word for word in line.split() if word.strip(".,").isalpha())

    assert one(text, fake_engine(lose)) == ("Hello {name} you have files %d.", "appended")
    model = fake_engine(lambda word: word.translate({48 + i: "0" for i in range(10)} | {37: "_"}),
                        reverse, returns_alignments=True)  # fmt: skip
    assert one("give %d red files", model) == ("files %d red give", "aligned")
    assert one("no spans", model) == ("spans no", None)


def test_spans_are_kept_where_the_model_moves_them() -> None:
    assert one("a {x} b %s", fake_engine(str, reverse)) == ("%s b {x} a", "kept")
    assert one("{x} and {x}", fake_engine(str, repeat))[0].count("{x}") == 2


def test_a_source_of_only_spans_is_copied() -> None:
    model = fake_engine(lambda text: "wrong")
    assert one("{a} – {b}: %s…", model) == ("{a} – {b}: %s…", "kept")
    assert one("…", model) == ("…", None)


def test_200_spans_in_a_sentence() -> None:
    text = " ".join(f"w{number} {{v{number}}}" for number in range(200))
    for model in (fake_engine(str.upper), fake_engine(str, reverse, 30), fake_engine(lambda t: "")):
        [output], _ = translate_tokens(model, [[text_token(text)]])
        assert_kept(text, output)


def test_spans_longer_than_the_limit() -> None:
    long = "https://example.com/" + "a" * 3000
    text = f"See {long} now, ACME {'x ' * 30}END please."
    pattern = r"ACME [x ]*END"
    [result] = translate_protected(fake_engine(str.upper, limit=12), [text], [pattern])
    assert_kept(text, result.text, pattern)
    assert result.text.startswith(f"SEE {long} NOW,") and result.text.endswith("PLEASE.")


def test_a_long_branch_of_an_icu_message_is_not_truncated() -> None:
    text = f"{{n, plural, other {{{'many words ' * 20}end}}}}"
    assert one(text, fake_engine(str.upper, limit=9))[0].count("MANY WORDS") == 20


def test_symbols_and_stand_ins_that_a_user_types() -> None:
    text = "｟0｠ X1 {a} x2 ｟0｠ {b} X3"
    assert one(text, fake_engine(str.upper)) == ("｟0｠ X1 {a} X2 ｟0｠ {b} X3", "kept")


def test_branches_of_icu_messages_are_translated() -> None:
    text = "{n, plural, =0 {no files} other {# files of {name} or '{' x}}"
    expected = "{n, plural, =0 {NO FILES} other {# FILES OF {name} OR '{' X}}"
    assert one(text, fake_engine(str.upper)) == (expected, "kept")
    nested = "Now {g, select, a {his {n, plural, one {dog} other {dogs}}} other {it}} ran."
    assert one(nested, fake_engine(str.upper))[0] == (
        "NOW {g, select, a {HIS {n, plural, one {DOG} other {DOGS}}} other {IT}} RAN."
    )
    # An apostrophe, or a brace, that the model writes has no meaning in the message.
    output, _ = one(
        "{n, plural, other {of {x} now}}", fake_engine(lambda t: t.replace("of ", "d'"))
    )
    assert output == "{n, plural, other {d''{x} now}}"
    output, _ = one("{n, plural, other {two dogs}}", fake_engine(lambda text: "zwei {Hunde"))
    assert output == "{n, plural, other {zwei '{'Hunde}}"


def test_spans_with_line_breaks_are_kept() -> None:
    text = "Hi {n, plural,\n one {a dog}\n other {# dogs}} there"
    output, _ = one(text, fake_engine(str.upper))
    assert output == "HI {n, plural,\n one {A DOG}\n other {# DOGS}} THERE"


def test_tags_for_languages_are_not_a_part_of_the_sentence() -> None:
    model = fake_engine(str, reverse, returns_alignments=True)
    [result] = translate_protected(model, ["a b"], tag="<2de>", needs_words=True)
    assert result.text == "b a <2de>" and [word.source for word in result.words[:2]] == [1, 0]


def test_the_word_before_which_something_is_inserted() -> None:
    assert [slot_of(position, 3, [2, 1, 0]) for position in range(4)] == [0, 1, 0, 3]
    assert slot_of(1, 3, []) == 0


def test_words_of_scripts_without_spaces_are_characters() -> None:
    text = "犬が {x} it's ภา न्यू"
    assert [word.text for word in words_of(text)] == ["犬", "が", "{x}", "it's", "ภ", "า", "न्यू"]
