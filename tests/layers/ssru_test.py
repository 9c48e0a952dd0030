"""The recurrent unit against its definition, step by step, in graphs and with XLA."""

from typing import Any

import keras
import numpy as np
import pytest

from keras_transformer.layers import SSRU, DecodeState
from keras_transformer.layers.ssru import linear_recurrence
from tests import reference
from tests.layers.layer_check import assert_same, check_layer, randomize, to_numpy

B, T, D = 2, 5, 6
X = np.random.default_rng(5).normal(size=(B, T, D)).astype(np.float32)


def test_is_a_keras_layer() -> None:
    check_layer(SSRU, {"kernel_initializer": "he_normal"}, {"inputs": X}, X.shape)


def test_a_whole_sequence_and_single_steps_follow_the_definition() -> None:
    layer = SSRU()
    layer.build(X.shape)
    weights = {f"x/{path}": value for path, value in randomize(layer, scale=1.0).items()}
    expected = reference.ssru(X, weights, "x")
    assert_same(to_numpy(layer(X)), expected.astype(np.float32))
    # Two alternatives at each position. The first of them is always continued.
    cache: Any = layer.init_cache(B, 0, queries=2)
    for position in range(T):
        state = DecodeState([cache], position)
        step = np.stack([X[:, position], -X[:, position]], axis=1)
        output, _ = layer.attend(step, state=state)
        assert_same(to_numpy(output)[:, 0], expected[:, position].astype(np.float32))
        cache = {"cell": keras.ops.repeat(state.layers[0]["cell"][:, :1], 2, axis=1)}


def test_masked_positions_and_later_ones_change_nothing() -> None:
    layer = SSRU()
    layer.build(X.shape)
    randomize(layer, scale=1.0)
    gap = np.insert(X, 2, np.inf, axis=1)
    mask = np.arange(T + 1)[None] != np.full((B, 1), 2)
    assert_same(np.delete(to_numpy(layer(gap, mask=mask)), 2, axis=1), to_numpy(layer(X)))
    late = np.concatenate([X, np.full_like(X[:, :1], np.inf)], axis=1)
    assert_same(to_numpy(layer(late))[:, :T], to_numpy(layer(X)))


def test_the_bias_is_not_rounded() -> None:
    layer = SSRU(dtype="mixed_bfloat16")
    layer.build(X.shape)
    layer.forget_bias.assign(np.full(D, 1.001))
    state = DecodeState([{"cell": np.ones((1, 1, D), np.float32)}], 0)
    layer.attend(keras.ops.zeros((1, 1, D), "bfloat16"), state=state)
    cell = to_numpy(state.layers[0]["cell"])
    np.testing.assert_allclose(cell, 1 / (1 + np.exp(-1.001)), rtol=1e-6)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="only graphs of TensorFlow")
@pytest.mark.parametrize(("length", "jit_compile"), [(None, False), (None, True), (9, True)])
def test_gradients_are_the_same_for_unknown_lengths(length: Any, jit_compile: bool) -> None:
    import tensorflow as tf

    def loss_and_gradients(decay: Any, values: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch((decay, values))
            loss = tf.reduce_sum(linear_recurrence(decay, values) ** 2)
        return loss, *tape.gradient(loss, (decay, values))

    shape = tf.TensorSpec([None, length, D])
    graph = tf.function(loss_and_gradients, [shape] * 2, jit_compile=jit_compile, autograph=False)
    random = np.random.default_rng(1)
    decay = tf.constant(random.uniform(size=(B, 9, D)), tf.float32)
    values = tf.constant(random.normal(size=(B, 9, D)), tf.float32)
    for one, other in zip(graph(decay, values), loss_and_gradients(decay, values), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
