"""Attention against the equations of the paper: results, cache and masks."""

from typing import Any

import keras
import numpy as np
import pytest

from keras_transformer.config import ModelConfig
from keras_transformer.layers.attention import (
    CrossAttention,
    SelfAttention,
    scaled_dot_product_attention,
)
from keras_transformer.layers.state import DecodeState
from tests import reference
from tests.layers.layer_check import assert_same, check_layer, randomize, to_numpy

B, T, S, D, H = 2, 5, 7, 6, 2
RNG = np.random.default_rng(1)
X = RNG.normal(size=(B, T, D)).astype(np.float32)
MEMORY = RNG.normal(size=(B, S, D)).astype(np.float32)
# The second sentence has two tokens of padding.
X_MASK = np.arange(T) < np.array([[T], [T - 2]])
MEMORY_MASK = np.arange(S) < np.array([[S], [S - 2]])


def model_config(key_dim: int, value_dim: int) -> ModelConfig:
    return ModelConfig(d_model=D, num_heads=H, key_dim=key_dim, value_dim=value_dim)


def test_scaled_dot_product_attention_is_equation_1() -> None:
    q, k, v = (RNG.normal(size=s).astype(np.float32) for s in ((B, T, 3), (B, S, 3), (B, S, 4)))
    mask = MEMORY_MASK[:, None, :]
    output, weights = to_numpy(scaled_dot_product_attention(q, k, v, mask))
    assert_same(
        (output, weights), reference.attention(*(a.astype(np.float64) for a in (q, k, v)), mask)
    )


def test_a_fully_masked_query_has_equal_weights() -> None:
    q = RNG.normal(size=(1, T, 3)).astype(np.float32)
    mask = np.zeros((1, 1, T), bool)
    _, weights = to_numpy(scaled_dot_product_attention(q, q, q, mask))
    np.testing.assert_allclose(weights, 1 / T, atol=1e-6)


@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("key_dim, value_dim", [(3, 3), (2, 5)])
@pytest.mark.parametrize("causal, window", [(False, None), (True, None), (False, 3), (True, 4)])
def test_self_attention_is_the_papers(
    use_bias: bool, key_dim: int, value_dim: int, causal: bool, window: int | None
) -> None:
    layer = SelfAttention(H, key_dim, value_dim, use_bias=use_bias, causal=causal, window=window)
    layer.build(X.shape)
    weights = {f"at/{path}": value for path, value in randomize(layer).items()}
    assert ("at/qkv_bias" in weights) == ("at/output_bias" in weights) == use_bias
    mask = X_MASK[:, None, :] & reference.window_mask(T, window)
    if causal:
        mask &= reference.causal_mask(T)
    expected = reference.self_attention(
        X.astype(np.float64), weights, "at", model_config(key_dim, value_dim), mask
    )
    actual = to_numpy(layer(X, X_MASK[:, None, :], return_attention_scores=True))
    for a, e in zip(actual, expected, strict=True):
        # The window of a padded query can contain only padding, which the paper does not define.
        seen = np.swapaxes(a, 1, -2)[X_MASK] if a.ndim == 4 else a[X_MASK]
        wanted = np.swapaxes(e, 1, -2)[X_MASK] if e.ndim == 4 else e[X_MASK]
        assert_same(seen, wanted)


