"""The page of prepared data has correct numbers, and is complete for any report."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import hypothesis
import hypothesis.strategies as st
import pytest

from keras_transformer.data.cleaning import DropReason
from keras_transformer.data.corpus import ParallelFiles
from keras_transformer.data.prepare import PreparedData, PrepareOptions, prepare
from keras_transformer.errors import InputError
from keras_transformer.extensions.pages.report.data_page import (
    REASONS,
    write_data_page,
)
from keras_transformer.extensions.pages.report.elements import (
    number,
    percent,
    setting,
)
from tests.browser import Visit
from tests.conftest import ROOT
from tests.driver import Driver
from tests.extensions.pages.report.page_test import JSON
from tests.html_page import Page
from tests.messages import mentions, tells

DEFAULTS = dataclasses.asdict(PrepareOptions())
SHA256 = "0123456789abcdef" * 4


def example(line: int, source: str = "a", target: str = "b", corpus: str = "web") -> dict[str, Any]:
    return {"corpus": corpus, "line": line, "source": source, "target": target}


def side(tokens: int, **histogram: int) -> dict[str, Any]:
    return {
        "tokens": tokens, "unknown": 3, "unknown_rate": 3 / tokens, "mean_length": 12.25,
        "max_length": 40, "length_histogram": {k[1:].replace("_", "-"): n for k, n in
        histogram.items()},
    }  # fmt: skip


REPORT: dict[str, Any] = {
    "fingerprint": "ab12",
    "inputs": {
        "train": [{"name": "web", "pairs": 1100, "sha256": {"web": SHA256}}],
        "valid": [{"name": "a + b", "pairs": 50, "sha256": {"a": SHA256[1:], "b": SHA256[2:]}}],
    },
    "options": {
        "max_tokens": 40,
        "max_length_ratio": 9.0,
        "check_languages": ["en", "de"],
        "valid_pairs": None,
    },
    "vocab_from": None,
    "held_out": 0,
    "vocabulary": {"type": "joint", "source_size": 8000, "target_size": 8000},
    "cleaning": {
        "train": {
            "read": 1100,
            "kept": 1000,
            "dropped": {"empty": 25, "length_ratio": 75},
            "examples": {"empty": [example(7, "")], "length_ratio": [example(8), example(9)]},
            "control_characters_made_spaces": 17,
            "bad_utf8_replaced": 2,
        },
        "valid": {
            "read": 50,
            "kept": 50,
            "dropped": {},
            "examples": {},
            "control_characters_made_spaces": 0,
            "bad_utf8_replaced": 0,
        },
    },
    "train": {
        "pairs": 1000,
        "source": side(12_345, n1_16=800, n17_32=200),
        "target": side(12_543, n1_16=600, n17_32=300, n33_48=100),
    },
    "valid": {"pairs": 50, "source": side(600, n1_16=50), "target": side(599, n1_16=50)},
    "seconds_of_stages": {"reading": 1.25, "encoding": 3.5},
}


def page_of(
    directory: Path, report: Any = REPORT, defaults: dict[str, Any] | None = DEFAULTS
) -> Page:
    (directory / "report.json").write_text(json.dumps(report))
    assert write_data_page(directory, defaults) == directory / "report.html"
    assert not list(directory.glob(".*.unfinished"))
    page = Page((directory / "report.html").read_text(encoding="utf-8"))
    assert "script" not in page.tags
    return page


def changed(name: str, value: Any) -> dict[str, Any]:
    report = copy.deepcopy(REPORT)
    *above, last = name.split(".")
    part = report
    for key in above:
        part = part[key]
    part[last] = value
    return report


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    directory = tmp_path_factory.mktemp("corpora")
    pairs = [(b"a small dog runs %d" % i, b"ein kleiner Hund rennt %d" % i) for i in range(150)]
    pairs += [
        (b"", b"nothing <b>there</b>"), (b"\xff & more", b"bad"), (b"x" * 6000, b"<i>" * 2000),
        (b"same </td>", b"same </td>"), (b"a", b"b" * 400), *pairs[:7],
        (b"a sign reads a sign", b"ein Schild " * 3),
        (b" ".join(b"%d" % i for i in range(99)), b"Hund" * 45),
        (b"a bell \x07 rings", "ein \u2028 Glöckchen".encode()),
    ]  # fmt: skip
    files = ParallelFiles(directory / "a.en", directory / "a.de")
    for path, lines in zip(files.paths, zip(*pairs, strict=True), strict=True):
        path.write_bytes(b"\n".join(lines) + b"\n")
    options = PrepareOptions(
        vocab_size=60, max_bytes=5000, max_tokens=40, on_bad_utf8="drop", drop_identical=True,
        drop_duplicates=True, drop_repetitive=True,
    )  # fmt: skip
    return prepare([files], directory / "data <1>", options)


def test_targets_that_normalization_changes(tmp_path: Path) -> None:
    assert "normalization" not in page_of(tmp_path, changed("train.target.rewritten", 0)).text
    target = {
        **side(12_543, n1_16=1000),
        "rewritten": 580,
        "rewritten_examples": [
            {"corpus": "web", "line": 7, "before": "\u4f60\u597d\uff0c", "after": "\u4f60\u597d,"}
        ],
    }
    page = page_of(tmp_path, changed("train.target", target))
    assert "Training: 580 targets (58.00" in page.text and "--normalization=identity" in page.text
    assert ["web", "7", "\u4f60\u597d\uff0c", "\u4f60\u597d,"] in page.rows
    broken = {**target, "rewritten": "many", "rewritten_examples": 3}
    assert "normalization" not in page_of(tmp_path, changed("train.target", broken)).text


def test_data_as_prepared(prepared: PreparedData, visit: Visit) -> None:
    report, path = prepared.report, write_data_page(prepared.directory, DEFAULTS)
    page = Page(path.read_text(encoding="utf-8"))
    assert page.text.startswith("data <1> · prepared data data <1> Training pairs ")
    cleaning = report["cleaning"]["train"]
    assert cleaning["dropped"].keys() == set(get_args(DropReason)) - {"wrong_language"}
    for reason, count in cleaning["dropped"].items():
        words, share = reason.replace("_", " "), percent(count / cleaning["read"])
        meaning, option = REASONS[reason]
        meaning = meaning.format(setting(report["options"].get(option)))
        assert [words, str(count), share, "", meaning] in page.rows
        for entry in cleaning["examples"][reason]:
            example = [entry["corpus"], str(entry["line"]), entry["source"], entry["target"]]
            assert example in page.rows
    for split, name in (("train", "training"), ("valid", "validation")):
        for which in ("source", "target"):
            store = report[split][which]
            (row,) = [row for row in page.rows if row[0] == f"{name}, {which}"]
            assert row[1::2] == [
                f"{store['tokens']:,}", str(store["max_length"]), percent(store["unknown_rate"]),
            ]  # fmt: skip
            assert row[4] == str(store["unknown"])
    for name, sha256 in report["inputs"]["train"][0]["sha256"].items():
        assert f"{name}: {sha256}" in page.titles and sha256[:16] in page.text
    assert "The validation pairs are held out of the training corpus." in page.text
    assert "2 control characters became spaces." in page.text
    assert ["max_tokens", "40", "256"] in page.rows and ["seed", "1", "1"] not in page.rows
    assert all(stage in page.text for stage in report["seconds_of_stages"])

    shown = visit.open(path)
    shown.get_by_text("All settings").click()
    assert shown.locator(".settings").is_visible()
    bars = shown.locator("section").first.locator("svg.bar rect").all()
    assert all(bar.bounding_box()["width"] > 0 for bar in bars)
    assert visit.said == [] and len(visit.requests) == 1


def test_headline(tmp_path: Path) -> None:
    text = page_of(tmp_path).text
    for fact in (
        "Training pairs 1,000 12,345 source and 12,543 target tokens ",
        "Validation pairs 50 600 source and 599 target tokens ",
        "Dropped 8.70\xa0% 100 of 1,150 pairs read ".replace("\xa0", " "),
        "Vocabulary 8,000 pieces for both sides ",
    ):
        assert fact in text
    assert "held out" not in text and "in the training corpus as well" not in text
    vocabulary = {"type": "separate", "source_size": 5000, "target_size": 7000}
    report = {
        **REPORT, "vocabulary": vocabulary, "vocab_from": "/a <b>", "valid_pairs_in_train": 7
    }  # fmt: skip
    text = page_of(tmp_path, report).text
    assert "5,000 source and 7,000 target pieces from /a <b> " in text
    assert "7 of the validation pairs are in the training corpus as well." in text


def test_dropped_pairs(tmp_path: Path) -> None:
    page = page_of(tmp_path)
    training, validation = page.text.split("Validation corpus")
    assert "1,100 pairs read, 1,000 kept." in training
    assert "50 pairs read, 50 kept." in validation
    assert "2 lines with invalid UTF-8 were repaired with U+FFFD." in training
    assert "U+FFFD" not in validation
    # The most frequent reason first, with bars to the same scale.
    dropped = [row for row in page.rows if row[0] in ("empty", "length ratio")]
    assert [row[:3] for row in dropped] == [
        ["length ratio", "75", "6.82\xa0%"],
        ["empty", "25", "2.27\xa0%"],
    ]
    assert widths(page)[:2] == [100, 33.33]
    assert "empty: the first 1 of 25" in page.text
    report = changed("cleaning.train.examples", {"empty": [example(7)] * 25})
    assert "empty: all" in page_of(tmp_path, report).text


def widths(page: Page) -> list[float]:
    return [float(width) for width in re.findall(r'<rect width="([0-9.]+)" height', page.source)]


@pytest.mark.parametrize(
    ("reason", "words", "meaning"),
    [
        ("too_many_tokens", "too many tokens", "a side has more than 40 tokens"),
        ("wrong_language", "wrong language", "a side seems to be in a language other than en, de"),
        ("too <odd>", "too <odd>", ""),
    ],
)
def test_meaning_of_a_reason(tmp_path: Path, reason: str, words: str, meaning: str) -> None:
    assert REASONS.keys() == set(get_args(DropReason))
    page = page_of(tmp_path, changed("cleaning.train.dropped", {reason: 11}))
    assert [words, "11", "1.00\xa0%", "", meaning] in page.rows


def test_histograms(tmp_path: Path) -> None:
    page = page_of(tmp_path)
    assert [row for row in page.rows if "–" in row[0]] == [
        ["1–16", "800", "", "600", ""],
        ["17–32", "200", "", "300", ""],
        ["33–48", "0", "", "100", ""],
        ["1–16", "50", "", "50", ""],
    ]
    assert widths(page)[2:] == [100, 75, 25, 37.5, 0, 12.5, 100, 100]
    histogram = {f"{16 * i + 1}-{16 * i + 16}": i for i in range(70)}
    report = changed("train.source.length_histogram", histogram)
    rows = [row for row in page_of(tmp_path, report).rows if "–" in row[0]][:-1]
    assert len(rows) == 14  # of 5 ranges each
    assert rows[0][:2] == ["1–80", str(0 + 1 + 2 + 3 + 4)] and rows[-1][0] == "1,041–1,120"
    assert sum(int(row[1]) for row in rows) == sum(range(70))
    assert rows[0][3] == "1,000"


def test_options(tmp_path: Path) -> None:
    page = page_of(tmp_path)
    assert ["max_tokens", "40", "256"] in page.rows
    assert ["check_languages", "en, de", "none"] in page.rows
    assert "valid_pairs" not in {row[0] for row in page.rows}
    same = {"options": json.loads(json.dumps(DEFAULTS))}
    assert "All settings have their default values." in page_of(tmp_path, REPORT | same).text
    assert page_of(tmp_path, defaults=None).rows == page.rows
    assert "max_tokens 40 max_length_ratio 9.0 check_languages en, de valid_pairs none" in page.text


def test_numbers_for_reading() -> None:
    values = (0.1234, 12.345, 123.45, 1234.5, 1e20, float("nan"), None, 0, 70_000)
    assert [number(value) for value in values] == [
        "0.123", "12.35", "123.5", "1,234", "1e+20", "nan", "–", "0", "70,000",
    ]  # fmt: skip
    assert [setting(value) for value in (None, "", True, 8000, 1e-9, (), [])] == [
        "none", "none", "true", "8,000", "1e-09", "none", "none",
    ]  # fmt: skip
    shares = [0.0, 1e-9, 1e-5, 0.000999, 0.001, 0.5, 1.0]
    assert [percent(share).replace("\xa0", " ") for share in shares] == [
        "0 %", "< 0.001 %", "0.001 %", "0.100 %", "0.10 %", "50.00 %", "100.00 %",
    ]  # fmt: skip


def test_same_report_same_page_without_tensorflow(tmp_path: Path) -> None:
    source = page_of(tmp_path, defaults=None).source
    (tmp_path / "report.html").unlink()
    code = (
        "import pathlib, sys; "
        "from keras_transformer.extensions.pages.report.data_page import write_data_page; "
        "write_data_page(pathlib.Path('.')); "
        "assert not {'tensorflow', 'keras', 'matplotlib'} & sys.modules.keys()"
    )
    subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, check=True
    )
    assert (tmp_path / "report.html").read_text() == source


def test_command(driver: Driver, tmp_path: Path) -> None:
    for name, report in (("data", REPORT), ("odd", {})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_text(json.dumps(report))
    flags = ("--data_dir=data", "--data_dir=odd", "")
    done, odd, nothing = driver.run_all(tmp_path, [("report", each, "") for each in flags])
    assert done == (0, "data/report.html\n", "", ["data/report.html"])
    written = (tmp_path / "data" / "report.html").read_text()
    assert written == page_of(tmp_path / "data").source
    for failed, facts in (
        (odd, ("odd/report.json", "train")),
        (nothing, ("--run_dir", "--data_dir", "neither")),
    ):
        assert (failed.code, failed.out, failed.left) == (1, "", [])
        assert failed.err.startswith("error: ") and failed.err.count("\n") == 1
        assert tells(failed.err, *facts)


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        (None, ("No such file",)),
        (b"[]", ("train",)),
        *((each, ("JSON",)) for each in (b"", b"{", b"\xff", b"[" * 100_000)),
        (b'{"a": 1' + b"0" * 5000, ("JSON",)),
    ],
)
def test_unreadable_report(tmp_path: Path, content: bytes | None, facts: tuple[str, ...]) -> None:
    if content is not None:
        (tmp_path / "report.json").write_bytes(content)
    with pytest.raises(InputError, match=mentions("report.json", *facts)):
        write_data_page(tmp_path)
    assert not (tmp_path / "report.html").exists()


# Any text, and any report.

HOSTILE = st.sampled_from(
    "</td></table></div><script>alert(1)</script> <!-- --> ]]> &lt; &#0; \" ' ' onload=x </title> "
    "</style> <svg/onload=x> \0 \x1b[31m \u202e \u2028 \ud800 \x85 مرحبا <plaintext> {{}}".split(
        " "
    )
)
TEXTS = st.text(max_size=8) | st.lists(HOSTILE | st.text(max_size=3), max_size=4).map(" ".join)
PICTURES = {**{code: chr(0x2400 + code) for code in range(32)}, 127: "\u2421"}


def shown(text: str) -> str:
    """Returns the visible form of a text. Half a surrogate pair becomes a question mark."""
    return text.translate(PICTURES).encode("utf-8", "replace").decode()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("any")


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(texts=st.lists(TEXTS, min_size=9, max_size=9))
def test_no_text_escapes_its_element(directory: Path, texts: list[str]) -> None:
    source, target, corpus, name, file, sha256, reason, option, value = texts
    report = copy.deepcopy(REPORT)
    report["inputs"]["train"][0] = {"name": name, "pairs": 7, "sha256": {file: sha256}}
    report["cleaning"]["train"]["dropped"] = {reason: 2}
    report["cleaning"]["train"]["examples"] = {reason: [example(5, source, target, corpus)]}
    report["options"] = {option: value}
    plain = page_of(directory)
    page = page_of(directory, report)
    assert page.tags.keys() == plain.tags.keys()
    assert [shown(corpus), "5", shown(source), shown(target)] in page.rows
    assert ["training", shown(name), "7", shown(sha256[:16])] in page.rows
    assert shown(f"{file}: {sha256}") in page.titles
    assert any(row[:3] == [shown(reason.replace("_", " ")), "2", "0.18\xa0%"] for row in page.rows)


def mutations(value: Any) -> st.SearchStrategy[Any]:
    """Returns JSON like `value`, with parts replaced by anything."""
    if isinstance(value, dict):
        inner = st.fixed_dictionaries({}, optional={k: mutations(v) for k, v in value.items()})
    elif isinstance(value, list):
        inner = st.lists(mutations(value[0]), max_size=2) if value else st.just(value)
    else:
        inner = st.just(value)
    return st.one_of(inner, inner, inner, JSON)


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(report=mutations(REPORT))
def test_any_report_makes_a_page(directory: Path, report: Any) -> None:
    try:
        page_of(directory, report)
    except InputError as error:
        assert tells(str(error), directory / "report.json", "train")
        assert not isinstance(report, dict) or not isinstance(report.get("train"), dict)
