"""The layer norm's written-out gradient, which only TensorFlow takes, against autodiff."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.layers import LayerNorm
from tests.layers.layer_check import assert_same, randomize


@pytest.mark.parametrize("shape", [(2, 5, 6), (7, 6)])
def test_written_gradient_is_that_of_autodiff(shape: tuple[int, ...]) -> None:
    layer = LayerNorm()
    layer.build(shape)
    randomize(layer)
    rng = np.random.default_rng(6)
    x, upstream = (tf.constant(rng.normal(size=shape), tf.float32) for _ in range(2))
    gradients = {}
    for training in (False, True):
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = layer(x, training=training)
        sources = [x, layer.gamma.value, layer.beta.value]
        gradients[training] = [np.asarray(g) for g in tape.gradient(output, sources, upstream)]
    assert [g.shape for g in gradients[True]] == [shape, (6,), (6,)]
    assert_same(gradients[True], gradients[False])
