"""The feed-forward network against equation 2."""

import numpy as np
import pytest

from keras_transformer.layers.feed_forward import FeedForward
from tests import reference
from tests.layers.layer_check import assert_same, check_layer, randomize, to_numpy

X = np.random.default_rng(3).normal(size=(2, 5, 6)).astype(np.float32)


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_feed_forward_is_equation_2(activation: str) -> None:
    layer = FeedForward(10, activation)
    layer.build(X.shape)
    weights = {f"at/{path}": value for path, value in randomize(layer).items()}
    expected = reference.feed_forward(X.astype(np.float64), weights, "at", activation)
    assert_same(to_numpy(layer(X)), expected)


def test_feed_forward_is_a_keras_layer() -> None:
    arguments = {"d_ff": 10, "activation": "gelu", "dropout": 0.2}
    check_layer(FeedForward, arguments, {"inputs": X}, X.shape)
