"""Layer norm against its formula."""

import keras
import numpy as np
import pytest

from keras_transformer.layers import LayerNorm
from tests.layers.layer_check import assert_same, check_layer, randomize, to_numpy

X = np.random.default_rng(5).normal(1.0, 2.0, size=(2, 5, 6)).astype(np.float32)


def test_output_is_the_formula() -> None:
    layer = LayerNorm(epsilon=1e-3)
    layer.build(X.shape)
    weights = randomize(layer)
    [gamma], [beta] = ([v for k, v in weights.items() if k.endswith(n)] for n in ("gamma", "beta"))
    x = X.astype(np.float64)
    deviation = np.sqrt(x.var(-1, keepdims=True) + 1e-3)
    expected = gamma * (x - x.mean(-1, keepdims=True)) / deviation + beta
    for training in (False, True):
        assert_same(to_numpy(layer(X, training=training)), expected)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="needs tf.GradientTape")
@pytest.mark.parametrize("rows", [(10,), (2, 5)])
def test_closed_form_gradient_equals_the_automatic_one(rows: tuple[int, ...]) -> None:
    import tensorflow as tf

    layer = LayerNorm(epsilon=1e-3)
    inputs = tf.constant(X.reshape(*rows, 6))
    layer.build(inputs.shape)
    randomize(layer)

    def gradients(training: bool) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            total = tf.reduce_sum(layer(inputs, training=training) ** 3)
        result: list[tf.Tensor] = tape.gradient(total, [inputs, layer.gamma, layer.beta])
        return result

    for closed_form, automatic in zip(gradients(True), gradients(False), strict=True):
        np.testing.assert_allclose(closed_form, automatic, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_it_is_computed_in_float32(dtype: str) -> None:
    layer = LayerNorm(dtype=f"mixed_{dtype}")
    # The squares overflow in float16, and bfloat16 cannot represent the differences.
    x = keras.ops.cast(1000.0 + 4.0 * np.arange(6, dtype=np.float32)[None], dtype)
    exact = to_numpy(x).astype(np.float64)
    expected = (exact - exact.mean()) / np.sqrt(exact.var() + 1e-6)
    output = layer(x)
    assert keras.backend.standardize_dtype(output.dtype) == dtype
    assert_same(to_numpy(output), expected.astype(np.float32), 1e-2)


def test_layer_norm_is_a_keras_layer() -> None:
    check_layer(LayerNorm, {"epsilon": 1e-5}, {"inputs": X}, X.shape)
