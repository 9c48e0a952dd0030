"""Generated texts cover symbols and classes of characters, and are always the same."""

from __future__ import annotations

import unicodedata

import pytest

from keras_transformer.export.probes import ProbeTexts, probe_texts, token_difference
from keras_transformer.text.vocabulary import Vocabulary, learn_vocabulary
from tests.conftest import PHRASES
from tests.messages import tells

SYMBOLS = ["<2de>", "<2fr>", "\U0001f44d"]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    lines = [phrase.encode() for phrase in PHRASES]
    return Vocabulary(learn_vocabulary(lines, 70, symbols=SYMBOLS))


@pytest.fixture(scope="module")
def probes(vocabulary: Vocabulary) -> ProbeTexts:
    return probe_texts(vocabulary, PHRASES)


def test_equal_arguments_give_equal_texts(vocabulary: Vocabulary, probes: ProbeTexts) -> None:
    assert probe_texts(vocabulary, PHRASES) == probes
    assert probe_texts(vocabulary, PHRASES, seed=2) != probes
    assert len(set(probes.tokenized)) == len(probes.tokenized) < 3000


def test_every_symbol_is_in_every_place(probes: ProbeTexts) -> None:
    texts = set(probes.tokenized)
    words = {word for phrase in PHRASES for word in phrase.split()}
    for symbol in SYMBOLS:
        assert {symbol, symbol * 2, symbol[:-1]} <= texts
        assert any(text.startswith(symbol) and text[len(symbol) :] in words for text in texts)
        assert any(text.endswith(symbol) and text[: -len(symbol)] in words for text in texts)
        assert sum(symbol in text.strip(symbol) for text in texts) > 10
    assert "<2de>\u0338" in texts  # normalization composes the last two characters


def test_every_class_of_characters_is_alone_and_in_mixtures(probes: ProbeTexts) -> None:
    categories = {unicodedata.category(chr(code)) for code in range(0x30000)} - {"Cs"}
    single = {unicodedata.category(text) for text in probes.tokenized if len(text) == 1}
    assert single == categories
    mixed = [text for text in probes.tokenized if any(symbol in text for symbol in SYMBOLS)]
    assert {unicodedata.category(character) for text in mixed for character in text} == categories
    for text in ("", " ", "\t", "\u3000", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "a" * 1000):
        assert text in probes.tokenized
    for text in probes.tokenized:
        text.encode()  # also for surrogates, which would fail


def test_a_few_short_texts_are_translated(vocabulary: Vocabulary, probes: ProbeTexts) -> None:
    assert len(probes.translated) == 20
    assert set(probes.translated) <= set(probes.tokenized)
    assert any(symbol in text for text in probes.translated for symbol in SYMBOLS)
    ids = vocabulary.encode_source([text.encode() for text in probes.translated])
    assert min(map(len, ids)) > 1


def test_a_vocabulary_without_symbols_and_sentences() -> None:
    plain = Vocabulary(learn_vocabulary([b"the cat sees the dog"], 30))
    assert len(probe_texts(plain, [""]).translated) == 20


def test_differences_are_shown_where_they_are() -> None:
    own, other = list(range(100, 150)), list(range(100, 150))
    other[30] = 7
    message = token_difference(["a", "b\u0301" * 50], [[4], own], [[4], other]) or ""
    assert r"b\u0301b" in message and tells(message, "129 130 131", "129 7 131")
    assert "100" not in message and "149" not in message and len(message) < 400
    assert token_difference(["a"], [own], [own]) is None
    assert tells(token_difference(["a"], [[4, 3]], [[]]) or "", "'a'", "4 3", "none")
