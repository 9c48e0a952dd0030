"""Pictures of attention, heads, positional encodings and sentence embeddings.

Attention is drawn as matrices, and as lines between tokens like in the paper's figures 3 to 5.
"""

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
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.colorbar import Colorbar
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from keras_transformer.errors import InputError
from keras_transformer.visualization.attention import TITLES, Attention, HeadSummary
from keras_transformer.visualization.embeddings import Projection

INK, MUTED, LINE = "#1d2126", "#6a727c", "#2f6db0"  # those of the pages
DPI = 110

# From white to dark blue in even steps of lightness (CIELAB's L*, from 100 to 21).
WEIGHTS = LinearSegmentedColormap.from_list(
    "weights",
    [
        (0.0, "#ffffff"), (0.171, "#c6dbef"), (0.265, "#9ecae1"), (0.402, "#6baed6"),
        (0.533, "#4292c6"), (0.68, "#2171b5"), (0.826, "#08519c"), (1.0, "#08306b"),
    ],
)  # fmt: skip
SIGNED = "PuOr"  # white at 0; told apart by those who see no red or no green

# For what DejaVu Sans, which matplotlib brings, has no signs for; those of them that are there.
_FONTS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK KR", "WenQuanYi Zen Hei",
    "IPAexGothic", "NanumGothic", "Noto Sans Devanagari", "Noto Sans Bengali", "Noto Sans Thai",
    "Noto Sans Hebrew", "Noto Sans Arabic", "Noto Sans Tamil", "FreeSans", "Unifont",
)  # fmt: skip


@functools.cache
def _families() -> list[str]:
    known = {entry.name for entry in font_manager.fontManager.ttflist}
    return ["DejaVu Sans", *(name for name in _FONTS if name in known)]


@contextlib.contextmanager
def _style() -> Iterator[None]:
    """Gives matplotlib the project's style, in the block or in the function that it decorates."""
    changes = {
        "font.family": _families(),
        "font.size": 8,
        "axes.edgecolor": MUTED,
        "axes.linewidth": 0.5,
        "axes.labelcolor": MUTED,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "text.color": INK,
        # A token may be of the signs that begin mathematics.
        "text.parse_math": False,
    }
    with matplotlib.style.context(["default", changes]):
        yield


def text_width(labels: Sequence[str], points: float) -> float:
    """Returns the inches of the widest label in a font of so many points."""
    renderer = FigureCanvasAgg(Figure(dpi=DPI)).get_renderer()
    font = font_manager.FontProperties(family=_families(), size=points)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # signs that no font has
        return max(
            (renderer.get_text_width_height_descent(label, font, False)[0] / DPI
             for label in labels if label), default=0.0,
        )  # fmt: skip


def _axes_at(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Adds axes of a size, at a place from the upper left corner, all in inches."""
    w, h = figure.get_size_inches()
    return figure.add_axes((left / w, 1 - (top + height) / h, width / w, height / h))


def _title(figure: Figure, text: str, note: str = "") -> None:
    """Writes a title and a line below it."""
    w, h = figure.get_size_inches()
    for line, inches, size, color, weight in (
        (text, 0.1, 10, INK, "bold"),
        (note, 0.3, 8, MUTED, "normal"),
    ):
        figure.text(
            0.1 / w, 1 - inches / h, line, fontsize=size, color=color, fontweight=weight, va="top"
        )


def _color_bar(
    figure: Figure, image: AxesImage, left: float, top: float, height: float
) -> Colorbar:
    """Adds a scale of an image's colours, at a place from the upper left corner in inches."""
    bar = figure.colorbar(image, cax=_axes_at(figure, left, top, 0.1, height))
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=2, labelsize=8)
    return bar


