"""Batches of sentences of similar lengths: what every decoder gets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]

_MULTIPLE = 8  # lengths for XLA are multiples of it: fewer shapes to compile


def sorted_groups(lengths: Sequence[int], rows: int) -> list[list[int]]:
    """Returns the indices of sentences in groups of `rows`, sorted by length; the last is short."""
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    return [order[first : first + rows] for first in range(0, len(order), rows)]


def sorted_batches(
    sentences: Sequence[Sequence[int]], rows: int, count: int, seed: int
) -> list[list[Sequence[int]]]:
    """Returns batches of `rows` sentences sorted by length, in random order, again if need be.

    Args:
        sentences: ids of each; at least `rows` of them.
        rows: of a batch; sentences that fill none are left out.
        count: of batches.
        seed: of their order.
    """
    groups = [
        [sentences[i] for i in group]
        for group in sorted_groups([len(ids) for ids in sentences], rows)
        if len(group) == rows
    ]
    order = np.random.default_rng(seed).permutation(len(groups))
    return [groups[order[place % len(groups)]] for place in range(count)]


def save(path: Path, batches: Mapping[int, Sequence[Sequence[Sequence[int]]]], pad_id: int) -> None:
    """Writes batches by their rows."""
    arrays = {
        f"{rows} {place}": pad(batch, pad_id)
        for rows, many in batches.items()
        for place, batch in enumerate(many)
    }
    np.savez(path, **arrays)  # type: ignore[arg-type]


def read(path: str) -> dict[int, list[Ids]]:
    """Returns what `save` wrote: batches int32 `[rows, longest]`, padded, by their rows."""
    batches: dict[int, list[Ids]] = {}
    with np.load(path) as file:
        for name in file.files:
            batches.setdefault(int(name.split()[0]), []).append(file[name])
    return batches


def pad(sentences: Iterable[Sequence[int]], pad_id: int) -> Ids:
    """Returns sentences as int32 `[rows, longest]`."""
    rows = [np.asarray(ids, np.int32) for ids in sentences]
    padded = np.full((len(rows), max(map(len, rows))), pad_id, np.int32)
    for row, ids in zip(padded, rows, strict=True):
        row[: len(ids)] = ids
    return padded


def widen(batch: Ids, pad_id: int) -> Ids:
    """Returns int32 `[rows, longest]` with the padding that XLA's batches have."""
    missing = -batch.shape[1] % _MULTIPLE
    return np.pad(batch, [(0, 0), (0, missing)], constant_values=pad_id)


def without_padding(batch: Ids, pad_id: int) -> list[list[int]]:
    """Returns the ids of each row of int32 `[rows, longest]`."""
    return [row[row != pad_id].tolist() for row in batch]
