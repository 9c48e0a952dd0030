"""Curves as SVG that stands inside a page: its text and colours are the page's own."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from keras_transformer.errors import needs_extra
from keras_transformer.runs.report.elements import number
from keras_transformer.runs.report.history import Point, Series, Thinned

with needs_extra("plots", "drawing curves"):
    import matplotlib.style
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

Kind = Literal["training", "validation"]
Scale = Literal["linear", "amount", "log", "binary"]

_POINTS = 300  # of a curve; a chart is some 300 pixels wide
_MAX_VALUE = 1e30  # beyond it matplotlib's own arithmetic overflows
_LEAST_SHARE = 1e-12  # of the greatest value that a logarithmic chart shows
_MANY = 60  # validations, from which on they are a line without dots
_LINE_GAP = 0.085  # between two labels, as a share of the chart's height

# Colours that stand for the page's CSS variables, so that they follow its light or dark scheme.
_COLORS = {
    "training": "#0000a1",
    "validation": "#0000a2",
    "muted": "#0000a3",
    "grid": "#0000a4",
    "skipped": "#0000a5",
}

_STYLE = {
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.edgecolor": _COLORS["muted"],
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": _COLORS["grid"],
    "grid.linewidth": 0.7,
    "xtick.color": _COLORS["muted"],
    "ytick.color": _COLORS["muted"],
    "ytick.major.size": 0,
    "xtick.major.size": 3,
}


class Curve(NamedTuple):
    """A series, the data it is of, and the point to mark as its best."""

    series: Series
    kind: Kind
    best: Point | None = None

    @property
    def color(self) -> str:
        return _COLORS[self.kind]


def line_chart(
    title: str,
    curves: Sequence[Curve],
    last_step: int,
    scale: Scale = "linear",
    settling: float = 0.0,
    skipped: Sequence[int] = (),
) -> str:
    """Draws curves over the steps.

    Args:
        title: what they show; also makes the ids inside the SVG different from other charts'.
        curves: at least one. A long one is drawn as means, with a band from the
            least to the greatest value.
        last_step: where the axis of the steps ends.
        scale: of the values. An "amount" is linear from 0. A "log" (base 10) or "binary"
            (base 2) one needs values above 0 that differ much, and is linear otherwise.
        settling: share of the steps, at the start, whose values may lie outside of the
            chart, so that it shows the rest well.
        skipped: steps to mark on the axis.

    Returns:
        An `<svg>` element without fonts, scripts or links.
    """
    thinned = [curve.series.thinned(_POINTS, _MAX_VALUE) for curve in curves]
    with matplotlib.style.context(["default", {**_STYLE, "svg.hashsalt": title}]):
        figure = Figure(figsize=(5, 2.4))  # 360 x 173 points, one of which is a CSS pixel
        axes = figure.add_axes((0.105, 0.115, 0.765, 0.845))
        for curve, points in zip(curves, thinned, strict=True):
            _draw(axes, curve, points)
        _scale_steps(axes, max(last_step, 1))
        _scale_values(axes, _settled_values(curves, thinned, settling * last_step), scale)
        _label_ends(axes, curves, thinned)
        if skipped:
            # In shares of the axis, of which closer ones could not be told apart.
            marks = np.unique(np.round(np.array(skipped) / max(last_step, 1), 2))
            axes.plot(
                marks, np.zeros_like(marks), "|", color=_COLORS["skipped"], markersize=9,
                transform=axes.transAxes, clip_on=False,
            )  # fmt: skip
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None}, transparent=True)
    return _inline(file.getvalue(), title)


def _draw(axes: Axes, curve: Curve, points: Thinned) -> None:
    is_thinned = len(points.steps) < len(curve.series.steps)
    if is_thinned:
        axes.fill_between(
            points.steps, points.low, points.high, color=curve.color, alpha=0.18, linewidth=0
        )
    dots = len(points.steps) == 1 or (curve.kind == "validation" and len(points.steps) <= _MANY)
    axes.plot(
        points.steps, points.mean, color=curve.color, linewidth=1.3,
        marker="o" if dots else "", markersize=2.6,
    )  # fmt: skip
    if curve.best and abs(curve.best.value) <= _MAX_VALUE:
        axes.plot(
            *curve.best, "o", color=curve.color, markersize=6.5, markerfacecolor="none",
            clip_on=False,
        )  # fmt: skip


def _scale_steps(axes: Axes, last_step: int) -> None:
    unit, letter = (1e6, "M") if last_step >= 1e6 else (1e3, "k") if last_step > 5e3 else (1, "")

    def tick(step: float, _: int | None) -> str:
        return f"{step / unit:g}{letter}" if step else "0"

    axes.set_xlim(0, last_step)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(tick))


def _settled_values(
    curves: Sequence[Curve], thinned: Sequence[Thinned], first_step: float
) -> npt.NDArray[np.float64]:
    """Returns what the chart has to show: all from `first_step` on, and the best."""
    values = [np.array([curve.best.value for curve in curves if curve.best], np.float64)]
    for points in thinned:
        settled = points.steps >= min(first_step, points.steps[-1])
        values += [points.low[settled], points.high[settled]]
    joined = np.concatenate(values)
    return joined[np.abs(joined) <= _MAX_VALUE]


def _scale_values(axes: Axes, values: npt.NDArray[np.float64], scale: Scale) -> None:
    """Sets limits that show `values`, ticks and their text."""
    low, high = (values.min(), values.max()) if len(values) else (0.0, 1.0)
    axes.yaxis.set_major_locator(MaxNLocator(5, min_n_ticks=3))
    if scale in ("linear", "amount") or low <= 0 or high < 4 * low:
        margin = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
        if scale == "amount":
            low = min(low, 0.0)
        # Nothing that is never negative gets room below 0.
        axes.set_ylim(low - margin if low < 0 or low > margin else 0.0, high + margin)
    else:
        low = max(low, high * _LEAST_SHARE)
        base = 2 if scale == "binary" else 10
        axes.set_yscale("log", base=base)
        margin = (high / low) ** 0.06
        axes.set_ylim(low / margin, high * margin)
        few = (1,) if high > 300 * low or base == 2 else (1, 3) if high > 30 * low else (1, 2, 5)
        axes.yaxis.set_major_locator(LogLocator(base, few, numticks=8))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _label_ends(axes: Axes, curves: Sequence[Curve], thinned: Sequence[Thinned]) -> None:
    """Writes each curve's last value beside its end, and keeps the texts apart."""
    ends = []
    for curve, points in zip(curves, thinned, strict=True):
        heights = points.mean[np.isfinite(points.mean)]
        if len(heights):
            data = axes.transData.transform((0.0, heights[-1]))
            height = float(axes.transAxes.inverted().transform(data)[1])
            ends.append((min(max(height, 0.0), 1.0), curve))
    ends.sort(key=lambda end: end[0])
    below = -np.inf
    for height, curve in ends:
        below = max(height, below + _LINE_GAP)
        axes.text(
            1.02, below, _end(curve.series.last.value), color=curve.color, va="center",
            transform=axes.transAxes,
        )  # fmt: skip


def _end(value: float) -> str:
    return number(value) if value == 0 or abs(value) >= 0.01 else f"{value:.3g}"


def _inline(svg: str, title: str) -> str:
    """Takes a standalone SVG file's element, without what only a file needs."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    box = re.search(r'viewBox="[^"]*"', svg)
    name = f'role="img" aria-label="{html.escape(title)}"'
    svg = re.sub(r"<svg[^>]*>", f"<svg {box[0] if box else ''} {name}>", svg, count=1)
    for color, code in _COLORS.items():
        svg = svg.replace(code, f"var(--{color})")
    return re.sub(r"\s*\n\s*", "\n", svg).strip()
