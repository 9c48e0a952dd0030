"""Finds the line from which two files with different numbers of lines do not match any more.

A sentence and its translation have similar lengths (Gale and Church, 1993). If lines are shifted,
the lengths no longer match.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from keras_transformer.data.reading import LineReader

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
_AT_ONCE = 2**16

_NEAR = 8  # shifts up to this distance from 0 and from the last one are always considered
_PEAKS = 16  # also this many shifts with the highest correlation
_CORRELATED = 2**20  # first lines whose correlation is computed
_BLOCK = 16  # lines with a common shift
_CHANGE_COST = 8.0  # of shift; a matching line costs about 0.2, another one 0.7


def describe_misalignment(source: Path, target: Path) -> str:
    """Returns a sentence that says where a line seems to be missing or added.

    Args:
        source: file with the source lines.
        target: file with another number of lines.

    Example:
    >>> _ = Path("short.de").write_text("".join(Path("train.de").open().readlines()[:2]))
    >>> describe_misalignment(Path("train.en"), Path("short.de")).split(",")[0]
    'By their lengths the lines ...'
    """
    lengths = [_log_lengths(source), _log_lengths(target)]
    line, shift = find_misalignment(*lengths)
    shorter, longer = (source, target) if len(lengths[0]) < len(lengths[1]) else (target, source)
    missing = abs(len(lengths[0]) - len(lengths[1]))
    if line > min(map(len, lengths)):
        return (
            f"By their lengths the lines fit to the end of {shorter}, so its end seems to be "
            "missing"
        )
    has, lacks = (longer, shorter) if shift > 0 else (shorter, longer)
    lines = "1 line" if abs(shift) == 1 else f"{abs(shift):,} lines"
    return (
        f"By their lengths the lines cease to fit near line {line:,}: look there for {lines} "
        f"that {has} has and {lacks} has not"
        + ("" if shift == missing else "; there are other such places further on")
    )


def find_misalignment(source: FloatArray, target: FloatArray) -> tuple[int, int]:
    """Finds the first line from which the lines do not fit.

    Dynamic programming finds the most likely shift of each block of lines. Each change of the shift
    has a cost.

    Args:
        source: logarithms of the lengths of the source lines.
        target: logarithms of the lengths of the target lines. Their number differs.

    Returns:
        The line, from 1, and the number of extra lines of the longer side at this line. The number
        is negative if the shorter side has extra lines. If only the end of the shorter side is
        missing, the line is its number of lines plus 1.

    Example:
    >>> lengths = np.random.default_rng(0).normal(4, 1, size=400)
    >>> line, shift = find_misalignment(lengths, np.delete(lengths, 200))
    >>> abs(line - 201) < 5, shift
    (True, 1)
    """
    shorter, longer = sorted((source, target), key=len)
    count, missing = len(shorter), len(longer) - len(shorter)
    if not count:
        return 1, missing
    shorter = shorter + np.median(longer[:count] - shorter)
    shifts = _likely_shifts(shorter, longer)
    # The last state means that the other side lacks the lines. Its cost is halfway between fitting
    # lines and random pairs of lines.
    costs = _misfits(shorter, longer, shifts)
    random = np.abs(np.random.default_rng(0).permutation(shorter) - shorter).mean()
    alone = float(random + costs.min(axis=1).sum() / count) / 2
    sizes = np.add.reduceat(np.ones(count), np.arange(0, count, _BLOCK))
    path = _cheapest_path(np.column_stack([costs, alone * sizes]))
    if not path.any():
        return count + 1, missing
    block = int(np.flatnonzero(path)[0])
    # Find the exact line: the lines before it match without a shift, the lines after it with the
    # new shift or not at all.
    lines = np.arange(max(0, (block - 2) * _BLOCK), min(count, (block + 2) * _BLOCK))
    straight = _misfit(shorter, longer, np.array([0]), lines)[0]
    if path[block] < len(shifts):
        straight = straight - _misfit(shorter, longer, shifts[path[block, None]], lines)[0]
    else:
        straight = straight - alone
    cost = np.concatenate([[0.0], np.cumsum(straight)])
    later = path[block:][path[block:] < len(shifts)]
    return int(lines[0] + np.argmin(cost)) + 1, int(shifts[later[0]]) if len(later) else missing


def _likely_shifts(shorter: FloatArray, longer: FloatArray) -> IntArray:
    """Returns int64[K], likely shifts of the longer side. The first is 0.

    Shifts near 0 and near the last one are included, and others with a high correlation.
    """
    missing = len(longer) - len(shorter)
    near = np.arange(-_NEAR, _NEAR + 1)
    sides = [side[:_CORRELATED] - side[:_CORRELATED].mean() for side in (longer, shorter)]
    size = 2 ** int(np.ceil(np.log2(sum(map(len, sides)))))
    spectra = [np.fft.rfft(side, size) for side in sides]
    correlation = np.fft.irfft(spectra[0] * np.conj(spectra[1]), size)
    peaks = np.argsort(correlation)[-_PEAKS:]
    peaks = np.where(peaks < len(sides[0]), peaks, peaks - size)
    shifts = np.unique(np.concatenate([near, missing + near, peaks]))
    return shifts[np.argsort(np.abs(shifts), kind="stable")]


def _misfit(
    shorter: FloatArray, longer: FloatArray, shifts: IntArray, lines: IntArray
) -> FloatArray:
    """Returns the cost of each line for each shift, float64[K, N]. It is 1 beyond the end of the
    other side.
    """
    others = lines + shifts[:, np.newaxis]
    there = (others >= 0) & (others < len(longer))
    misfit = np.abs(longer[np.where(there, others, 0)] - shorter[lines])
    return np.where(there, misfit, 1.0)


def _misfits(shorter: FloatArray, longer: FloatArray, shifts: IntArray) -> FloatArray:
    """Returns the cost of the lines of each block for each shift, float64[blocks, K]."""
    blocks = []
    for first in range(0, len(shorter), _AT_ONCE):
        lines = np.arange(first, min(first + _AT_ONCE, len(shorter)))
        misfit = _misfit(shorter, longer, shifts, lines)
        blocks.append(np.add.reduceat(misfit, np.arange(0, len(lines), _BLOCK), axis=1).T)
    return np.concatenate(blocks)


def _cheapest_path(costs: FloatArray) -> IntArray:
    """Returns the cheapest sequence of N states, int64[N].

    Args:
        costs: float64[N, K], the cost of each of K states at each place. A change of state costs
            `_CHANGE_COST`, and so does a start in any state except the first.
    """
    stays = np.empty(costs.shape, bool)
    cheapest = np.empty(len(costs), np.int64)  # the best previous state at each place
    total = np.zeros(costs.shape[1])
    total[0] = -_CHANGE_COST
    for place, cost in enumerate(costs):
        cheapest[place] = np.argmin(total)
        change = total[cheapest[place]] + _CHANGE_COST
        stays[place] = total <= change
        total = np.minimum(total, change) + cost
    path = np.empty(len(costs), np.int64)
    path[-1] = np.argmin(total)
    for place in range(len(costs) - 1, 0, -1):
        state = path[place]
        path[place - 1] = state if stays[place, state] else cheapest[place]
    return path


def _log_lengths(path: Path) -> FloatArray:
    """Returns log(1 + bytes) of each line of a file."""
    reader, lengths = LineReader(path), [np.zeros(0)]
    try:
        while lines := reader.ahead(_AT_ONCE, 2**23):
            text = np.frombuffer(reader.take(lines), np.uint8)
            lengths.append(np.diff(np.flatnonzero(text == ord("\n")), prepend=-1))
    finally:
        reader.close()
    return np.log(np.concatenate(lengths))
