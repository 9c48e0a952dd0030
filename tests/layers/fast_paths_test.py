"""Fast paths give what the plain operations give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from numpy.typing import NDArray

from keras_transformer.layers import fast_paths
from tests.layers.layer_check import to_numpy

RNG = np.random.default_rng(3)


@pytest.fixture(params=[False, True], ids=["whole_target", "decode_step"])
def is_step(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes either way; outside of a graph all sizes are known, so that none is a step."""
    monkeypatch.setattr(fast_paths, "is_decode_step", lambda inputs: request.param)


def run(function: Callable[..., Any], *arrays: NDArray[Any]) -> NDArray[Any]:
    result: NDArray[Any] = to_numpy(function(*map(keras.ops.convert_to_tensor, arrays)))
    return result


def random(*shape: int) -> NDArray[np.float32]:
    return RNG.normal(size=shape).astype(np.float32)


def test_a_decode_step_has_a_known_length_and_an_unknown_batch_size() -> None:
    shapes = {(None, 4, 8): True, (None, None, 8): False, (2, 4, 8): False, (2, None, 8): False}
    for shape, expected in shapes.items():
        assert fast_paths.is_decode_step(keras.KerasTensor(shape)) == expected, shape


@pytest.mark.parametrize("shape", [(2, 3), (2, 4, 3), (2, 4, 5, 3)])
def test_linear_multiplies_the_last_axis(shape: tuple[int, ...]) -> None:
    inputs, kernel, bias = random(*shape), random(3, 7), random(7)
    np.testing.assert_allclose(
        run(fast_paths.linear, inputs, kernel, bias), inputs @ kernel + bias, atol=1e-5
    )


@pytest.mark.parametrize("shape", [(2, 4, 3, 5), (2, 1, 3, 5), (2, 4, 1, 5), (0, 4, 3, 5)])
@pytest.mark.usefixtures("is_step")
def test_heads_and_positions_are_swapped(shape: tuple[int, ...]) -> None:
    inputs = random(*shape)
    np.testing.assert_array_equal(run(fast_paths.swap_heads, inputs), inputs.swapaxes(1, 2))


@pytest.mark.parametrize("vocab_size", [2, 9])
@pytest.mark.usefixtures("is_step")
def test_embedding_logits_are_the_product_with_the_transpose(vocab_size: int) -> None:
    inputs, embeddings = random(2, 3, 5), random(vocab_size, 5)
    np.testing.assert_allclose(
        run(fast_paths.embedding_logits, inputs, embeddings), inputs @ embeddings.T, atol=1e-5
    )
