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


@settings(max_examples=60, deadline=None)
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
    found, places = top_k(tf.constant(logits), count)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(places, indices)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    size=st.sampled_from([6, 2047, 2053, 8000]),
    count=st.integers(1, 6),
    num_forbidden=st.integers(0, 4),
    as_array=st.booleans(),
)
def test_penalties_are_added_to_all_values(seed, size, count, num_forbidden, as_array):
    """The forbidden tokens are often the best ones, alone in their group or not."""
    random = np.random.default_rng(seed)
    values = np.floor(3 * random.standard_normal((4, size))).astype(np.float32)
    forbidden = random.permutation(size)[:num_forbidden]
    values[random.random((4, size)) < 0.001] = values[:2, forbidden] = 99
    penalties = np.zeros(size, np.float32)
    penalties[forbidden] = NEG_INF
    expected, indices = tf.math.top_k(values + penalties, count)
    given = penalties if as_array else tf.constant(penalties)
    found, places = top_k(tf.constant(values), count, None, given, num_forbidden)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(places, indices)


@pytest.mark.parametrize("min_length", [0, 3])
@pytest.mark.parametrize("are_log_probs", [False, True])
def test_the_best_of_all_tokens(min_length, are_log_probs):
    logits = np.random.default_rng(4).standard_normal((6, 2500)).astype(np.float32)
    logits[:3, [*IDS.excluded, IDS.end]] = 9  # the best ones
    scores = NextTokenScores.from_model(
        logits, empty_outputs(6), IDS, min_length=min_length, are_log_probs=are_log_probs
    )
    log_probs, tokens = scores.top(8)
    expected, indices = tf.math.top_k(scores.log_probs, 8)
    np.testing.assert_array_equal(tokens, indices)
    np.testing.assert_allclose(log_probs, expected, rtol=1e-6)
    assert (IDS.end in tokens.numpy()[:3]) == (min_length == 0)


@pytest.mark.parametrize("size", [6, 2048, 2053])
def test_top_k_has_no_index_beyond_the_last(size):
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
    scores = NextTokenScores.from_model(logits, empty_outputs(50), IDS)
    expected = log_softmax(tf.cast(logits, tf.float64).numpy())
    np.testing.assert_allclose(scores.model_log_probs, expected, atol=1e-5)
    expected[:, IDS.excluded] = NEG_INF
    np.testing.assert_allclose(scores.log_probs, expected, rtol=1e-6, atol=1e-5)
    log_probs, tokens = scores.top(4)
    assert log_probs.dtype == tf.float32
    np.testing.assert_allclose(log_probs, np.sort(expected, 1)[:, :-5:-1], atol=1e-5)
    found = np.take_along_axis(expected, tokens.numpy(), 1)
    np.testing.assert_allclose(log_probs, found, atol=1e-5)


def test_softmax_is_stable_at_the_limits_of_float32():
    logits = np.float32([[0, 0, 0, 0, 1e4, -1e4], [0] * 6, [-99] * 6, [99] * 6])
    best, _ = NextTokenScores.from_model(logits, empty_outputs(4), IDS).top(1)
    np.testing.assert_allclose(best[:, 0], [0, *[-np.log(6)] * 3], atol=1e-5)


def test_rows_that_are_not_finite_have_no_continuations():
    logits = np.zeros([3, 6], np.float32)
    logits[0, 4], logits[1], logits[2, 4] = np.nan, -np.inf, np.inf
    best, _ = NextTokenScores.from_model(logits, empty_outputs(3), IDS).top(2)
    assert (best.numpy() == NEG_INF).all()


@pytest.mark.parametrize("vocab", [6, 2500])
def test_a_forced_token_overrides_all_constraints(vocab):
    logits = np.random.default_rng(0).standard_normal((3, vocab)).astype(np.float32)
    outputs = empty_outputs(3)._replace(forced=tf.constant([-1, 3, 5]))
    scores = NextTokenScores.from_model(logits, outputs, IDS, min_length=9)
    log_probs, tokens = scores.top(3)
    expected = log_softmax(logits)
    for row, token in ((1, 3), (2, 5)):
        assert tokens[row, 0] == token
        only = np.full(vocab, NEG_INF)
        only[token] = expected[row, token]
        np.testing.assert_allclose(scores.log_probs[row], only, rtol=1e-6)
        assert (log_probs[row, 1:].numpy() == NEG_INF).all()
    assert scores.log_probs[0, 3] < NEG_INF / 2  # the end token, too early
    assert (log_probs[0].numpy() > NEG_INF / 2).all()
