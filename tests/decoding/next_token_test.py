"""The best next tokens: grouped top-k, and the model's distribution under constraints."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.decoding import NEG_INF, SpecialIds
from keras_transformer.decoding.constraints import PartialOutputs
from keras_transformer.decoding.next_token import NextTokenScores, top_k
from tests.decoding.reference import log_softmax

IDS = SpecialIds(start=2, end=3, pad=0)


def empty_outputs(rows):
    return PartialOutputs(tf.zeros([rows, 1], tf.int32), tf.constant(0))


def assert_same_top_k(values, count):
    expected, indices = tf.math.top_k(values, count)
    found, places = top_k(tf.constant(values), count)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(places, indices)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    size=st.sampled_from([2047, 2048, 2053, 4096, 5003, 8000]) | st.integers(2000, 9000),
    count=st.integers(1, 40),
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
    assert_same_top_k(logits, count)


@pytest.mark.parametrize("size", [2048, 2053, 8000])
@pytest.mark.parametrize("count", [30, 32, 33, 70, 200, 2048])
def test_top_k_of_more_than_there_are_groups(size, count):
    logits = np.random.default_rng(count).integers(-99, 99, (3, size)).astype(np.float32)
    assert_same_top_k(logits, count)


@pytest.mark.parametrize("size", [6, 2048, 2053])
def test_top_k_is_at_most_all_and_names_no_index_beyond_the_last(size):
    found, places = top_k(tf.fill([2, size], np.nan), min(size, 10))
    assert found.shape == places.shape == [2, min(size, 10)]
    assert (places.numpy() < size).all()
    assert top_k(tf.zeros([2, size]), 3000)[0].shape == [2, size]


def test_top_k_of_an_unknown_size():
    function = tf.function(
        lambda values: top_k(values, 5), input_signature=[tf.TensorSpec([None, None])]
    )
    logits = np.random.default_rng(1).standard_normal((3, 2500)).astype(np.float32)
    np.testing.assert_array_equal(function(logits)[1], tf.math.top_k(logits, 5)[1])
    assert function(logits[:, :3])[0].shape == [3, 3]


@pytest.mark.parametrize("vocab", [7, 3001])
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_log_probabilities_are_those_of_the_softmax(vocab, dtype):
    random = np.random.default_rng(vocab)
    logits = tf.cast(5 * random.standard_normal((50, vocab)) + 40, dtype)
    following = NextTokenScores(logits, empty_outputs(50), IDS)
    expected = log_softmax(tf.cast(logits, tf.float64).numpy())
    best = following.top(4)
    assert best.log_probs.dtype == tf.float32
    allowed = best.log_probs.numpy() > NEG_INF / 2
    assert (allowed.sum(1) >= 4).all()
    at_tokens = np.take_along_axis(expected, best.tokens.numpy(), 1)
    np.testing.assert_allclose(best.log_probs.numpy()[allowed], at_tokens[allowed], atol=1e-5)
    expected[:, IDS.excluded] = NEG_INF
    np.testing.assert_allclose(following.all(), expected, rtol=1e-6, atol=1e-5)
    best_four = np.sort(expected, 1)[:, :-5:-1]
    np.testing.assert_allclose(-np.sort(-best.log_probs.numpy(), 1)[:, :4], best_four, atol=1e-5)


def test_distributions_as_sharp_and_as_flat_as_float32_has_them():
    logits = np.float32([[0, 0, 0, 0, 1e4, -1e4], [0] * 6, [-99] * 6, [99] * 6])
    best = NextTokenScores(logits, empty_outputs(4), IDS).top(1)
    found = best.log_probs.numpy().max(1)
    np.testing.assert_allclose(found, [0, *[-np.log(6)] * 3], atol=1e-5)


def test_no_numbers_are_no_continuations():
    logits = np.zeros([3, 6], np.float32)
    logits[0, 4], logits[1], logits[2, 4] = np.nan, -np.inf, np.inf
    following = NextTokenScores(logits, empty_outputs(3), IDS)
    assert (following.top(2).log_probs.numpy() == NEG_INF).all()
    assert (following.all().numpy() == NEG_INF).all()


@pytest.mark.parametrize("vocab", [6, 2500])
def test_a_forced_token_comes_whatever_else_is_said(vocab):
    logits = np.random.default_rng(0).standard_normal((3, vocab)).astype(np.float32)
    forced = tf.constant([-1, 3, 5])
    outputs = empty_outputs(3)._replace(forced=forced)
    following = NextTokenScores(logits, outputs, IDS, min_length=9)
    best, expected = following.top(3), log_softmax(logits)
    for row, token in ((1, 3), (2, 5)):
        assert (best.tokens.numpy()[row] == token).all()
        np.testing.assert_allclose(best.log_probs.numpy()[row, 0], expected[row, token], atol=1e-6)
        assert (best.log_probs.numpy()[row, 1:] == NEG_INF).all()
        only = np.full(vocab, NEG_INF)
        only[token] = expected[row, token]
        np.testing.assert_allclose(following.all()[row], only, rtol=1e-6)
    assert following.all().numpy()[0, 3] == NEG_INF  # the end token, too early
    assert (best.log_probs.numpy()[0] > NEG_INF / 2).sum() >= 3
