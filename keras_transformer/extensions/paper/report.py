"""The table and the chart of an experiment: recipes, students and the paper's tables share them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_transformer.runs.atomic import atomic_path

TABLE, CHART = "table.md", "chart.svg"


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
    path: Path, names: Sequence[str], panels: Mapping[str, Mapping[str, Sequence[float | None]]]
) -> None:
    """Draws dots in a row for each name, as an SVG file without fonts. It replaces `path`.

    A panel has a label for its x axis, and one or two series by their labels: a value for each
    name, or None if it is unknown.
    """
    import matplotlib.style  # Matplotlib is an extra
    from matplotlib.figure import Figure

    style = {"svg.fonttype": "none", "svg.hashsalt": "paper", "font.size": 9}
    size = (1.5 + 4 * len(panels), 1.5 + 0.24 * len(names))
    with matplotlib.style.context(["default", style]):
        figure = Figure(figsize=size, layout="constrained")
        all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (xlabel, series) in zip(all_axes, panels.items(), strict=True):
            for marker, (label, values) in zip("oD", series.items(), strict=False):
                known = [index for index, value in enumerate(values) if value is not None]
                x = [values[index] for index in known]
                axes.plot(x, known, marker, label=label, markersize=4)
            axes.set_xlabel(xlabel)
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(axis="x", color="#e4e7eb")
        all_axes[0].set_yticks(range(len(names)), names)
        all_axes[0].set_ylim(len(names) - 0.5, -0.5)
        handles, labels = all_axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", frameon=False)
        with atomic_path(path) as partial:
            figure.savefig(partial, format="svg", metadata={"Date": None})
