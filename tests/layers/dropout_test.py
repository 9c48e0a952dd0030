"""Dropout: its rate, and its mask as a function of seed and path."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import keras
import numpy as np
import pytest

from keras_transformer.layers.dropout import Dropout, dropout_seed
from tests.layers.layer_check import check_layer, to_numpy
from tests.messages import mentions

ONES = np.ones((200, 100), np.float32)


def test_expectation_is_kept_and_the_share_dropped() -> None:
    outputs = to_numpy(Dropout(0.3, seed=1)(ONES, training=True))
    values = np.unique(outputs)
    np.testing.assert_allclose(values, [0.0, 1 / 0.7], rtol=1e-6)
    # Six standard deviations of 20,000 draws.
    assert abs((outputs == 0).mean() - 0.3) < 6 * (0.3 * 0.7 / ONES.size) ** 0.5
    assert abs(outputs.mean() - 1.0) < 6 * (0.3 / 0.7 / ONES.size) ** 0.5


def test_neighbours_that_share_a_random_number_are_independent() -> None:
    dropped = to_numpy(Dropout(0.3, seed=2)(np.ones((201, 101), np.float32), training=True)) == 0
    first, second = dropped.reshape(-1)[:-1].reshape(-1, 2).T
    assert abs((first & second).mean() - 0.3 * 0.3) < 6 * (0.09 * 0.91 / len(first)) ** 0.5


@pytest.mark.parametrize("rate, training", [(0.0, True), (0.5, False), (0.5, None)])
def test_nothing_is_dropped_at_rate_0_or_outside_training(
    rate: float, training: bool | None
) -> None:
    np.testing.assert_array_equal(to_numpy(Dropout(rate)(ONES, training=training)), ONES)


def test_mask_is_a_function_of_seed_and_path() -> None:
    def mask(layer: Dropout, *seed: int) -> np.ndarray:
        with dropout_seed(keras.ops.convert_to_tensor(seed, "int32")):
            return to_numpy(layer(ONES, training=True)) == 0

    one, other = Dropout(0.5, name="one"), Dropout(0.5, name="other")
    first = mask(one, 3, 4)
    assert (mask(one, 3, 4) == first).all()
    assert (mask(Dropout(0.5, name="one"), 3, 4) == first).all()
    # Independent masks agree on half of the places.
    for different in (mask(other, 3, 4), mask(one, 4, 4), mask(one, 3, 5)):
        assert abs((different == first).mean() - 0.5) < 0.03


def test_given_seed_ends_with_its_scope_even_after_an_error() -> None:
    layer = Dropout(0.5, name="one")
    with pytest.raises(RuntimeError), dropout_seed(keras.ops.zeros(2, "int32")):
        raise RuntimeError
    first, second = (to_numpy(layer(ONES, training=True)) for _ in range(2))
    assert (first != second).any()


@pytest.mark.parametrize("noise_shape", [None, (None, 1, None)])
def test_dropout_is_a_keras_layer(noise_shape: tuple[int | None, ...] | None) -> None:
    inputs = {"inputs": np.ones((2, 3, 4), np.float32)}
    arguments = {"rate": 0.25, "seed": 7, "noise_shape": noise_shape}
    check_layer(Dropout, arguments, inputs, (2, 3, 4))


@pytest.mark.parametrize("noise_shape", [(None, 1, None), [3, 1, 70], (1, 9, 1), (3, None, None)])
@pytest.mark.parametrize("way", ["state", "seed", "draw_mask"])
def test_noise_shape_is_broadcast(noise_shape: Sequence[int | None], way: str) -> None:
    ones = np.ones((3, 9, 70), np.float32)
    shape = [s if n is None else n for n, s in zip(noise_shape, ones.shape, strict=True)]
    layer = Dropout(0.4, noise_shape, seed=3)

    def draw_mask(given: Any, rate: float, salt: int, dtype: str) -> Any:
        assert [int(size) for size in given] == shape and rate == 0.4
        return keras.ops.cast(keras.random.uniform(given, seed=4) >= rate, dtype) / (1 - rate)

    seed = keras.ops.convert_to_tensor([3, 4], "int32")
    scopes = {"state": nullcontext(), "seed": dropout_seed(seed)}
    with scopes.get(way) or dropout_seed(seed, draw_mask):
        output = to_numpy(layer(ones, training=True))
    first = output[tuple(slice(size) for size in shape)]
    np.testing.assert_array_equal(output, np.broadcast_to(first, output.shape))
    np.testing.assert_allclose(np.unique(output), [0, 1 / 0.6], rtol=1e-6)
    assert Dropout.from_config(layer.get_config()).noise_shape == tuple(noise_shape)


def test_wrong_rates_and_noise_shapes_are_refused() -> None:
    for rate in (-0.1, 1.0):
        with pytest.raises(ValueError, match=mentions("rate", "0", "1")):
            Dropout(rate)
    with pytest.raises(ValueError, match=mentions("noise_shape", "0")):
        Dropout(0.5, noise_shape=(None, 0))
    with pytest.raises(ValueError, match=mentions("noise_shape", 2)):
        Dropout(0.5, noise_shape=(None, 1, 3))(ONES, training=True)