@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("key_dim, value_dim", [(3, 3), (2, 5)])
def test_cross_attention_is_the_papers(use_bias: bool, key_dim: int, value_dim: int) -> None:
    layer = CrossAttention(H, key_dim, value_dim, use_bias=use_bias)
    layer.build(X.shape, MEMORY.shape)
    weights = {f"at/{path}": value for path, value in randomize(layer).items()}
    mask = MEMORY_MASK[:, None, :]
    expected = reference.cross_attention(
        X.astype(np.float64), MEMORY.astype(np.float64), weights, "at",
        model_config(key_dim, value_dim), mask,
    )  # fmt: skip
    actual = to_numpy(layer(X, MEMORY, mask, return_attention_scores=True))
    assert_same(actual, expected)


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("grow", [False, True])
def test_beams_in_one_cache_attend_to_their_own_histories(window: int | None, grow: bool) -> None:
    layer = SelfAttention(H, 3, 4, causal=True, window=window)
    layer.build(X.shape)
    beams = 2
    # For each step, which beam wrote the tokens of a beam's history. Beams are swapped twice.
    parents = [[0, 1], [1, 1], [0, 1], [1, 0]]
    steps = RNG.normal(size=(len(parents), B, beams, D)).astype(np.float32)
    layers = [layer.init_cache(B, 0 if grow else beams * (len(parents) + 1))]
    ancestors = np.zeros((beams, 0), int)
    for position, values in enumerate(steps):
        ancestors = ancestors[parents[position]] if position else ancestors
        ancestors = np.concatenate([ancestors, np.arange(beams)[:, None]], axis=1)
        histories = np.stack(
            [[steps[p, :, beam] for p, beam in enumerate(path)] for path in ancestors], axis=1
        )  # --> [position, beam, B, D]
        visible = ancestors[:, :, None] == np.arange(beams)
        visible = visible.reshape(1, beams, -1)
        if not grow:
            missing = layers[0]["key"].shape[2] - visible.shape[2]
            visible = np.pad(visible, ((0, 0), (0, 0), (0, missing)))
        visible = np.broadcast_to(visible, (B, *visible.shape[1:]))
        state = DecodeState(layers, position, visible, grow)
        output, _ = layer.attend(values, state=state)
        layers = state.layers
        for beam in range(beams):
            alone = layer(histories[:, beam].transpose(1, 0, 2))
            assert_same(to_numpy(output)[:, beam], to_numpy(alone)[:, -1])


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_masks_are_finite_in_half_precision(policy: str) -> None:
    layer = SelfAttention(H, 3, causal=True, dtype=policy)
    nothing = np.zeros((B, 1, T), bool)
    for mask in (X_MASK[:, None, :], nothing):
        output, weights = layer(X, mask, return_attention_scores=True)
        assert keras.backend.standardize_dtype(weights.dtype) == "float32"
        assert np.isfinite(to_numpy(output)).all() and np.isfinite(to_numpy(weights)).all()


def test_fused_kernels_start_like_separate_kernels() -> None:
    layer = SelfAttention(4, 8, 32)
    layer.build((None, None, 64))
    kernel = to_numpy(layer.qkv_kernel)
    # Glorot uniform of a kernel [64, n] reaches to sqrt(6 / (64 + n)).
    for part in np.split(kernel, [32, 64], axis=1):
        limit = (6.0 / sum(part.shape)) ** 0.5
        assert 0.95 * limit < np.abs(part).max() <= limit
    assert not np.array_equal(kernel[:, :32], kernel[:, 32:64])


@pytest.mark.parametrize("options", [{}, {"return_attention_scores": True}])
def test_self_attention_is_a_keras_layer(options: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {
        "num_heads": H, "key_dim": 3, "value_dim": 4, "dropout": 0.1, "use_bias": True,
        "causal": True, "window": 4,
    }  # fmt: skip
    inputs = {"query": X, "attention_mask": np.broadcast_to(X_MASK[:, None, :], (B, T, T)).copy()}
    shape: Any = ((B, T, D), (B, H, T, T)) if options else (B, T, D)
    check_layer(SelfAttention, arguments, inputs, shape, options)


@pytest.mark.parametrize("options", [{}, {"return_attention_scores": True}])
def test_cross_attention_is_a_keras_layer(options: dict[str, Any]) -> None:
    arguments = {"num_heads": H, "key_dim": 3, "value_dim": 4, "dropout": 0.1, "use_bias": True}
    mask = np.broadcast_to(MEMORY_MASK[:, None, :], (B, T, S)).copy()
    wide = RNG.normal(size=(B, S, D + 4)).astype(np.float32)
    inputs = {"query": X, "value": wide, "attention_mask": mask}
    shape: Any = ((B, T, D), (B, H, T, S)) if options else (B, T, D)
    check_layer(CrossAttention, arguments, inputs, shape, options)
