"""Attention as pictures: matrices, and lines between tokens as in the paper's figures 3 to 5."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from keras_transformer.visualization.attention import TITLES, Attention
from keras_transformer.visualization.style import (
    INK,
    LINE,
    MUTED,
    WEIGHTS,
    axes_at,
    color_bar,
    pictures,
    text_width,
    title,
)

_HEADER = 0.6  # inches of title and note
_POINTS = 48  # of a label's letters, an inch of a token's place
_FAINT = 0.01  # the least weight that is drawn as a line


@pictures()
def draw_layers(attention: Attention, kind: str) -> Figure:
    """Draws all heads of all layers, small and without tokens: a row a layer."""
    weights = attention.weights(kind)
    layers, heads, queries, keys = weights.shape
    width, height = (1.15 * n / max(queries, keys) for n in (keys, queries))
    gap, left, top = 0.12, 0.35, _HEADER + 0.2
    figure = Figure(figsize=(max(left + heads * (width + gap), 5.2), top + layers * (height + gap)))
    for layer, head in np.ndindex(layers, heads):
        x, y = left + head * (width + gap), top + layer * (height + gap)
        axes = axes_at(figure, x, y, width, height)
        _matrix(axes, weights[layer, head])
        if layer == 0:
            axes.set_title(f"head {head + 1}", fontsize=8, color=MUTED, pad=3)
        if head == 0:
            axes.set_ylabel(f"layer {layer + 1}", labelpad=3)
    title(figure, f"{TITLES[kind]}, all layers and heads", _note(kind))
    return figure


@pictures()
def draw_heads(attention: Attention, kind: str, layer: int) -> Figure:
    """Draws the heads of a layer, counted from 0, with their tokens."""
    weights = attention.weights(kind)[layer]
    heads, queries, keys = weights.shape
    cell = _cell(queries, keys)
    width, height = cell * keys, cell * queries
    left, above = (_room(labels, cell) for labels in _labels(attention, kind))
    right, below = 0.2, 0.4  # between two matrices
    # About twice as wide as high, and no line of them much shorter than the others.
    columns = math.ceil(math.sqrt(2 * heads * (height + below) / (width + right)))
    lines = math.ceil(heads / min(columns, heads))
    columns = math.ceil(heads / lines)
    top = _HEADER + above
    figure = Figure(
        figsize=(max(left + columns * (width + right), 5.2), top + lines * (height + below))
    )
    for head in range(heads):
        line, column = divmod(head, columns)
        x, y = left + column * (width + right), top + line * (height + below)
        axes = axes_at(figure, x, y, width, height)
        _matrix(axes, weights[head])
        axes.set_xlabel(f"head {head + 1}", labelpad=4)
        if column == 0:
            _label_rows(axes, attention.queries(kind), cell)
        if line == 0:
            _label_columns(axes, attention.keys(kind), cell)
    layers = len(attention.weights(kind))
    title(figure, f"{TITLES[kind]}, layer {layer + 1} of {layers}", _note(kind))
    return figure


@pictures()
def draw_head(attention: Attention, kind: str, layer: int, head: int) -> Figure:
    """Draws one head, both counted from 0: lines from token to token, and the matrix."""
    layers, heads = attention.weights(kind).shape[:2]
    weights = attention.weights(kind)[layer, head]
    queries, keys = weights.shape
    cell = 1.25 * _cell(queries, keys)
    width, height, longest = cell * keys, cell * queries, cell * max(queries, keys)
    rows, columns = (_room(labels, cell) for labels in _labels(attention, kind))
    between = 1.0 + 0.04 * max(queries, keys)  # of the lines' two ends
    top, x = _HEADER + columns, rows + between + columns + 0.25 + rows
    figure = Figure(figsize=(max(x + width + 0.65, 6.5), top + longest + 0.15))
    lines = axes_at(figure, rows, top, between, longest)
    _draw_lines(lines, weights, attention, kind, cell)
    matrix = axes_at(figure, x, top, width, height)
    image = _matrix(matrix, weights)
    _label_rows(matrix, attention.queries(kind), cell)
    _label_columns(matrix, attention.keys(kind), cell)
    bar = color_bar(figure, image, x + width + 0.15, top, min(height, 1.6))
    bar.set_ticks([0, 0.5, 1])
    place = f"layer {layer + 1} of {layers}, head {head + 1} of {heads}"
    title(figure, f"{TITLES[kind]}, {place}", _note(kind))
    return figure


def _note(kind: str) -> str:
    what = "a token" if kind == "encoder" else "the token read → the token predicted there"
    return f"Each row is {what}; the columns are what it attends to."


def _labels(attention: Attention, kind: str) -> tuple[list[str], list[str]]:
    return attention.queries(kind), attention.keys(kind)


def _cell(queries: int, keys: int) -> float:
    """Inches of a token's place: less where there are many."""
    return 0.165 if max(queries, keys) <= 40 else 0.125


def _room(labels: Sequence[str], cell: float) -> float:
    """Inches that labels take, with what is around them."""
    return 0.2 + text_width(labels, _POINTS * cell)


def _matrix(axes: Axes, weights: np.ndarray) -> AxesImage:
    image = axes.imshow(
        weights, cmap=WEIGHTS, vmin=0, vmax=1, aspect="auto", interpolation="nearest"
    )
    axes.set(xticks=[], yticks=[])
    return image


def _label_rows(axes: Axes, labels: Sequence[str], cell: float, x: float = -0.8) -> None:
    for place, label in enumerate(labels):
        axes.text(x, place, label, fontsize=_POINTS * cell, ha="right", va="center")


def _label_columns(axes: Axes, labels: Sequence[str], cell: float) -> None:
    for place, label in enumerate(labels):
        axes.text(
            place, -0.8, label, fontsize=_POINTS * cell, ha="center", va="bottom", rotation=90
        )


def _draw_lines(
    axes: Axes, weights: np.ndarray, attention: Attention, kind: str, cell: float
) -> None:
    """Draws a line from each query, on the left, to each key, as opaque as its weight."""
    axes.set(xlim=(0, 1), ylim=(max(weights.shape) - 0.5, -0.5))
    axes.axis("off")
    pairs = np.argwhere(weights >= _FAINT)
    colors = np.tile(to_rgba(LINE), (len(pairs), 1))
    colors[:, 3] = np.minimum(weights[tuple(pairs.T)], 1)
    segments = [[(0, query), (1, key)] for query, key in pairs]
    axes.add_collection(LineCollection(segments, colors=colors, linewidths=1.4))
    _label_rows(axes, attention.queries(kind), cell, x=-0.04)
    for place, label in enumerate(attention.keys(kind)):
        axes.text(1.04, place, label, fontsize=_POINTS * cell, ha="left", va="center", color=INK)
