"""Pictures of attention, heads and positional encodings."""

from __future__ import annotations

import contextlib
import functools
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import matplotlib.style
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from keras_transformer.errors import InputError
from keras_transformer.extensions.pages.attention import (
    TITLES,
    Attention,
    HeadSummary,
)

_INK, _MUTED, _LINE = "#1d2126", "#6a727c", "#2f6db0"  # the colours of the pages

# Matplotlib brings DejaVu Sans. These fonts, if they are installed, have the letters that it lacks.
_FONTS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK KR", "WenQuanYi Zen Hei",
    "IPAexGothic", "NanumGothic", "Noto Sans Devanagari", "Noto Sans Bengali", "Noto Sans Thai",
    "Noto Sans Hebrew", "Noto Sans Arabic", "Noto Sans Tamil", "FreeSans", "Unifont",
)  # fmt: skip

# Name of a measure → its title in the summary.
_SUMMARIZED = {
    "entropy": "entropy (bits)",
    "distance": "distance (tokens)",
    "diagonal": "share on the diagonal",
}


@functools.cache
def _families() -> list[str]:
    installed = {entry.name for entry in font_manager.fontManager.ttflist}
    return ["DejaVu Sans", *(name for name in _FONTS if name in installed)]


@contextlib.contextmanager
def _style() -> Iterator[None]:
    """Sets the style of pictures in a block or in a decorated function."""
    changes = {
        "font.family": _families(),
        "font.size": 8,
        "axes.edgecolor": _MUTED,
        "axes.linewidth": 0.5,
        "axes.labelcolor": _MUTED,
        "axes.titlecolor": _MUTED,
        "axes.titlesize": 8,
        "xtick.color": _INK,
        "ytick.color": _INK,
        "text.color": _INK,
        "text.parse_math": False,  # a token may contain dollar signs
    }
    with matplotlib.style.context(["default", changes]):
        yield


