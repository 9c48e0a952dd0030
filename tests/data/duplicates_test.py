"""Finds exactly the pairs that occurred before, in parts or at once."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from keras_transformer.data import cleaning


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(
    st.lists(st.lists(st.integers(0, 2**128 - 1) | st.integers(0, 9), max_size=9), max_size=4),
    st.sampled_from([1, 3, 100]),
)
def test_all_repetitions_are_found(tmp_path_factory, files, at_once):
    directory = tmp_path_factory.mktemp("hashes")
    paths, seen, expected = [], set(), []
    for number, file in enumerate(files):
        paths.append(directory / f"{number}.npy")
        np.save(paths[-1], np.array([divmod(value, 2**64) for value in file], cleaning.HASH))
        expected.append([i for i, value in enumerate(file) if value in seen or value in file[:i]])
        seen |= set(file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleaning, "_MAX_HASHES", at_once)
        found = cleaning.find_duplicates(paths)
    assert [positions.tolist() for positions in found] == expected
