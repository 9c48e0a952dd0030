"""Prints a table like the paper, with the paper's figures next to ours, as text and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from keras_transformer.extensions.paper.results import mixed_origins
from keras_transformer.extensions.paper.table3.tables import COLUMNS

_HERE = ["PPL", "BLEU", "10^6"]
_DELTAS = ["PPL", "BLEU"]
# The headings above groups of columns, and the numbers of columns.
_GROUPS = {
    "": 1 + len(COLUMNS),
    "here": len(_HERE),
    "paper": len(_HERE),
    "Δ here": len(_DELTAS),
    "Δ paper": len(_DELTAS),
}


def text(results: Mapping[str, Any]) -> str:
    """Returns the table in aligned columns, with notes below and a final newline."""
    header = ["row", *COLUMNS, *_HERE, *_HERE, *_DELTAS, *_DELTAS]
    table = [header, *_cells(results)]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    groups, start = [], 0
    for group, count in _GROUPS.items():
        width = sum(widths[start : start + count]) + 2 * (count - 1)
        groups.append((group, start, count, max(width, len(group))))
        widths[start] += max(0, len(group) - width)
        start += count

    def line(cells: Sequence[str]) -> str:
        aligned = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        parts = ["  ".join(aligned[start : start + count]) for _, start, count, _ in groups]
        return " | ".join(parts).rstrip()

    head = " | ".join(group.center(width) for group, _, _, width in groups).rstrip()
    rule = "-+-".join("-" * width for *_, width in groups)
    lines = [head, line(table[0]), rule, *map(line, table[1:]), "", *_notes(results)]
    return "\n".join(lines) + "\n"


def markdown(results: Mapping[str, Any]) -> str:
    """Returns the table and the rules of its rows as Markdown, with a final newline."""
    names = {"d_model": "d<sub>model</sub>", "d_ff": "d<sub>ff</sub>", "d_k": "d<sub>k</sub>"}
    names |= {"d_v": "d<sub>v</sub>", "P_drop": "P<sub>drop</sub>", "eps_ls": "ε<sub>ls</sub>"}
    header = ["row", *(names.get(column, column) for column in COLUMNS)]
    header += ["PPL", "BLEU", "10⁶", *(f"paper: {name}" for name in ("PPL", "BLEU", "10⁶"))]
    header += ["ΔPPL", "ΔBLEU", "paper: ΔPPL", "paper: ΔBLEU"]
    aligned = ["---", *["--:"] * (len(header) - 1)]
    lines = [
        *map(_markdown_row, [header, aligned, *_cells(results)]),
        "",
        *(f"{note}  " for note in _notes(results)),
        "",
        "How rows differ from base. Whole numbers are the nearest ones, halves rounded up, and at "
        "least 1; h · d<sub>k</sub> and h · d<sub>v</sub> keep their ratios where h is rounded.",
        "",
        *map(_markdown_row, [["row", "in the paper", "change", "here"], ["---"] * 4]),
        *map(_markdown_row, _changes(results)),
    ]
    return "\n".join(lines) + "\n"


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(results: Mapping[str, Any]) -> list[list[str]]:
    """Returns the cells of all rows. Values that equal base are blank, as in the paper."""
    base = results["rows"]["base"]["columns"]
    rows = []
    for name, row in results["rows"].items():
        paper = row["paper"]
        columns = [
            "" if name != "base" and row["columns"][column] == base[column]
            else str(row["columns"][column])
            for column in COLUMNS
        ]  # fmt: skip
        millions = row["parameters"] / 1e6
        rows.append(
            [
                name,
                *columns,
                *_found(row),
                f"{millions:.2f}" if millions < 10 else f"{millions:.0f}",
                *_figures(paper),
                str(paper["millions"] or ""),
                *_deltas(name, row["difference"]),
                *_deltas(name, paper["difference"]),
            ]
        )
    return rows


def _changes(results: Mapping[str, Any]) -> list[list[str]]:
    """Returns the sizes of each row: its difference from base in the paper, and its values here."""
    base = results["rows"]["base"]

    def listed(name: str, values: Mapping[str, Any], of_base: Mapping[str, Any]) -> str:
        shown = [c for c in COLUMNS if name == "base" or values[c] != of_base[c]]
        return ", ".join(f"{column} {values[column]}" for column in shown) or "as base"

    return [
        [
            name,
            listed(name, row["paper"]["columns"], base["paper"]["columns"]),
            row["rule"],
            listed(name, row["columns"], base["columns"]),
        ]
        for name, row in results["rows"].items()
    ]


def _found(row: Mapping[str, Any]) -> list[str]:
    if not row["run"]:
        return ["", ""]
    return ["diverged", ""] if "diverged" in row["run"] else _figures(row)


def _figures(row: Mapping[str, Any]) -> list[str]:
    return [f"{row['perplexity']:.2f}", f"{row['bleu']:.1f}"]


def _deltas(name: str, difference: Mapping[str, float | None]) -> list[str]:
    if name == "base":
        return ["", ""]
    return [_signed(difference["perplexity"], 2), _signed(difference["bleu"], 1)]


def _signed(value: float | None, decimals: int) -> str:
    if value is None:
        return ""
    rounded = round(value, decimals)
    return f"{rounded:+.{decimals}f}" if rounded else f"{0:.{decimals}f}"


def _notes(results: Mapping[str, Any]) -> list[str]:
    """Returns notes about the figures."""
    scored = {
        name: row["run"]
        for name, row in results["rows"].items()
        if row["run"] and "diverged" not in row["run"]
    }
    signatures = {run["signature"] for run in scored.values()}
    notes = [
        "PPL: of the validation set, per wordpiece of this vocabulary, by the true labels without "
        "smoothing; 10^6: parameters, in millions; Δ: minus base.",
        f"BLEU: of the validation set, beam {results['beam_size']}, length penalty "
        f"{results['length_penalty']:g}, weights of the last step, not averaged"
        + f"; {', '.join(sorted(signatures))}" * bool(signatures)
        + ".",
        "Paper: newstest2013, English to German, its own vocabulary and base, so that only the "
        "differences from base compare.",
        f"The rows are the rows of the paper, in proportion to the base {results['preset_base']}. "
        "Blank cells equal base. Each row is one run, so a small difference may be chance.",
    ]
    notes += [
        f"{name} equals {row['same_as']} on this base, and is the same run."
        for name, row in results["rows"].items()
        if row["same_as"]
    ]
    precisions = {name: run["precision"] for name, run in scored.items()}
    if len(set(precisions.values())) > 1:  # `auto` depends on the machine
        rows = ", ".join(f"{name} {precision}" for name, precision in precisions.items())
        notes.append(f"Rows were trained in different precisions: {rows}.")
    if origins := mixed_origins(scored):
        notes.append(f"{origins}.")
    return notes
