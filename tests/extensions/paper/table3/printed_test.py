"""A table of known figures, as Markdown and as a chart."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from keras_transformer.extensions.paper import report
from keras_transformer.extensions.paper.table3.printed import draw, markdown

BASE = {
    "N": 4, "d_model": 128, "d_ff": 256, "h": 4, "d_k": 32, "d_v": 32, "P_drop": 0.1,
    "eps_ls": 0.1, "positions": "sinusoidal", "steps": 2400,
}  # fmt: skip
PAPERS_BASE = BASE | {
    "N": 6, "d_model": 512, "d_ff": 2048, "h": 8, "d_k": 64, "d_v": 64, "steps": 100000,
}  # fmt: skip

RUN: dict[str, Any] = {
    "signature": "nrefs:1|tok:none", "precision": "float32", "commit": "abc",
    "machine": {"processor": "p"},
}  # fmt: skip


def row(
    changes: dict[str, Any],
    papers_changes: dict[str, Any],
    here: tuple[float, float, float, float] | None,
    paper: tuple[float, float, float, float],
    millions: int | None = None,
    same_as: str | None = None,
) -> dict[str, Any]:
    """`here` and `paper` are perplexity, BLEU, and how both differ from base."""

    def figures(found: tuple[float, float, float, float] | None) -> dict[str, Any]:
        ppl, bleu, *difference = found or (None,) * 4
        return {
            "perplexity": ppl,
            "bleu": bleu,
            "difference": dict(zip(("perplexity", "bleu"), difference, strict=True)),
        }

    return {
        "columns": BASE | changes,
        "rule": "h × 1/2" if changes else "",
        "same_as": same_as,
        "parameters": 1_830_912,
        **figures(here),
        "paper": {
            **figures(paper), "millions": millions, "columns": PAPERS_BASE | papers_changes,
        },
        "run": {**RUN} if here else None,
    }  # fmt: skip


@pytest.fixture
def results() -> dict[str, Any]:
    return {
        "table": "table3",
        "title": "Table 3",
        "preset_base": "tiny",
        "beam_size": 4,
        "length_penalty": 0.6,
        "finished": False,
        "rows": {
            "base": row({}, {}, (6.123, 31.46, 0, 0), (4.92, 25.8, 0, 0), 65),
            "A_h4": row(
                {"h": 2, "d_k": 64, "d_v": 64}, {"h": 4, "d_k": 128, "d_v": 128},
                (6.2, 31.04, 0.077, -0.42), (5.0, 25.5, 0.08, -0.3),
            ),
            "A_h16": row({"h": 8}, {"h": 16}, (5.0, 31.5, -1.123, 0.04), (4.91, 25.8, -0.01, 0.0)),
            "C_n2": row({}, {"N": 2}, (6.123, 31.46, 0, 0), (6.11, 23.7, 1.19, -2.1), 36, "base"),
            "E_learned": row({"positions": "learned"}, {}, None, (4.92, 25.7, 0.0, -0.1)),
        },
    }  # fmt: skip


def cells(results: dict[str, Any]) -> list[list[str]]:
    """Returns the cells of the header and of the rows, without the rule between them."""
    table = markdown(results).split("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table]
    assert {len(row) for row in rows} == {2 + 10 + 3 + 3 + 4} and set(rows[1]) == {"---"}
    return [rows[0], *rows[2:]]


def test_the_table(results: dict[str, Any]) -> None:
    header, base, *rows = cells(results)
    assert header[:12] == ["row", "change", *BASE]
    assert base[2:12] == ["4", "128", "256", "4", "32", "32", "0.1", "0.1", "sinusoidal", "2400"]
    assert base[12:] == ["6.12", "31.5", "1.83", "4.92", "25.8", "65", "", "", "", ""]
    assert [list(filter(None, row)) for row in rows] == [
        ["A_h4", "h × 1/2", "2", "64", "64", "6.20", "31.0", "1.83", "5.00", "25.5",
         "+0.08", "-0.4", "+0.08", "-0.3"],
        ["A_h16", "h × 1/2", "8", "5.00", "31.5", "1.83", "4.91", "25.8",
         "-1.12", "0.0", "-0.01", "0.0"],
        ["C_n2", "6.12", "31.5", "1.83", "6.11", "23.7", "36", "0.00", "0.0", "+1.19", "-2.1"],
        ["E_learned", "h × 1/2", "learned", "1.83", "4.92", "25.7", "0.00", "-0.1"],
    ]  # fmt: skip
    notes = markdown(results)
    assert "beam 4, length penalty 0.6" in notes and "nrefs:1|tok:none." in notes
    assert "C_n2 equals base on this base, and is the same run." in notes
    only = {**results, "rows": {"base": results["rows"]["base"]}}
    assert cells(only) == [header, base]


def test_large_models_are_shown_in_millions_before_training(results: dict[str, Any]) -> None:
    for row in results["rows"].values():
        row |= {"parameters": 62_984_192, "run": None}
    assert cells(results)[1][12:15] == ["", "", "63"]
    assert "not averaged." in markdown(results)


def test_the_chart_has_a_dot_for_each_row_here_and_in_the_paper(
    results: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.svg", "b.svg"):
        draw(results, tmp_path / name)
    svg = (tmp_path / "a.svg").read_text()
    assert svg == (tmp_path / "b.svg").read_text()
    root = ElementTree.fromstring(svg)
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    for word in ("A_h4", "A_h16", "C_n2", "E_learned", "here", "paper"):
        assert words.count(word) == 1, words
    assert "base" not in words and "Table 3 on tiny" in words
    drawn: list[Any] = []
    monkeypatch.setattr(report, "draw", lambda _, panels, **__: drawn.extend(*panels.values()))
    draw(results, tmp_path / "c.svg")
    here, paper = ([*series.points] for series in drawn)
    assert here == [(-0.42, 0), (0.04, 1), (0, 2)]  # the last row is not trained
    assert paper == [(-0.3, 0), (0.0, 1), (-2.1, 2), (-0.1, 3)]


def test_different_commits_and_precisions_are_reported(results: dict[str, Any]) -> None:
    assert "different" not in markdown(results)
    results["rows"]["A_h4"]["run"] |= {"commit": "def", "precision": "bfloat16"}
    for note in (
        "Results from different commits or processors: base: abc on p; A_h4: def on p",
        "Rows were trained in different precisions: base float32, A_h4 bfloat16, A_h16 float32",
    ):
        assert note in markdown(results)


def test_a_diverged_row_has_no_figures(results: dict[str, Any], tmp_path: Path) -> None:
    diverged = results["rows"]["A_h16"]
    diverged |= {"run": {"diverged": "no number"}, "bleu": None, "perplexity": None}
    diverged["difference"] = {"bleu": None, "perplexity": None}
    assert cells(results)[3][12:15] == ["diverged", "", "1.83"]
    draw(results, tmp_path / "chart.svg")
    assert "A_h16, diverged" in (tmp_path / "chart.svg").read_text()
