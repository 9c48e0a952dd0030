"""Pairs that stood in a corpus before, or stand in another, found by their hashes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

IntArray: TypeAlias = npt.NDArray[np.int64]

_AT_ONCE = 2**22  # hashes, about: 128 MB with what sorting them takes


def find_duplicates(files: Sequence[Path]) -> list[IntArray]:
    """Returns, for each file of hashes, the places of those that stood in it or before it.

    The hashes are looked at in as many parts, by their leading bits, as keep each small;
    every part reads all files.

    Args:
        files: `.npy`, of records with the fields `high` and `low`, uint64.
    """
    if not files:
        return []
    first = np.cumsum([0, *(len(np.load(path, mmap_mode="r")) for path in files)])
    bits = max(0, int(first[-1]) // _AT_ONCE).bit_length()
    found = [_again(files, first, part, bits) for part in range(2**bits)]
    places = np.sort(np.concatenate(found))
    ends = np.searchsorted(places, first)
    return [places[a:b] - start for a, b, start in zip(ends, ends[1:], first, strict=False)]


def count_known(files: Sequence[Path], others: Sequence[Path]) -> int:
    """Returns how many of the hashes in `files` stand in `others` as well.

    Those of `files`, 8 bytes each, are in memory together; of the others one file at a time.

    Args:
        files, others: `.npy`, uint64.
    """
    hashes = np.concatenate([np.zeros(0, np.uint64), *map(np.load, files)])
    known = np.zeros(len(hashes), np.bool_)
    for path in others:
        known |= np.isin(hashes, np.load(path))
    return int(np.count_nonzero(known))


def _again(files: Sequence[Path], first: IntArray, part: int, bits: int) -> IntArray:
    """Returns the places, over all files, of the hashes of a part that stood there before."""
    chosen, places = [], []
    for path, start in zip(files, first, strict=False):
        file = np.load(path, mmap_mode="r")  # one at a time: a map holds its file open
        # Two steps, as no integer can be shifted by its whole width.
        inside = np.flatnonzero(file["high"] >> np.uint64(1) >> np.uint64(63 - bits) == part)
        chosen.append(np.array(file[inside]))
        places.append(inside + start)
    records, order = np.concatenate(chosen), np.concatenate(places)
    by_hash = np.lexsort((order, records["low"], records["high"]))
    records = records[by_hash]
    again = np.flatnonzero(records[1:] == records[:-1]) + 1
    return order[by_hash[again]]
