"""One picture of each study, from its results alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from keras_transformer.runs.atomic import atomic_path

_COLORS = ("tab:blue", "tab:orange", "tab:green")
_FEWEST = 50  # tokens behind a mean that is drawn


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Draws what is in `studies.run_study`'s results as an SVG file, in place of an older one."""
    panels = {"models": _models, "positions": _positions, "attention": _attention}
    style = {"svg.fonttype": "none", "svg.hashsalt": results["study"], "font.size": 9}
    with matplotlib.style.context(["default", style]):
        figure = Figure(figsize=(9, 4), layout="constrained")
        panels[results["study"]](figure, results)
        with atomic_path(path) as partial:
            figure.savefig(partial, format="svg", metadata={"Date": None})


def _models(figure: Figure, results: Mapping[str, Any]) -> None:
    """BLEU against FLOP and against minutes, at each validation."""
    left, right = figure.subplots(1, 2, sharey=True)
    for each, color in zip(results["trials"].values(), _COLORS, strict=False):
        points = [point for point in each["curve"] if "val_bleu" in point]
        bleu = [point["val_bleu"] for point in points]
        tests = [f"{name} {scores['bleu']:.1f}" for name, scores in each["tests"].items()]
        reached = "diverged" if "diverged" in each else ", ".join(tests)
        label = f"{each['title']}, {each['parameters'] / 1e6:.1f} M: {reached}"
        for axes, quantity in ((left, "flop"), (right, "minutes")):
            _line(axes, [point[quantity] for point in points], bleu, color, label)
    left.set(xscale="log", xlabel="training FLOP", ylabel="BLEU on validation (13a)")
    right.set(xlabel="minutes of training")
    handles, labels = left.get_legend_handles_labels()
    if handles:  # below: it is wide, and there is a line wherever a panel has room for it
        figure.legend(handles, labels, loc="outside lower center", frameon=False, fontsize=8)


def _positions(figure: Figure, results: Mapping[str, Any]) -> None:
    """BLEU by the length of the source, and perplexity by the place in the target."""
    left, right = figure.subplots(1, 2)
    longest = results["longest"]
    for each, color in zip(results["trials"].values(), _COLORS, strict=False):
        tests = each["tests"]
        for joined, style in ((False, "o-"), (True, "s:")):
            chosen = [t for name, t in tests.items() if name.endswith("joined") == joined]
            _line(
                left,
                [test["source_tokens"] for test in chosen],
                [test["bleu"] for test in chosen],
                color,
                each["title"] + (", joined sentences" if joined else ""),
                style,
            )
        places, perplexity = perplexity_by_position(list(tests.values()))
        _line(right, places, perplexity, color, each["title"], "-")
    for axes in (left, right):
        axes.axvline(longest + 0.5, color="0.6", linewidth=0.9, linestyle="--")
    left.set(xlabel="tokens of the source, mean of a test", ylabel="BLEU")
    right.set(xlabel="place in the target", ylabel="perplexity", yscale="log")
    for set_formatter in (right.yaxis.set_major_formatter, right.yaxis.set_minor_formatter):
        set_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    right.annotate(
        "longest of training", (longest + 0.5, 0.98), xycoords=("data", "axes fraction"),
        rotation=90, va="top", ha="right", color="0.5",
    )  # fmt: skip
    _legend(left)


def perplexity_by_position(tests: Sequence[Mapping[str, Any]]) -> tuple[list[int], list[float]]:
    """Returns places in the target, from 1 on, and the perplexity of all tests' tokens there.

    Places of fewer than 50 tokens are left out.
    """
    longest = max((len(test["nats_by_position"]) for test in tests), default=0)
    nats, tokens = np.zeros(longest), np.zeros(longest)
    for test in tests:
        counts = np.array(test["tokens_by_position"], float)
        nats[: len(counts)] += counts * np.array(test["nats_by_position"])
        tokens[: len(counts)] += counts
    enough = np.flatnonzero(tokens >= _FEWEST)
    return (enough + 1).tolist(), np.exp(nats[enough] / tokens[enough]).tolist()


def _attention(figure: Figure, results: Mapping[str, Any]) -> None:
    """Validation loss over the steps, a panel for each d_k."""
    panels = figure.subplots(1, 2, sharey=True)
    for axes, key_dim in zip(panels, (16, 64), strict=True):
        trials = [each for name, each in results["trials"].items() if name.endswith(f"_{key_dim}")]
        for each, color in zip(trials, _COLORS, strict=False):
            points = each["curve"]
            bleu = ", ".join(f"{scores['bleu']:.1f}" for scores in each["tests"].values())
            reached = "diverged" if "diverged" in each else f"BLEU {bleu}"
            label = f"{each['title'].partition(', d_k')[0]}: {reached}"
            steps = [point["step"] for point in points]
            _line(axes, steps, [point["val_loss"] for point in points], color, label)
        axes.set(title=f"d_k = {key_dim}", xlabel="steps")
        _legend(axes)
    panels[0].set_ylabel("validation loss, label-smoothed, nats a token")


def _line(
    axes: Axes,
    x: Sequence[float],
    y: Sequence[float],
    color: str,
    label: str,
    style: str = "o-",
) -> None:
    # Also of no points: its label says what came of it.
    axes.plot(x, y, style, color=color, label=label, markersize=3, linewidth=1.3)
    axes.spines[["top", "right"]].set_visible(False)


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8)