def write_png(figure: Figure, path: Path) -> set[str]:
    """Writes a picture, and returns the signs in it that no font here has.

    Raises:
        InputError: where it cannot be written.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            figure.savefig(path, dpi=DPI, metadata={"Software": None})
        except OSError as error:
            raise InputError(f"{path} cannot be written ({error.strerror})") from error
    missing = set()
    for warning in caught:
        words = str(warning.message).split()
        if words[:1] != ["Glyph"]:  # "Glyph 22909 (\N{CJK …}) missing from font(s) DejaVu Sans."
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
        else:
            missing.add(chr(int(words[1])))
    return missing


# Attention.

_HEADER = 0.6  # inches of title and note
_POINTS = 48  # of a label's letters, an inch of a token's place
_FAINT = 0.01  # the least weight that is drawn as a line


@_style()
def draw_layers(attention: Attention, kind: str) -> Figure:
    """Draws all heads of all layers, small and without tokens: a row a layer."""
    weights = attention.weights(kind)
    layers, heads, queries, keys = weights.shape
    width, height = (1.15 * n / max(queries, keys) for n in (keys, queries))
    gap, left, top = 0.12, 0.35, _HEADER + 0.2
    figure = Figure(figsize=(max(left + heads * (width + gap), 5.2), top + layers * (height + gap)))
    for layer, head in np.ndindex(layers, heads):
        x, y = left + head * (width + gap), top + layer * (height + gap)
        axes = _axes_at(figure, x, y, width, height)
        _matrix(axes, weights[layer, head])
        if layer == 0:
            axes.set_title(f"head {head + 1}", fontsize=8, color=MUTED, pad=3)
        if head == 0:
            axes.set_ylabel(f"layer {layer + 1}", labelpad=3)
    _title(figure, f"{TITLES[kind]}, all layers and heads", _note(kind))
    return figure


@_style()
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
        axes = _axes_at(figure, x, y, width, height)
        _matrix(axes, weights[head])
        axes.set_xlabel(f"head {head + 1}", labelpad=4)
        if column == 0:
            _label_rows(axes, attention.queries(kind), cell)
        if line == 0:
            _label_columns(axes, attention.keys(kind), cell)
    layers = len(attention.weights(kind))
    _title(figure, f"{TITLES[kind]}, layer {layer + 1} of {layers}", _note(kind))
    return figure


@_style()
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
    lines = _axes_at(figure, rows, top, between, longest)
    _draw_lines(lines, weights, attention, kind, cell)
    matrix = _axes_at(figure, x, top, width, height)
    image = _matrix(matrix, weights)
    _label_rows(matrix, attention.queries(kind), cell)
    _label_columns(matrix, attention.keys(kind), cell)
    bar = _color_bar(figure, image, x + width + 0.15, top, min(height, 1.6))
    bar.set_ticks([0, 0.5, 1])
    place = f"layer {layer + 1} of {layers}, head {head + 1} of {heads}"
    _title(figure, f"{TITLES[kind]}, {place}", _note(kind))
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


# Heads, positions and embeddings.

_DRAWN = {
    "entropy": "entropy (bits)",
    "distance": "distance (tokens)",
    "diagonal": "share on the diagonal",
}
_LABEL_POINTS = 7  # of the texts beside points
_LONGEST = 32  # letters of such a text
_MOST_LABELS = 200  # that are tried
_GAP, _LINE = 0.06, 0.13  # inches from a point to its text, and from a text to the one above it


@_style()
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
            axes = _axes_at(figure, left, top + above, width, heights[kind])
            limit = 1.0 if name == "diagonal" else most[name]
            axes.imshow(means[name], cmap=WEIGHTS, vmin=0, vmax=limit, aspect="auto")
            axes.set_title(label, fontsize=8, color=MUTED, pad=3)
            axes.set(xlabel="head", ylabel="layer" if column == 0 else "")
            _write_values(axes, means[name], limit)
        top += above + heights[kind] + below
    pairs = "1 pair" if summary.pairs == 1 else f"{summary.pairs:,} pairs"
    _title(figure, "What each head does", f"Means over all rows of {pairs}.")
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


@_style()
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
        axes = _axes_at(figure, 0.6, top, 3.6, height)
        limit = np.abs(vectors).max() or 1.0
        image = axes.imshow(vectors, cmap=SIGNED, vmin=-limit, vmax=limit, aspect="auto",
                            interpolation="nearest")  # fmt: skip
        axes.set(xlabel="dimension", ylabel="position")
        axes.set_title(name, fontsize=8, fontweight="bold")
        _color_bar(figure, image, 4.3, top, 1.6)
        _draw_products(_axes_at(figure, 5.4, top, 4.6, height), vectors)
    kind = "Learned" if learned else "Sinusoidal"
    _title(
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


@_style()
def draw_embeddings(projection: Projection, sentences: Sequence[str]) -> Figure:
    """Draws a point for each sentence, with the beginning of its text where there is room."""
    figure = Figure(figsize=(9, 7))
    axes = _axes_at(figure, 0.7, 0.7, 8.05, 5.75)
    x, y = projection.points.T
    axes.scatter(x, y, s=10, color=LINE, alpha=0.6, linewidths=0)
    axes.margins(0.06)
    _label_points(axes, projection.points, sentences)
    first, second = (f"{100 * share:.1f} % of the variance" for share in projection.explained)
    axes.set(xlabel=f"first component, {first}", ylabel=f"second component, {second}")
    axes.spines[["top", "right"]].set_visible(False)
    note = "Each point is the mean of the encoder's output over a sentence; principal components."
    _title(figure, f"{len(sentences):,} sentences in two dimensions", note)
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
