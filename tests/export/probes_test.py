"""Generated texts cover symbols and classes of characters, and are always the same."""

import unicodedata

import pytest

from keras_transformer.export.probes import probe_texts, texts_to_translate, token_difference
from keras_transformer.text.vocabulary import Vocabulary, learn_vocabulary
from tests.conftest import PHRASES
from tests.messages import tells

SYMBOLS = ["<2de>", "<2fr>", "\U0001f44d"]


@pytest.fixture(scope="module")
def vocabulary():
    lines = [phrase.encode() for phrase in PHRASES]
    return Vocabulary(learn_vocabulary(lines, 70, symbols=SYMBOLS))


@pytest.fixture(scope="module")
def probes(vocabulary):
    return probe_texts(vocabulary, PHRASES)


def test_equal_arguments_give_equal_texts(vocabulary, probes):
    assert probe_texts(vocabulary, PHRASES) == probes
    assert probe_texts(vocabulary, PHRASES, seed=2) != probes
    assert len(set(probes)) == len(probes) < 3000


def test_every_symbol_is_in_every_place(probes):
    texts = set(probes)
    words = {word for phrase in PHRASES for word in phrase.split()}
    for symbol in SYMBOLS:
        assert {symbol, symbol * 2, symbol[:-1]} <= texts
        assert any(text.startswith(symbol) and text[len(symbol) :] in words for text in texts)
        assert any(text.endswith(symbol) and text[: -len(symbol)] in words for text in texts)
        assert sum(symbol in text.strip(symbol) for text in texts) > 10
    assert "<2de>\u0338" in texts  # normalization composes the last two characters


def test_every_class_of_characters_is_alone_and_in_mixtures(probes):
    categories = {unicodedata.category(chr(code)) for code in range(0x30000)} - {"Cs"}
    single = {unicodedata.category(text) for text in probes if len(text) == 1}
    assert single == categories
    mixed = [text for text in probes if any(symbol in text for symbol in SYMBOLS)]
    assert {unicodedata.category(character) for text in mixed for character in text} == categories
    for text in ("", " ", "\t", "\u3000", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "a" * 1000):
        assert text in probes
    for text in probes:
        text.encode()  # also for surrogates, which would fail


def test_a_few_short_texts_are_translated(vocabulary, probes):
    chosen = texts_to_translate(vocabulary, probes)
    assert len(set(chosen)) == 20 and set(chosen) <= set(probes)
    assert sum(any(symbol in text for symbol in SYMBOLS) for text in chosen) >= 6
    ids = vocabulary.encode_source([text.encode() for text in chosen])
    assert min(map(len, ids)) > 1
    plain = Vocabulary(learn_vocabulary([b"the cat sees the dog"], 30))  # without symbols
    assert len(texts_to_translate(plain, probe_texts(plain, [""]))) == 20


def test_differences_are_shown_where_they_are():
    own, other = list(range(100, 150)), list(range(100, 150))
    other[30] = 7
    message = token_difference(["a", "b\u0301" * 50], [[4], own], [[4], other]) or ""
    assert r"b\u0301b" in message and tells(message, "30 equal", "[7, 131", "[130, 131")
    assert "129" not in message and "149" not in message and len(message) < 400
    assert token_difference(["a"], [own], [own]) is None
    assert tells(token_difference(["a"], [[4, 3]], [[]]) or "", "'a'", "[4, 3]", "[]")
