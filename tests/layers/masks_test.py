"""Masks against masks written out by hand."""

import keras
import numpy as np
import pytest

from keras_transformer.layers.masks import padding_mask, position_mask
from tests import reference
from tests.layers.layer_check import INTEGERS, assert_same, to_numpy

IDS = np.array([[5, 1, 3], [4, 1, 1]], np.int32)


def test_padding_mask_marks_tokens() -> None:
    expected = [[True, False, True], [True, False, False]]
    np.testing.assert_array_equal(to_numpy(padding_mask(IDS, 1)), expected)
    ids = keras.Input((None,), dtype="int32")
    np.testing.assert_array_equal(to_numpy(keras.Model(ids, padding_mask(ids, 1))(IDS)), expected)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_ids_may_have_any_integer_dtype(dtype: str) -> None:
    for pad_id in (1, 1000):  # 1000 is not an int8
        assert_same(to_numpy(padding_mask(IDS.astype(dtype), pad_id)), pad_id != IDS)
    assert_same(to_numpy(padding_mask(IDS.tolist(), 1)), IDS != 1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 1, 2, 3, 4, 20])
def test_position_mask_is_the_references(causal: bool, window: int | None) -> None:
    length = 6
    positions = np.arange(length, dtype=np.int32)
    mask = position_mask(positions, positions, causal, window)
    expected = reference.window_mask(length, window)
    if causal:
        expected &= reference.causal_mask(length)
    if mask is None:
        assert expected.all()
    else:
        np.testing.assert_array_equal(to_numpy(mask), expected)
