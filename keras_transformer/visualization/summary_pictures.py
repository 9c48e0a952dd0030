"""Pictures of what heads do, of positional encodings, and of sentence embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from keras_transformer.visualization.attention import TITLES
from keras_transformer.visualization.embeddings import Projection
from keras_transformer.visualization.heads import HeadSummary
from keras_transformer.visualization.style import (
    LINE,
    MUTED,
    SIGNED,
    WEIGHTS,
    axes_at,
    color_bar,
    pictures,
    text_width,
    title,
)

_DRAWN = {
    "entropy": "entropy (bits)",
    "distance": "distance (tokens)",
    "diagonal": "share on the diagonal",
}
_LABEL_POINTS = 7  # of the texts beside points
_LONGEST = 32  # letters of such a text
_MOST_LABELS = 200  # that are tried
_GAP, _LINE = 0.06, 0.13  # inches from a point to its text, and from a text to the one above it


@pictures()
def draw_summary(summary: HeadSummary) -> Figure:
    """Draws entropy, distance and diagonal of all heads: a line of three for each attention."""
    cell, gap, header, above, below = 0.36, 0.45, 0.7, 0.5, 0.45
    width = cell * max(means["entropy"].shape[1] for means in summary.means.values())
    heights = {kind: cell * len(means["entropy"]) for kind, means in summary.means.items()}
    figure = Figure(
        figsize=(
            max(0.55 + len(_DRAWN) * (width + gap), 4.5),
            header + sum(heights.values()) + len(heights) * (above + below),
        )
    )
    # An entropy, or a distance, is as dark in one attention as in another.
    most = {
        name: max(float(means[name].max()) for means in summary.means.values()) or 1.0
        for name in _DRAWN
    }
    w, h = figure.get_size_inches()
    top = header
    for kind, means in summary.means.items():
        figure.text(0.1 / w, 1 - top / h, TITLES[kind], fontweight="bold", va="top")
        for column, (name, label) in enumerate(_DRAWN.items()):
            left = 0.55 + column * (width + gap)
            axes = axes_at(figure, left, top + above, width, heights[kind])
            limit = 1.0 if name == "diagonal" else most[name]
            axes.imshow(means[name], cmap=WEIGHTS, vmin=0, vmax=limit, aspect="auto")
            axes.set_title(label, fontsize=8, color=MUTED, pad=3)
            axes.set(xlabel="head", ylabel="layer" if column == 0 else "")
            _write_values(axes, means[name], limit)
        top += above + heights[kind] + below
    pairs = "1 pair" if summary.pairs == 1 else f"{summary.pairs:,} pairs"
    title(figure, "What each head does", f"Means over all rows of {pairs}.")
    return figure


def _write_values(axes: Axes, values: np.ndarray, limit: float) -> None:
    layers, heads = values.shape
    axes.set_xticks(range(heads), [str(head + 1) for head in range(heads)])
    axes.set_yticks(range(layers), [str(layer + 1) for layer in range(layers)])
    axes.tick_params(length=0, labelsize=7)
    for (layer, head), value in np.ndenumerate(values):
        text = f"{value:.2f}" if limit <= 1 else f"{value:.1f}"
        color = "white" if value > 0.55 * limit else "black"
        axes.text(head, layer, text, ha="center", va="center", fontsize=7, color=color)


@pictures()
def draw_positions(encodings: Mapping[str, np.ndarray]) -> Figure:
    """Draws positional encodings: their values, and their dot products by distance.

    Args:
        encodings: `source` and `target`, float32 `[positions, d_model]`, and `learned`, bool.
    """
    learned = bool(encodings["learned"])
    sides = {"source": "encoder", "target": "decoder"} if learned else {"source": ""}
    height, head = 2.6, 0.75
    figure = Figure(figsize=(10.2, head + len(sides) * (height + 0.65)))
    for line, (side, name) in enumerate(sides.items()):
        vectors = encodings[side].astype(np.float64)
        top = head + line * (height + 0.65)
        axes = axes_at(figure, 0.6, top, 3.6, height)
        limit = np.abs(vectors).max() or 1.0
        image = axes.imshow(vectors, cmap=SIGNED, vmin=-limit, vmax=limit, aspect="auto",
                            interpolation="nearest")  # fmt: skip
        axes.set(xlabel="dimension", ylabel="position")
        axes.set_title(name, fontsize=8, fontweight="bold")
        color_bar(figure, image, 4.3, top, 1.6)
        _draw_products(axes_at(figure, 5.4, top, 4.6, height), vectors)
    kind = "Learned" if learned else "Sinusoidal"
    title(
        figure,
        f"{kind} positional encodings",
        "Left their values. Right their dot products: the mean of all pairs at a distance, "
        "and the range of them.",
    )
    return figure


def _draw_products(axes: Axes, vectors: np.ndarray) -> None:
    products = vectors @ vectors.T
    diagonals = [np.diagonal(products, distance) for distance in range(len(vectors))]
    distances = np.arange(len(vectors))
    low, mean, high = (
        np.array([function(each) for each in diagonals]) for function in (np.min, np.mean, np.max)
    )
    axes.fill_between(distances, low, high, color=LINE, alpha=0.2, linewidth=0)
    axes.plot(distances, mean, color=LINE, linewidth=1.3)
    axes.set(xlabel="distance of two positions", ylabel="dot product", xlim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)


@pictures()
def draw_embeddings(projection: Projection, sentences: Sequence[str]) -> Figure:
    """Draws a point for each sentence, with the beginning of its text where there is room."""
    figure = Figure(figsize=(9, 7))
    axes = axes_at(figure, 0.7, 0.7, 8.05, 5.75)
    x, y = projection.points.T
    axes.scatter(x, y, s=10, color=LINE, alpha=0.6, linewidths=0)
    axes.margins(0.06)
    _label_points(axes, projection.points, sentences)
    first, second = (f"{100 * share:.1f} % of the variance" for share in projection.explained)
    axes.set(xlabel=f"first component, {first}", ylabel=f"second component, {second}")
    axes.spines[["top", "right"]].set_visible(False)
    note = "Each point is the mean of the encoder's output over a sentence; principal components."
    title(figure, f"{len(sentences):,} sentences in two dimensions", note)
    return figure


def _label_points(axes: Axes, points: np.ndarray, sentences: Sequence[str]) -> None:
    """Writes texts beside their points, first come, first served: no text covers another."""
    axes.autoscale_view()
    x, y = axes.transData.transform(points).T / axes.figure.dpi
    first, last = axes.transAxes.transform([(0, 0), (1, 1)])[:, 0] / axes.figure.dpi
    # Lefts, rights and heights of what is there: the points themselves, and each text.
    taken = np.stack([x - _GAP / 2, x + _GAP / 2, y], axis=1)
    for i, sentence in enumerate(sentences[:_MOST_LABELS]):
        text = sentence if len(sentence) <= _LONGEST else sentence[: _LONGEST - 1] + "…"
        width = text_width([text], _LABEL_POINTS)
        for side, left in (("left", x[i] + _GAP), ("right", x[i] - _GAP - width)):
            meets = (taken[:, 0] < left + width) & (left < taken[:, 1])
            meets &= np.abs(taken[:, 2] - y[i]) < _LINE
            if first < left and left + width < last and not meets.any():
                taken = np.append(taken, [[left, left + width, y[i]]], axis=0)
                axes.annotate(
                    text, points[i], (72 * _GAP if side == "left" else -72 * _GAP, 0),
                    textcoords="offset points", fontsize=_LABEL_POINTS, ha=side, va="center",
                )  # fmt: skip
                break
