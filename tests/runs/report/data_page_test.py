"""The page of prepared data: true to the report, whole HTML whatever it says, and honest."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import hypothesis
import hypothesis.strategies as st
import pytest

from keras_transformer.data.corpora.cleaning import DropReason
from keras_transformer.data.corpora.corpus import ParallelFiles
from keras_transformer.data.preparation.prepare import PreparedData, PrepareOptions, prepare
from keras_transformer.errors import InputError
from keras_transformer.runs.report import write_data_page
from keras_transformer.runs.report.data_page import REASONS
from keras_transformer.runs.report.elements import percent, setting
from tests.conftest import ROOT
from tests.driver import Driver
from tests.runs.report.page_test import Page, mutations

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
OPTIONAL = {
    "fingerprint", "seconds_of_stages", "seconds_of_stages.reading", "seconds_of_stages.encoding",
    "inputs.valid", "cleaning.valid", "options.max_tokens", "options.check_languages",
    "options.valid_pairs", "cleaning.train.dropped.empty", "cleaning.train.dropped.length_ratio",
    "cleaning.valid.examples",  # of nothing
    "cleaning.train.examples.empty", "cleaning.train.examples.length_ratio",
}  # fmt: skip


class DataPage(Page):
    """A page whose cells may hold elements; the titles of bars do not count as their text."""

    def __init__(self, path: Path):
        self.titles: list[str] = []
        super().__init__(path)

    def _note(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        super()._note(tag, attrs)
        self.titles += [value or "" for name, value in attrs if name == "title"]

    def handle_data(self, data: str) -> None:
        super().handle_data(data)
        if {"td", "th"} & {*self._open[:-1]} and self._open[-1] != "title":
            self.rows[-1][-1] += data


def page_of(
    directory: Path, report: Any = REPORT, defaults: dict[str, Any] | None = DEFAULTS
) -> DataPage:
    (directory / "report.json").write_text(json.dumps(report))
    assert write_data_page(directory, defaults) == directory / "report.html"
    assert not list(directory.glob(".*.unfinished"))
    page = DataPage(directory / "report.html")
    page.check()
    return page


def widths(page: DataPage) -> list[float]:
    return [float(width) for width in re.findall(r'<rect width="([0-9.]+)" height', page.source)]


def changed(name: str, value: Any) -> dict[str, Any]:
    report = copy.deepcopy(REPORT)
    part, last = _parent(report, name)
    part[last] = value
    return report


def without(name: str) -> dict[str, Any]:
    report = copy.deepcopy(REPORT)
    part, last = _parent(report, name)
    del part[last]
    return report


def _parent(report: dict[str, Any], name: str) -> tuple[dict[str, Any], str]:
    *above, last = name.split(".")
    for key in above:
        report = report[key]
    return report, last


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


@pytest.mark.parametrize(
    ("known", "told"),
    [(None, False), (0, False), (7, True)],
)
def test_validation_pairs_that_were_learned_are_told(
    tmp_path: Path, known: int | None, told: bool
) -> None:
    report = REPORT if known is None else {**REPORT, "valid_pairs_in_train": known}
    (tmp_path / "report.json").write_text(json.dumps(report))
    page = DataPage(write_data_page(tmp_path))
    page.check()
    assert ("7 of the pairs to validate on stand in the training text" in page.text) is told


def test_data_as_prepared(prepared: PreparedData) -> None:
    report, path = prepared.report, write_data_page(prepared.directory, DEFAULTS)
    page = DataPage(path)
    page.check()
    assert page.text.startswith("data <1> · prepared data data <1> Pairs to learn from ")
    cleaning = report["cleaning"]["train"]
    assert cleaning["dropped"].keys() == set(get_args(DropReason)) - {"wrong_language"}
    for reason, count in cleaning["dropped"].items():
        share = percent(count / cleaning["read"])
        (row,) = [row for row in page.rows if row[0] == reason.replace("_", " ")]
        assert row[:4] == [reason.replace("_", " "), str(count), share, ""]
        meaning, *names = REASONS[reason]
        assert row[4] == meaning.format(*(setting(report["options"][name]) for name in names))
        for entry in cleaning["examples"][reason]:
            assert [
                entry["corpus"], str(entry["line"]), entry["source"], entry["target"],
            ] in page.rows  # fmt: skip
    for split, name in (("train", "training"), ("valid", "validation")):
        for which in ("source", "target"):
            store = report[split][which]
            (row,) = [row for row in page.rows if row[0] == f"{name}, {which}"]
            assert row[1::2] == [
                f"{store['tokens']:,}", str(store["max_length"]), percent(store["unknown_rate"]),
            ]  # fmt: skip
            assert row[4] == str(store["unknown"])
    for name, sha256 in report["inputs"]["train"][0]["sha256"].items():
        assert f'title="{name}: {sha256}">{sha256[:16]}<' in page.source
    assert "The pairs to validate on are held out of the training corpus." in page.text
    assert "Control characters that became spaces: 2." in page.text
    assert ["max_tokens", "40", "256"] in page.rows and ["seed", "1", "1"] not in page.rows
    assert all(stage in page.text for stage in report["seconds_of_stages"])


def test_headline(tmp_path: Path) -> None:
    text = page_of(tmp_path).text
    for fact in (
        "Pairs to learn from 1,000 12,345 source and 12,543 target tokens ",
        "Pairs to validate on 50 600 source and 599 target tokens ",
        "Dropped 8.70 % 100 of 1,150 pairs read ", "Vocabulary 8,000 pieces for both sides ",
    ):  # fmt: skip
        assert fact in text
    assert "held out" not in text
    vocabulary = {"type": "separate", "source_size": 5000, "target_size": 7000}
    report = changed("vocabulary", vocabulary) | {"vocab_from": "/a <b>"}
    assert "5,000 source and 7,000 target pieces of /a <b> " in page_of(tmp_path, report).text


def test_what_was_dropped_of_each_corpus(tmp_path: Path) -> None:
    page = page_of(tmp_path)
    training, validation = page.text.split("The validation corpus")
    assert "Of 1,100 pairs read, 1,000 were kept and 100 dropped." in training
    assert "Of 50 pairs read, 50 were kept and nothing was dropped." in validation
    assert "Lines with bytes that are no UTF-8, which became U+FFFD: 2." in training
    assert "U+FFFD" not in validation
    # The greatest first, with bars to the same scale.
    dropped = [row for row in page.rows if row[0] in ("empty", "length ratio")]
    assert [row[:3] for row in dropped] == [
        ["length ratio", "75", "6.82\xa0%"],
        ["empty", "25", "2.27\xa0%"],
    ]
    assert widths(page)[:2] == [100, 33.33]
    assert "empty: the first 1 of 25" in page.text
    assert "length ratio: the first 2 of 75" in page.text
    report = changed("cleaning.train.examples", {"empty": [example(7)] * 25})
    text = page_of(tmp_path, report).text
    assert "empty: all" in text and "Of length ratio there are no examples." in text


def test_every_reason_is_explained() -> None:
    assert REASONS.keys() == set(get_args(DropReason))


def test_meaning_names_the_limit(tmp_path: Path) -> None:
    page = page_of(tmp_path, changed("cleaning.train.dropped", {"too_many_tokens": 11}))
    row = ["too many tokens", "11", "1.00\xa0%", "", "a side of more than 40 tokens"]
    assert row in page.rows
    report = changed("cleaning.train.dropped", {"wrong_language": 11})
    assert "in another language than en, de" in page_of(tmp_path, report).text
    del report["options"]["check_languages"]
    with pytest.raises(InputError, match="has no field options.check_languages; expected"):
        page_of(tmp_path, report)


def test_unknown_reason_is_shown(tmp_path: Path) -> None:
    page = page_of(tmp_path, changed("cleaning.train.dropped", {"too <odd>": 4}))
    assert ["too <odd>", "4", "0.36\xa0%", "", ""] in page.rows


def test_histograms(tmp_path: Path) -> None:
    page = page_of(tmp_path)
    assert [row for row in page.rows if "–" in row[0]] == [
        ["1–16", "800", "", "600", ""],
        ["17–32", "200", "", "300", ""],
        ["33–48", "0", "", "100", ""],
        ["1–16", "50", "", "50", ""],
    ]
    assert widths(page)[2:] == [100, 75, 25, 37.5, 0, 12.5, 100, 100]
    assert "80.00 % of the pairs" in page.text and "0 % of the pairs" in page.text


def test_many_lengths_are_put_together(tmp_path: Path) -> None:
    histogram = {f"{16 * i + 1}-{16 * i + 16}": i for i in range(70)}
    report = changed("train.source.length_histogram", histogram)
    rows = [row for row in page_of(tmp_path, report).rows if "–" in row[0]][:-1]
    assert len(rows) == 14  # of 5 each
    assert rows[0][:2] == ["1–80", str(0 + 1 + 2 + 3 + 4)] and rows[-1][0] == "1,041–1,120"
    assert sum(int(row[1]) for row in rows) == sum(range(70))
    assert rows[0][3] == "1,000"


def test_options(tmp_path: Path) -> None:
    page = page_of(tmp_path)
    assert ["max_tokens", "40", "256"] in page.rows
    assert ["check_languages", "en, de", "none"] in page.rows
    assert "valid_pairs" not in {row[0] for row in page.rows}
    assert (
        "All options max_tokens 40 max_length_ratio 9.0 check_languages en, de valid_pairs none"
        in page.text
    )
    same = {"options": json.loads(json.dumps(DEFAULTS))}
    assert "None differs from its default." in page_of(tmp_path, REPORT | same).text
    page = page_of(tmp_path, defaults=None)
    assert "default" not in page.text and "All options max_tokens 40" in page.text
    assert setting(()) == setting([]) == "none"


def test_seconds_of_stages(tmp_path: Path) -> None:
    assert "reading 1.2 s encoding 3.5 s in all 4.8 s " in page_of(tmp_path).text
    assert "Time" not in page_of(tmp_path, without("seconds_of_stages")).text


def test_small_shares_are_told_from_none() -> None:
    shares = [0.0, 1e-9, 1e-5, 0.000999, 0.001, 0.5, 1.0]
    assert [percent(share).replace("\xa0", " ") for share in shares] == [
        "0 %", "< 0.001 %", "0.001 %", "0.100 %", "0.10 %", "50.00 %", "100.00 %",
    ]  # fmt: skip


def test_same_report_same_page(tmp_path: Path) -> None:
    assert page_of(tmp_path).source == page_of(tmp_path).source


def test_needs_neither_tensorflow_nor_matplotlib(tmp_path: Path) -> None:
    page_of(tmp_path)
    (tmp_path / "report.html").unlink()
    code = (
        "import pathlib, sys; from keras_transformer.runs.report import write_data_page; "
        "write_data_page(pathlib.Path('.')); "
        "assert not {'tensorflow', 'keras', 'matplotlib'} & sys.modules.keys()"
    )
    subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, check=True
    )
    assert (tmp_path / "report.html").is_file()


def test_binary(driver: Driver, tmp_path: Path) -> None:
    for name, report in (("data", REPORT), ("odd", {})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_text(json.dumps(report))
    flags = ("--data_dir=data", "--data_dir=odd", "")
    done, odd, nothing = driver.run_all(tmp_path, [("report", each, "") for each in flags])
    assert done == (0, "data/report.html\n", "", ["data/report.html"])
    written = (tmp_path / "data" / "report.html").read_text()
    assert written == page_of(tmp_path / "data").source
    expected = "a report of this version of bin/prepare.py"
    assert odd == (1, "", f"error: odd/report.json has no field train; expected {expected}\n", [])
    neither = "--run_dir and --data_dir: neither given; expected one of them, or both"
    assert nothing == (1, "", f"error: {neither}\n", [])


# Reports that are none.


def names(report: Any, above: str = "") -> Iterator[str]:
    """Names of all fields; lengths and files are no fields."""
    for key, value in report.items():
        yield above + key
        if isinstance(value, dict) and key not in ("length_histogram", "sha256"):
            yield from names(value, f"{above}{key}.")


@pytest.mark.parametrize("name", [name for name in names(REPORT) if name not in OPTIONAL])
def test_missing_field_is_named(tmp_path: Path, name: str) -> None:
    report = without(name)
    with pytest.raises(InputError, match=rf"report\.json has no field {re.escape(name)}; expected"):
        page_of(tmp_path, report)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("name", sorted(OPTIONAL))
def test_field_that_may_be_missing(tmp_path: Path, name: str) -> None:
    report = without(name)
    page_of(tmp_path, report)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("held_out", -1, "held_out is -1; expected a count"),
        ("held_out", True, "held_out is True; expected a count"),
        ("held_out", 1.5, "held_out is 1.5; expected a count"),
        ("held_out", 10**30, "held_out is 10+; expected a count"),
        ("vocab_from", 7, "vocab_from is 7; expected a text"),
        ("train.pairs", "12", r"train\.pairs is '12'; expected a count"),
        ("train.source.mean_length", float("nan"), r"train\.source\.mean_length is nan; expected "),
        ("train.source", [], r"train\.source is \[\]; expected an object"),
        ("train.source.length_histogram", {"<16": 2}, r"length_histogram has the lengths '<16'"),
        ("train.source.length_histogram", {"1-16": None}, r"length_histogram\.1-16 is None"),
        ("inputs.train", {}, r"inputs\.train is {}; expected a list"),
        ("inputs.train", ["web"], r"inputs\.train\[0\] is 'web'; expected an object"),
        ("inputs.train", [{"name": "a", "pairs": 1, "sha256": SHA256}], r"\[0\]\.sha256 is '0123"),
        ("options.seed", {"a": 1}, r"options\.seed is {'a': 1}; expected a value of an option"),
        ("options.seed", [[1]], r"options\.seed is \[\[1\]\]; expected a value of an option"),
        ("cleaning.train.dropped", {"empty": 1101}, r"dropped counts 1101 pairs; expected at most"),
        ("cleaning.train.examples", {"empty": [{"corpus": "web"}]}, r"examples\.empty\[0\]\.line"),
        ("cleaning.train.dropped", {"a\nb": "x"}, r"train\.dropped\.'a\\nb' is 'x'"),
    ],
)
def test_odd_field_is_named(tmp_path: Path, name: str, value: Any, said: str) -> None:
    with pytest.raises(InputError, match=rf"report\.json.*{said}") as error:
        page_of(tmp_path, changed(name, value))
    assert len(str(error.value).splitlines()) == 1 and len(str(error.value)) < 300


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000, b'{"a": 1' + b"0" * 5000])
def test_file_that_is_no_json(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "report.json").write_bytes(content)
    with pytest.raises(InputError, match=r"report\.json is no JSON; expected"):
        write_data_page(tmp_path)


def test_directory_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"report\.json cannot be read \(No such file"):
        write_data_page(tmp_path)
    with pytest.raises(InputError, match=r"report\.json: all is \[\]; expected an object"):
        page_of(tmp_path, [])


def test_page_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()
    with pytest.raises(InputError, match=r"report\.html cannot be written \(Is a directory\)"):
        page_of(tmp_path)
    assert not list(tmp_path.glob(".*.unfinished"))


# Whatever text there is.

HOSTILE = st.sampled_from(
    "</td></table></div><script>alert(1)</script> <!-- --> ]]> &lt; &#0; \" ' ' onload=x </title> "
    "</style> <svg/onload=x> \0 \x1b[31m \u202e \u2028 \ud800 \x85 مرحبا <plaintext> {{}}".split(
        " "
    )
)
TEXTS = st.text(max_size=8) | st.lists(HOSTILE | st.text(max_size=3), max_size=4).map(" ".join)
PICTURES = {**{code: chr(0x2400 + code) for code in range(32)}, 127: "\u2421"}


def shown(text: str) -> str:
    """What is seen of a text; half a surrogate pair is no character."""
    return text.translate(PICTURES).encode("utf-8", "replace").decode()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("any")


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(texts=st.lists(TEXTS, min_size=9, max_size=9))
def test_no_text_breaks_out(directory: Path, texts: list[str]) -> None:
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


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(report=mutations(REPORT))
def test_any_report_gives_a_page_or_names_a_field(directory: Path, report: Any) -> None:
    try:
        page_of(directory, report)
    except InputError as error:
        assert str(error).startswith(str(directory / "report.json"))
