"""Runs a table row by row, resumes and reports errors, without training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from keras_transformer.data.corpus import parallel_files
from keras_transformer.data.prepare import PrepareOptions, prepare
from keras_transformer.errors import DivergedError, InputError
from keras_transformer.extensions.paper import child_process as process
from keras_transformer.extensions.paper.table3.running import (
    _train_row,
    run_table3,
)
from tests.messages import mentions

NUMBERS = [("one", "ein"), ("two", "zwei"), ("three", "drei"), ("four", "vier")]


def prepared(folder: Path, joined: str = "and") -> Path:
    folder.mkdir(exist_ok=True)
    pairs = [(f"{a} {joined} {b}", f"{x} und {y}") for a, x in NUMBERS for b, y in NUMBERS]
    for side, name in enumerate(("c.en", "c.de")):
        (folder / name).write_text("".join(f"{pair[side]}\n" for pair in pairs))
    corpora = parallel_files([folder / "c.en"], [folder / "c.de"])
    prepare(corpora, folder / "data", PrepareOptions(vocab_size=35, valid_pairs=2))
    return folder / "data"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("sweep"))


class Job(NamedTuple):
    """The arguments of `_train_row`."""

    directory: Path
    max_minutes: float | None
    data_dir: Path
    preset_base: str
    settings: dict[str, Any]
    bleu: dict[str, Any]


class Rows:
    """Replaces `child_process.call`: records the calls, and returns the results in `found`."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.found: dict[str, Any] = {}

    def __call__(self, function: Any, *arguments: Any) -> dict[str, Any]:
        assert function is _train_row
        job = Job(*arguments)
        name = job.directory.name
        assert name not in self.jobs
        self.jobs[name] = job
        (job.directory / "run").mkdir(parents=True, exist_ok=True)
        found = self.found.get(name, {})
        if isinstance(found, BaseException):
            raise found
        return {
            "finished": True, "steps": 3000, "perplexity": 6.5, "bleu": 31.25, "signature": "s|13a",
            "parameters": 3, "minutes": 10.0, "tokens_per_second": 7000, "peak_memory_mb": 900,
            "precision": "float32", **found,
        }  # fmt: skip


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Rows:
    rows = Rows()
    monkeypatch.setattr(process, "call", rows)
    return rows


