"""Where two files of different numbers of lines cease to translate each other, by lengths.

Translations have like lengths (Gale and Church 1993), so lines that are shifted against
each other show: their lengths no longer go together.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from keras_transformer.data.reading import LineReader

FloatArray: TypeAlias = npt.NDArray[np.float64]
_AT_ONCE = 2**16


def describe_drift(source: Path, target: Path) -> str:
    """Returns a sentence that says where the lines seem to be shifted against each other."""
    lengths = [_log_lengths(source), _log_lengths(target)]
    line = first_drift(*lengths)
    shorter, longer = (source, target) if len(lengths[0]) < len(lengths[1]) else (target, source)
    missing = abs(len(lengths[0]) - len(lengths[1]))
    if line > min(map(len, lengths)):
        return (
            f"By their lengths the lines fit to the end of {shorter}, so its end seems to be "
            "missing"
        )
    return (
        f"By their lengths the lines cease to fit near line {line:,}: look there for {missing:,} "
        f"lines that {longer} has and {shorter} has not"
    )


def first_drift(source: FloatArray, target: FloatArray) -> int:
    """Returns the line, from 1, from which on the longer side is shifted as a whole.

    Args:
        source, target: logarithms of the lines' lengths, of different numbers of lines.

    Returns:
        The line before which the lines fit as they are and from which on they fit with the
        difference of the numbers between them; one more than the shorter side has where its
        end is missing.
    """
    shorter, longer = sorted((source, target), key=len)
    count, shift = len(shorter), len(longer) - len(shorter)
    typical = np.median(longer[:count] - shorter) if count else 0.0
    straight = np.abs(longer[:count] - shorter - typical)
    shifted = np.abs(longer[shift:] - shorter - typical)
    # cost[p]: of p lines as they are, and the rest shifted.
    cost = np.concatenate([[0.0], np.cumsum(straight)])
    cost += np.concatenate([np.cumsum(shifted[::-1])[::-1], [0.0]])
    # Of equal costs the last: no drift where none shows.
    return count + 1 - int(np.argmin(cost[::-1]))


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
