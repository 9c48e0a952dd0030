"""Keras masks: read by the layers, kept by their outputs, and without effect on real positions."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_transformer.layers import (
    CrossAttention,
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    FeedForward,
    LayerNorm,
    LearnedPositions,
    SelfAttention,
    SinusoidalPositions,
    TokenEmbedding,
)
from tests.layers.layer_check import assert_same, to_numpy
from tests.messages import mentions

B, T, D = 2, 5, 8
IDS = np.random.default_rng(1).integers(1, 12, (B, T)).astype(np.int32)
SIZES: dict[str, Any] = {"num_heads": 2, "d_ff": 9, "kernel_initializer": "he_normal"}


def padded(ids: Any) -> Any:
    return np.pad(ids, ((0, 0), (1, 2)))


def right_padded(ids: Any) -> Any:
    return np.pad(ids, ((0, 0), (0, 3)))


@pytest.mark.parametrize(
    "layer",
    [
        EncoderLayer(**SIZES),
        Encoder(2, **SIZES),
        DecoderLayer(**SIZES),
        Decoder(2, **SIZES),
        SelfAttention(2),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_padding_never_changes_a_real_position(layer: keras.Layer) -> None:
    embedding = TokenEmbedding(12, D, mask_zero=True)
    plain = to_numpy(layer(embedding(IDS)))
    outputs = to_numpy(layer(embedding(padded(IDS))))
    assert_same(outputs[:, 1 : T + 1], plain)
    without_mask = to_numpy(layer(TokenEmbedding.call(embedding, padded(IDS))))
    assert np.abs(without_mask[:, 1 : T + 1] - plain).max() > 1e-3


@pytest.mark.parametrize("layer", [DecoderLayer(**SIZES), Decoder(2, **SIZES), CrossAttention(2)])
def test_padding_of_the_memory_changes_nothing(layer: keras.Layer) -> None:
    embedding = TokenEmbedding(12, D, mask_zero=True)
    inputs = embedding(IDS[:, :3])
    assert_same(
        to_numpy(layer(inputs, embedding(padded(IDS)))), to_numpy(layer(inputs, embedding(IDS)))
    )


@pytest.mark.parametrize("positions", [SinusoidalPositions(), LearnedPositions(20)])
def test_masks_travel_through_operators_of_functional_models(positions: keras.Layer) -> None:
    ids = keras.Input((None,), dtype="int32")
    x = TokenEmbedding(12, D, mask_zero=True)(ids)
    x = x + positions(x)
    x = Encoder(num_layers=1, num_heads=2, d_ff=9)(x)
    model = keras.Model(ids, keras.layers.GlobalAveragePooling1D()(x))
    right = right_padded(IDS)
    assert_same(to_numpy(model(right)), to_numpy(model(IDS)))
    rebuilt = keras.Model.from_config(model.get_config())
    rebuilt.set_weights(model.get_weights())
    assert_same(to_numpy(rebuilt(right)), to_numpy(model(IDS)))


@pytest.mark.parametrize(
    "between",
    [
        lambda x: keras.layers.Dropout(0.1)(x),
        lambda x: keras.layers.LayerNormalization()(x),
        lambda x: keras.layers.Dense(D)(x),
        lambda x: keras.activations.gelu(x),
        lambda x: LayerNorm()(x),
        lambda x: FeedForward(9)(x),
        lambda x: -x,
    ],
)
def test_masks_travel_through_layers_behind_an_operator(between: Any) -> None:
    ids = keras.Input((None,), dtype="int32")
    x = TokenEmbedding(12, D, mask_zero=True)(ids)
    x = between(x + SinusoidalPositions()(x))
    model = keras.Model(ids, Encoder(num_layers=1, num_heads=2, d_ff=9)(x))
    assert_same(to_numpy(model(right_padded(IDS)))[:, :T], to_numpy(model(IDS)))


@pytest.mark.parametrize("layer", [Decoder(1, **SIZES), CrossAttention(2)])
def test_the_mask_of_the_memory_travels_through_operators(layer: keras.Layer) -> None:
    ids, targets = keras.Input((None,), dtype="int32"), keras.Input((T, D))
    memory = TokenEmbedding(12, D, mask_zero=True)(ids)
    model = keras.Model([targets, ids], layer(targets, memory + SinusoidalPositions()(memory)))
    x = np.ones((B, T, D), np.float32)
    assert_same(to_numpy(model([x, right_padded(IDS)])), to_numpy(model([x, IDS])))


def test_initializer_objects_survive_saving(tmp_path: Path) -> None:
    initializer = keras.initializers.RandomNormal(stddev=0.5)
    inputs = keras.Input((None, D))
    layer = Encoder(1, 2, 9, kernel_initializer=initializer, kernel_regularizer="l2")
    model = keras.Model(inputs, layer(inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    x = np.random.default_rng(3).normal(size=(B, T, D)).astype(np.float32)
    assert_same(to_numpy(loaded(x)), to_numpy(model(x)))
    assert_same(to_numpy(sum(loaded.losses)), to_numpy(sum(model.losses)))


def test_given_masks_come_before_implicit_ones_and_stay_with_the_output() -> None:
    layer, x = EncoderLayer(**SIZES), TokenEmbedding(12, D, mask_zero=True)(padded(IDS))
    mask = np.ones((B, T + 3), bool)
    mask[:, -4:] = False
    output = layer(x, mask=mask)
    assert_same(to_numpy(output)[:, :-4], to_numpy(layer(x[:, :-4])))
    pooled = keras.layers.GlobalAveragePooling1D()(output)
    assert_same(to_numpy(pooled), to_numpy(output)[:, :-4].mean(1))


@pytest.mark.parametrize("length", [B, T])
def test_a_padding_mask_is_also_an_attention_mask(length: int) -> None:
    x = np.random.default_rng(2).normal(size=(B, length, D)).astype(np.float32)
    real = np.arange(length) < np.array([[length], [length - 1]])
    layer = SelfAttention(2)
    expected = to_numpy(layer(x, attention_mask=np.repeat(real[:, None], length, axis=1)))
    assert_same(to_numpy(layer(x, attention_mask=real)), expected)
    assert_same(to_numpy(layer(x, mask=real)), expected)
    with pytest.raises(ValueError, match=mentions("attention_mask", "shape")):
        layer(x, attention_mask=real[0])


def test_a_decoder_without_memory_is_a_language_model() -> None:
    decoder, x = Decoder(2, **SIZES), np.ones((B, T, D), np.float32)
    output = to_numpy(decoder(x))
    assert_same(to_numpy(decoder(x[:, :2])), output[:, :2])
    assert not any("cross_attention" in weight.path for weight in decoder.weights)
    with pytest.raises(ValueError, match=mentions("memory")):
        decoder(x, x)


def test_one_dropout_is_the_default_of_all() -> None:
    layer = EncoderLayer(2, 9, dropout=0.1, residual_dropout=0.3)
    dropouts = layer.self_attention.weights_dropout, layer.feed_forward.inner_dropout
    assert [layer.rate for layer in dropouts] == [0.1, 0.1]
    assert layer.self_attention_dropout.rate == layer.feed_forward_dropout.rate == 0.3


def test_initializers_and_regularizers_reach_every_kernel() -> None:
    layer = EncoderLayer(
        2, 9, kernel_initializer="ones", bias_initializer="ones", kernel_regularizer="l2"
    )
    layer.build((None, None, D))
    kernels = [weight for weight in layer.trainable_weights if "norm" not in weight.path]
    assert len(kernels) == 6 and all((to_numpy(weight) == 1).all() for weight in kernels)
    size = sum(np.prod(weight.shape) for weight in kernels if "kernel" in weight.path)
    np.testing.assert_allclose(float(sum(layer.losses)), 0.01 * size, rtol=1e-5)
