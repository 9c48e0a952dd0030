"""Pictures of attention, heads and positions, the page that shows them, and training curves."""

from __future__ import annotations

import contextlib
import functools
import io
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.data.corpus import ParallelFiles
from keras_transformer.data.reading import read_text
from keras_transformer.errors import InputError, needs_extra
from keras_transformer.extensions.pages.attention import (
    MEASURES,
    TITLES,
    Attention,
    HeadSummary,
    attention,
    attention_page,
    embed,
    embeddings_page,
    open_visible_model,
    read_attention,
    summarize_heads,
)
from keras_transformer.extensions.pages.page import render, write_page
from keras_transformer.inference import Languages
from keras_transformer.inference.batching import map_batches
from keras_transformer.runs.atomic import atomic_path

_BATCH_SIZE = 16  # pairs: the attention of 64 tokens in 48 heads has 2.4 MB
_POSITIONS = 128  # positional encodings in the picture
_INK, _MUTED, _LINE = "#1d2126", "#6a727c", "#2f6db0"  # the colours of the pages
_CURVES = {"training": "#4a8bd0", "validation": "#d9662b"}  # for light and for dark pages

with needs_extra("plots", "drawing"):
    import matplotlib.style
    from matplotlib import font_manager
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
def _style(ink: str = _INK, muted: str = _MUTED) -> Iterator[None]:
    """Sets the style of pictures in a block or in a decorated function."""
    changes = {
        "font.family": _families(),
        "font.size": 8,
        "axes.linewidth": 0.5,
        "axes.titlesize": 8,
        "grid.linewidth": 0.3,
        "text.parse_math": False,  # a token may contain dollar signs
        "svg.fonttype": "none",
        "svg.hashsalt": "report",  # the same run gives the same page
        **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "axes.titlecolor"), muted),
        **dict.fromkeys(("xtick.color", "ytick.color", "text.color"), ink),
    }
    with matplotlib.style.context(["default", changes]):
        yield


def _figure(size: tuple[float, float], title: str, note: str = "", **options: Any) -> Figure:
    """Returns a figure with a title and an explanation. The size is in inches."""
    figure = Figure(size, **{"layout": "constrained", **options})
    if title:
        figure.suptitle(f"{title}\n{note}".strip(), x=0.01, ha="left", fontsize=9)
    return figure


