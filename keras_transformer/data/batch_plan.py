"""Chooses the few shapes that batches have, and how many pairs go into each.

A plan depends on nothing but the lengths of the pairs, so it is the same in
every epoch: only which pair of a length takes which place is drawn anew. It is
computed on the histogram of (source length, target length), whose size does not
grow with the corpus. The cost that it lowers is the number of positions that the
model has to compute, rows · (S + T) over an epoch, padding and filler included.
"""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

IntArray: TypeAlias = npt.NDArray[np.int64]

MAX_SHAPES = 16
ROW_MULTIPLE = 8
# The search over shapes stops here; counted in work, not in time, so that a plan is repeatable.
_MAX_TRIALS = 800
_MAX_WORK = 300_000_000


@dataclasses.dataclass(frozen=True)
class BatchPlan:
    """What an epoch consists of.

    Attributes:
        shapes: int64[C, 3], the (rows, S, T) of each shape; S + T falls.
        num_batches: int64[C], how many batches an epoch has of each shape.
        bucket: int[N], the bucket (pair of lengths) of each pair of the corpus.
        places: int64[C, K], how many pairs of bucket k go into shape c; each
            pair has exactly one place, and shape c has
            `rows * num_batches - places[c].sum()` filler rows.
    """

    shapes: IntArray
    num_batches: IntArray
    bucket: npt.NDArray[np.unsignedinteger]
    places: IntArray

    @property
    def positions(self) -> int:
        """Positions an epoch computes, source and target, filler rows included."""
        rows, source, target = self.shapes.T
        return int((self.num_batches * rows * (source + target)).sum())


@dataclasses.dataclass(frozen=True)
class _Histogram:
    """Lengths that occur and how often; the longest (by their sum) come first."""

    source: IntArray
    target: IntArray
    count: IntArray


def plan_batches(
    source_lengths: IntArray, target_lengths: IntArray, batch_tokens: int
) -> BatchPlan:
    """Plans an epoch in which every pair stands exactly once.

    Starts from the best of the grids that recursive splitting gives, then moves
    single bounds as long as that lowers the cost.

    Args:
        source_lengths: int64[N], at least 1 each.
        target_lengths: int64[N], at least 1 each.
        batch_tokens: a batch has the largest multiple of 8 rows with
            rows * T <= batch_tokens, and at least 8.
    """
    histogram, bucket = _histogram(source_lengths, target_lengths)
    grids = _grids(histogram)
    costs = [_fill(grid, histogram, batch_tokens).positions for grid in grids]
    best = int(np.argmin(costs))
    shape_bounds, cost = grids[best], costs[best]
    trials = min(_MAX_TRIALS, _MAX_WORK // (MAX_SHAPES * len(histogram.count)))
    improved = True
    while improved and trials > 0:
        improved = False
        for cell, side in np.ndindex(shape_bounds.shape):
            for step in (-2, -1, 1, 2):
                moved = shape_bounds.copy()
                moved[cell, side] += step
                trials -= 1
                if not _covers(moved, histogram):
                    continue
                moved_cost = _fill(moved, histogram, batch_tokens).positions
                if moved_cost < cost:
                    shape_bounds, cost, improved = moved, moved_cost, True
    filled = _fill(shape_bounds, histogram, batch_tokens)
    return dataclasses.replace(filled, bucket=bucket)


def _histogram(
    source: IntArray, target: IntArray
) -> tuple[_Histogram, npt.NDArray[np.unsignedinteger]]:
    width = int(source.max()) + 1
    # Negative, so that the largest sum of lengths sorts first.
    keys, first, bucket, count = np.unique(
        -((source + target) * width + source),
        return_index=True,
        return_inverse=True,
        return_counts=True,
    )
    # Sorting small integers is a radix sort in NumPy: linear.
    small = np.min_scalar_type(len(keys) - 1)
    return _Histogram(source[first], target[first], count), bucket.reshape(-1).astype(small)


def _grids(histogram: _Histogram) -> list[IntArray]:
    """Returns int64[n, 2] bounds (S, T) for n = 1 .. 16: each splits one cell of the one before.

    The cell and the cut are those that save the most positions. A cell's bounds
    are the longest lengths that it holds.
    """
    everything = np.arange(len(histogram.count))
    cells = [(everything, *_best_cut(everything, histogram))]
    grids = []
    while True:
        bounds = [(histogram.source[c].max(), histogram.target[c].max()) for c, _, _ in cells]
        grids.append(np.array(bounds, np.int64))
        widest = max(range(len(cells)), key=lambda i: cells[i][1])
        members, saving, low = cells[widest]
        if len(cells) == MAX_SHAPES or saving <= 0:
            return grids
        halves = (members[low], members[~low])
        cells[widest : widest + 1] = [(half, *_best_cut(half, histogram)) for half in halves]


def _best_cut(members: IntArray, histogram: _Histogram) -> tuple[int, npt.NDArray[np.bool_]]:
    """Returns the positions saved by the best cut of a cell and which members lie below it."""
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


def _fits(bounds: IntArray, histogram: _Histogram) -> npt.NDArray[np.bool_]:
    """Returns bool[C, K]: can shape c hold bucket k?"""
    return (histogram.source <= bounds[:, :1]) & (histogram.target <= bounds[:, 1:])


def _covers(bounds: IntArray, histogram: _Histogram) -> bool:
    return bool(_fits(bounds, histogram).any(axis=0).all())


def _fill(bounds: IntArray, histogram: _Histogram, batch_tokens: int) -> BatchPlan:
    """Gives every pair a place, from the largest shape to the smallest.

    A pair's home is the cheapest shape that holds it. A shape takes the pairs
    still at home there; the rows left in its last batch are taken by the longest
    fitting pairs of smaller shapes. So filler rows remain only where no smaller
    pair is left, and there fewer rows a batch (still a multiple of 8) make them few.
    """
    bounds = bounds[np.argsort(-bounds.sum(axis=1), kind="stable")]
    fits = _fits(bounds, histogram)
    home = len(bounds) - 1 - fits[::-1].argmax(axis=0)
    left = histogram.count.copy()
    shapes, num_batches, places = [], [], []
    for cell, (source, target) in enumerate(bounds.tolist()):
        place = np.where(home == cell, left, 0)
        pairs = int(place.sum())
        if pairs == 0:
            continue
        rows = max(ROW_MULTIPLE, batch_tokens // target // ROW_MULTIPLE * ROW_MULTIPLE)
        batches = -(-pairs // rows)
        guests = np.flatnonzero(fits[cell] & (home > cell))
        taken = np.minimum(np.cumsum(left[guests]), batches * rows - pairs)
        place[guests] = np.diff(taken, prepend=0)
        left -= place
        rows = -(-int(place.sum()) // (batches * ROW_MULTIPLE)) * ROW_MULTIPLE
        shapes.append((rows, source, target))
        num_batches.append(batches)
        places.append(place)
    return BatchPlan(
        np.array(shapes, np.int64),
        np.array(num_batches, np.int64),
        np.zeros(0, np.uint8),
        np.stack(places),
    )
