"""A chart of the difference of each row from base, here and in the paper."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

_MUTED, _GRID = "#6a727c", "#e4e7eb"
_HERE, _PAPER = "#2f6db0", "#bf4f14"
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "delta_bleu",
    "font.size": 9,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.edgecolor": _MUTED,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "x",
    "grid.color": _GRID,
    "grid.linewidth": 0.7,
    "xtick.color": _MUTED,
    "ytick.color": _MUTED,
    "ytick.major.size": 0,
}


def delta_chart(results: Mapping[str, Any]) -> str:
    """Draws BLEU minus BLEU of base, as a line for each row with a dot for this run and for the
    paper.
    """
    rows = {name: row for name, row in results["rows"].items() if name != "base"}
    with matplotlib.style.context(["default", _STYLE]):
        figure = Figure(figsize=(5.5, 1.1 + 0.24 * len(rows)), layout="constrained")
        axes = figure.subplots()
        _draw(axes, rows)
        axes.set_title(
            f"{results['title']} on {results['preset_base']}: BLEU minus BLEU of base", fontsize=9
        )
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def _draw(axes: Axes, rows: Mapping[str, Mapping[str, Any]]) -> None:
    axes.axvline(0, color=_MUTED, linewidth=0.9)
    paper = [row["paper"]["difference"]["bleu"] for row in rows.values()]
    here = [row["difference"]["bleu"] for row in rows.values()]
    for place, ends in enumerate(zip(here, paper, strict=True)):
        if None not in ends:
            axes.plot(ends, (place, place), color=_GRID, linewidth=2, zorder=1)
    known = [place for place, value in enumerate(here) if value is not None]
    axes.plot(
        paper, range(len(rows)), "D", color=_PAPER, markersize=4, markerfacecolor="none",
        label="paper",
    )  # fmt: skip
    axes.plot([here[place] for place in known], known, "o", color=_HERE, markersize=4, label="here")
    names = [
        f"{name}, diverged" if "diverged" in (row["run"] or {}) else name
        for name, row in rows.items()
    ]
    axes.set_yticks(range(len(rows)), names)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.xaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+g}" if value else "0"))
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, labelcolor="linecolor")
