"""What is counted in graphs, against graphs made by hand and formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from complexity.graph import Graph

from keras_transformer.layers import SelfAttention
from tests.messages import mentions

N, D = 6, 4


def graph(function: Callable[..., Any], *shape: int) -> Graph:
    spec = tf.TensorSpec(shape or (N, D), tf.float32)
    return Graph(tf.function(function, autograph=False).get_concrete_function(spec))


def loop(body: Callable[[Any], Any], x: Any, turns: Any) -> Any:
    return tf.while_loop(
        lambda i, _: i < turns, lambda i, x: (i + 1, body(x)), (tf.constant(0), x)
    )[1]


def two_paths(x: tf.Tensor) -> tf.Tensor:
    return tf.tanh(tf.tanh(tf.tanh(x))) * tf.exp(x)


def moved(x: tf.Tensor) -> tf.Tensor:
    x = tf.transpose(tf.reshape(x, [2, -1]))
    return tf.concat([x, tf.pad(x[:1], [[0, 1], [0, 0]])], axis=0)


@pytest.mark.parametrize(
    "function, expected",
    [
        (lambda x: tf.identity(x), 0),
        (tf.tanh, 1),
        (lambda x: tf.linalg.matmul(x, x, transpose_b=True) + 1.0, 2),
        (two_paths, 4),
        (moved, 0),
        (lambda x: [tf.tanh(x), tf.tanh(tf.tanh(x))], 2),
        (tf.function(two_paths), 4),  # behind a call
        (lambda x: tf.tanh(tf.function(two_paths)(tf.tanh(x))), 6),
        (lambda x: loop(tf.tanh, x, 7), 7),
        (lambda x: tf.tanh(loop(two_paths, tf.tanh(x), 7)), 1 + 4 * 7 + 1),
        (lambda x: loop(lambda y: loop(tf.tanh, y, 3), x, 5), 15),
        # A chain of three in each turn, but only the sum waits for the turn before.
        (lambda x: loop(lambda y: y + tf.tanh(tf.tanh(tf.tanh(x))), x, 7), 3 + 7),
    ],
)
def test_sequential_operations(function: Callable[..., Any], expected: int) -> None:
    # A loop counts its turns as well: a chain of as many sums, never longer than these.
    assert graph(function).sequential_operations() == expected


@pytest.mark.parametrize("layer", [keras.layers.LSTM, keras.layers.GRU])
def test_a_loop_is_as_long_as_if_it_were_unrolled(layer: Any) -> None:
    rolled, unrolled = (
        graph(layer(D, return_sequences=True, unroll=unroll), 1, N, D) for unroll in (False, True)
    )
    assert rolled.sequential_operations() == unrolled.sequential_operations() > 5 * N
    assert sum(rolled.flop().values()) == sum(unrolled.flop().values())


def test_a_loop_with_an_unknown_number_of_iterations_is_refused() -> None:
    made = graph(lambda x: loop(tf.tanh, x, tf.cast(x[0, 0], tf.int32)))
    with pytest.raises(ValueError, match=mentions("loop", "unknown")):
        made.sequential_operations()


@pytest.mark.parametrize(
    "make, expected",
    [
        (lambda: keras.layers.Dense(5, use_bias=False), 2 * N * D * 5),
        (lambda: keras.layers.Conv1D(5, 3, padding="same"), 2 * N * 3 * D * 5),
        (lambda: keras.layers.Conv1D(5, 3, padding="causal", dilation_rate=2), 2 * N * 3 * D * 5),
        (lambda: keras.layers.SeparableConv1D(5, 3, padding="same"), 2 * N * (3 * D + D * 5)),
        # Four gates of the input and of the state; three.
        (lambda: keras.layers.LSTM(5, return_sequences=True), 2 * N * 4 * (D + 5) * 5),
        (lambda: keras.layers.GRU(5, return_sequences=True), 2 * N * 3 * (D + 5) * 5),
        (lambda: SelfAttention(2, 3), 2 * N * (D * 18 + 6 * D) + 2 * 2 * 2 * N * N * 3),
    ],
)
def test_flop(make: Callable[[], keras.Layer], expected: int) -> None:
    layer = make()  # not where tests are collected, before the CPU is split
    found = sum(graph(layer, 1, N, D).flop().values())
    if "dilation_rate" in layer.get_config() and layer.get_config()["dilation_rate"] == (2,):
        # Between its two halves TensorFlow fills up, and cuts off.
        assert expected <= found <= 1.5 * expected
    else:
        assert found == expected


def test_flop_of_transposed_products_and_calls() -> None:
    def products(x: tf.Tensor) -> tf.Tensor:
        inner = tf.function(lambda x: tf.linalg.matmul(x, x, transpose_a=True))
        return loop(inner, tf.linalg.matmul(x, x, transpose_a=True), 3)

    assert graph(products).flop() == {"MatMul": 2 * D * D * N + 3 * 2 * D**3}
    batches = graph(lambda x: tf.linalg.matmul(x, x, adjoint_a=True), 7, N, D)
    assert batches.flop() == {"BatchMatMulV2": 7 * 2 * D * D * N}


def test_largest_tensor() -> None:
    made = graph(lambda x: tf.reduce_sum(x[:, None] * x[None], axis=0))
    assert made.largest_tensor() == N * N * D
    inside = graph(lambda x: loop(lambda y: tf.reduce_sum(y[:, None] * y[None], axis=0), x, 3))
    assert inside.largest_tensor() == N * N * D
    unknown = tf.function(lambda x: x + 1.0).get_concrete_function(tf.TensorSpec([None]))
    with pytest.raises(ValueError, match=mentions("AddV2", "shape")):
        Graph(unknown).largest_tensor()


def both_passes(layer: SelfAttention, length: int) -> list[Graph]:
    layer.build((None, None, D))
    mask = np.arange(length) < np.array([[[length]], [[length // 2]]])
    spec = tf.TensorSpec((2, length, D), tf.float32)

    def backward(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(layer(x, mask, training=True))
        return tape.gradient(total, [x, *[v.value for v in layer.trainable_weights]])

    functions = (lambda x: layer(x, mask), backward)
    return [Graph(tf.function(f, autograph=False).get_concrete_function(spec)) for f in functions]


@pytest.mark.parametrize("causal", [False, True])
def test_restricted_self_attention_has_no_tensor_of_n_squared_numbers(causal: bool) -> None:
    def largest(length: int, window: int | None) -> list[int]:
        layer = SelfAttention(3, 2, causal=causal, window=window, dropout=0.1)
        return [each.largest_tensor() for each in both_passes(layer, length)]

    assert min(largest(512, None)) >= 2 * 3 * 512**2
    # Linear in n, and in r where r is more than the least size of a block.
    np.testing.assert_allclose(largest(4096, 100), np.multiply(2, largest(2048, 100)), rtol=0.01)
    for small, large in zip(largest(4096, 100), largest(4096, 200), strict=True):
        assert small < 2 * 3 * 4096 * 201 and large <= 2.1 * small


def test_restricted_self_attention_multiplies_what_a_window_has() -> None:
    def attending(length: int, window: int) -> int:
        layer = SelfAttention(3, 2, window=window)
        return both_passes(layer, length)[0].flop()["BatchMatMulV2"]

    np.testing.assert_allclose(attending(4096, 100), 2 * attending(2048, 100), rtol=0.01)
    needed = 2 * 2 * 2 * 3 * 2 * 4096 * 101  # batch, products, terms, heads, dim, pairs
    assert needed <= attending(4096, 100) <= 2 * needed
