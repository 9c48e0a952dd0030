"""Constraints against plain Python over lists."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from keras_transformer.config import DecodingConfig
from keras_transformer.decoding import NEG_INF, SpecialIds
from keras_transformer.decoding.constraints import Constraints

VOCAB, ROWS = 5, 8
IDS = SpecialIds(start=4, end=3, pad=4)
PHRASES = st.lists(st.lists(st.integers(0, 3), max_size=4).map(tuple), max_size=4)


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
    histories = random.integers(0, 3, (ROWS, 12)).astype(np.int32)  # also behind its length
    log_probs = -random.exponential(size=(ROWS, VOCAB)).astype(np.float32)
    config = DecodingConfig(repetition_penalty=repetition, no_repeat_ngram=ngram)
    assume(not {(0,), (1,), (2,), (3,)} <= set(banned))
    rules = Constraints(config, IDS, VOCAB, banned)
    found = rules.apply(tf.constant(log_probs), None, tf.constant(histories), tf.constant(length))
    for row in range(ROWS):
        tokens = tuple(histories[row, :length].tolist())
        for token in range(VOCAB):
            expected = log_probs[row, token] * (repetition if token in tokens else 1)
            if token == IDS.pad or not permitted((*tokens, token), banned, ngram):
                expected = NEG_INF
            assert found[row, token].numpy() == pytest.approx(expected)
