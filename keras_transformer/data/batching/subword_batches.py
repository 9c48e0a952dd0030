"""The sentences of batches whose segmentations are sampled.

Their lengths are known only when they are drawn. The rows of some steps, and with
them their shapes, are given; which sentence stands in which of them can still be chosen.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from keras_transformer.data.batching.subword_sampling import Keys, SubwordSampler
from keras_transformer.data.batching.token_pairs import IntArray, Lengths, TokenArray, TokenPairs


class Sentences(NamedTuple):
    """The sentences of some rows, one after another, and the length of each."""

    source_ids: TokenArray
    source_lengths: Lengths
    target_ids: TokenArray
    target_lengths: Lengths

    def rows(self, begin: int, end: int) -> Sentences:
        """Returns those of some rows."""
        return Sentences(
            _part(self.source_ids, self.source_lengths, begin, end),
            self.source_lengths[begin:end],
            _part(self.target_ids, self.target_lengths, begin, end),
            self.target_lengths[begin:end],
        )


class Drawn(NamedTuple):
    """Pairs of sentences, each side in as many arrays as there are pairs."""

    source: list[TokenArray]
    target: list[TokenArray]

    def of(self, pairs: Iterable[int]) -> Sentences:
        """Returns those of some pairs."""
        pairs = list(pairs)
        source, target = (_joined([side[pair] for pair in pairs]) for side in self)
        return Sentences(*source, *target)


def draw(
    sampler: SubwordSampler, store: TokenPairs, pairs: IntArray, keys: Keys, bounds: IntArray
) -> tuple[IntArray, Drawn]:
    """Draws segmentations of N pairs, and finds each of them one of N rows that has room for it.

    Args:
        sampler: draws.
        store: holds the pairs.
        pairs: int64[N].
        keys: uint64[N], what decides of each segmentation; it is only drawn again where no
            row has room for it.
        bounds: int64[N, 2], the S and T of each row; row i has room for the best
            segmentation of pair i.

    Returns:
        int64[N], the row of each pair, and their sentences, pair by pair.
    """
    draws = (sampler.source_ids, sampler.target_ids)
    drawn = Drawn(*(_split(*side(store, pairs, keys)) for side in draws))
    lengths = np.array([[len(ids) for ids in side] for side in drawn]).T
    best = np.stack([store.source_lengths[pairs], store.target_lengths[pairs]], axis=1)
    row_of, too_long = regroup(bounds, lengths, best.astype(np.int64))
    for side, again_of in enumerate(draws):
        longest = bounds[row_of, side]
        again = np.flatnonzero(too_long & (lengths[:, side] > longest))
        if len(again):
            shorter = _split(*again_of(store, pairs[again], keys[again], longest[again]))
            for pair, ids in zip(again.tolist(), shorter, strict=True):
                drawn[side][pair] = ids
    return row_of, drawn


def regroup(
    bounds: IntArray, lengths: IntArray, least: IntArray
) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """Gives each of N pairs one of N rows.

    The smallest rows take the longest pairs that they hold, then the next larger ones. Pairs
    that find no room so take the largest of the rows left over that would hold them by a
    shorter segmentation; if there is none, the row of their number, from which another pair has to
    go, likewise.

    Args:
        bounds: int64[N, 2], the S and T that row i has room for; pair i is sure to fit it by
            its shortest segmentation.
        lengths: int64[N, 2], the source and target lengths of each pair.
        least: int64[N, 2], those of its shortest segmentation.

    Returns:
        int64[N], the row of each pair; bool[N], which pairs are too long for theirs.
    """
    pairs = np.argsort(-lengths.sum(axis=1), kind="stable")  # the longest first
    shapes, shape_of_row = np.unique(bounds, axis=0, return_inverse=True)
    shape_of_row = shape_of_row.reshape(-1)
    row_of = np.full(len(bounds), -1)
    left_over = []
    for i in np.argsort(shapes.sum(axis=1), kind="stable").tolist():
        rows = np.flatnonzero(shape_of_row == i)
        chosen = np.flatnonzero((lengths[pairs] <= shapes[i]).all(axis=1))[: len(rows)]
        row_of[pairs[chosen]] = rows[: len(chosen)]
        pairs = np.delete(pairs, chosen)
        left_over += rows[len(chosen) :].tolist()
    if len(pairs):
        _squeeze_in(pairs.tolist(), left_over, bounds, least, row_of)
    return row_of, (lengths > bounds[row_of]).any(axis=1)


def _squeeze_in(
    pairs: list[int], rows: list[int], bounds: IntArray, least: IntArray, row_of: IntArray
) -> None:
    """Puts `pairs` into `rows`, as many and the largest last, and moves others if need be."""
    pair_in = {row: pair for pair, row in enumerate(row_of.tolist()) if row >= 0}
    for pair in pairs:
        # It ends: nobody sends a pair away from the row of its number.
        while True:
            fits = np.flatnonzero((least[pair] <= bounds[rows]).all(axis=1))
            row = rows.pop(int(fits[-1])) if len(fits) else pair
            sent_away = pair_in.pop(row, None)
            row_of[pair], pair_in[row] = row, pair
            if sent_away is None:
                break
            pair = sent_away
        if row in rows:
            rows.remove(row)


def _split(ids: TokenArray, lengths: Lengths) -> list[TokenArray]:
    """Returns the ids of each sentence."""
    ends = np.cumsum(lengths, dtype=np.int64).tolist()
    return [ids[begin:end] for begin, end in itertools.pairwise([0, *ends])]


def _joined(sentences: Sequence[TokenArray]) -> tuple[TokenArray, Lengths]:
    """Returns the ids of all sentences, and how many each has."""
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
    return np.concatenate([np.zeros(0, np.int32), *sentences]), lengths


def _part(ids: TokenArray, lengths: Lengths, begin: int, end: int) -> TokenArray:
    """Returns the ids of some of the sentences."""
    first = int(lengths[:begin].sum())
    return ids[first : first + int(lengths[begin:end].sum())]
