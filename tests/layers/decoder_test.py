"""The decoder against the paper's section 3.1, its cache, causality and padding."""

from typing import Any

import numpy as np
import pytest

from keras_transformer.layers.stacks import Decoder, DecoderLayer
from keras_transformer.layers.state import DecodeState
from tests.layers.encoder_test import ARGUMENTS, EVERY_ARGUMENT, SCORES
from tests.layers.layer_check import assert_same, check_layer, to_numpy
from tests.messages import mentions

B, T, S, D, H = 2, 5, 7, 6, 2
RNG = np.random.default_rng(5)
X = RNG.normal(size=(B, T, D)).astype(np.float32)
MEMORY = RNG.normal(size=(B, S, D)).astype(np.float32)
WEIGHTS = {"cross": (B, H, T, S), "self": (B, H, T, T)}
MASK = np.arange(S) < np.array([[S], [S - 3]])


@pytest.mark.parametrize("arguments, options", [(ARGUMENTS, {}), (EVERY_ARGUMENT, SCORES)])
def test_decoder_layer_is_a_keras_layer(arguments: dict[str, Any], options: dict[str, Any]) -> None:
    inputs = {"inputs": X, "memory": MEMORY, "memory_mask": MASK}
    shape: Any = (X.shape, WEIGHTS) if options else X.shape
    check_layer(DecoderLayer, arguments, inputs, shape, options)


@pytest.mark.parametrize("norm_position, options", [("post", SCORES), ("pre", {})])
def test_decoder_is_a_keras_layer(norm_position: str, options: dict[str, Any]) -> None:
    inputs = {"inputs": X, "memory": MEMORY}
    shape: Any = (X.shape, [WEIGHTS] * 2) if options else X.shape
    arguments = {"num_layers": 2 if options else 1, **ARGUMENTS, "norm_position": norm_position}
    check_layer(Decoder, arguments, inputs, shape, options)


def test_a_list_of_layers_needs_its_order_in_a_state() -> None:
    layers = [DecoderLayer(**ARGUMENTS) for _ in range(2)]
    x: Any = X
    for layer in layers:
        x = layer(x)
    state = DecodeState([layer.self_attention.init_cache(B, T) for layer in layers], 0)
    with pytest.raises(ValueError, match=mentions("several layers", "layer_index")):
        layers[0].transform(X[:, :1], state=state)
    for index, layer in enumerate(layers):
        layer.self_attention.layer_index = index
    for position in range(T):
        step: Any = X[:, position : position + 1]
        state = DecodeState(state.layers, position)
        for layer in layers:
            step, _ = layer.transform(step, state=state)
        assert_same(to_numpy(step), to_numpy(x)[:, position : position + 1])
