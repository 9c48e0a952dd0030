"""The table like the paper's, with the paper's figures next to ours, and its chart."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_transformer.extensions.paper import report
from keras_transformer.extensions.paper.results import mixed_origins
from keras_transformer.extensions.paper.table3.tables import COLUMNS

_FIGURES = ["PPL", "BLEU", "10⁶"]
_DELTAS = ["ΔPPL", "ΔBLEU"]
_HEAD = ["row", "change", *COLUMNS, *_FIGURES, *(f"paper: {name}" for name in _FIGURES)]
_HEAD += [*_DELTAS, *(f"paper: {name}" for name in _DELTAS)]


def markdown(results: Mapping[str, Any]) -> str:
    """Returns the table in Markdown. Values that equal base are blank, as in the paper."""
    base = results["rows"]["base"]["columns"]
    rows = []
    for name, row in results["rows"].items():
        paper, millions = row["paper"], row["parameters"] / 1e6
        columns = [
            "" if name != "base" and value == base[column] else str(value)
            for column, value in row["columns"].items()
        ]
        rows.append(
            [
                name,
                row["rule"],
                *columns,
                *_found(row),
                f"{millions:.2f}" if millions < 10 else f"{millions:.0f}",
                *_figures(paper),
                str(paper["millions"] or ""),
                *_deltas(name, row["difference"]),
                *_deltas(name, paper["difference"]),
            ]
        )
    return report.table(_HEAD, rows, _notes(results))


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Draws BLEU minus BLEU of base of each row, here and in the paper."""
    rows = {name: row for name, row in results["rows"].items() if name != "base"}
    here = [row["difference"]["bleu"] for row in rows.values()]
    paper = [row["paper"]["difference"]["bleu"] for row in rows.values()]
    series = [
        report.Series(
            label,
            [(value, position) for position, value in enumerate(values) if value is not None],
            format=marker,
        )
        for label, values, marker in (("here", here, "o"), ("paper", paper, "D"))
    ]
    names = [
        f"{name}, diverged" if "diverged" in (row["run"] or {}) else name
        for name, row in rows.items()
    ]
    title = f"{results['title']} on {results['preset_base']}"
    report.draw(path, {"BLEU minus BLEU of base": series}, rows=names, title=title)


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
        "smoothing; 10⁶: parameters, in millions; Δ: minus base.",
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
