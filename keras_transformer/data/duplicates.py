"""Hashes of pairs, to find duplicates in a corpus that does not fit into memory."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from keras_transformer.data.cleaning import CleanPairs
from keras_transformer.data.token_store import IntArray

HASH = np.dtype([("high", np.uint64), ("low", np.uint64)])  # enough to drop pairs by
SHORT_HASH = np.dtype(np.uint64)  # enough to count pairs by
_MAX_HASHES = 2**22  # approximate number of hashes of one part, which needs 128 MB to sort


def hash_pairs(pairs: CleanPairs, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Returns a hash of each pair. Equal pairs have equal hashes.

    Args:
        pairs: the pairs.
        dtype: `HASH` or `SHORT_HASH`.

    Example:
    >>> pairs = CleanPairs("a.en", np.arange(2), [b"Hi.", b"Hi."], [b"Hallo.", b"Hallo."])
    >>> first, second = hash_pairs(pairs, SHORT_HASH)
    >>> bool(first == second)
    True
    """
    digests = (
        hashlib.blake2b(b"%b\n%b" % pair, digest_size=dtype.itemsize).digest()
        for pair in zip(pairs.sources, pairs.targets, strict=True)
    )
    return np.frombuffer(b"".join(digests), dtype)


def find_duplicates(files: Sequence[Path]) -> list[IntArray]:
    """Returns the places of repeated hashes in each file.

    A hash is repeated if it occurs earlier in the file or in a previous file.

    The hashes are processed in parts, by their leading bits, to limit memory. Every part reads all
    files.

    Args:
        files: `.npy` files of the dtype `HASH`.

    Returns:
        For each file: int64, positions in the file, sorted.

    Example:
    >>> np.save("a.npy", np.zeros(2, HASH))
    >>> find_duplicates([Path("a.npy"), Path("a.npy")])
    [array([1]), array([0, 1])]
    """
    if not files:
        return []
    first = np.cumsum([0, *(len(np.load(path, mmap_mode="r")) for path in files)])
    bits = max(0, int(first[-1]) // _MAX_HASHES).bit_length()
    found = [_duplicates_of_part(files, first, part, bits) for part in range(2**bits)]
    places = np.sort(np.concatenate(found))
    ends = np.searchsorted(places, first)
    return [places[a:b] - start for a, b, start in zip(ends, ends[1:], first, strict=False)]


def _duplicates_of_part(files: Sequence[Path], first: IntArray, part: int, bits: int) -> IntArray:
    """Returns the places, counted over all files, of the repeated hashes of a part."""
    chosen, places = [], []
    for path, start in zip(files, first, strict=False):
        file = np.load(path, mmap_mode="r")  # one at a time: a map keeps its file open
        # Two shifts, because an integer cannot be shifted by its whole width.
        inside = np.flatnonzero(file["high"] >> np.uint64(1) >> np.uint64(63 - bits) == part)
        chosen.append(np.array(file[inside]))
        places.append(inside + start)
    records, order = np.concatenate(chosen), np.concatenate(places)
    by_hash = np.lexsort((order, records["low"], records["high"]))
    records = records[by_hash]
    again = np.flatnonzero(records[1:] == records[:-1]) + 1
    return order[by_hash[again]]


def count_known(files: Sequence[Path], others: Sequence[Path]) -> int:
    """Returns the number of hashes in `files` that are also in `others`.

    All hashes of `files`, 8 bytes each, are in memory, and one file of `others` at a time.

    Args:
        files: `.npy` files of the dtype `SHORT_HASH`.
        others: `.npy` files of the dtype `SHORT_HASH`.

    Example:
    >>> np.save("valid.npy", np.array([1, 2, 3], SHORT_HASH))
    >>> np.save("train.npy", np.array([3, 4], SHORT_HASH))
    >>> count_known([Path("valid.npy")], [Path("train.npy")])
    1
    """
    hashes = np.concatenate([np.zeros(0, SHORT_HASH), *map(np.load, files)])
    known = np.zeros(len(hashes), np.bool_)
    for path in others:
        known |= np.isin(hashes, np.load(path))
    return int(np.count_nonzero(known))
