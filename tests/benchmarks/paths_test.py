"""Path lengths against what the paper says, and against paths walked one step at a time."""

from __future__ import annotations

import math

import hypothesis
import keras
import numpy as np
import pytest
from complexity import paths
from complexity.layers import KINDS, Sizes
from hypothesis import strategies as st

from keras_transformer.layers import SelfAttention
from tests.messages import mentions


def distances(direct: paths.Dependencies) -> int:
    """The most steps between any two positions that are connected, by search in breadth."""
    longest = 1
    for start in range(len(direct)):
        seen, border, steps = {start}, {start}, 0
        while border := {j for i in border for j in np.flatnonzero(direct[:, i])} - seen:
            seen, steps = seen | border, steps + 1
        longest = max(longest, steps)
    return longest


@hypothesis.settings(deadline=None, max_examples=50)
@hypothesis.given(st.integers(1, 12), st.floats(0, 0.5), st.integers(0, 2**32 - 1))
def test_identical_layers_are_as_many_as_the_longest_of_the_shortest_paths(
    length: int, density: float, seed: int
) -> None:
    direct = np.random.default_rng(seed).random((length, length)) < density
    direct |= np.eye(length, dtype=bool)
    assert paths.identical_layers(direct) == distances(direct)


def test_dependencies_are_those_of_the_layers() -> None:
    n = 70  # more than are looked at together, more than a block
    offset = np.arange(n)[:, None] - np.arange(n)
    found = paths.dependencies(keras.layers.Conv1D(3, 3, padding="same"), n, 3)
    np.testing.assert_array_equal(found, np.abs(offset) <= 1)
    causal = keras.layers.Conv1D(3, 2, padding="causal", dilation_rate=4)
    np.testing.assert_array_equal(paths.dependencies(causal, n, 3), np.isin(offset, (0, 4)))
    windowed = SelfAttention(1, 3, window=8, causal=True)
    expected = (offset >= 0) & (offset <= 4)
    np.testing.assert_array_equal(paths.dependencies(windowed, n, 3), expected)
    assert paths.dependencies(SelfAttention(1, 3), n, 3).all()


@pytest.mark.parametrize("n", [2, 17, 70])
def test_path_lengths_are_the_papers(n: int) -> None:
    sizes = Sizes(n=n, d=3, window=8, kernel=3, head_dim=3)
    assert {name: kind.path_length(sizes) for name, kind in KINDS.items()} == {
        "self-attention": 1,
        "restricted self-attention": math.ceil((n - 1) / 4),
        "LSTM": n,
        "GRU": n,
        "convolution": n - 1,
        "dilated convolutions": math.ceil(math.log(n, 3)),
        "separable convolution": n - 1,
    }


def test_a_stack_that_connects_too_little() -> None:
    near = np.tri(5, dtype=bool) & ~np.tri(5, k=-2, dtype=bool)
    assert paths.stacked_layers([near] * 9, np.tri(5, dtype=bool)) == 4
    with pytest.raises(ValueError, match=mentions("connect")):
        paths.stacked_layers([near] * 3, np.tri(5, dtype=bool))
