"""Every pair gets one row that it fits, with a shorter segmentation if necessary."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.data.subwords import regroup

SIDE = st.integers(1, 6)
PAIRS = st.lists(
    st.tuples(SIDE, SIDE, SIDE, SIDE, st.integers(0, 3), st.integers(0, 3)), min_size=1
)


@given(PAIRS)
def test_rows_of_any_pairs(pairs):
    columns = np.array(pairs)
    least = columns[:, :2]
    bounds = least + columns[:, 4:]
    lengths = np.maximum(columns[:, 2:4], least)
    row_of, too_long = regroup(bounds, lengths, least)
    assert sorted(row_of.tolist()) == list(range(len(pairs)))
    assert (too_long == (lengths > bounds[row_of]).any(axis=1)).all()
    assert (least <= bounds[row_of]).all(), "who is too long can be shortened"
    if (lengths <= bounds).all() and len(np.unique(bounds, axis=0)) == 1:
        assert not too_long.any()


def test_long_segmentations_change_places_with_short_ones():
    bounds = np.array([[5, 5], [9, 9], [5, 5], [9, 9]])
    lengths = np.array([[8, 7], [4, 5], [5, 5], [6, 3]])
    row_of, too_long = regroup(bounds, lengths, np.full((4, 2), 3))
    assert not too_long.any() and set(row_of[[1, 2]].tolist()) == {0, 2}


def test_a_pair_is_shortened_only_if_it_fits_into_no_batch():
    bounds = np.array([[5, 5], [5, 5], [5, 5]])
    lengths = np.array([[5, 5], [5, 9], [1, 1]])
    row_of, too_long = regroup(bounds, lengths, np.minimum(lengths, 5))
    assert too_long.tolist() == [False, True, False] and sorted(row_of) == [0, 1, 2]


def test_lengths_of_a_real_corpus_leave_few_too_long():
    random = np.random.default_rng(1)
    least = random.integers(5, 40, 2000)[:, None] + random.integers(-3, 4, (2000, 2))
    least = np.maximum(least, 1)
    shapes = np.array([[12, 12], [18, 20], [24, 25], [32, 34], [44, 46], [60, 60]])
    lengths, planned = (
        np.rint(least * random.normal(1.3, 0.12, (2000, 2)).clip(1)).astype(int) for _ in range(2)
    )
    home = (planned[:, None] <= shapes).all(axis=2).argmax(axis=1)
    bounds = shapes[home]
    before = (lengths > bounds).any(axis=1).mean()
    row_of, too_long = regroup(bounds, lengths, least)
    assert too_long.mean() < 0.04 < 0.1 < before