@_style(ink="#808890", muted="#808890")
def draw_curves(charts: Sequence[tuple[str, Sequence[Any], bool]]) -> str:
    """Draws training curves as one SVG image, two in a row.

    A chart has a title, lines, and whether the scale may be logarithmic. A line has "training" or
    "validation", the values by step, and the step with the best value or None.
    """
    rows = -(-len(charts) // 2)
    figure = _figure((9.6, 2.3 * rows), "", facecolor="none")
    for index, (title, lines, is_log) in enumerate(charts):
        axes = figure.add_subplot(rows, 2, index + 1, facecolor="none")
        axes.set_title(title, loc="left", fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y")
        for kind, values, best in lines:
            axes.plot(*zip(*values.items(), strict=True), color=_CURVES[kind], label=kind)
            if best is not None:
                axes.plot(best, values[best], "o", mfc="none", color=_CURVES[kind])
            if is_log and max(values.values()) >= 10 * min(values.values()) > 0:
                axes.set_yscale("log")
        if len(lines) > 1:
            axes.legend(frameon=False)
    image = io.StringIO()
    figure.savefig(image, format="svg", metadata={"Date": None})
    return image.getvalue()[image.getvalue().index("<svg") :]


def write_png(figure: Figure, path: Path) -> None:
    """Writes a picture."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # letters without a font are boxes
        figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": None})


@_style()
def draw_layers(pair: Attention, kind: str) -> Figure:
    """Draws all heads of all layers, small and without tokens. Each row is a layer."""
    weights = pair.weights(kind)
    layers, heads, queries, keys = weights.shape
    width, height = (1.2 * n / max(queries, keys) + 0.1 for n in (keys, queries))
    size = heads * width + 0.4, layers * height + 0.8
    figure = _attention_figure(size, f"{TITLES[kind]}, all layers and heads", kind)
    grid = figure.subplots(layers, heads, squeeze=False)
    for (layer, head), axes in np.ndenumerate(grid):
        _draw_matrix(axes, weights[layer, head])
        if layer == 0:
            axes.set_title(f"head {head + 1}")
        if head == 0:
            axes.set_ylabel(f"layer {layer + 1}")
    return figure


@_style()
def draw_heads(pair: Attention, kind: str, layer: int) -> Figure:
    """Draws the heads of a layer, counted from 0, with their tokens."""
    weights = pair.weights(kind)[layer]
    heads, queries, keys = weights.shape
    labels = pair.queries(kind), pair.keys(kind)
    cell = 0.165 if max(queries, keys) <= 40 else 0.125  # inches per token
    left, top = (0.6 * cell * max(map(len, side)) for side in labels)
    columns = min(heads, math.ceil(math.sqrt(2 * heads * queries / keys)))
    lines = math.ceil(heads / columns)
    size = left + columns * (cell * keys + 0.2), top + lines * (cell * queries + 0.4) + 0.5
    figure = _attention_figure(size, f"{TITLES[kind]}, layer {layer + 1}", kind)
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


def _attention_figure(size: tuple[float, float], title: str, kind: str) -> Figure:
    row = "a token" if kind == "encoder" else "a token read → the token predicted next"
    note = f"Each row is {row}. The columns are the tokens it attends to."
    return _figure(size, title, note, layout="compressed")


def _draw_matrix(axes: Axes, weights: np.ndarray) -> None:
    axes.imshow(weights, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    axes.set(xticks=[], yticks=[])


@_style()
def draw_summary(summary: HeadSummary) -> Figure:
    """Draws entropy, distance and share on the diagonal of all heads of each kind."""
    layers = {kind: len(means["entropy"]) for kind, means in summary.means.items()}
    heads = max(means["entropy"].shape[1] for means in summary.means.values())
    size = (3 * (0.36 * heads + 0.5) + 0.3, 0.3 * sum(layers.values()) + 0.65 * len(layers) + 0.5)
    pairs = "1 pair" if summary.pairs == 1 else f"{summary.pairs:,} pairs"
    figure = _figure(size, f"Means over {pairs}, for each head")
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
    """Draws positional encodings: their values, and their dot products by distance."""
    learned = bool(encodings["learned"])
    # Sinusoidal encodings of both sides are the same.
    sides: Sequence[str] = ("source", "target") if learned else ("source",)
    title = f"{'Learned' if learned else 'Sinusoidal'} positional encodings"
    note = "Left: their values. Right: the mean and range of their dot products at each distance."
    figure = _figure((10, 2.8 * len(sides) + 0.4), title, note)
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
            [function(diagonal) for diagonal in diagonals] for function in (np.min, np.mean, np.max)
        )
        distances = np.arange(len(vectors))
        right.fill_between(distances, lows, highs, color=_LINE, alpha=0.2, linewidth=0)
        right.plot(distances, means, color=_LINE, linewidth=1.3)
        right.set(xlabel="distance of two positions", ylabel="dot product", xlim=(0, None))
        right.spines[["top", "right"]].set_visible(False)
    return figure


def visualize(
    model_dir: str | Path,
    output_dir: str | Path,
    sentence: str | None = None,
    translation: str | None = None,
    source: str | Path | None = None,
    target: str | Path | None = None,
    max_sentences: int = 1000,
    *,
    languages: Languages = (None, None),
) -> tuple[dict[str, Any], list[str]]:
    """Draws the attention of a pair, statistics of the heads, positions and embeddings.

    The pair is `sentence` and `translation`, or the first one of the files `source` and `target`,
    which are for the statistics. The model translates if there are no translations. The results are
    the directory, the names of its files and the number of sentences, and a remark for each
    problem.
    """
    path = Path(output_dir)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path} already exists. Choose a new directory.")
    if sentence is None and source is None:
        raise InputError("There is nothing to draw. Give a sentence, or a source file.")
    if (translation is not None and sentence is None) or (target is not None and source is None):
        raise InputError("A translation needs a sentence, and a target file a source file.")
    pairs: list[tuple[str, str]] = []
    empty = 0
    if source is not None:
        pairs, empty = read_pairs(source, target)
    sources = [text for text, _ in pairs[:max_sentences]]
    targets = [text for _, text in pairs[:max_sentences]]
    if sentence is None:
        sentence, translation = sources[0], targets[0] or None
    model = open_visible_model(model_dir, None, languages)

    def read_batch(batch: list[int]) -> list[Attention]:
        texts = {"source": [sources[i] for i in batch], "target": [targets[i] for i in batch]}
        return read_attention(model.signatures["attention"](texts))

    pair = attention(model.signatures["attention"], sentence, translation)
    batches = map_batches(read_batch, sources, max_lines=_BATCH_SIZE, unit="pairs")
    summary = summarize_heads(
        (found for _, batch in batches for found in batch) if sources else [pair]
    )
    target_title = "Target" if translation else "Target (by the model)"
    known = {
        "Model": model.label,
        "Source": sentence,
        target_title: translation or pair.target_text,
    }
    links = {"attention.html": "Interactive attention", "heads.tsv": "Statistics of all heads"}
    pages = {"attention.html": attention_page(pair, known)}
    if sources:
        vectors = embed(model.signatures["embed"], sources)
        pages["embeddings.html"] = embeddings_page(vectors, sources, model.label)
        links["embeddings.html"] = "Interactive sentence embeddings"
    remarks = pair.remarks()
    if sources and summary.truncated:
        remarks.append(f"{summary.truncated:,} of {summary.pairs:,} pairs are truncated.")
    if empty:
        remarks.append(f"{empty:,} pairs are left out because a side is empty.")
    pictures: dict[str, list[str]] = {}
    try:
        path.absolute().parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as directory:
            directory.mkdir()
            for title, file, figure in _pictures(
                pair, summary, model.positions({"count": _POSITIONS})
            ):
                write_png(figure, directory / file)
                pictures.setdefault(title, []).append(file)
            values = {"known": known, "remarks": remarks, "links": links, "measures": MEASURES}
            pages["index.html"] = render("index", pictures=pictures, **values)
            for file, page in pages.items():
                write_page(directory / file, page)
            (directory / "heads.tsv").write_text(summary.as_tsv(), encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}).") from error
    files = ["index.html", *links, *(name for names in pictures.values() for name in names)]
    return {"output_dir": str(path), "files": files, "sentences": len(sources)}, remarks


def read_pairs(source: str | Path, target: str | Path | None) -> tuple[list[tuple[str, str]], int]:
    """Returns the pairs of two files, and the number of pairs that have an empty side.

    Without a target file, the targets are empty.
    """
    if target is None:
        pairs = [(text, "") for text in read_text(source)]
    else:
        lines = ParallelFiles(Path(source), Path(target)).pairs()
        pairs = [(text.decode(), translation.decode()) for text, translation in lines]
    kept = [pair for pair in pairs if pair[0].strip() and (target is None or pair[1].strip())]
    if not kept:
        raise InputError(f"{source} has no sentence. It must have one per line.")
    return kept, len(pairs) - len(kept)


def _pictures(
    pair: Attention, summary: HeadSummary, encodings: Mapping[str, np.ndarray]
) -> Iterable[tuple[str, str, Figure]]:
    """Yields the section, the file and the content of each picture."""
    for kind in pair.kinds:
        title = TITLES[kind]
        yield title, f"{kind}.png", draw_layers(pair, kind)
        for layer in range(len(pair.weights(kind))):
            yield title, f"{kind}_layer_{layer + 1}.png", draw_heads(pair, kind, layer)
    yield "Heads", "heads.png", draw_summary(summary)
    yield "Positional encodings", "positions.png", draw_positions(encodings)
