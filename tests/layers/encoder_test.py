"""The encoder against the paper's section 3.1."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from keras_transformer.layers.decoder import Decoder
from keras_transformer.layers.encoder import Encoder, EncoderLayer
from tests.layers.layer_check import assert_same, check_layer, to_numpy
from tests.messages import mentions

B, S, D, H = 2, 7, 6, 2
X = np.random.default_rng(4).normal(size=(B, S, D)).astype(np.float32)
MASK = np.arange(S) < np.array([[S], [S - 3]])
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


def make_encoder(num_layers: int, **changes: Any) -> Encoder:
    encoder = Encoder(num_layers, **ARGUMENTS, **changes, name="encoder")
    encoder.build((None, None, D))
    return encoder


def test_attention_weights_are_one_per_layer() -> None:
    output, weights = make_encoder(3)(X, mask=MASK, return_attention_scores=True)
    assert tuple(output.shape) == X.shape and len(weights) == 3
    for layer_weights in to_numpy(weights):
        assert layer_weights.shape == (B, H, S, S)
        np.testing.assert_allclose(layer_weights.sum(-1), 1.0, atol=1e-6)


@pytest.mark.parametrize("kind", ["attention_dropout", "activation_dropout", "residual_dropout"])
@pytest.mark.parametrize("stack", [Encoder, Decoder])
def test_each_dropout_is_for_training_only(stack: Any, kind: str) -> None:
    layer = stack(1, **ARGUMENTS, **{kind: 0.5})
    plain = to_numpy(layer(X))
    assert_same(to_numpy(layer(X, training=False)), plain, 0.0)
    first, second = (to_numpy(layer(X, training=True)) for _ in range(2))
    assert np.abs(first - plain).max() > 1e-3 and np.abs(first - second).max() > 1e-3


@pytest.mark.parametrize("arguments", [ARGUMENTS, EVERY_ARGUMENT])
@pytest.mark.parametrize("options", [{}, {"return_attention_scores": True}])
def test_encoder_layer_is_a_keras_layer(arguments: dict[str, Any], options: dict[str, Any]) -> None:
    shape: Any = (X.shape, (B, H, S, S)) if options else X.shape
    check_layer(EncoderLayer, arguments, {"inputs": X, "mask": MASK}, shape, options)


@pytest.mark.parametrize("norm_position", ["post", "pre"])
@pytest.mark.parametrize("final_norm", [None, False, True])
def test_encoder_rebuilds_with_its_layers(norm_position: str, final_norm: bool | None) -> None:
    encoder = make_encoder(
        2, norm_position=norm_position, final_norm=final_norm, attention_window=4
    )
    assert (encoder.norm is not None) == (
        norm_position == "pre" if final_norm is None else final_norm
    )
    inputs = {"inputs": keras.Input((None, D)), "mask": keras.Input((None,), dtype="bool")}
    model = keras.Model(inputs, encoder(**inputs))
    rebuilt = keras.Model.from_config(model.get_config())
    rebuilt.set_weights(model.get_weights())
    arrays = {"inputs": X, "mask": MASK}
    assert_same(to_numpy(rebuilt(arrays)), to_numpy(encoder(X, mask=MASK)))
    assert encoder.compute_output_shape((None, 5, D)) == (None, 5, D)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match=mentions("norm_position", "middle")):
        EncoderLayer(**ARGUMENTS, norm_position="middle")
    with pytest.raises(ValueError, match=mentions("num_layers", "0")):
        Encoder(0, **ARGUMENTS)
