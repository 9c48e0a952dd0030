"""Permutations computed place by place: whole, keyed, and equally likely."""

import itertools

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from keras_transformer.data.batching.permutation import hashed, key_of, permuted


def permutations(size, count, seed=0):
    """Returns int64[count, size], permutations of as many keys."""
    keys = np.repeat(hashed(key_of(seed), np.arange(count)), size)
    places = np.tile(np.arange(size), count)
    return permuted(places, np.full(len(places), size), keys).reshape(count, size)


def is_plausible(counts):
    """Whether counts look like those of equally likely events: chi-square within 5 deviations."""
    expected = counts.sum() / counts.size
    chi_square = ((counts - expected) ** 2 / expected).sum()
    degrees = counts.size - 1
    return abs(chi_square - degrees) < 5 * np.sqrt(2 * degrees)


@pytest.mark.parametrize("size", [1, 2, 3, 10, 1000, 4097, 100_003])
def test_every_place_is_taken_once(size):
    for found in permutations(size, 2):
        np.testing.assert_array_equal(np.sort(found), np.arange(size))


@hypothesis.given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 99)), min_size=1))
def test_each_place_is_permuted_by_its_own_size_and_key(wanted):
    sizes, seeds = np.array(wanted).T
    places = (seeds * 7) % sizes
    together = permuted(places, sizes, hashed(key_of(3), seeds))
    for found, place, size, seed in zip(together, places, sizes, seeds, strict=True):
        alone = permuted(
            np.arange(size), np.full(size, size), hashed(key_of(3), np.full(size, seed))
        )
        assert found == alone[place]


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_permutations_of_few_things_are_equally_likely(size):
    number = {order: i for i, order in enumerate(itertools.permutations(range(size)))}
    found = [number[tuple(order)] for order in permutations(size, 20_000).tolist()]
    assert is_plausible(np.bincount(found, minlength=len(number)))


@pytest.mark.parametrize("size", [7, 16, 17, 64])
def test_where_two_things_come_is_equally_likely(size):
    found = permutations(size, 20_000)
    for first, second in ((0, 1), (0, size - 1), (size // 2, size // 3)):
        counts = np.bincount(found[:, first] * size + found[:, second], minlength=size**2)
        counts = counts.reshape(size, size)
        assert not counts.diagonal().any()
        assert is_plausible(counts[~np.eye(size, dtype=bool)])


def test_large_permutations_keep_no_neighbours_together():
    (found,) = permutations(1_000_000, 1)
    distances = np.abs(np.diff(found))
    assert abs(distances.mean() / (1_000_000 / 3) - 1) < 0.01  # that of two random places
    quarters = np.bincount(found[:250_000] // 250_000, minlength=4)
    assert is_plausible(quarters)


def test_keys_depend_on_each_number_and_its_place():
    keys = [int(key_of(*numbers)[0]) for numbers in ((1, 2), (2, 1), (1, 2, 1), (1,), (12,))]
    assert len(set(keys)) == len(keys)
    assert len(np.unique(hashed(key_of(1), np.arange(100_000)))) == 100_000
