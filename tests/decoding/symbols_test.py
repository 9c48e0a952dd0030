"""Outputs with the symbols of their source, against plain Python."""

import functools
import itertools
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer import decoding
from keras_transformer.config import DecodingConfig
from keras_transformer.decoding import SearchInputs, SpecialIds, StepDecoder, SymbolIds
from keras_transformer.decoding.interface import rows_per_sentence
from tests.decoding.reference import log_softmax
from tests.decoding.strategies import SEARCHES, SEEDS

# PAD, UNKNOWN, START and END are 0 to 3, and 4 and 5 are ordinary.
END, ORDINARY, SINGLES, BEGINS, ENDS = 3, (4, 5), (6, 7), (8, 9), (10, 11)
SYMBOLS = (*SINGLES, *BEGINS, *ENDS)
IDS = SpecialIds(start=2, end=END, pad=0, unknown=1, symbols=SymbolIds(SYMBOLS, num_pairs=2))
VOCAB = 12


def search(logits, inputs, config, ids=IDS, banned=()):
    """Searches with a model whose logits `[sentence, V, V]` depend on the token before."""
    rows = rows_per_sentence(config)
    sentences = tf.repeat(tf.range(tf.shape(logits)[0]), rows)

    def step(tokens, position, cache):
        return tf.gather_nd(logits, tf.stack([cache, tokens], axis=1)), cache, None

    decoder = StepDecoder(step, sentences, VOCAB, rows)
    return decoding.search(decoder, inputs, config, ids, banned=banned)


@functools.cache
def compiled_search(config, *prefix):
    """The search as a graph of logits, counts of symbols, maximum lengths, and maybe a prefix."""
    signature = [tf.TensorSpec([None, VOCAB, VOCAB]), tf.TensorSpec([None, 6], tf.int32)]
    return tf.function(
        lambda logits, counts, max_lengths, *prefix: search(
            logits, SearchInputs(max_lengths, *prefix, symbol_counts=counts), config
        ),
        input_signature=[*signature, tf.TensorSpec([None], tf.int32), *prefix],
        autograph=False,
    )


def is_legal(output, counts):
    """Returns whether an output has all symbols, and pairs that occur once are well nested."""
    needed = dict(zip(SYMBOLS, counts, strict=True))
    if any(output.count(token) != needed[token] for token in SYMBOLS):
        return False
    closing = {end: begin for begin, end in zip(BEGINS, ENDS, strict=True)}
    pairs = {end: begin for end, begin in closing.items() if needed[end] == needed[begin] == 1}
    opened = []
    for token in output:
        if token in pairs.values():
            opened.append(token)
        elif token in pairs and (not opened or opened.pop() != pairs[token]):
            return False
    return True


def leaves_room(output, max_length):
    """Returns whether there is room for all symbols and the end token after ordinary tokens."""
    for position, token in enumerate(output):
        missing = sum(later in SYMBOLS for later in output[position:])
        if token in ORDINARY and missing and position + 1 + missing + 1 > max_length:
            return False
    return True


def legal_outputs(counts, max_length):
    """Yields all outputs: those that end, and those of the maximum length."""
    allowed = [*ORDINARY, *(token for token, n in zip(SYMBOLS, counts, strict=True) if n)]
    for length in range(max_length + 1):
        for tokens in itertools.product(allowed, repeat=length):
            if is_legal(tokens, counts) and leaves_room(tokens, max_length):
                yield tokens if length == max_length else (*tokens, END)


def tokens_of(result, sentence):
    lengths = result.lengths[sentence].numpy()
    rows = result.ids[sentence].numpy().tolist()
    return [tuple(row[:length]) for row, length in zip(rows, lengths, strict=True)]


@pytest.mark.parametrize(
    ("counts", "max_length"),
    [
        ([0, 0, 0, 0, 0, 0], 4),
        ([1, 0, 0, 0, 0, 0], 4),
        ([1, 2, 0, 0, 0, 0], 4),
        ([1, 0, 1, 0, 1, 0], 4),
        ([0, 0, 1, 1, 1, 1], 5),
        ([0, 0, 1, 1, 1, 1], 4),  # no room for the end token
    ],
)
def test_the_best_legal_output_is_found(counts, max_length):
    config = DecodingConfig(beam_size=3000, n_best=5)
    logits = np.random.default_rng(3).normal(size=(3, VOCAB, VOCAB)).astype(np.float32) * 2
    result = compiled_search(config)(logits, [counts] * 3, [max_length] * 3)
    log_probs = log_softmax(logits)
    for sentence in range(3):
        scores = {}
        for output in legal_outputs(counts, max_length):
            pairs = zip((IDS.start, *output), output, strict=False)
            total = sum(log_probs[sentence][pair] for pair in pairs)
            scores[output] = total / ((5 + len(output)) / 6) ** 0.6
        best = sorted(scores.values(), reverse=True)[:5]  # some are equal
        found = tokens_of(result, sentence)[: len(best)]
        assert len({*found}) == len(best)
        np.testing.assert_allclose([scores[tokens] for tokens in found], best, atol=1e-4)
        np.testing.assert_allclose(result.scores[sentence, : len(best)], best, atol=1e-4)


