"""Fast paths against plain operations."""

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


def random(*shape: int) -> NDArray[np.float32]:
    return RNG.normal(size=shape).astype(np.float32)


def run(function: Callable[..., Any], *arrays: NDArray[Any]) -> NDArray[Any]:
    result: NDArray[Any] = to_numpy(function(*map(keras.ops.convert_to_tensor, arrays)))
    return result


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (2, 2, 3, 4)])
def test_projection_equals_a_product(shape: tuple[int, ...]) -> None:
    inputs, kernel = random(*shape), random(4, 5)
    product = inputs.astype(np.float64) @ kernel.astype(np.float64)
    np.testing.assert_allclose(run(fast_paths.project, inputs, kernel), product, atol=1e-6)


@pytest.mark.parametrize("shape", [(4, 3, 5), (3, 4, 5), (1, 3, 5), (4, 1, 5)])
@pytest.mark.parametrize("batch", [2, None])
def test_heads_and_positions_are_swapped(shape: tuple[int, ...], batch: int | None) -> None:
    class Swap(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            return fast_paths.swap_heads(inputs)

    inputs = keras.Input(batch_shape=(batch, *shape))
    model = keras.Model(inputs, Swap()(inputs))
    model.compile(jit_compile=False)
    for rows in (2, batch or 3):  # so that `predict` builds a graph for any batch size
        array = random(rows, *shape)
        swapped = model.predict(array, batch_size=rows, verbose=0)
        np.testing.assert_array_equal(swapped, array.swapaxes(1, 2))