def test_each_row_once_and_later_calls_add(
    data: Path, tmp_path: Path, rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    rows.found = {"B_dk16": {"perplexity": 7.0, "bleu": 30.0}, "E_learned": {"bleu": 31.35}}
    work = tmp_path / "work"
    results = run_table3(data, work, names=["B"], tokenize="none")
    assert list(rows.jobs) == ["base", "B_dk16", "B_dk32"]
    assert results["finished"] and list(results["rows"]) == list(rows.jobs)
    row = results["rows"]["B_dk16"]
    assert (row["perplexity"], row["bleu"]) == (7.0, 30.0)
    assert row["difference"] == {"perplexity": 0.5, "bleu": -1.25}
    assert row["paper"]["difference"] == {"perplexity": 0.24, "bleu": -0.7}
    assert row["columns"]["d_k"] == 8 and row["paper"]["columns"]["d_k"] == 16
    assert results == json.loads((work / "results.json").read_text())
    found = json.loads((work / "B_dk16" / "results.json").read_text())
    assert found == row["run"] and found["minutes"] == 10.0 and found["machine"]["cores"] > 0
    assert len((work / "reference").read_text().splitlines()) == 2
    job = rows.jobs["B_dk16"]
    assert job.bleu == {"tokenize": "none", "lowercase": False} and job.max_minutes is None
    assert (job.data_dir, job.preset_base) == (data, "tiny")
    assert job.settings["model.key_dim"] == 8 and job.settings["training.max_steps"] == 3000

    introductions = [r.getMessage() for r in caplog.records if r.name.endswith("experiment")]
    assert introductions == [
        "trial 1 of 3: base (the base)",
        "trial 2 of 3: B_dk16 (d_k × 1/4)",
        "trial 3 of 3: B_dk32 (d_k × 1/2)",
    ]
    shown = [r.getMessage() for r in caplog.records if r.name.endswith("running")]
    assert [table.count("31.2") for table in shown[::2]] == [1, 1, 2]
    assert [line.split(" rows")[0] for line in shown[1::2]] == ["1 of 3", "2 of 3", "3 of 3"]
    assert "30.0" in (work / "table.md").read_text()
    assert (work / "chart.svg").read_text().startswith("<?xml")

    rows.jobs = {}
    assert run_table3(data, work, names=["B"], tokenize="none") == results
    assert rows.jobs == {}
    more = run_table3(data, work, names=["E"], tokenize="none")
    assert list(rows.jobs) == ["E_learned"]
    assert list(more["rows"]) == ["base", "B_dk16", "B_dk32", "E_learned"]
    assert more["rows"]["E_learned"]["difference"]["bleu"] == 0.1
    assert {name: more["rows"][name] for name in results["rows"]} == results["rows"]


def test_a_stopped_row_is_resumed_and_errors_name_the_row(
    data: Path, tmp_path: Path, rows: Rows
) -> None:
    work = tmp_path / "work"
    rows.found = {"B_dk16": {"finished": False, "steps": 7}}
    results = run_table3(data, work, names=["B"], max_minutes=60)
    assert not results["finished"] and list(rows.jobs) == ["base", "B_dk16"]
    assert 59 < (rows.jobs["B_dk16"].max_minutes or 0) <= (rows.jobs["base"].max_minutes or 0) <= 60
    assert results["rows"]["base"]["bleu"] == 31.25
    assert results["rows"]["B_dk16"]["bleu"] is None is results["rows"]["B_dk16"]["run"]
    assert not json.loads((work / "B_dk16" / "results.json").read_text())["finished"]

    rows.jobs, rows.found = {}, {"B_dk16": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        run_table3(data, work, names=["B"])
    rows.jobs, rows.found = {}, {"B_dk16": InputError("it is too large")}
    with pytest.raises(InputError, match="^B_dk16: it is too large$"):
        run_table3(data, work, names=["B"])
    rows.jobs, rows.found = {}, {}
    results = run_table3(data, work, names=["B"])
    assert results["finished"] and list(rows.jobs) == ["B_dk16", "B_dk32"]


def test_a_row_that_diverges_is_a_result(data: Path, tmp_path: Path, rows: Rows) -> None:
    work = tmp_path / "work"
    rows.found = {"base": DivergedError("no number")}
    with pytest.raises(DivergedError, match="^base: no number$"):
        run_table3(data, work, names=["B"])
    diverged = {"perplexity": None, "bleu": None}
    rows.jobs, rows.found = {}, {"B_dk16": {"diverged": "no number", **diverged}}
    results = run_table3(data, work, names=["B"])
    assert results["finished"] and list(rows.jobs) == ["base", "B_dk16", "B_dk32"]
    row = results["rows"]["B_dk16"]
    assert row["run"]["diverged"] == "no number" and row["bleu"] is None
    assert row["difference"] == {"perplexity": None, "bleu": None}
    assert "| diverged |" in (work / "table.md").read_text()
    assert "B_dk16, diverged" in (work / "chart.svg").read_text()
    rows.jobs = {}
    assert run_table3(data, work, names=["B"]) == results and rows.jobs == {}


@pytest.mark.parametrize(
    ("error", "row", "message"),
    [
        (DivergedError("no number"), "base", "^no number$"),
        (InputError("too large"), "base", "^too large$"),
        (InputError("too large"), "B_dk16", "^too large.*--rows"),
        (DivergedError("no number"), "B_dk16", None),
    ],
)
def test_errors_and_divergence_of_a_row(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    error: InputError,
    row: str,
    message: str | None,
) -> None:
    from keras_transformer.training import training_run

    def train(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(training_run, "train", train)
    arguments: Any = (tmp_path / row, None, tmp_path, "tiny", {}, {})
    if message is None:
        assert _train_row(*arguments) == {"finished": True, "diverged": "no number"}
        return
    with pytest.raises(InputError, match=message):
        _train_row(*arguments)


def test_equal_rows_are_one_run(data: Path, tmp_path: Path, rows: Rows) -> None:
    settings = {"model.num_encoder_layers": 1, "model.num_decoder_layers": 1}
    settings["model.num_heads"] = 2
    results = run_table3(data, tmp_path / "work", names=["A_h4", "C_n2"], settings=settings)
    # Half of 2 heads is 1, and so is an eighth; a third of 1 layer is 1 again.
    assert list(results["rows"]) == ["base", "A_h1", "A_h4", "C_n2"]
    assert list(rows.jobs) == ["base", "A_h1"]
    assert results["rows"]["A_h4"]["run"]["row"] == "A_h1" and results["finished"]
    assert results["rows"]["C_n2"]["difference"] == {"perplexity": 0.0, "bleu": 0.0}
    table = (tmp_path / "work" / "table.md").read_text()
    assert "A_h4 equals A_h1 on this base" in table
    assert "C_n2 equals base on this base" in table


def test_a_directory_of_another_experiment_is_an_error(
    data: Path, tmp_path: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    run_table3(data, work, names=["base"])

    def refused(message: str, data: Path = data, work: Path = work, **arguments: Any) -> None:
        with pytest.raises(InputError, match=message):
            run_table3(data, work, names=["base"], **arguments)

    place = "work was started with "
    refused(place + "base: training.seed .not set., not 2. Use", settings={"training.seed": 2})
    refused(place + "preset_base 'tiny', not 'small'", preset_base="small")
    refused(place + "bleu: tokenize '13a', not 'none'", tokenize="none")
    refused(place + "data: vocabulary '", data=prepared(tmp_path, joined="with"))
    found = json.loads((work / "experiment.json").read_text())
    # Defaults are left out, so that it fits a version with more settings.
    assert "training.auxiliary_loss_weight" not in found["base"]
    found["rows"]["A_h1"]["model.num_heads"] = 2  # as written by a different version of the code
    (work / "experiment.json").write_text(json.dumps(found))
    refused(place + "rows: A_h1: model.num_heads 2, not 1")
    found["rows"]["A_h1"]["model.num_heads"] = 1
    (work / "experiment.json").write_text(json.dumps(found))
    row = json.loads((work / "base" / "results.json").read_text())
    for lost in ("bleu", "precision"):
        (work / "base" / "results.json").write_text(
            json.dumps({name: value for name, value in row.items() if name != lost})
        )
        refused(mentions("base/results.json", lost))
    (work / "experiment.json").write_text('{"base": 3}')
    refused(place + "preset_base .not set., not 'tiny'")
    assert list(rows.jobs) == ["base"]
    (tmp_path / "file").touch()
    refused("file cannot be read or written", work=tmp_path / "file")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_minutes": 0}, mentions("max_minutes", "0")),
        ({"tokenize": "14a"}, mentions("14a", "tokenizer")),
        ({"names": ["A1"]}, mentions("row", "A1")),
        ({"preset_base": "huge"}, mentions("huge", "preset")),
        ({"settings": {"training.steps": 3}}, mentions("training.steps", "setting")),
        ({"settings": {"training.ema_decay": 0.9}}, mentions("training.ema_decay", "0.9", "0")),
        (
            {"settings": {"training.early_stopping": 3}},
            mentions("training.early_stopping", "3", "0"),
        ),
        ({"data_dir": "nowhere"}, "nowhere"),
    ],
)
def test_invalid_input_is_reported_before_anything_is_written(
    data: Path, tmp_path: Path, rows: Rows, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        run_table3(**{"data_dir": data, "work_dir": tmp_path / "work", **arguments})
    assert rows.jobs == {} and list(tmp_path.iterdir()) == []
