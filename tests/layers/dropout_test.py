"""Dropout: its rate, and its mask as a function of seed and path."""

import keras
import numpy as np
import pytest

from keras_transformer.layers.dropout import Dropout, dropout_seed
from tests.layers.layer_check import check_layer, to_numpy

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
    # Independent masks agree on half of the positions.
    for different in (mask(other, 3, 4), mask(one, 4, 4), mask(one, 3, 5)):
        assert abs((different == first).mean() - 0.5) < 0.03


def test_given_seed_ends_with_its_scope_even_after_an_error() -> None:
    layer = Dropout(0.5, name="one")
    with pytest.raises(RuntimeError), dropout_seed(keras.ops.zeros(2, "int32")):
        raise RuntimeError
    first, second = (to_numpy(layer(ONES, training=True)) for _ in range(2))
    assert (first != second).any()


def test_dropout_is_a_keras_layer() -> None:
    inputs = {"inputs": np.ones((2, 3, 4), np.float32)}
    check_layer(Dropout, {"rate": 0.25, "seed": 7}, inputs, (2, 3, 4))
