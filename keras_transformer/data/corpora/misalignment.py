"""Where two files of different numbers of lines cease to translate each other, by lengths.

Translations have like lengths (Gale and Church 1993), so lines that are shifted against
each other show: their lengths no longer go together.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from keras_transformer.data.corpora.reading import LineReader

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
_AT_ONCE = 2**16

_NEAR = 8  # shifts this near to none, and to the last one, are thought of in any case
_PEAKS = 16  # and so many others, by correlation
_CORRELATED = 2**20  # lines at the beginning that are correlated
_BLOCK = 16  # lines whose shift is one
_CHANGE_COST = 8.0  # of a shift that changes; a line that fits costs about 0.2, another 0.7


def describe_drift(source: Path, target: Path) -> str:
    """Returns a sentence that says where the lines seem to be shifted against each other."""
    lengths = [_log_lengths(source), _log_lengths(target)]
    line, shift = first_drift(*lengths)
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


def first_drift(source: FloatArray, target: FloatArray) -> tuple[int, int]:
    """Returns where the lines first cease to fit as they are.

    The likeliest shift of each block of lines is found by dynamic programming, in which a
    shift that changes has its cost.

    Args:
        source, target: logarithms of the lines' lengths, of different numbers of lines.

    Returns:
        The line, from 1, one more than the shorter side has where only its end is missing;
        and how many lines the longer side has there that the shorter one has not, less than
        0 where it is the other way round.
    """
    shorter, longer = sorted((source, target), key=len)
    count, missing = len(shorter), len(longer) - len(shorter)
    if not count:
        return 1, missing
    shorter = shorter + np.median(longer[:count] - shorter)
    shifts = _likely_shifts(shorter, longer)
    # The last state is of lines that the other side lacks: they fit by no shift, and cost half
    # of what lies between lines that fit and lines put together at random.
    costs = _misfits(shorter, longer, shifts)
    random = np.abs(np.random.default_rng(0).permutation(shorter) - shorter).mean()
    alone = float(random + costs.min(axis=1).sum() / count) / 2
    sizes = np.add.reduceat(np.ones(count), np.arange(0, count, _BLOCK))
    path = _cheapest_path(np.column_stack([costs, alone * sizes]))
    if not path.any():
        return count + 1, missing
    block = int(np.flatnonzero(path)[0])
    # To the line: before it they fit as they are, from it on by the new shift, or not at all.
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
    """Returns int64[K]: shifts of the longer side that many lines may have, 0 the first of all.

    Those near none and near the last one are among them, and the others by correlation.
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
    """Returns float64[K, N]: how badly lines fit by each shift; 1 where there is no other."""
    others = lines + shifts[:, np.newaxis]
    there = (others >= 0) & (others < len(longer))
    misfit = np.abs(longer[np.where(there, others, 0)] - shorter[lines])
    return np.where(there, misfit, 1.0)


def _misfits(shorter: FloatArray, longer: FloatArray, shifts: IntArray) -> FloatArray:
    """Returns float64[blocks, K]: how badly the lines of each block fit by each shift."""
    blocks = []
    for first in range(0, len(shorter), _AT_ONCE):
        lines = np.arange(first, min(first + _AT_ONCE, len(shorter)))
        misfit = _misfit(shorter, longer, shifts, lines)
        blocks.append(np.add.reduceat(misfit, np.arange(0, len(lines), _BLOCK), axis=1).T)
    return np.concatenate(blocks)


def _cheapest_path(costs: FloatArray) -> IntArray:
    """Returns int64[N], one of K states at each of N places: those of the least cost in all.

    Args:
        costs: float64[N, K], of a state at a place; a change costs `_CHANGE_COST`, and so
            does another beginning than in the first state.
    """
    stays = np.empty(costs.shape, bool)
    cheapest = np.empty(len(costs), np.int64)  # the state before, at each place
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