CONFIGS = {
    "beam": DecodingConfig(beam_size=3, n_best=2),
    "beam that stops early": DecodingConfig(beam_size=3, early_stopping="marian"),
    "greedy": DecodingConfig(beam_size=1),
    "sampling": DecodingConfig(sample=True, n_best=3, top_k=2, top_p=0.5),
    "other rules": DecodingConfig(
        beam_size=2, n_best=2, no_repeat_ngram=1, repetition_penalty=1.5, min_length=2
    ),
}
COUNTS = st.tuples(
    *[st.sampled_from([0, 0, 1, 2, 3])] * 2,
    # Pairs, symbols without the other one, and repeated pairs
    *[st.sampled_from([(0, 0), (1, 1), (1, 1), (0, 1), (1, 0), (2, 2), (1, 2)])] * 2,
).map(lambda drawn: [*drawn[:2], drawn[2][0], drawn[3][0], drawn[2][1], drawn[3][1]])


@settings(max_examples=30)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@given(seed=SEEDS, counts=st.lists(COUNTS, min_size=1, max_size=4), room=st.integers(0, 4))
def test_every_output_has_all_symbols(config, seed, counts, room):
    random = np.random.default_rng(seed)
    logits = 5 * random.normal(size=(len(counts), VOCAB, VOCAB)).astype(np.float32)
    max_lengths = [max(sum(row) + room, 1) for row in counts]
    result = compiled_search(config)(logits, counts, max_lengths)
    for sentence, (row, max_length) in enumerate(zip(counts, max_lengths, strict=True)):
        outputs = [tokens for tokens in tokens_of(result, sentence) if tokens]
        assert outputs
        for tokens in outputs:
            assert len(tokens) <= max_length
            assert is_legal(tokens, row)


@SEARCHES
@given(seed=SEEDS, prefix=st.lists(st.sampled_from([*ORDINARY, *SYMBOLS]), max_size=5))
def test_prefixes_may_have_any_symbols(seed, prefix):
    """The rest of an output has the symbols that its prefix lacks."""
    counts = [1, 0, 1, 0, 1, 0]
    logits = np.random.default_rng(seed).normal(size=(1, VOCAB, VOCAB)).astype(np.float32)
    given_ids = np.array([prefix], np.int32).reshape(1, -1)
    searched = compiled_search(DecodingConfig(beam_size=2), tf.TensorSpec([None, None], tf.int32))
    result = searched(logits, [counts], [9], given_ids)
    [tokens] = tokens_of(result, 0)
    assert tokens[: len(prefix)] == tuple(prefix)
    needed = Counter(prefix) | Counter({6: 1, 8: 1, 10: 1})
    assert {token: tokens.count(token) for token in SYMBOLS} == {
        token: needed[token] for token in SYMBOLS
    }


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_without_symbols_in_the_source_they_are_only_excluded(config):
    random = np.random.default_rng(1)
    logits = random.normal(size=(20, VOCAB, VOCAB)).astype(np.float32)
    max_lengths = tf.fill([20], 6)
    result = compiled_search(config)(logits, tf.zeros([20, 6], tf.int32), max_lengths)
    ids, banned = IDS._replace(symbols=None), [[token] for token in SYMBOLS]
    expected = search(logits, SearchInputs(max_lengths), config, ids, banned)
    np.testing.assert_array_equal(result.ids, expected.ids)
    np.testing.assert_allclose(result.scores, expected.scores, rtol=1e-6)


@pytest.mark.parametrize("vocab_size", [3000, 8000])
def test_symbols_of_a_large_vocabulary_are_found_anywhere(vocab_size):
    """A large vocabulary is searched in groups. The best scores are those of other symbols."""
    random = np.random.default_rng(2)
    tokens = random.choice(np.arange(4, vocab_size), 40, replace=False).tolist()
    symbols = SymbolIds(tokens, num_pairs=15)
    logits = random.normal(size=(1, vocab_size)).astype(np.float32)
    logits[0, tokens] = 20
    logits[0, tokens[3]] = -20
    decoder = StepDecoder(
        lambda ids, _, cache: (tf.repeat(logits, len(ids), axis=0), cache, None),
        (), vocab_size, 4,
    )  # fmt: skip
    counts = np.zeros([2, 40], np.int32)
    counts[1, 3] = 1
    result = decoding.search(
        decoder,
        SearchInputs(tf.constant([3, 3]), symbol_counts=counts),
        DecodingConfig(beam_size=4, n_best=4, length_penalty=0),
        SpecialIds(2, 3, 0, symbols=symbols),
    )
    log_probs = log_softmax(logits)[0]
    order = [token for token in np.argsort(-log_probs) if token not in (0, 2, 3, *tokens)]
    assert tokens_of(result, 0)[0] in [(3,), (order[0],) * 3]
    assert {found.count(tokens[3]) for found in tokens_of(result, 1)} == {1}
    assert np.isfinite(result.scores).all() and (result.scores.numpy() > -100).all()
