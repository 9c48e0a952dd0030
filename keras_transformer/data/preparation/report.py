"""What the report of a preparation says of the vocabulary and the stores, and its short form."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from keras_transformer.data.token_store import Encoded

IntArray: TypeAlias = npt.NDArray[np.int64]
_HISTOGRAM_STEP = 16


@dataclasses.dataclass
class SideStatistics:
    """Counts of one side of a store, which can be added up; end ids count as tokens.

    Attributes:
        unknown: tokens that are the unknown piece.
        lengths: int64, how many sentences have 0, 1, 2, … tokens.
    """

    unknown: int
    lengths: IntArray

    @classmethod
    def of(cls, side: Encoded, unknown_id: int) -> SideStatistics:
        """Counts what is encoded."""
        return cls(int(np.count_nonzero(side.ids == unknown_id)), np.bincount(side.lengths))

    @classmethod
    def total(cls, parts: Sequence[Mapping[str, Any]]) -> SideStatistics:
        """Adds up what `as_dict` has told of."""
        lengths = np.zeros(max((len(part["lengths"]) for part in parts), default=0), np.int64)
        for part in parts:
            lengths[: len(part["lengths"])] += np.array(part["lengths"], np.int64)
        return cls(sum(part["unknown"] for part in parts), lengths)

    def as_dict(self) -> dict[str, Any]:
        """Returns the counts as JSON values."""
        return {"unknown": self.unknown, "lengths": self.lengths.tolist()}

    def describe(self) -> dict[str, Any]:
        """Returns their part of the report as JSON values."""
        tokens = int(self.lengths @ np.arange(len(self.lengths)))
        sentences = int(self.lengths.sum())
        steps = -(-(len(self.lengths) - 1) // _HISTOGRAM_STEP)
        histogram = np.zeros(steps * _HISTOGRAM_STEP, np.int64)
        histogram[: len(self.lengths) - 1] = self.lengths[1:]
        return {
            "tokens": tokens,
            "unknown": self.unknown,
            "unknown_rate": self.unknown / tokens,
            "mean_length": round(tokens / sentences, 2),
            "max_length": len(self.lengths) - 1,
            # In steps: {"1-16": 12, "17-32": 30, ...}.
            "length_histogram": {
                f"{i * _HISTOGRAM_STEP + 1}-{(i + 1) * _HISTOGRAM_STEP}": int(count)
                for i, count in enumerate(histogram.reshape(steps, -1).sum(axis=1))
            },
        }


def summary(report: Mapping[str, Any]) -> str:
    """Returns a few lines for a person to read."""
    vocabulary = report["vocabulary"]
    lines = [
        f"vocabulary: {vocabulary['type']}, {vocabulary['source_size']:,} source and "
        f"{vocabulary['target_size']:,} target pieces",
    ]
    for split in ("train", "valid"):
        store = report[split]
        lines.append(
            f"{split}: {store['pairs']:,} pairs, {store['source']['tokens']:,} source and "
            f"{store['target']['tokens']:,} target tokens"
        )
    for split, cleaning in report["cleaning"].items():
        dropped = ", ".join(f"{n:,} {reason}" for reason, n in cleaning["dropped"].items())
        lines.append(
            f"{split} corpus: {cleaning['read']:,} pairs read, dropped: {dropped or 'none'}"
        )
        if cleaning["bad_utf8_replaced"]:
            lines.append(
                f"{cleaning['bad_utf8_replaced']:,} lines of it had bytes that are no UTF-8"
            )
    if report["held_out"]:
        dropped = report["held_out"] - report["valid"]["pairs"]
        lines.append(
            f"held out of the training corpus for validation: {report['held_out']:,} pairs"
            + f", of which {dropped:,} were dropped as too long" * (dropped > 0)
        )
    if known := report.get("valid_pairs_in_train"):  # data prepared before do not tell
        lines.append(
            f"validation pairs that stand in the training text as well: {known:,} of "
            f"{report['valid']['pairs']:,}; what is measured on them is not of new text"
        )
    return "\n".join(lines)
