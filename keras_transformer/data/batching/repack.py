"""Finds rows for sentences that are not as long as was planned.

Where segmentations are drawn, lengths are known only then. The rows of some steps, and with
them their shapes, are given; which sentence stands in which of them can still be chosen.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from keras_transformer.data.batching.token_pairs import IntArray


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
