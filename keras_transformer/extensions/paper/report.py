"""The table and the chart of an experiment: Table 2, Table 3 and the student have the same."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from keras_transformer.runs.atomic import atomic_path

TABLE, CHART = "table.md", "chart.svg"


class Series(NamedTuple):
    """Points of one color, with an optional text above each."""

    label: str
    points: Sequence[tuple[float, float]]
    texts: Sequence[str] = ()
    format: str = "o-"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], notes: Iterable[str] = ()) -> str:
    """Returns a table in Markdown with notes below, and a final newline."""
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    lines.insert(1, "|" + "---|" * len(head))
    return "\n".join([*lines, *(f"\n{note}" for note in notes)]) + "\n"


def draw(
    path: Path,
    panels: Mapping[str, Sequence[Series]],
    ylabel: str = "",
    *,
    log_scale: Collection[str] = (),
    rows: Sequence[str] = (),
    title: str = "",
) -> None:
    """Draws panels next to each other, as an SVG file without fonts. It replaces `path`.

    Each panel has a name for its x axis. `log_scale` has the names of logarithmic ones. With `rows`
    the y values are rows with these names, from the top.
    """
    import matplotlib.style  # late, because it is an extra
    from matplotlib.figure import Figure

    style = {"svg.fonttype": "none", "svg.hashsalt": "paper", "font.size": 9}
    size = (max(5.5, 4.5 * len(panels)), 1.5 + 0.24 * len(rows) if rows else 4)
    with matplotlib.style.context(["default", style]):
        figure = Figure(figsize=size, layout="constrained")
        figure.suptitle(title, fontsize=9)
        all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (xlabel, lines) in zip(all_axes, panels.items(), strict=True):
            for label, points, texts, line_format in lines:
                x, y = ([point[axis] for point in points] for axis in (0, 1))
                axes.plot(x, y, line_format, label=label, markersize=4, linewidth=1.2)
                for text, point in zip(texts, points, strict=False):
                    axes.annotate(text, point, (0, 5), textcoords="offset points", ha="center")
            axes.set_xlabel(xlabel)
            if xlabel in log_scale:
                axes.set_xscale("log")
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(axis="x", color="#e4e7eb")
            axes.margins(0.1)
        all_axes[0].set_ylabel(ylabel)
        if rows:
            all_axes[0].set_yticks(range(len(rows)), rows)
            all_axes[0].set_ylim(len(rows) - 0.5, -0.5)
        handles, labels = all_axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", frameon=False)
        with atomic_path(path) as partial:
            figure.savefig(partial, format="svg", metadata={"Date": None})
