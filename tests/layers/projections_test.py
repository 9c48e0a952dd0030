"""Products that an export replaces, against those of the layers."""

from typing import Any

import keras
import numpy as np
import pytest
from numpy.typing import NDArray

from keras_transformer.layers import (
    CrossAttention,
    Decoder,
    Encoder,
    FeedForward,
    SelfAttention,
    TokenEmbedding,
)
from keras_transformer.models.transformer import OutputProjection
from tests.layers.layer_check import assert_same, randomize, to_numpy

Array = NDArray[Any]
B, T, D = 2, 5, 6
RNG = np.random.default_rng(11)
X = RNG.normal(size=(B, T, D)).astype(np.float32)
IDS = RNG.integers(0, 9, (B, T))
STACK = {"num_layers": 2, "num_heads": 2, "d_ff": 9, "attention_bias": True}
CASES: list[tuple[type[keras.layers.Layer], dict[str, Any], list[Array]]] = [
    (SelfAttention, {"num_heads": 2, "use_bias": True}, [X]),
    (CrossAttention, {"num_heads": 2, "value_dim": 4}, [X, X[:, :3]]),
    (FeedForward, {"d_ff": 9}, [X]),
    (TokenEmbedding, {"vocab_size": 9, "d_model": D}, [IDS]),
    (OutputProjection, {"vocab_size": 9, "use_kernel": True, "use_bias": True}, [X]),
    (OutputProjection, {"vocab_size": D, "use_kernel": False, "use_bias": True}, [X]),
    (Encoder, {**STACK, "attention_window": 2}, [X]),
    (Decoder, {**STACK, "norm_position": "pre"}, [X, X[:, :3]]),
]
NAMES = [f"{case[0].__name__}-{i}" for i, case in enumerate(CASES)]


def new_layer(layer_class: Any, arguments: dict[str, Any], inputs: Any) -> Any:
    layer = layer_class(**arguments, name="layer")
    layer(*inputs)
    randomize(layer)
    return layer


@pytest.mark.parametrize(("layer_class", "arguments", "inputs"), CASES, ids=NAMES)
def test_products_are_replaced_once_and_leave_no_matrices(
    layer_class: Any, arguments: dict[str, Any], inputs: Any
) -> None:
    layer = new_layer(layer_class, arguments, inputs)
    before, calls = to_numpy(layer(*inputs)), []

    def make_product(matrix: Array) -> Any:
        assert matrix.dtype == np.float32
        calls.append(matrix.shape)
        return lambda inputs: 2 * keras.ops.matmul(inputs, matrix / 2)

    matrices = [tuple(w.shape) for w in layer.weights if w.name.endswith("kernel")]
    layer.replace_products(make_product)
    if layer_class is TokenEmbedding:  # its table is for the lookup, too
        assert calls == [(D, 9)]
        assert {w.dtype for w in layer.weights} == {"int8", "float32"}
        assert_same(to_numpy(layer(*inputs)), before, tolerance=0.1)
    else:
        assert sorted(calls) == sorted(matrices)
        assert not [w.path for w in layer.weights if w.name.endswith("kernel")]
        assert_same(to_numpy(layer(*inputs)), before, tolerance=1e-5)
    if layer_class is FeedForward:
        for call in (layer.replace_products, layer.save_own_variables):
            with pytest.raises(ValueError, match="products were replaced"):
                call({})


def test_embeddings_become_int8_with_a_scale_for_each_row() -> None:
    layer = new_layer(TokenEmbedding, {"vocab_size": 9, "d_model": D, "scale": False}, [IDS])
    table = to_numpy(layer.embeddings).astype(np.float64)
    logits = to_numpy(layer.logits(X))
    layer.replace_products(lambda matrix: lambda rows: keras.ops.matmul(rows, matrix))
    step = np.abs(table).max(axis=1, keepdims=True) / 127
    assert_same(to_numpy(layer(IDS)), (np.round(table / step) * step)[IDS], tolerance=1e-5)
    assert_same(to_numpy(layer.logits(X)), logits)
