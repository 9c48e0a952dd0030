"""Batches of sentences of similar lengths, as every engine gets them; uses only NumPy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]

_XLA_MULTIPLE = 8  # XLA pads lengths to a multiple of this, and so compiles fewer shapes


def sorted_groups(lengths: Sequence[int], rows: int) -> list[list[int]]:
    """Returns the indices of sentences in groups of similar length; the last may be smaller.

    Example:
        >>> sorted_groups([3, 1, 2], rows=2)
        [[1, 2], [0]]
    """
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    return [order[first : first + rows] for first in range(0, len(order), rows)]


def groups_for_marian(lengths: Sequence[int], rows: int) -> list[tuple[list[int], int | None]]:
    """Returns the indices of sentences in groups of similar length that Marian translates well.

    Marian's experimental Transformer (1.12.42) takes the logarithm of the padding mask. If the
    width of a batch is a multiple of 4, it uses SIMD instructions, whose logarithm of zero is NaN.
    Sentences with padding then get arbitrary translations. A full group of this kind therefore
    gives its longest sentence to the next group, and a filler replaces it. If the width would
    still be a multiple of 4, the filler is one token longer than the others.

    Args:
        lengths: tokens of each sentence, without the end token that Marian adds.
        rows: sentences of a group, at least 2. All groups except the last one have this size.

    Returns:
        For each group: the indices, sorted by length; and the length of the filler, if there is
        one.

    Example:
        >>> groups_for_marian([7, 5, 6, 5], rows=3)
        [([1, 3, 2], None), ([0], None)]
        >>> groups_for_marian([5, 6, 7], rows=3)
        [([0, 1], 6), ([2], None)]
        >>> groups_for_marian([5, 7], rows=3)
        [([0, 1], 8)]
    """

    def gives_nan(group: list[int]) -> bool:
        shortest, longest = lengths[group[0]], lengths[group[-1]]
        return shortest < longest and (longest + 1) % 4 == 0

    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    groups: list[tuple[list[int], int | None]] = []
    while order:
        group, filler = order[:rows], None
        if gives_nan(group):
            group = order[: rows - 1]
            filler = lengths[group[-1]] + gives_nan(group)
        groups.append((group, filler))
        del order[: len(group)]
    return groups


def sorted_batches(
    sentences: Sequence[Sequence[int]], rows: int, count: int, seed: int
) -> list[list[Sequence[int]]]:
    """Returns batches of sentences of similar lengths, in random order.

    Args:
        sentences: token ids of each sentence; at least `rows` sentences.
        rows: sentences of a batch. Sentences that do not fill a batch are left out.
        count: number of batches; if there are too few, they repeat.
        seed: seed of the order.
    """
    groups = [
        [sentences[i] for i in group]
        for group in sorted_groups([len(ids) for ids in sentences], rows)
        if len(group) == rows
    ]
    order = np.random.default_rng(seed).permutation(len(groups))
    return [groups[order[index % len(groups)]] for index in range(count)]


def sorted_training_batches(
    store: Any, batch_tokens: int, ids: Mapping[str, int], seed: int, count: int
) -> dict[str, Ids]:
    """Returns training batches that are sorted by length and padded to the longest sentence.

    Args:
        store: a `TokenStore`.
        batch_tokens: the most target positions of a batch.
        ids: the special ids `pad` and `start`.
        seed: seed of the order of the batches.
        count: the most batches.

    Returns:
        `source_I`, `target_I` and `labels_I` int32 `[rows, length]` of each batch I.
    """
    groups: list[list[int]] = [[]]
    for pair in np.lexsort((store.source.lengths, store.target.lengths)):
        if (len(groups[-1]) + 1) * store.target.lengths[pair] > batch_tokens:
            groups.append([])
        groups[-1].append(int(pair))
    arrays = {}
    for i, group in enumerate(np.random.default_rng(seed).permutation(len(groups))[:count]):
        pairs = [np.array([pair]) for pair in groups[group]]
        targets = [store.target.ids(pair) for pair in pairs]
        arrays[f"source_{i}"] = pad([store.source.ids(pair) for pair in pairs], ids["pad"])
        shifted = [np.append(ids["start"], target[:-1]) for target in targets]
        arrays[f"target_{i}"] = pad(shifted, ids["pad"])
        arrays[f"labels_{i}"] = pad(targets, ids["pad"])
    return arrays


def save(path: Path, batches: Mapping[int, Sequence[Sequence[Sequence[int]]]], pad_id: int) -> None:
    """Writes batches by their number of rows."""
    arrays = {
        f"{rows} {index}": pad(batch, pad_id)
        for rows, many in batches.items()
        for index, batch in enumerate(many)
    }
    np.savez(path, **arrays)  # type: ignore[arg-type]


def read(path: str) -> dict[int, list[Ids]]:
    """Reads the batches that `save` wrote: padded int32 `[rows, longest]` by number of rows."""
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
    """Pads int32 `[rows, longest]` to the next length that XLA compiles for."""
    missing = -batch.shape[1] % _XLA_MULTIPLE
    return np.pad(batch, [(0, 0), (0, missing)], constant_values=pad_id)


def without_padding(batch: Ids, pad_id: int) -> list[list[int]]:
    """Returns the ids of each row of int32 `[rows, longest]`."""
    return [row[row != pad_id].tolist() for row in batch]
