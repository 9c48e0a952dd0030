"""The encoder against the paper's section 3.1."""

from typing import Any

import numpy as np
import pytest

from keras_transformer.layers.stacks import Decoder, Encoder, EncoderLayer
from tests.layers.layer_check import assert_same, check_layer, to_numpy

B, S, D, H = 2, 7, 6, 2
X = np.random.default_rng(4).normal(size=(B, S, D)).astype(np.float32)
MASK = np.arange(S) < np.array([[S], [S - 3]])
SCORES = {"return_attention_scores": True}
ARGUMENTS: dict[str, Any] = {"num_heads": H, "key_dim": 3, "value_dim": 4, "d_ff": 9}
EVERY_ARGUMENT: dict[str, Any] = {
    **ARGUMENTS,
    "norm_position": "pre",
    "layer_norm_epsilon": 1e-4,
    "activation": "gelu",
    "attention_bias": True,
    "attention_window": 4,
    "attention_dropout": 0.1,
    "activation_dropout": 0.2,
    "residual_dropout": 0.3,
}


@pytest.mark.parametrize("kind", ["attention_dropout", "activation_dropout", "residual_dropout"])
@pytest.mark.parametrize("stack", [Encoder, Decoder])
def test_each_dropout_is_for_training_only(stack: Any, kind: str) -> None:
    layer = stack(1, **ARGUMENTS, **{kind: 0.5})
    plain = to_numpy(layer(X))
    assert_same(to_numpy(layer(X, training=False)), plain, 0.0)
    first, second = (to_numpy(layer(X, training=True)) for _ in range(2))
    assert np.abs(first - plain).max() > 1e-3 and np.abs(first - second).max() > 1e-3


@pytest.mark.parametrize("arguments, options", [(ARGUMENTS, SCORES), (EVERY_ARGUMENT, {})])
def test_encoder_layer_is_a_keras_layer(arguments: dict[str, Any], options: dict[str, Any]) -> None:
    shape: Any = (X.shape, (B, H, S, S)) if options else X.shape
    check_layer(EncoderLayer, arguments, {"inputs": X, "mask": MASK}, shape, options)


@pytest.mark.parametrize(
    "norms, options", [({"final_norm": True}, {}), ({"norm_position": "pre"}, SCORES)]
)
def test_encoder_is_a_keras_layer(norms: dict[str, Any], options: dict[str, Any]) -> None:
    shape: Any = (X.shape, [(B, H, S, S)] * 2) if options else X.shape
    arguments = {"num_layers": 2 if options else 1, **ARGUMENTS, **norms, "attention_window": 4}
    check_layer(Encoder, arguments, {"inputs": X, "mask": MASK}, shape, options)


@pytest.mark.parametrize("norm_position", ["post", "pre"])
@pytest.mark.parametrize("final_norm", [None, False, True])
def test_final_norm_is_by_default_that_of_pre_norm(norm_position: str, final_norm: Any) -> None:
    encoder = Encoder(1, **ARGUMENTS, norm_position=norm_position, final_norm=final_norm)
    expected = norm_position == "pre" if final_norm is None else final_norm
    assert (encoder.norm is not None) == expected
