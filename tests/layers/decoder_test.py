"""The decoder against the paper's section 3.1, its cache, causality and padding."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from keras_transformer.layers.decoder import Decoder, DecoderLayer
from tests.layers.encoder_test import ARGUMENTS, EVERY_ARGUMENT
from tests.layers.layer_check import assert_same, check_layer, to_numpy

B, T, S, D, H = 2, 5, 7, 6, 2
RNG = np.random.default_rng(5)
X = RNG.normal(size=(B, T, D)).astype(np.float32)
MEMORY = RNG.normal(size=(B, S, D)).astype(np.float32)
MASK = np.arange(S) < np.array([[S], [S - 3]])


def make_decoder(num_layers: int, **changes: Any) -> Decoder:
    decoder = Decoder(num_layers, **ARGUMENTS, **changes, name="decoder")
    decoder.build((None, None, D), (None, None, D))
    return decoder


@pytest.mark.parametrize("arguments", [ARGUMENTS, EVERY_ARGUMENT])
@pytest.mark.parametrize("options", [{}, {"return_attention_scores": True}])
def test_decoder_layer_is_a_keras_layer(arguments: dict[str, Any], options: dict[str, Any]) -> None:
    inputs = {"inputs": X, "memory": MEMORY, "memory_mask": MASK}
    weights = {"cross": (B, H, T, S), "self": (B, H, T, T)}
    shape: Any = (X.shape, weights) if options else X.shape
    check_layer(DecoderLayer, arguments, inputs, shape, options)


@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_decoder_rebuilds_with_its_layers(norm_position: str) -> None:
    decoder = make_decoder(2, norm_position=norm_position)
    inputs = {"inputs": keras.Input((None, D)), "memory": keras.Input((None, D))}
    model = keras.Model(inputs, decoder(**inputs))
    rebuilt = keras.Model.from_config(model.get_config())
    rebuilt.set_weights(model.get_weights())
    arrays = {"inputs": X, "memory": MEMORY}
    assert_same(to_numpy(rebuilt(arrays)), to_numpy(decoder(X, MEMORY)))
    assert decoder.compute_output_shape((2, 5, D), (2, 9, D)) == (2, 5, D)
