"""Puts sentences with sampled segmentations into the rows of batches.

The shapes of the batches are planned before. The length of a sentence is known only when its
segmentation is drawn. Then each sentence gets a row that is long enough.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from keras_transformer.data.subword_sampling import Keys, SubwordSampler
from keras_transformer.data.token_pairs import (
    IntArray,
    Lengths,
    TokenArray,
    TokenPairs,
)


class Sentences(NamedTuple):
    """Consecutive sentences, and the length of each.

    Example:
    >>> ids, lengths = np.array([7, 3, 8, 9, 3], np.int32), np.array([2, 3])
    >>> Sentences(ids, lengths, ids, lengths).rows(1, 2).source_ids
    array([8, 9, 3], dtype=int32)
    """

    source_ids: TokenArray
    source_lengths: Lengths
    target_ids: TokenArray
    target_lengths: Lengths

    def rows(self, begin: int, end: int) -> Sentences:
        """Returns the sentences of rows `begin` to `end`."""
        return Sentences(
            _part(self.source_ids, self.source_lengths, begin, end),
            self.source_lengths[begin:end],
            _part(self.target_ids, self.target_lengths, begin, end),
            self.target_lengths[begin:end],
        )


class Drawn(NamedTuple):
    """Drawn segmentations of pairs: for each side, an array of ids per pair.

    Example:
    >>> side = [np.array([7, 3], np.int32), np.array([8, 9, 3], np.int32)]
    >>> Drawn(side, side).of([1, 0]).source_ids
    array([8, 9, 3, 7, 3], dtype=int32)
    """

    source: list[TokenArray]
    target: list[TokenArray]

    def of(self, pairs: Iterable[int]) -> Sentences:
        """Returns the sentences of some pairs, in the given order."""
        pairs = list(pairs)
        source, target = (_joined([side[pair] for pair in pairs]) for side in self)
        return Sentences(*source, *target)


def draw(
    sampler: SubwordSampler, store: TokenPairs, pairs: IntArray, keys: Keys, bounds: IntArray
) -> tuple[IntArray, Drawn]:
    """Draws segmentations of N pairs, and assigns each pair to one of N rows that is long enough.

    Args:
        sampler: draws the segmentations.
        store: contains the pairs.
        pairs: int64[N], numbers of the pairs.
        keys: uint64[N], the random key of each pair.
        bounds: int64[N, 2], the S and T of each row. The best segmentation of pair i fits into
            row i.

    Returns:
        The row of each pair, int64[N], and the sentences of all pairs. A pair that is too long for
        every free row is drawn again, shorter.

    Example:
    >>> from keras_transformer.data.token_store import TokenStore
    >>> from keras_transformer.text.vocabulary import Vocabulary
    >>> sampler = SubwordSampler(Vocabulary.load("build/data"), alpha=0.1)
    >>> store, pairs = TokenStore("build/data/train"), np.arange(2)
    >>> bounds = np.full((2, 2), 100)
    >>> row_of, drawn = draw(sampler, store, pairs, pairs.astype(np.uint64), bounds)
    >>> sorted(row_of.tolist()), len(drawn.source)
    ([0, 1], 2)
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
    """Assigns each of N pairs to one of N rows.

    The smallest rows take the longest pairs that they hold, then the next larger rows. A pair
    without a row takes the largest free row that holds it with a shorter segmentation. If there is
    none, it takes the row with its number, and the pair in that row moves in the same way.

    Args:
        bounds: int64[N, 2], the S and T of row i. Pair i fits it with its shortest segmentation.
        lengths: int64[N, 2], source and target lengths of each pair.
        least: int64[N, 2], lengths of the shortest segmentation.

    Returns:
        int64[N], the row of each pair; bool[N], whether the pair is too long for its row.

    Example:
    >>> bounds = np.array([[9, 9], [5, 5]])
    >>> row_of, is_too_long = regroup(bounds, lengths=np.array([[4, 4], [7, 7]]), least=bounds - 1)
    >>> row_of, is_too_long
    (array([1, 0]), array([False, False]))
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
        _insert_pairs(pairs.tolist(), left_over, bounds, least, row_of)
    return row_of, (lengths > bounds[row_of]).any(axis=1)


def _insert_pairs(
    pairs: list[int], rows: list[int], bounds: IntArray, least: IntArray, row_of: IntArray
) -> None:
    """Puts `pairs` into `rows`, a list of the same size with the largest row last. Moves other
    pairs if necessary.
    """
    pair_in = {row: pair for pair, row in enumerate(row_of.tolist()) if row >= 0}
    for pair in pairs:
        # The loop ends, because no pair leaves the row with its own number.
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
    """Returns the ids of all sentences, and the length of each."""
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
    return np.concatenate([np.zeros(0, np.int32), *sentences]), lengths


def _part(ids: TokenArray, lengths: Lengths, begin: int, end: int) -> TokenArray:
    """Returns the ids of sentences `begin` to `end`."""
    first = int(lengths[:begin].sum())
    return ids[first : first + int(lengths[begin:end].sum())]
