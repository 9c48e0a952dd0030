"""Quantized and adapted layers against layers with the same weights as plain floats."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
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
from tests.layers.layer_check import assert_same, copy_weights, randomize, to_numpy
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


def trained(layer: Any, inputs: Any) -> None:
    """Moves all trainable weights."""
    for weight in layer.trainable_weights:
        weight.assign(weight + RNG.normal(0, 0.2, weight.shape))
    layer(*inputs)


@every_layer
def test_int8_equals_rounded_kernels(
    layer_class: LayerClass, arguments: dict[str, Any], inputs: Any
) -> None:
    layer = new_layer(layer_class, arguments, inputs)
    plain = new_layer(layer_class, arguments, inputs)
    before, values, paths = (
        to_numpy(layer(*inputs)),
        rounded(layer),
        {w.path for w in layer.weights},
    )
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
@pytest.mark.parametrize("change", ["nothing", "adapt", "quantize"])
def test_products_are_replaced_once_and_leave_no_matrices(
    layer_class: LayerClass, arguments: dict[str, Any], inputs: Any, change: str
) -> None:
    layer = new_layer(layer_class, arguments, inputs)
    if change == "adapt":
        layer.enable_lora(2)
        randomize(layer)
    elif change == "quantize":
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
    assert not [w.path for w in layer.weights if "lora" in w.path]
    for each in layer._flatten_layers():
        if getattr(each, "_products", None):
            for call in (each.replace_products, each.save_own_variables, each.load_own_variables):
                with pytest.raises(ValueError, match="products were replaced"):
                    call({})
            with pytest.raises(ValueError, match=r"products were replaced|already quantized"):
                each.quantize("int8")


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
    assert all("InputLayer" in str(each.message) for each in caught), caught
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


def test_int8_under_mixed_precision() -> None:
    full = new_layer(Encoder, STACK, [X])
    mixed = Encoder(**STACK, dtype="mixed_bfloat16")
    mixed(X)
    copy_weights(full, mixed)
    for layer in (full, mixed):
        layer.quantize("int8")
    assert keras.backend.standardize_dtype(mixed(X).dtype) == "bfloat16"
    assert_same(to_numpy(mixed(X)), to_numpy(full(X)), tolerance=0.1)


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


def matrices(layer: Any) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yields the name of each int8 matrix, its values with the adapter, and their steps."""
    for part in [layer, *layer._flatten_layers(include_self=False)]:
        for name in getattr(part, "_matrix_names", ()):
            scale = to_numpy(getattr(part, f"{name}_scale"))
            step = np.expand_dims(1 / scale, part._shared_axis)
            yield f"{part.name}/{name}", to_numpy(part._matrix(name)), step


@pytest.mark.parametrize("is_quantized", [False, True])
@every_layer
def test_adapters_are_trained_and_merged(
    layer_class: LayerClass,
    arguments: dict[str, Any],
    inputs: Any,
    is_quantized: bool,
    tmp_path: Path,
) -> None:
    symbols = [keras.Input(x.shape[1:], dtype=str(x.dtype)) for x in inputs]
    layer = layer_class(**arguments, name="layer")
    model = keras.Model(symbols, layer(*symbols))
    randomize(layer)
    if is_quantized:
        model.quantize("int8")
    before = to_numpy(model(inputs))
    frozen = {weight.path: to_numpy(weight) for weight in layer.weights}
    layer.enable_lora(3, lora_alpha=6)
    assert_same(to_numpy(model(inputs)), before, 1e-6)  # B is 0
    num_kernels = sum(path.endswith("kernel") for path in frozen)
    assert len(layer.trainable_weights) == 2 * num_kernels
    assert all("_lora_" in weight.path for weight in layer.trainable_weights)

    trained(layer, inputs)
    output = to_numpy(model(inputs))
    if num_kernels:
        assert np.abs(output - before).max() > 0.01
    for weight in layer.weights:
        if weight.path in frozen:
            assert_same(to_numpy(weight), frozen[weight.path], 0.0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    if is_quantized:  # rounded once more, by at most half a step
        for (name, merged, _), (_, rounded, step) in zip(
            matrices(layer), matrices(loaded.layers[-1]), strict=True
        ):
            assert (np.abs(rounded - merged) <= 0.501 * step).all(), name
    else:
        assert_same(to_numpy(loaded(inputs)), output, 1e-5)
    assert [weight.path for weight in loaded.weights] == list(frozen)

    loaded.save_weights(tmp_path / "model.weights.h5")
    model.load_weights(tmp_path / "model.weights.h5")
    assert_same(to_numpy(model(inputs)), to_numpy(loaded(inputs)), 1e-6)


def test_an_adapter_adds_a_product_of_low_rank() -> None:
    layer = new_layer(FeedForward, {"d_ff": 9}, [X])
    layer.enable_lora(2, lora_alpha=8)
    randomize(layer)  # the adapters
    plain = FeedForward(9)
    plain(X)
    for weight in plain.weights:
        value = to_numpy(getattr(layer, weight.name))
        if weight.name.endswith("kernel"):
            down, up = (to_numpy(getattr(layer, f"{weight.name}_lora_{k}")) for k in "ab")
            assert down.shape[1] == up.shape[0] == 2
            value = value + 4 * down @ up
        weight.assign(value)
    assert_same(to_numpy(layer(X)), to_numpy(plain(X)))


def test_adapters_learn_in_fit() -> None:
    model = keras.Sequential([keras.Input((T, D)), Encoder(**STACK)])
    model.layers[0].quantize("int8")
    model.layers[0].enable_lora(4)
    model.compile(keras.optimizers.Adam(0.05), "mse")
    target = np.roll(X, 1, axis=-1)
    losses = model.fit(X, target, epochs=12, verbose=0).history["loss"]
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize(
    ("call", "facts"),
    [
        (lambda built, new: built.quantize("int4"), ("int8", "int4")),
        (lambda built, new: new.quantize("int8"), ("built",)),
        (lambda built, new: [built.quantize("int8") for _ in "ab"], ("already quantized",)),
        (lambda built, new: built.enable_lora(0), ("rank", 0)),
        (lambda built, new: new.enable_lora(2), ("build",)),
        (lambda built, new: [built.enable_lora(2) for _ in "ab"], ("adapters", 2)),
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
