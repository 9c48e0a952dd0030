"""The table and the chart of an experiment: recipes, students and the paper's tables share them."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from keras_transformer.runs.atomic import atomic_path

TABLE, CHART = "table.md", "chart.svg"


class Series(NamedTuple):
    """Points of one color, with an optional text above each."""

    label: str
    points: Sequence[tuple[float, float]]
    texts: Sequence[str] = ()
    format: str = "o-"


def table(rows: Sequence[Mapping[str, str]], notes: Iterable[str] = ()) -> str:
    """Returns rows of cells by column in Markdown, without columns of empty cells. Notes follow."""
    head = [
        name for name in dict.fromkeys(itertools.chain(*rows)) if any(row.get(name) for row in rows)
    ]
    lines = [head, ["---"] * len(head), *([row.get(name, "") for name in head] for row in rows)]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return table + "".join(f"\n{note}\n" for note in notes)


def mixed_origins(records: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns a warning if results come from several commits, processors or precisions.

    Results of earlier calls are kept, so a table may compare old with new results. The precision
    `auto` depends on the machine.
    """
    origins = {
        name: (record["commit"], record["machine"]["processor"])
        for name, record in records.items()
        if "machine" in record
    }
    precisions = {name: record.get("precision") for name, record in records.items()}
    if len(set(origins.values())) < 2 and len({*precisions.values()} - {None}) < 2:
        return []
    listed = "; ".join(
        f"{name}: {commit} on {processor}, {precisions[name] or 'unknown'}"
        for name, (commit, processor) in origins.items()
    )
    return [f"Results from different commits, processors or precisions: {listed}."]


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