def write_png(figure: Figure, path: Path) -> None:
    """Writes a picture."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # letters without a font are boxes
        try:
            figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": None})
        except OSError as error:
            raise InputError(f"{path} cannot be written ({error.strerror}).") from error


@_style()
def draw_layers(attention: Attention, kind: str) -> Figure:
    """Draws all heads of all layers, small and without tokens. Each row is a layer."""
    weights = attention.weights(kind)
    layers, heads, queries, keys = weights.shape
    width, height = (1.2 * n / max(queries, keys) + 0.1 for n in (keys, queries))
    figure = _figure(f"{TITLES[kind]}, all layers and heads", kind)
    figure.set_size_inches(heads * width + 0.4, layers * height + 0.8)
    grid = figure.subplots(layers, heads, squeeze=False)
    for (layer, head), axes in np.ndenumerate(grid):
        _draw_matrix(axes, weights[layer, head])
        if layer == 0:
            axes.set_title(f"head {head + 1}")
        if head == 0:
            axes.set_ylabel(f"layer {layer + 1}")
    return figure


@_style()
def draw_heads(attention: Attention, kind: str, layer: int) -> Figure:
    """Draws the heads of a layer with their tokens.

    Args:
        layer: the layer, counted from 0.
    """
    weights = attention.weights(kind)[layer]
    heads, queries, keys = weights.shape
    labels = attention.queries(kind), attention.keys(kind)
    cell = 0.165 if max(queries, keys) <= 40 else 0.125  # inches per token
    left, top = (0.6 * cell * max(map(len, side)) for side in labels)
    columns = min(heads, math.ceil(math.sqrt(2 * heads * queries / keys)))
    lines = math.ceil(heads / columns)
    figure = _figure(f"{TITLES[kind]}, layer {layer + 1}", kind)
    figure.set_size_inches(
        left + columns * (cell * keys + 0.2), top + lines * (cell * queries + 0.4) + 0.5
    )
    grid = figure.subplots(lines, columns, squeeze=False)
    for index, axes in enumerate(grid.flat):
        if index >= heads:
            axes.remove()
            continue
        _draw_matrix(axes, weights[index])
        axes.set_xlabel(f"head {index + 1}")
        axes.tick_params(length=0, labelsize=48 * cell, pad=2)
        if index % columns == 0:
            axes.set_yticks(range(queries), labels[0])
        if index < columns:
            axes.xaxis.tick_top()
            axes.set_xticks(range(keys), labels[1], rotation=90)
    return figure


def _figure(title: str, kind: str) -> Figure:
    """Returns a figure of matrices, with a title and an explanation."""
    row = "a token" if kind == "encoder" else "a token read → the token predicted next"
    figure = Figure(layout="compressed")
    note = f"Each row is {row}. The columns are the tokens it attends to."
    figure.suptitle(f"{title}\n{note}", x=0.01, ha="left", fontsize=9)
    return figure


def _draw_matrix(axes: Axes, weights: np.ndarray) -> None:
    axes.imshow(weights, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    axes.set(xticks=[], yticks=[])


@_style()
def draw_summary(summary: HeadSummary) -> Figure:
    """Draws entropy, distance and share on the diagonal of all heads of each kind."""
    layers = {kind: len(means["entropy"]) for kind, means in summary.means.items()}
    heads = max(means["entropy"].shape[1] for means in summary.means.values())
    size = (3 * (0.36 * heads + 0.5) + 0.3, 0.3 * sum(layers.values()) + 0.65 * len(layers) + 0.5)
    figure = Figure(size, layout="constrained")
    pairs = "1 pair" if summary.pairs == 1 else f"{summary.pairs:,} pairs"
    figure.suptitle(f"Means over {pairs}, for each head", x=0.01, ha="left", fontsize=9)
    grid = figure.subplots(len(layers), 3, squeeze=False, height_ratios=list(layers.values()))
    for column, (name, label) in enumerate(_SUMMARIZED.items()):
        # The same value has the same colour in all kinds of attention.
        most = max(float(means[name].max()) for means in summary.means.values()) or 1.0
        limit = 1.0 if name == "diagonal" else most
        for row, (kind, means) in enumerate(summary.means.items()):
            axes, values = grid[row, column], means[name]
            axes.imshow(values, cmap="Blues", vmin=0, vmax=limit, aspect="auto")
            title = f"{TITLES[kind]}\n{label}" if column == 0 else label
            axes.set_title(title, loc="left")
            axes.set(xlabel="head", ylabel="layer" if column == 0 else "")
            axes.set_xticks(range(values.shape[1]), range(1, values.shape[1] + 1))
            axes.set_yticks(range(values.shape[0]), range(1, values.shape[0] + 1))
            axes.tick_params(length=0, labelsize=7)
            for (layer, head), value in np.ndenumerate(values):
                color = "white" if value > 0.55 * limit else "black"
                text = f"{value:.2f}" if limit <= 1 else f"{value:.1f}"
                axes.text(head, layer, text, ha="center", va="center", fontsize=7, color=color)
    return figure


@_style()
def draw_positions(encodings: Mapping[str, np.ndarray]) -> Figure:
    """Draws positional encodings: their values, and their dot products by distance.

    Args:
        encodings: `source` and `target`, float32 `[positions, d_model]`, and `learned`, bool.
    """
    learned = bool(encodings["learned"])
    # Sinusoidal encodings of both sides are the same.
    sides: Sequence[str] = ("source", "target") if learned else ("source",)
    figure = Figure((10, 2.8 * len(sides) + 0.4), layout="constrained")
    title = f"{'Learned' if learned else 'Sinusoidal'} positional encodings"
    note = "Left: their values. Right: the mean and range of their dot products at each distance."
    figure.suptitle(f"{title}\n{note}", x=0.01, ha="left", fontsize=9)
    grid = figure.subplots(len(sides), 2, squeeze=False)
    for (left, right), side in zip(grid, sides, strict=True):
        vectors = encodings[side].astype(np.float64)
        limit = np.abs(vectors).max() or 1.0
        image = left.imshow(vectors, cmap="PuOr", vmin=-limit, vmax=limit, aspect="auto")
        left.set(xlabel="dimension", ylabel="position", title=side if learned else "")
        figure.colorbar(image, ax=left)
        products = vectors @ vectors.T
        diagonals = [np.diagonal(products, distance) for distance in range(len(vectors))]
        lows, means, highs = (
            np.array([function(each) for each in diagonals])
            for function in (np.min, np.mean, np.max)
        )
        distances = np.arange(len(vectors))
        right.fill_between(distances, lows, highs, color=_LINE, alpha=0.2, linewidth=0)
        right.plot(distances, means, color=_LINE, linewidth=1.3)
        right.set(xlabel="distance of two positions", ylabel="dot product", xlim=(0, None))
        right.spines[["top", "right"]].set_visible(False)
    return figure
