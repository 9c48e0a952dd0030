"""Summaries of heads, on matrices whose numbers are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from keras_transformer.visualization.attention import (
    MEASURES,
    format_tsv,
    measure_heads,
    summarize_heads,
)
from tests.visualization.pairs import random_attention


def of(matrix: object) -> dict[str, float]:
    """The means of one head over its queries."""
    weights = np.array(matrix, np.float32)
    sums = measure_heads(weights[None, None])
    assert set(sums) == set(MEASURES)
    return {name: float(each[0, 0]) / len(weights) for name, each in sums.items()}


def test_a_head_that_looks_at_itself() -> None:
    assert of(np.eye(4)) == {
        "entropy": 0, "distance": 0, "diagonal": 1, "previous": 0, "next": 0, "first": 0.25,
        "last": 0.25,
    }  # fmt: skip


def test_a_head_that_looks_back() -> None:
    # The first has nothing before it, and looks at itself.
    back = np.eye(5, k=-1)
    back[0, 0] = 1
    assert of(back) == pytest.approx(
        {"entropy": 0, "distance": 4 / 5, "diagonal": 1 / 5, "previous": 4 / 5, "next": 0,
         "first": 2 / 5, "last": 0}
    )  # fmt: skip


def test_a_head_that_looks_at_all_alike() -> None:
    found = of(np.full((4, 4), 0.25))
    assert found["entropy"] == pytest.approx(2)  # bits
    # Of place 0: (0 + 1 + 2 + 3) / 4, of place 1: (1 + 0 + 1 + 2) / 4, and back again.
    assert found["distance"] == pytest.approx((1.5 + 1 + 1 + 1.5) / 4)
    assert found["diagonal"] == found["first"] == found["last"] == pytest.approx(0.25)
    assert found["previous"] == found["next"] == pytest.approx(3 / 16)


def test_one_sentence_to_another() -> None:
    found = of([[0.5, 0.5, 0, 0, 0], [0, 0, 0, 0.25, 0.75]])
    quarters = -0.25 * math.log2(0.25) - 0.75 * math.log2(0.75)
    assert found == pytest.approx(
        {"entropy": (1 + quarters) / 2, "distance": (0.5 + 0.25 * 2 + 0.75 * 3) / 2,
         "diagonal": 0.25, "previous": 0, "next": 0.25, "first": 0.25, "last": 0.375}
    )  # fmt: skip


def test_means_are_over_all_queries_of_all_pairs() -> None:
    pairs = [
        random_attention(seed=1),
        random_attention(["▁a", "</s>"], ["<s>", "▁x"], ["▁x", "</s>"], seed=2),
    ]
    summary = summarize_heads(iter(pairs))
    assert summary.pairs == 2
    for kind, queries in (("encoder", (5, 2)), ("decoder", (4, 2)), ("cross", (4, 2))):
        for name in MEASURES:
            one, other = (measure_heads(pair.weights(kind))[name] for pair in pairs)
            expected = (one + other) / sum(queries)
            np.testing.assert_allclose(summary.means[kind][name], expected)
            assert summary.means[kind][name].shape == pairs[0].weights(kind).shape[:2]
        assert not np.isnan(summary.means[kind]["entropy"]).any()


def test_the_table_has_a_line_a_head() -> None:
    pair = random_attention(layers=(1, 2), heads=3)
    summary = summarize_heads([pair])
    head, *lines = [line.split("\t") for line in format_tsv(summary).splitlines()]
    assert head == ["attention", "layer", "head", *MEASURES]
    layers = {"encoder": 1, "decoder": 2, "cross": 2}
    places = [(kind, n + 1, h + 1) for kind, many in layers.items() for n, h in np.ndindex(many, 3)]
    assert [(line[0], int(line[1]), int(line[2])) for line in lines] == places
    last = float(lines[-1][head.index("diagonal")])
    assert last == pytest.approx(np.diagonal(pair.cross[1, 2])[:4].sum() / 4, abs=1e-6)
