"""Token embeddings as a look-up and as the pre-softmax product."""

from pathlib import Path

import keras
import numpy as np
import pytest

from keras_transformer.layers import FeedForward, LayerNorm, SinusoidalPositions
from keras_transformer.layers.embedding import TokenAndPositionEmbedding, TokenEmbedding
from keras_transformer.layers.masks import padding_mask
from keras_transformer.layers.stacks import EncoderLayer
from tests.layers.layer_check import INTEGERS, assert_same, check_layer, randomize, to_numpy
from tests.messages import mentions

IDS = np.array([[1, 4, 0], [3, 3, 2]], np.int32)


@pytest.mark.parametrize("scale", [True, False])
def test_look_up_is_scaled_by_the_root_of_the_width(scale: bool) -> None:
    layer = TokenEmbedding(5, 9, scale)
    layer.build(IDS.shape)
    table = randomize(layer)["embeddings"]
    np.testing.assert_allclose(to_numpy(layer(IDS)), table[IDS] * (3 if scale else 1), atol=1e-6)


def test_logits_are_the_product_with_the_same_matrix_unscaled() -> None:
    layer = TokenEmbedding(5, 9)
    layer.build(IDS.shape)
    table = randomize(layer)["embeddings"]
    x = np.random.default_rng(2).normal(size=(2, 3, 9)).astype(np.float32)
    np.testing.assert_allclose(to_numpy(layer.logits(x)), x @ table.T, atol=1e-5)
    half = layer.logits(keras.ops.cast(x, "bfloat16"))
    assert keras.backend.standardize_dtype(half.dtype) == "bfloat16"


def test_looked_up_vectors_start_with_variance_one() -> None:
    vectors = to_numpy(TokenEmbedding(200, 64)(np.arange(200, dtype=np.int32)))
    assert abs(vectors.var() - 1.0) < 0.1


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_ids_may_be_floats(policy: str) -> None:  # of a keras.Input without a dtype
    ids = keras.Input((None,))
    layer = TokenEmbedding(1000, 8, dtype=policy)
    model = keras.Model(ids, layer(ids))
    # bfloat16 would round 257 to 256.
    found = to_numpy(model(np.array([[257.0, 999.0]], np.float32)))
    np.testing.assert_array_equal(found, to_numpy(layer(np.array([[257, 999]], np.int32))))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_ids_may_have_any_integer_dtype(dtype: str) -> None:
    ids = np.array([[100, 7, 0], [3, 0, 0]])  # small integers cannot hold the vocabulary size
    layer = TokenEmbedding(1000, 8, mask_zero=True)
    expected = to_numpy(layer(ids.astype(np.int32)))
    assert_same(to_numpy(layer(ids.astype(dtype))), expected, 0.0)
    symbol = keras.Input((None,), dtype=dtype)
    pooled = keras.layers.GlobalAveragePooling1D()(layer(symbol))
    found = to_numpy(keras.Model(symbol, pooled)(ids.astype(dtype)))
    assert_same(found, (expected * (ids > 0)[..., None]).sum(1) / (ids > 0).sum(1)[:, None])


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="tf.RaggedTensor")
def test_ragged_tensors_are_refused() -> None:
    import tensorflow as tf

    ragged = tf.ragged.constant([[5, 3, 4], [2]])
    vectors = tf.RaggedTensor.from_row_splits(tf.ones((4, 6)), [0, 3, 4])
    for call in (
        lambda: TokenEmbedding(9, 4)(ragged),
        lambda: TokenEmbedding(9, 4)(keras.Input((None,), dtype="int32", ragged=True)),
        lambda: padding_mask(ragged, 0),
        lambda: EncoderLayer(2, 8)(vectors),
        lambda: LayerNorm()(vectors),
        lambda: FeedForward(8)(vectors),
        lambda: SinusoidalPositions()(vectors),
    ):
        with pytest.raises(ValueError, match=mentions("ids.to_tensor(pad_id)", "mask")):
            call()


def test_embeddings_are_keras_layers() -> None:
    arguments = {"vocab_size": 5, "d_model": 8, "scale": False}
    check_layer(TokenEmbedding, arguments, {"ids": IDS}, (2, 3, 8), output_dtype="float32")
    for changes in ({"dropout": 0.1}, {"max_positions": 4}):
        check_layer(TokenAndPositionEmbedding, {**arguments, **changes}, {"ids": IDS}, (2, 3, 8))


@pytest.mark.parametrize("max_positions", [None, 9])
def test_a_saved_embedding_keeps_its_policy(max_positions: int | None, tmp_path: Path) -> None:
    layer = TokenAndPositionEmbedding(5, 8, max_positions=max_positions, dtype="mixed_bfloat16")
    ids = keras.Input((3,), dtype="int32")
    model = keras.Model(ids, layer(ids))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_same(to_numpy(loaded(IDS)), to_numpy(model(IDS)))
    parts = (loaded.layers[-1], loaded.layers[-1].positions, loaded.layers[-1].embedding_dropout)
    assert [part.dtype_policy.name for part in parts] == ["mixed_bfloat16"] * 3


@pytest.mark.parametrize("max_positions", [None, 9])
def test_tokens_and_positions_are_the_sum_of_two_layers(max_positions: int | None) -> None:
    layer = TokenAndPositionEmbedding(5, 8, max_positions=max_positions, dropout=0.5)
    outputs = to_numpy(layer(IDS))
    tokens = TokenEmbedding.call(layer, IDS)
    assert_same(outputs, to_numpy(tokens + layer.positions(tokens)))
    assert (to_numpy(layer(IDS, training=True)) == 0).any()
