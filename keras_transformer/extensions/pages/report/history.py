"""Reads metrics.jsonl, even if it is damaged: each metric over the steps."""

from __future__ import annotations

import collections
import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from keras_transformer.errors import InputError

_MAX_STEP = 10**12  # larger numbers cannot be steps of a run
_MAX_VALUE = 1e30  # larger values cannot be drawn


class Score(NamedTuple):
    """The name of a validation metric, and whether higher is better."""

    name: str
    higher_is_better: bool


SCORES = {
    "val_perplexity": Score("perplexity", False),
    "val_loss": Score("loss", False),
    "val_bleu": Score("BLEU", True),
    "val_accuracy": Score("accuracy", True),
}


class Point(NamedTuple):
    """A value and its step."""

    step: int
    value: float


class Thinned(NamedTuple):
    """A series of few points: float64 `[N]` each, with the mean and the range of its group."""

    steps: npt.NDArray[np.float64]
    mean: npt.NDArray[np.float64]
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Series:
    """One metric over the steps.

    Attributes:
        steps: int64 `[N]`, N > 0, increasing.
        values: float64 `[N]`. A value may be NaN or infinite.
    """

    steps: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]

    @property
    def last(self) -> Point:
        return Point(int(self.steps[-1]), float(self.values[-1]))

    def best(self, higher_is_better: bool) -> Point | None:
        """Returns the first of the best finite values, or None if no value is finite."""
        sign = 1 if higher_is_better else -1
        values = np.where(np.isfinite(self.values), sign * self.values, -np.inf)
        index = int(values.argmax())
        if not np.isfinite(values[index]):
            return None
        return Point(int(self.steps[index]), float(self.values[index]))

    def thinned(self, points: int) -> Thinned:
        """Returns at most `points` points, without values that cannot be drawn."""
        can_draw = np.abs(self.values) <= _MAX_VALUE  # False for NaN
        steps, values = self.steps[can_draw].astype(float), self.values[can_draw]
        groups = min(points, len(steps))
        starts = np.linspace(0, len(steps), groups, endpoint=False, dtype=int)
        if not groups:
            return Thinned(steps, values, values, values)
        # Takes the last step of each group, so that the curve ends with the last step of the run.
        ends = np.append(starts[1:], len(steps))
        mean = np.add.reduceat(values, starts) / (ends - starts)
        low, high = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
        return Thinned(steps[ends - 1], mean, low, high)


@dataclasses.dataclass(frozen=True)
class History:
    """All metrics of a run by name, and the number of lines that could not be read."""

    series: dict[str, Series]
    ignored: int

    @property
    def last_step(self) -> int:
        return max((series.last.step for series in self.series.values()), default=0)


def read_history(path: Path) -> History:
    """Reads metrics.jsonl. A missing file has no metrics.

    Truncated lines, lines that are not JSON objects, and lines without a step are counted and
    ignored. If a step occurs twice, the later line counts.

    Raises:
        InputError: if the file cannot be read.
    """
    columns: dict[str, dict[int, float]] = collections.defaultdict(dict)
    ignored = 0
    try:
        with open(path, "rb") as file:
            for line in file:
                entry = _parse(line)
                if entry is None:
                    ignored += 1
                    continue
                step = int(entry.pop("step"))
                for name, value in entry.items():
                    columns[name][step] = value
    except FileNotFoundError:
        pass
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from error
    series = {}
    for name, column in columns.items():
        steps = sorted(column)
        values = [column[step] for step in steps]
        series[name] = Series(np.array(steps, np.int64), np.array(values, np.float64))
    return History(series, ignored)


def _parse(line: bytes) -> dict[str, float] | None:
    """Returns the numbers of a line by name, or None if it is not a line of metrics."""
    try:
        entry: Any = json.loads(line)
        numbers = {
            name: float(value)
            for name, value in entry.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        }
        step = numbers["step"]
    except (ValueError, AttributeError, KeyError, OverflowError, RecursionError):
        return None
    return numbers if 0 <= step <= _MAX_STEP and step == int(step) else None
