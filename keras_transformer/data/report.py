"""What the report of a preparation says of the vocabulary and the stores, and its short form."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from keras_transformer.data.token_store import TokenStore
from keras_transformer.text.vocabulary import Vocabulary

_HISTOGRAM_STEP = 16


def describe_vocabulary(vocabulary: Vocabulary) -> dict[str, Any]:
    """Returns type, sizes, special ids and fingerprint as JSON values."""
    return {
        "type": "joint" if vocabulary.joint else "separate",
        "source_size": vocabulary.source_vocab_size,
        "target_size": vocabulary.target_vocab_size,
        "pad_id": vocabulary.pad_id,
        "unknown_id": vocabulary.unknown_id,
        "start_id": vocabulary.start_id,
        "end_id": vocabulary.end_id,
        "fingerprint": vocabulary.fingerprint,
    }


def describe_store(store: TokenStore, unknown_id: int) -> dict[str, Any]:
    """Returns counts of a store; tokens and lengths include the end ids."""
    statistics: dict[str, Any] = {"pairs": len(store)}
    for side, ids, lengths in (
        ("source", store.source_ids, store.source_lengths),
        ("target", store.target_ids, store.target_lengths),
    ):
        unknown = int(np.count_nonzero(ids == unknown_id))
        statistics[side] = {
            "tokens": len(ids),
            "unknown": unknown,
            "unknown_rate": unknown / len(ids),
            "mean_length": round(float(lengths.mean()), 2),
            "max_length": int(lengths.max()),
            "length_histogram": _histogram(lengths),
        }
    return statistics


def _histogram(lengths: npt.NDArray[np.int64]) -> dict[str, int]:
    """Counts lengths in steps: {"1-16": 12, "17-32": 30, ...}."""
    counts = np.bincount((lengths - 1) // _HISTOGRAM_STEP)
    return {
        f"{i * _HISTOGRAM_STEP + 1}-{(i + 1) * _HISTOGRAM_STEP}": int(n)
        for i, n in enumerate(counts)
    }


def summary(report: dict[str, Any]) -> str:
    """Returns a few lines for a person to read."""
    vocabulary = report["vocabulary"]
    lines = [
        f"vocabulary: {vocabulary['type']}, {vocabulary['source_size']} source and "
        f"{vocabulary['target_size']} target pieces",
    ]
    for split in ("train", "valid"):
        store = report[split]
        lines.append(
            f"{split}: {store['pairs']} pairs, {store['source']['tokens']} source and "
            f"{store['target']['tokens']} target tokens"
        )
    for split, cleaning in report["cleaning"].items():
        dropped = ", ".join(f"{n} {reason}" for reason, n in cleaning["dropped"].items())
        lines.append(f"{split} corpus: {cleaning['read']} pairs read, dropped: {dropped or 'none'}")
    if report["held_out"]:
        lines.append(f"held out of the training corpus for validation: {report['held_out']} pairs")
    return "\n".join(lines)
