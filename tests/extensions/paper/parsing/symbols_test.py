"""A vocabulary of symbols has one piece for each, in every tool that reads it."""

from __future__ import annotations

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.data.subwords import SubwordSampler
from keras_transformer.errors import InputError
from keras_transformer.extensions.paper.parsing.symbols import (
    is_parser,
    require_parser,
    symbol_model,
    symbols_by_id,
    word_boundaries,
)
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.vocabulary import Vocabulary, learn_vocabulary
from tests.messages import mentions

# Some are prefixes of others, and some have characters that SentencePiece splits off.
SYMBOLS = ["XX", "NN", "NNS", "(S", "(SBAR", ")S", ")SBAR", "(X|Y", ")X|Y", "``", ",", "é"]
WORDS = learn_vocabulary([b"the old mice eat seeds", b"the lab is old"], 40)
MODEL = symbol_model(SYMBOLS)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(WORDS, MODEL)


@settings(deadline=None)
@given(symbols=st.lists(st.sampled_from(SYMBOLS), max_size=20))
def test_every_symbol_is_one_piece(tokenizer: Tokenizer, symbols: list[str]) -> None:
    vocabulary, text = tokenizer.vocabulary, " ".join(symbols)
    by_id = symbols_by_id(vocabulary)
    assert by_id is not None
    (ids,) = vocabulary.encode_target([text.encode()])
    assert [by_id[i] for i in ids] == [*symbols, ""]  # the end id
    assert ids[-1] == vocabulary.end_id
    row = tokenizer.tokenize_target(tf.constant([text]))
    assert row.to_list() == [ids]
    assert tokenizer.detokenize(row.to_tensor(), tf.constant([len(ids)])).numpy() == [text.encode()]
    assert vocabulary.target_text(ids) == text


def test_the_special_ids_are_those_of_all_vocabularies(tokenizer: Tokenizer) -> None:
    ids = (tokenizer.pad_id, tokenizer.unknown_id, tokenizer.start_id, tokenizer.end_id)
    assert ids == (0, 1, 2, 3)
    assert tokenizer.target_vocab_size == 5 + len(SYMBOLS)


def test_a_missing_symbol_is_unknown(tokenizer: Tokenizer) -> None:
    (ids,) = tokenizer.vocabulary.encode_target([b"(S (INTJ XX )INTJ )S"])
    by_id = symbols_by_id(tokenizer.vocabulary) or []
    assert [by_id[i] for i in ids if by_id[i]] == ["(S", "XX", ")S"]
    assert ids.count(tokenizer.unknown_id) == 2


def test_target_tokens_belong_to_words(tokenizer: Tokenizer) -> None:
    vocabulary = tokenizer.vocabulary
    begins, stands = word_boundaries(vocabulary) or ([], [])
    assert (len(begins), len(stands)) == (tokenizer.source_vocab_size, 5 + len(SYMBOLS))
    words = "the old mice eat seeds"
    (source,) = vocabulary.encode_source([words.encode()])
    assert len(source) > 6  # some words have several pieces
    assert sum(begins[i] for i in source) == 5 + 1 and begins[source[-1]]
    (target,) = vocabulary.encode_target([b"(S NN NNS , )S XX"])
    assert [stands[i] for i in target] == [False, True, True, True, False, True, False]
    assert word_boundaries(Vocabulary(WORDS)) is None


def test_no_other_segmentation_is_ever_drawn(tokenizer: Tokenizer) -> None:
    sampler = SubwordSampler(tokenizer.vocabulary, 0.01)
    for symbol in SYMBOLS:
        cumulative, _, ids = sampler._target._segmentations(f"\u2581{symbol}".encode())
        assert list(cumulative) == [1.0]
        assert len(ids) in (4, 8)  # the symbol, perhaps after a space


def test_the_same_symbols_give_the_same_bytes() -> None:
    assert symbol_model(SYMBOLS) == MODEL


@pytest.mark.parametrize(
    "vocabulary",
    [
        Vocabulary(WORDS),
        Vocabulary(MODEL, WORDS),
        Vocabulary(WORDS, learn_vocabulary([b"(S XX )S"] * 3, 20, symbols=["(S", ")S", "XX"])),
        Vocabulary(WORDS, symbol_model([])),
    ],
    ids=["joint", "the wrong way round", "learned, with symbols", "no symbols"],
)
def test_other_models_are_refused_as_parsers(vocabulary: Vocabulary) -> None:
    assert not is_parser(vocabulary)
    with pytest.raises(InputError, match=mentions("build/run", "parser", "vocabulary")):
        require_parser(vocabulary, "build/run")
