"""Quantized layers against layers with the same weights as plain floats."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
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
from tests.messages import mentions

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
every_layer = pytest.mark.parametrize(("layer_class", "arguments", "inputs"), CASES, ids=NAMES)
LayerClass = type[keras.layers.Layer]
MATRICES = ("kernel", "embeddings")


def new_layer(layer_class: LayerClass, arguments: dict[str, Any], inputs: Any) -> Any:
    layer = layer_class(**arguments, name="layer")
    layer(*inputs)
    randomize(layer)
    return layer


def rounded(layer: Any) -> dict[str, Array]:
    """The weights by path, with matrices rounded to 127 steps for each output."""
    values = {}
    for weight in layer.weights:
        value = to_numpy(weight).astype(np.float64)
        if weight.name.endswith(MATRICES):
            axis = 1 if weight.name == "embeddings" else 0
            step = np.abs(value).max(axis=axis, keepdims=True) / 127
            value = np.round(value / step) * step
        values[weight.path] = value
    return values


@every_layer
def test_int8_equals_rounded_kernels(
    layer_class: LayerClass, arguments: dict[str, Any], inputs: Any
) -> None:
    layer = new_layer(layer_class, arguments, inputs)
    plain = new_layer(layer_class, arguments, inputs)
    before, values = to_numpy(layer(*inputs)), rounded(layer)
    paths = {weight.path for weight in layer.weights}
    layer.quantize("int8")
    for weight in plain.weights:
        weight.assign(values[weight.path])
    output = to_numpy(layer(*inputs))
    assert_same(output, to_numpy(plain(*inputs)), tolerance=1e-4)
    assert_same(output, before, tolerance=0.1)
    for weight in layer.weights:
        if weight.name.endswith(MATRICES):
            assert weight.dtype == "int8" and f"{weight.path}_scale" in {
                w.path for w in layer.weights
            }
    assert {w.path for w in layer.weights if not w.path.endswith("_scale")} == paths


@every_layer
@pytest.mark.parametrize("is_quantized", [False, True])
def test_products_are_replaced_once_and_leave_no_matrices(
    layer_class: LayerClass, arguments: dict[str, Any], inputs: Any, is_quantized: bool
) -> None:
    layer = new_layer(layer_class, arguments, inputs)
    if is_quantized:
        layer.quantize("int8")
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
        assert not [w.path for w in layer.weights if w.name.endswith(MATRICES)]
        assert_same(to_numpy(layer(*inputs)), before, tolerance=1e-5)
    if isinstance(layer, FeedForward):
        for call in (layer.replace_products, layer.save_own_variables):
            with pytest.raises(ValueError, match="products were replaced"):
                call({})


@every_layer
def test_quantized_layers_are_saved(
    layer_class: LayerClass, arguments: dict[str, Any], inputs: Any, tmp_path: Path
) -> None:
    symbols = [keras.Input(x.shape[1:], dtype=str(x.dtype)) for x in inputs]
    layer = layer_class(**arguments, name="layer")
    model = keras.Model(symbols, layer(*symbols))
    randomize(layer)
    with warnings.catch_warnings(record=True) as caught:
        model.quantize("int8")
    assert all("InputLayer" in str(warning.message) for warning in caught), caught
    expected = to_numpy(model(inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_same(to_numpy(loaded(inputs)), expected, 0.0)
    assert [(w.path, w.dtype) for w in loaded.weights] == [(w.path, w.dtype) for w in model.weights]
    model.save_weights(tmp_path / "model.weights.h5")
    for weight in loaded.weights:
        weight.assign(np.zeros(weight.shape, weight.dtype))
    loaded.load_weights(tmp_path / "model.weights.h5")
    assert_same(to_numpy(loaded(inputs)), expected, 0.0)
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
    rebuilt = keras.saving.deserialize_keras_object(config)
    assert rebuilt.get_config()["dtype"] == layer.get_config()["dtype"]


def test_tied_logits_of_int8_embeddings() -> None:
    layer = new_layer(TokenEmbedding, {"vocab_size": 9, "d_model": D}, [IDS])
    values = rounded(layer)["layer/embeddings"]
    layer.quantize("int8")
    logits = to_numpy(layer.logits(keras.ops.convert_to_tensor(X)))
    np.testing.assert_allclose(logits, X @ values.T, rtol=1e-4, atol=1e-4)


def test_a_filter_quantizes_some_layers(tmp_path: Path) -> None:
    x = keras.Input((T, D))
    model = keras.Model(x, Encoder(**STACK, name="stack")(x))
    model.quantize("int8", filters="feed_forward")
    int8 = {weight.path for weight in model.weights if weight.dtype == "int8"}
    assert int8 == {
        f"stack/layer_{i}/feed_forward/{name}_kernel" for i in (0, 1) for name in ("inner", "outer")
    }
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_same(to_numpy(loaded(X)), to_numpy(model(X)), 0.0)


@pytest.mark.parametrize(
    ("call", "facts"),
    [
        (lambda built, new: built.quantize("int4"), ("int8", "int4")),
        (lambda built, new: new.quantize("int8"), ("built",)),
        (lambda built, new: [built.quantize("int8") for _ in "ab"], ("already quantized",)),
    ],
)
def test_wrong_calls_are_refused(call: Any, facts: tuple[Any, ...]) -> None:
    layer = new_layer(FeedForward, {"d_ff": 9}, [X])
    with pytest.raises((ValueError, NotImplementedError), match=mentions(*facts)):
        call(layer, FeedForward(9))


def test_a_given_quantizer_is_used() -> None:
    layer = new_layer(FeedForward, {"d_ff": 9}, [X])
    coarse = keras.quantizers.AbsMaxQuantizer(value_range=(-7, 7))
    layer.quantize(config=keras.quantizers.Int8QuantizationConfig(coarse))
    assert np.abs(to_numpy(layer.inner_kernel)).max() == 7
