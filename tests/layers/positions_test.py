"""Positions against float64: large positions, and every dtype policy."""

from typing import Any

import keras
import numpy as np
import pytest

from keras_transformer.layers.positions import LearnedPositions, SinusoidalPositions
from tests import reference
from tests.layers.layer_check import INTEGERS, assert_same, check_layer, randomize, to_numpy


@pytest.mark.parametrize(
    ("layout", "frequencies", "first"),
    [("interleaved", "paper", 0), ("halves", "paper", 1), ("halves", "tensor2tensor", 2)],
)
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_sinusoids_are_exact_at_large_positions(
    layout: str, frequencies: str, first: int, policy: str
) -> None:
    d_model, length = 64, 5_003
    expected = reference.sinusoidal_positions(length, d_model, layout, frequencies, first)
    layer = SinusoidalPositions(d_model, layout, frequencies, first, dtype=policy)
    actual = layer(np.arange(length, dtype=np.int32))
    assert keras.backend.standardize_dtype(actual.dtype) == "float32"
    np.testing.assert_allclose(to_numpy(actual), expected, rtol=0, atol=1e-5)


def test_embeddings_and_positions_have_the_same_first_position() -> None:
    layer = SinusoidalPositions(6, "halves", "tensor2tensor", first_position=2)
    of_embeddings = to_numpy(layer(np.ones((1, 4, 6), np.float32)))[0]
    assert_same(of_embeddings, to_numpy(layer(np.arange(4, dtype=np.int32))), 0.0)
    # By hand: the frequencies are 1, 1/100 and 1/10000, and the first position is 2.
    angles = np.array([2.0, 0.02, 0.0002])
    assert_same(of_embeddings[0], np.concatenate([np.sin(angles), np.cos(angles)]), 1e-6)


def test_learned_positions_are_rows_and_the_last_one_repeats() -> None:
    layer = LearnedPositions(3, 4)
    layer.build((None,))
    table = randomize(layer)["embeddings"]
    actual = to_numpy(layer(np.array([2, 0, 1, 3, 99], np.int32)))
    np.testing.assert_allclose(actual, table[[2, 0, 1, 2, 2]], atol=1e-6)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_positions_may_have_any_integer_dtype(dtype: str) -> None:
    positions = np.array([7, 0, 100])
    for layer in (LearnedPositions(300, 4), SinusoidalPositions(4)):
        expected = to_numpy(layer(positions.astype(np.int32)))
        assert_same(to_numpy(layer(positions.astype(dtype))), expected, 0.0)


@pytest.mark.parametrize(
    ("layer_class", "arguments"),
    [
        (SinusoidalPositions, {"layout": "interleaved"}),
        (
            SinusoidalPositions,
            {"layout": "halves", "frequencies": "tensor2tensor", "first_position": 2},
        ),
        (LearnedPositions, {"max_positions": 5}),
    ],
)
def test_positions_are_keras_layers(layer_class: Any, arguments: dict[str, Any]) -> None:
    positions = {"inputs": np.arange(5, dtype=np.int32)}
    arguments = {"d_model": 6, **arguments}
    check_layer(layer_class, arguments, positions, (5, 6), output_dtype="float32")
