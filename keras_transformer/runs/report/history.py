"""What metrics.jsonl says, whatever else may be in the file: each metric over the steps."""

from __future__ import annotations

import collections
import dataclasses
import json
from array import array
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from keras_transformer.errors import InputError


class Score(NamedTuple):
    """What a metric of validation is called, and whether higher is better."""

    name: str
    highest: bool


SCORES = {
    "val_perplexity": Score("perplexity", False),
    "val_loss": Score("loss", False),
    "val_bleu": Score("BLEU", True),
    "val_accuracy": Score("accuracy", True),
}

_MAX_STEP = 10**12  # more is no step of a run


class Point(NamedTuple):
    """A value and the step that it belongs to."""

    step: int
    value: float


class Thinned(NamedTuple):
    """A series of few points: each has the mean, least and greatest of those it stands for.

    All are float64[N]; NaN where no value was finite.
    """

    steps: npt.NDArray[np.float64]
    mean: npt.NDArray[np.float64]
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Series:
    """One metric over the steps.

    Attributes:
        steps: int64[N], N > 0, rising.
        values: float64[N]; a value may be NaN or infinite.
    """

    steps: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]

    @property
    def last(self) -> Point:
        return Point(int(self.steps[-1]), float(self.values[-1]))

    def best(self, highest: bool) -> Point | None:
        """Returns the first of the highest, or lowest, finite values; None where there is none."""
        if not np.isfinite(self.values).any():
            return None
        worst = -np.inf if highest else np.inf
        values = np.where(np.isfinite(self.values), self.values, worst)
        index = values.argmax() if highest else values.argmin()
        return Point(int(self.steps[index]), float(self.values[index]))

    def thinned(self, points: int, limit: float) -> Thinned:
        """Returns at most `points` points; values beyond ±`limit` count as not finite."""
        count = len(self.steps)
        starts = np.unique(np.linspace(0, count, min(points, count), endpoint=False, dtype=int))
        finite = np.abs(self.values) <= limit  # False for NaN
        finite_counts = np.add.reduceat(finite.astype(float), starts)
        sums = np.add.reduceat(np.where(finite, self.values, 0.0), starts)
        low = np.minimum.reduceat(np.where(finite, self.values, np.inf), starts)
        high = np.maximum.reduceat(np.where(finite, self.values, -np.inf), starts)
        some = finite_counts > 0
        return Thinned(
            # The last step of each group, so that the curve ends where the run does.
            np.append(self.steps[starts[1:] - 1], self.steps[-1]).astype(float),
            np.where(some, sums / np.maximum(finite_counts, 1.0), np.nan),
            np.where(some, low, np.nan),
            np.where(some, high, np.nan),
        )


@dataclasses.dataclass(frozen=True)
class History:
    """All metrics of a run: name → series. `ignored` lines could not be read."""

    series: dict[str, Series]
    ignored: int

    @property
    def last_step(self) -> int:
        return max((series.last.step for series in self.series.values()), default=0)

    @property
    def skipped_steps(self) -> list[int]:
        """Steps at which it was logged that some before them were skipped."""
        skipped = self.series.get("skipped")
        return [] if skipped is None else [int(s) for s in skipped.steps[skipped.values > 0]]


def read_history(path: Path) -> History:
    """Reads metrics.jsonl; a file that is not there has no metrics.

    Lines that are cut, no JSON object, or without a step are counted and left
    out. Of two values of a metric at the same step the later line's is taken.

    Raises:
        InputError: where the file cannot be read at all.
    """
    columns: dict[str, tuple[array[int], array[float]]] = collections.defaultdict(
        lambda: (array("q"), array("d"))
    )
    ignored = 0
    try:
        with open(path, "rb") as file:
            for line in file:
                entry = _parse(line)
                if entry is None:
                    ignored += 1
                    continue
                step = entry.pop("step")
                for name, value in entry.items():
                    steps, values = columns[name]
                    steps.append(int(step))
                    values.append(value)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); expected metrics") from error
    return History({name: _series(*column) for name, column in columns.items()}, ignored)


def _parse(line: bytes) -> dict[str, float] | None:
    """Returns the numbers of a line, "step" among them, or None where it is no line of metrics."""
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


def _series(steps: array[int], values: array[float]) -> Series:
    # Backwards, since of equal steps np.unique finds the first.
    rising, indices = np.unique(np.array(steps, np.int64)[::-1], return_index=True)
    return Series(rising, np.array(values, np.float64)[::-1][indices])
