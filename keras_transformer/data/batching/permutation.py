"""Random orders that are computed where they are asked for, and never drawn as a whole.

A keyed permutation of n things is a Feistel network on numbers a · left + right
with a · b just above n (Black and Rogaway 2002); where it leaves the n things it
is applied again until it is back among them (cycle walking). So the place of one
thing costs the same in any epoch of a corpus of any size.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

IntArray: TypeAlias = npt.NDArray[np.int64]
Keys: TypeAlias = npt.NDArray[np.uint64]

# Even, so that both halves change as often; with 8, permutations of five things are
# measurably not equally likely.
_ROUNDS = 16
_HALF = np.uint64(32)
_ODD = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03))
_ROUND_KEYS = np.random.SeedSequence(0).generate_state(_ROUNDS, np.uint64)


def key_of(*numbers: int) -> Keys:
    """Returns uint64[1], a key made of numbers of at least 0."""
    return np.random.SeedSequence(numbers).generate_state(1, np.uint64).astype(np.uint64)


def hashed(key: Keys, numbers: IntArray) -> Keys:
    """Returns uint64 pseudo-random values of the numbers under the key, broadcast together."""
    return _mixed(key ^ _mixed(numbers.astype(np.uint64)))


def permuted(places: IntArray, sizes: IntArray, keys: Keys) -> IntArray:
    """Returns where pseudo-random permutations put places.

    Args:
        places: int64[N], each at least 0 and below its size.
        sizes: int64[N], how many things are permuted: below 2^62.
        keys: uint64[N]; each decides about one permutation of so many things.

    Returns:
        int64[N]; for one size and key a permutation of `range(size)`.
    """
    left_size = np.ceil(np.sqrt(sizes)).astype(np.uint64)
    right_size = (sizes.astype(np.uint64) + left_size - np.uint64(1)) // left_size
    found = places.astype(np.uint64)
    todo = np.arange(len(places))
    while len(todo):
        found[todo] = _network(found[todo], left_size[todo], right_size[todo], keys[todo])
        todo = todo[found[todo] >= sizes[todo].astype(np.uint64)]
    return found.astype(np.int64)


def _network(places: Keys, left_size: Keys, right_size: Keys, keys: Keys) -> Keys:
    left, right = places // right_size, places % right_size
    sizes = (left_size, right_size)
    for round_number, round_key in enumerate(_ROUND_KEYS):
        size = sizes[round_number % 2]
        random = _mixed(right + (keys ^ round_key)) >> _HALF
        moved = left + ((random * size) >> _HALF)
        left, right = right, np.where(moved >= size, moved - size, moved)
    return left * right_size + right


def _mixed(values: Keys) -> Keys:
    for odd in _ODD:
        values = values * odd
        values = values ^ (values >> _HALF)
    return values
