"""Chooses the batch shapes, and the number of pairs in each.

A plan depends only on the lengths of the pairs, so it is the same in every epoch. Only the order of
the pairs changes. The plan is computed from a histogram of (source length, target length). The
histogram does not grow with the corpus.

The goal is a small number of positions that the model computes: rows · (S + T), summed over the
batches of an epoch. This number includes padding and filler rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from keras_transformer.data.token_store import IntArray

Lengths: TypeAlias = npt.NDArray[np.integer[Any]]

MAX_SHAPES = 16
ROW_MULTIPLE = 8
# Limits of the search over shapes. They count work, not time, so that a plan is repeatable.
_MAX_TRIALS = 800
_MAX_WORK = 300_000_000


@dataclasses.dataclass(frozen=True)
class Histogram:
    """Counts the sentence pairs of a corpus by (source length, target length).

    A bucket contains all pairs with the same two lengths. The buckets with the largest sum of
    lengths come first.

    Attributes:
        source, target: int64[K], the two lengths of each bucket.
        count: int64[K], the number of pairs in each bucket.
    """

    source: IntArray
    target: IntArray
    count: IntArray

    @classmethod
    def of(cls, source_lengths: Lengths, target_lengths: Lengths) -> tuple[Histogram, Lengths]:
        """Returns the histogram of a corpus, and the bucket of each of its N pairs, uint[N]."""
        source, source_rank = _ranked(source_lengths)
        target, target_rank = _ranked(target_lengths)
        keys = source_rank[source_lengths] * len(target) + target_rank[target_lengths]
        count = np.bincount(keys)
        found = np.flatnonzero(count)
        source, target = source[found // len(target)], target[found % len(target)]
        order = np.lexsort((-source, -(source + target)))
        bucket_of_key = np.zeros(len(count), np.min_scalar_type(len(found)))
        bucket_of_key[found[order]] = np.arange(len(found))
        return cls(source[order], target[order], count[found[order]]), bucket_of_key[keys]

    @classmethod
    def union(cls, histograms: Sequence[Histogram]) -> Histogram:
        """Returns one histogram for several corpora together."""
        columns = [(part.source, part.target, part.count) for part in histograms]
        source, target, count = map(np.concatenate, zip(*columns, strict=True))
        union, bucket = cls.of(source, target)
        return dataclasses.replace(union, count=np.bincount(bucket, weights=count).astype(np.int64))


def _ranked(lengths: Lengths) -> tuple[IntArray, IntArray]:
    """Returns the sorted distinct lengths, and the rank of every length up to the longest."""
    occurs = np.bincount(lengths) > 0
    return np.flatnonzero(occurs), np.cumsum(occurs) - 1


@dataclasses.dataclass(frozen=True)
class BatchPlan:
    """The shapes of the batches of an epoch, and the number of pairs in each shape.

    Attributes:
        shapes: int64[C, 3], the (rows, S, T) of each shape, in decreasing order of S + T.
        num_batches: int64[C], number of batches of each shape.
        counts: int64[C, K], number of pairs of bucket k in shape c.
    """

    shapes: IntArray
    num_batches: IntArray
    counts: IntArray

    @property
    def positions(self) -> int:
        """Number of source and target positions in an epoch, including padding and filler rows."""
        rows, source, target = self.shapes.T
        return int((self.num_batches * rows * (source + target)).sum())


def choose_shapes(
    histogram: Histogram, batch_tokens: int, max_shapes: int = MAX_SHAPES
) -> IntArray:
    """Chooses shapes for the pairs of a histogram, so that an epoch has few positions.

    Recursive splitting makes several grids of shapes. The search starts from the best grid, and
    changes one bound of one shape at a time as long as that saves positions. Every pair fits into
    one of the shapes, int64[C, 3] of (rows, S, T).
    """
    grids = _grids(histogram, max_shapes)
    costs = [_plan(grid, histogram, batch_tokens).positions for grid in grids]
    best = int(np.argmin(costs))
    bounds, cost = grids[best], costs[best]
    trials = min(_MAX_TRIALS, _MAX_WORK // (MAX_SHAPES * len(histogram.count)))
    improved = True
    while improved and trials > 0:
        improved = False
        for cell, side in np.ndindex(bounds.shape):
            for step in (-2, -1, 1, 2):
                moved = bounds.copy()
                moved[cell, side] += step
                trials -= 1
                if moved.min() < 1 or not _fits(moved, histogram).any(axis=0).all():
                    continue
                moved_cost = _plan(moved, histogram, batch_tokens).positions
                if moved_cost < cost:
                    bounds, cost, improved = moved, moved_cost, True
    return _plan(bounds, histogram, batch_tokens).shapes


def plan_epoch(shapes: IntArray, histogram: Histogram) -> BatchPlan:
    """Plans an epoch with batches of the given shapes. The epoch contains every pair once.

    Every pair must fit into one of the shapes, int64[C, 3] of (rows, S, T). The plan omits unused
    shapes.
    """
    return _plan(shapes[:, 1:], histogram, rows=shapes[:, 0])


def _grids(histogram: Histogram, most: int) -> list[IntArray]:
    """Returns grids of bounds (S, T), int64[n, 2], for n = 1 to `most` cells.

    Each grid splits one cell of the previous grid: the cell whose split saves the most positions.
    The bounds of a cell are the largest lengths in it.
    """
    everything = np.arange(len(histogram.count))
    cells = [(everything, *_best_cut(everything, histogram))]
    grids = []
    while True:
        bounds = [(histogram.source[c].max(), histogram.target[c].max()) for c, _, _ in cells]
        grids.append(np.array(bounds, np.int64))
        widest = max(range(len(cells)), key=lambda i: cells[i][1])
        members, saving, low = cells[widest]
        if len(cells) == most or saving <= 0:
            return grids
        halves = (members[low], members[~low])
        cells[widest : widest + 1] = [(half, *_best_cut(half, histogram)) for half in halves]


def _best_cut(members: IntArray, histogram: Histogram) -> tuple[int, npt.NDArray[np.bool_]]:
    """Returns how many positions the best cut saves, and True for the members below the cut."""
    lengths = (histogram.source[members], histogram.target[members])
    count = histogram.count[members]
    whole = int(count.sum() * (lengths[0].max() + lengths[1].max()))
    best, low = 0, np.zeros(len(members), np.bool_)
    for cut_side, other_side in (lengths, lengths[::-1]):
        order = np.argsort(cut_side, kind="stable")
        cut_by, other = cut_side[order], other_side[order]
        cuts = np.flatnonzero(cut_by[1:] != cut_by[:-1])
        if not len(cuts):
            continue
        below = np.cumsum(count[order])
        longest_below = np.maximum.accumulate(other)
        longest_above = np.maximum.accumulate(other[::-1])[::-1]
        cost = below[cuts] * (cut_by[cuts] + longest_below[cuts])
        cost += (below[-1] - below[cuts]) * (cut_by[-1] + longest_above[cuts + 1])
        cheapest = int(np.argmin(cost))
        if whole - cost[cheapest] > best:
            best = int(whole - cost[cheapest])
            low = cut_side <= cut_by[cuts[cheapest]]
    return best, low


def _fits(bounds: IntArray, histogram: Histogram) -> npt.NDArray[np.bool_]:
    """Returns bool[C, K], True if bucket k fits into shape c."""
    return (histogram.source <= bounds[:, :1]) & (histogram.target <= bounds[:, 1:])


def _plan(
    bounds: IntArray,
    histogram: Histogram,
    batch_tokens: int = 0,
    rows: IntArray | None = None,
) -> BatchPlan:
    """Assigns every pair to a shape, from the largest shape to the smallest.

    The home of a pair is the smallest shape that the pair fits into. Each shape first takes all
    remaining pairs whose home it is. Then the longest fitting pairs of smaller shapes fill the free
    rows of its last batch. Filler rows remain only if no smaller pair is left.

    Without `rows`, the number of rows follows from `batch_tokens`. A shape with few pairs gets
    fewer rows (at least half, and a multiple of 8). Otherwise, much shorter pairs would fill its
    batches. A shape also gets fewer rows if there are too few smaller pairs to fill them.
    """
    by_size = np.argsort(-bounds.sum(axis=1), kind="stable")
    bounds = bounds[by_size]
    if rows is None:
        most = np.maximum(1, batch_tokens // bounds[:, 1] // ROW_MULTIPLE) * ROW_MULTIPLE
    else:
        most = rows[by_size]
    fits = _fits(bounds, histogram)
    home = len(bounds) - 1 - fits[::-1].argmax(axis=0)
    left, counts = histogram.count.copy(), np.zeros(fits.shape, np.int64)
    used = []
    for cell, (source, target) in enumerate(bounds.tolist()):
        pairs = int(left[home == cell].sum())
        if pairs == 0:
            continue
        size = int(most[cell])
        batches = -(-pairs // size)
        if rows is None:
            size = max(_rows_for(pairs, batches), _rows_for(size, 2))
        guests = np.flatnonzero(fits[cell] & (home > cell))
        taken = np.minimum(left[guests].cumsum(), batches * size - pairs)
        taken[1:] -= taken[:-1]
        counts[cell, guests] = taken
        left[guests] -= taken
        if rows is None:
            size = _rows_for(pairs + int(taken.sum()), batches)
        used.append((size, source, target, batches))
    counts[home, np.arange(len(home))] = left
    shapes = np.array(used, np.int64)
    return BatchPlan(shapes[:, :3], shapes[:, 3], counts[counts.any(axis=1)])


def _rows_for(pairs: int, batches: int) -> int:
    return -(-pairs // (batches * ROW_MULTIPLE)) * ROW_MULTIPLE
