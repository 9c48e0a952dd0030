"""The results drawn, logarithmic both ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from complexity.layers import KINDS
from complexity.measuring import PASSES
from complexity.results import Point, Results

_COLORS = dict(zip(KINDS, ("C0", "C2", "C3", "C1", "C4", "C5", "C7"), strict=True))
# Of kinds that lie on top of each other all are seen.
_DASHES = dict(zip(KINDS, ("-", "-", "-", "--", "-", "-", ":"), strict=True))


def draw(results: Results, file: str) -> None:
    """Draws time and memory over n and over d, and operations and paths over n, as SVG."""
    style = {"svg.fonttype": "none", "svg.hashsalt": "layer_complexity", "font.size": 9}
    quantities: dict[str, Callable[[Point], float]] = {
        f"milliseconds, {PASSES[0]}": lambda point: point.milliseconds[PASSES[0]]["median"],
        f"milliseconds, {PASSES[1]}": lambda point: point.milliseconds[PASSES[1]]["median"],
        # What is less than a page or two is the system's noise.
        f"megabytes, {PASSES[1]}": lambda point: max(point.mb[PASSES[1]]["median"], 0.1),
    }
    with matplotlib.style.context(["default", style]):
        figure = Figure(figsize=(14, 6.5), layout="constrained")
        panels = figure.subplots(2, 4)
        for row, (variable, fixed) in zip(panels, (("n", "d"), ("d", "n")), strict=True):
            title = f"over {variable}, {fixed} = {getattr(results.sizes, fixed):,}"
            for axes, (name, quantity) in zip(row[:3], quantities.items(), strict=True):
                for kind in KINDS:
                    points = results.sweep(kind, variable)
                    x = [getattr(point, variable) for point in points]
                    _line(axes, kind, x, [quantity(point) for point in points])
                _finish(axes, f"{name}\n{title}", x)
        _draw_counts(results, panels[0, 3], panels[1, 3])
        lines, names = panels[0, 0].get_legend_handles_labels()
        figure.legend(lines, names, loc="outside lower center", ncols=len(names), frameon=False)
        figure.savefig(file, format="svg", metadata={"Date": None})


def _draw_counts(results: Results, operations: Axes, paths: Axes) -> None:
    """Draws what was counted in the graph, and the path lengths."""
    for kind in KINDS:
        points = results.sweep(kind, "n")
        x = [point.n for point in points]
        _line(operations, kind, x, [point.sequential_operations for point in points])
        lengths = results.paths[kind]
        _line(paths, kind, list(lengths), list(lengths.values()))
    _finish(operations, "sequential operations, forward\nover n", x)
    _finish(paths, "maximum path length\nover n", list(lengths))


def _line(axes: Axes, kind: str, x: Sequence[float], y: Sequence[float]) -> None:
    axes.plot(
        x, y, color=_COLORS[kind], linestyle=_DASHES[kind], label=kind,
        marker="o", markersize=3.5, linewidth=1.3,
    )  # fmt: skip


def _finish(axes: Axes, title: str, x: Sequence[float]) -> None:
    axes.set(xscale="log", yscale="log")
    axes.set_title(title, fontsize=9, loc="left")
    axes.xaxis.set_major_locator(FixedLocator(list(x)))
    axes.yaxis.set_major_locator(LogLocator())
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.grid(color="0.92", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
