"""A table of known figures, as text, as Markdown and as a picture."""

from __future__ import annotations

import copy
import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from keras_transformer.extensions.paper.table3.chart import delta_chart
from keras_transformer.extensions.paper.table3.printed import markdown, text

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


def test_text(results: dict[str, Any]) -> None:
    lines = text(results).splitlines()
    group, header, rule, *rows = lines[:8]
    assert [part.strip() for part in group.split("|")] == ["", "here", "paper", "Δ here", "Δ paper"]
    assert header.split("|")[0].split() == ["row", *BASE]
    assert [part.split() for part in header.split("|")[1:]] == [
        ["PPL", "BLEU", "10^6"], ["PPL", "BLEU", "10^6"], ["PPL", "BLEU"], ["PPL", "BLEU"],
    ]  # fmt: skip
    assert set(rule) == {"-", "+"}
    cells = [[part.split() for part in line.split("|")] for line in rows]
    assert cells == [
        [
            ["base", "4", "128", "256", "4", "32", "32", "0.1", "0.1", "sinusoidal", "2400"],
            ["6.12", "31.5", "1.83"], ["4.92", "25.8", "65"], [], [],
        ],
        [
            ["A_h4", "2", "64", "64"], ["6.20", "31.0", "1.83"], ["5.00", "25.5"],
            ["+0.08", "-0.4"], ["+0.08", "-0.3"],
        ],
        [
            ["A_h16", "8"], ["5.00", "31.5", "1.83"], ["4.91", "25.8"],
            ["-1.12", "0.0"], ["-0.01", "0.0"],
        ],
        [["C_n2"], ["6.12", "31.5", "1.83"], ["6.11", "23.7", "36"], ["0.00", "0.0"],
         ["+1.19", "-2.1"]],
        [["E_learned", "learned"], ["1.83"], ["4.92", "25.7"], [], ["0.00", "-0.1"]],
    ]  # fmt: skip
    notes = "\n".join(lines[8:])
    assert "beam 4, length penalty 0.6" in notes and "nrefs:1|tok:none." in notes
    assert "C_n2 equals base on this base, and is the same run." in notes


def test_columns_are_aligned(results: dict[str, Any]) -> None:
    _, header, rule, *rows = text(results).splitlines()[:8]
    bars = [match.start() for match in re.finditer(r"\|", header)]
    assert [match.start() for match in re.finditer(r"\+", rule)] == bars
    assert all([m.start() for m in re.finditer(r"\|", line)] == bars for line in rows)
    assert rows[1][: header.index(" h ") + 2].split() == ["A_h4", "2"]


def test_large_models_are_shown_in_millions_before_training(
    results: dict[str, Any],
) -> None:
    for each in results["rows"].values():
        each["parameters"] = 62_984_192
        each["run"] = None
    lines = text(results).splitlines()
    assert lines[3].split("|")[1].split() == ["63"]
    assert "not averaged." in lines[10]


def test_markdown(results: dict[str, Any]) -> None:
    lines = markdown(results).splitlines()
    table = lines[: lines.index("")]
    assert {line.count("|") for line in table} == {1 + 1 + 10 + 3 + 3 + 4}
    assert table[3].split("|")[1].strip() == "A_h4"
    assert table[3].replace(" |  ", "").endswith("6.20 | 31.0 | 1.83 | 5.00 | 25.5"
        "| +0.08 | -0.4 | +0.08 | -0.3 |")  # fmt: skip
    at = lines.index("| row | in the paper | change | here |")
    assert lines[at + 2].startswith("| base | N 6, d_model 512, d_ff 2048, h 8, d_k 64, d_v 64, P")
    assert lines[at + 3] == "| A_h4 | h 4, d_k 128, d_v 128 | h × 1/2 | h 2, d_k 64, d_v 64 |"
    assert lines[at + 5] == "| C_n2 | N 2 |  | as base |"


def test_the_chart_has_a_dot_for_each_row_here_and_in_the_paper(results: dict[str, Any]) -> None:
    svg = delta_chart(results)
    assert svg == delta_chart(copy.deepcopy(results))
    root = ElementTree.fromstring(svg)
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    for word in ("A_h4", "A_h16", "C_n2", "E_learned", "here", "paper"):
        assert words.count(word) == 1, words
    assert "base" not in words and "Table 3 on tiny: BLEU minus BLEU of base" in words
    paper, here = _places(svg, "#bf4f14")[:4], _places(svg, "#2f6db0")[:3]
    assert [y for _, y in here] == [y for _, y in paper[:3]]  # the last row is not trained
    assert paper == sorted(paper, key=lambda place: place[1])
    # The positions of a difference of 0, and of 2.1 to the left.
    zero, unit = paper[1][0], (paper[1][0] - paper[2][0]) / 2.1
    differences = [-0.3, 0.0, -2.1, -0.1, -0.42, 0.04, 0.0]
    expected = [zero + unit * difference for difference in differences]
    assert unit > 0 and [x for x, _ in (*paper, *here)] == pytest.approx(expected, abs=1e-3)


def _places(svg: str, color: str) -> list[tuple[float, float]]:
    """Returns the positions of the marks of a colour."""
    found = re.findall(rf'<use [^>]*x="([\d.]+)" y="([\d.]+)"[^>]*{color}', svg)
    return [(float(x), float(y)) for x, y in found]


def test_rows_of_two_commits_are_reported(results: dict[str, Any]) -> None:
    assert "Results from different commits" not in text(results)
    results["rows"]["A_h4"]["run"]["commit"] = "def"
    note = "Results from different commits or processors: base: abc on p; A_h4: def on p"
    assert note in text(results) and note in markdown(results)


def test_different_precisions_are_reported(results: dict[str, Any]) -> None:
    assert "precision" not in text(results)
    results["rows"]["A_h4"]["run"]["precision"] = "bfloat16"
    note = "Rows were trained in different precisions: base float32, A_h4 bfloat16, A_h16 float32"
    assert note in text(results) and note in markdown(results)


def test_a_diverged_row_has_no_figures(results: dict[str, Any]) -> None:
    diverged = results["rows"]["A_h16"]
    diverged |= {"run": {"diverged": "no number"}, "bleu": None, "perplexity": None}
    diverged["difference"] = {"bleu": None, "perplexity": None}
    [line] = [line for line in text(results).splitlines() if line.startswith("A_h16")]
    assert [part.split() for part in line.split("|")] == [
        ["A_h16", "8"], ["diverged", "1.83"], ["4.91", "25.8"], [], ["-0.01", "0.0"],
    ]  # fmt: skip
    assert "| diverged |  | 1.83 |" in markdown(results)
    svg = delta_chart(results)
    assert "A_h16, diverged" in svg and len(_places(svg, "#2f6db0")) == 2 + 1  # and the legend


def test_only_base(results: dict[str, Any]) -> None:
    only = {**results, "rows": {"base": results["rows"]["base"]}}
    assert text(only).splitlines()[3].startswith("base")
