"""Attention without the scale, and additive, against their definitions in float64."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from keras_transformer.layers.attention import CrossAttention
from keras_transformer.paper.baselines.attention import (
    AdditiveCrossAttention,
    AdditiveSelfAttention,
    UnscaledCrossAttention,
    UnscaledSelfAttention,
)
from tests.layers.layer_check import check_layer, randomize, to_numpy
from tests.paper.baselines.tiny import Array
from tests.reference import softmax

B, T, S, D, H, DK, DV = 2, 3, 4, 6, 2, 3, 5


def make_inputs() -> tuple[Array, Array, Array]:
    random = np.random.default_rng(1)
    mask = np.array([[True] * S, [True, True, False, False]])
    return random.normal(size=(B, T, D)), random.normal(size=(B, S, D)), mask


def expected_output(query: Array, memory: Array, mask: Array, weights: dict[str, Array]) -> Array:
    """Each head by itself; the kernels have the heads beside each other."""
    queries = np.split(query @ weights["query_kernel"], H, axis=-1)
    both = memory @ weights["key_value_kernel"]
    keys = np.split(both[..., : H * DK], H, axis=-1)
    values = np.split(both[..., H * DK :], H, axis=-1)
    heads = []
    for h, (q, k, v) in enumerate(zip(queries, keys, values, strict=True)):
        if "score_kernel" in weights:
            scores = np.tanh(q[:, :, None] + k[:, None]) @ weights["score_kernel"][h]
        else:
            scores = q @ k.swapaxes(1, 2)
        heads.append(softmax(np.where(mask[:, None], scores, -1e30)) @ v)
    return np.concatenate(heads, axis=-1) @ weights["output_kernel"]


@pytest.mark.parametrize("layer_class", [UnscaledCrossAttention, AdditiveCrossAttention])
def test_cross_attention_is_that_of_its_scores(layer_class: type[CrossAttention]) -> None:
    layer = layer_class(H, DK, DV)
    query, memory, mask = make_inputs()
    layer.build((B, T, D), (B, S, D))
    weights = randomize(layer, scale=0.8)
    output, probabilities = layer(
        query.astype(np.float32), memory.astype(np.float32),
        attention_mask=mask[:, None], return_attention_scores=True,
    )  # fmt: skip
    expected = expected_output(query, memory, mask, weights)
    np.testing.assert_allclose(to_numpy(output), expected, atol=2e-5)
    assert (to_numpy(probabilities)[1, :, :, 2:] == 0).all()


@pytest.mark.parametrize("layer_class", [UnscaledSelfAttention, AdditiveSelfAttention])
def test_self_attention_is_a_layer_as_any(layer_class: type[keras.Layer]) -> None:
    query = np.random.default_rng(2).normal(size=(B, T, D)).astype(np.float32)
    check_layer(
        layer_class,
        {"num_heads": H, "key_dim": DK, "value_dim": DV, "causal": True},
        {"query": query},
        (B, T, D),
    )
