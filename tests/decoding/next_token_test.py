"""Top-k in groups, and the normalization of logits."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.decoding import next_token
from keras_transformer.decoding.next_token import top_k
from tests.decoding.reference import log_softmax


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    size=st.sampled_from([2047, 2048, 2053, 4096, 5003, 8000]) | st.integers(2000, 9000),
    count=st.integers(1, 40) | st.sampled_from([70, 200, 2000]),
    values=st.sampled_from(["distinct", "tied", "mostly -inf", "equal"]),
)
def test_top_k_is_tensorflows(seed, size, count, values):
    random = np.random.default_rng(seed)
    logits = random.standard_normal((4, size)).astype(np.float32)
    if values == "tied":
        logits = np.floor(logits)
    elif values == "mostly -inf":
        logits[random.random(logits.shape) < 0.999] = -np.inf
    elif values == "equal":
        logits[:] = 1.5
    expected, indices = tf.math.top_k(logits, count)
    found, columns = top_k(tf.constant(logits), count)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(columns, indices)


@settings(max_examples=20)
@given(
    seed=st.integers(0, 2**31), size=st.sampled_from([50, 2048, 8000, 8020]), data=st.data(),
    count=st.integers(1, 10),
)  # fmt: skip
def test_top_k_finds_the_best_outside_of_excluded_columns(seed, size, data, count):
    excluded = sorted(data.draw(st.sets(st.integers(0, 30) | st.integers(0, size - 1))))
    logits = np.random.default_rng(seed).standard_normal((4, size)).astype(np.float32)
    logits[:, excluded[::2]] += 10
    penalties = np.zeros(size, np.float32)
    penalties[excluded] = -1e9
    found, columns = top_k(tf.constant(logits), count, penalties)
    expected, indices = tf.math.top_k(logits + penalties, count)
    np.testing.assert_array_equal(found, expected)
    if len(excluded) + count <= size:
        np.testing.assert_array_equal(columns, indices)


@pytest.mark.parametrize("size", [6, 2048, 2053])
def test_top_k_has_no_index_beyond_the_last(size):
    found, columns = top_k(tf.fill([2, size], np.nan), min(size, 10))
    assert found.shape == columns.shape == [2, min(size, 10)]
    assert (columns.numpy() < size).all()
    assert top_k(tf.zeros([2, size]), 3000)[0].shape == [2, size]


def test_top_k_of_an_unknown_size():
    function = tf.function(
        lambda values: top_k(values, 5), input_signature=[tf.TensorSpec([None, None])]
    )
    logits = np.random.default_rng(1).standard_normal((3, 2500)).astype(np.float32)
    np.testing.assert_array_equal(function(logits)[1], tf.math.top_k(logits, 5)[1])
    assert function(logits[:, :3])[0].shape == [3, 3]


@pytest.mark.parametrize("vocab", [7, 3001])
def test_log_probabilities_are_those_of_the_softmax(vocab):
    random = np.random.default_rng(vocab)
    logits = (5 * random.standard_normal((50, vocab)) + 40).astype(np.float32)
    logits[:3] = [[-99], [99], [0]]
    logits[3, :2] = 1e4, -1e4
    found = next_token.log_softmax(tf.constant(logits))
    np.testing.assert_allclose(found, log_softmax(logits), rtol=1e-6, atol=1e-5)
