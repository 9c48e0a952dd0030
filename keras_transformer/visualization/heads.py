"""What each head does, in a few numbers: where it looks, and how sharply."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from keras_transformer.visualization.attention import TITLES, Attention

# Means over all queries. Of a query at place i and its key at place j, counted from the start:
MEASURES: Mapping[str, str] = {
    "entropy": "entropy of its weights, in bits",
    "distance": "distance in tokens, |i - j|",
    "diagonal": "share on the same place, j = i",
    "previous": "share on the place before, j = i - 1",
    "next": "share on the place after, j = i + 1",
    "first": "share on the first token",
    "last": "share on the last token",
}


class HeadSummary(NamedTuple):
    """Means over many pairs."""

    means: Mapping[str, Mapping[str, np.ndarray]]  # kind → measure → float64 [layers, heads]
    pairs: int


def measure(weights: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the sum over the queries of each of `MEASURES`, float64 `[layers, heads]`.

    Args:
        weights: `[layers, heads, queries, keys]`.
    """
    weights = weights.astype(np.float64)
    queries, keys = weights.shape[-2:]
    i, j = np.arange(queries)[:, None], np.arange(keys)[None, :]
    counted = {
        "distance": np.abs(i - j),
        "diagonal": i == j,
        "previous": j == i - 1,
        "next": j == i + 1,
        "first": (j == 0) & (i >= 0),
        "last": (j == keys - 1) & (i >= 0),
    }
    logarithms = np.log2(weights, where=weights > 0, out=np.zeros_like(weights))
    entropy = -np.sum(weights * logarithms, axis=(-2, -1))
    return {"entropy": entropy} | {
        name: np.sum(weights * each, axis=(-2, -1)) for name, each in counted.items()
    }


def summarize(attentions: Iterable[Attention]) -> HeadSummary:
    """Returns the means over all queries of some pairs, at least one; one at a time is held."""
    totals: dict[str, dict[str, np.ndarray]] = {kind: {} for kind in TITLES}
    queries = dict.fromkeys(TITLES, 0)
    pairs = 0
    for attention in attentions:
        pairs += 1
        for kind, total in totals.items():
            weights = attention.weights(kind)
            queries[kind] += weights.shape[-2]
            for name, sums in measure(weights).items():
                total[name] = total.get(name, 0.0) + sums
    means = {
        kind: {name: sums / queries[kind] for name, sums in total.items()}
        for kind, total in totals.items()
    }
    return HeadSummary(means, pairs)


def rows(summary: HeadSummary) -> Iterable[tuple[str, int, int, list[float]]]:
    """Yields the kind, layer and head, counted from 1, and its means in the order of `MEASURES`."""
    for kind, means in summary.means.items():
        layers, heads = means["entropy"].shape
        for layer in range(layers):
            for head in range(heads):
                values = [float(means[name][layer, head]) for name in MEASURES]
                yield kind, layer + 1, head + 1, values


def format_tsv(summary: HeadSummary) -> str:
    """Returns a header and a line a head, with tabs between."""
    lines = ["\t".join(("attention", "layer", "head", *MEASURES))]
    for kind, layer, head, values in rows(summary):
        lines.append("\t".join((kind, str(layer), str(head), *(f"{v:.6f}" for v in values))))
    return "\n".join(lines) + "\n"
