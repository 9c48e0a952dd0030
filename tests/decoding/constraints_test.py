"""Constraints against plain Python over lists."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.config import DecodingConfig
from keras_transformer.decoding import NEG_INF, SearchConfig
from keras_transformer.decoding.constraints import Constraints, PartialOutputs

VOCAB, ROWS = 5, 8
PHRASES = st.lists(st.lists(st.integers(-1, VOCAB), max_size=4).map(tuple), max_size=4)


def permitted(output, banned, ngram):
    """True if the last token of `output` may follow the others."""
    if any(phrase and output[-len(phrase) :] == phrase for phrase in banned):
        return False
    earlier = [output[i : i + ngram] for i in range(len(output) - ngram)]
    return not (ngram and output[-ngram:] in earlier)


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    length=st.integers(0, 12),
    ngram=st.integers(0, 5),
    repetition=st.sampled_from([1.0, 1.5]),
    banned=PHRASES,
)
def test_any_history(seed, length, ngram, repetition, banned):
    random = np.random.default_rng(seed)
    histories = random.integers(0, 3, (ROWS, 12)).astype(
        np.int32
    )  # and for places after its length
    log_probs = -random.exponential(size=(ROWS, VOCAB)).astype(np.float32)
    config = DecodingConfig(repetition_penalty=repetition, no_repeat_ngram=ngram)
    outputs = PartialOutputs(tf.constant(histories), tf.constant(length))
    constraints = Constraints(SearchConfig(config, banned), VOCAB)
    found = constraints.apply(tf.constant(log_probs), outputs)
    for row in range(ROWS):
        tokens = tuple(histories[row, :length].tolist())
        for token in range(VOCAB):
            expected = log_probs[row, token] * (repetition if token in tokens else 1)
            if not permitted((*tokens, token), banned, ngram):
                expected = NEG_INF
            assert found[row, token].numpy() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("options", "banned", "some"),
    [
        ({}, (), False),
        ({}, ((), (VOCAB,), (1, -1)), False),
        ({}, ((1, 2),), True),
        ({"no_repeat_ngram": 3}, (), True),
        ({"repetition_penalty": 1.1}, (), True),
        ({"length_penalty": 2.0, "min_length": 4}, (), False),
    ],
)
def test_is_active(options, banned, some):
    config = SearchConfig(DecodingConfig(**options), banned)
    assert Constraints(config, VOCAB).is_active is some
