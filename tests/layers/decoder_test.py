"""The decoder against the paper's section 3.1, its cache, causality and padding."""

from typing import Any

import numpy as np
import pytest

from keras_transformer.layers.stacks import Decoder, DecoderLayer
from tests.layers.encoder_test import ARGUMENTS, EVERY_ARGUMENT, SCORES
from tests.layers.layer_check import check_layer

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


@pytest.mark.parametrize(
    ("norm_position", "options"), [("post", {"return_attention_scores": True}), ("pre", {})]
)
def test_decoder_is_a_keras_layer(norm_position: str, options: dict[str, Any]) -> None:
    inputs = {"inputs": X, "memory": MEMORY}
    shape: Any = (X.shape, [WEIGHTS] * 2) if options else X.shape
    arguments = {"num_layers": 2, **ARGUMENTS, "norm_position": norm_position}
    check_layer(Decoder, arguments, inputs, shape, options)
