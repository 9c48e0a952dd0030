"""The runner of experiments: identity, resuming, deadline, locks, processes, results."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keras_transformer.errors import DivergedError, InputError
from keras_transformer.extensions.paper import experiment
from keras_transformer.extensions.paper.experiment import Experiment, Row, call_in_process
from keras_transformer.runs.atomic import exclusive_lock
from tests.builders import refuses
from tests.messages import mentions

ROOT = Path(__file__).resolve().parents[3]
IDENTITY: dict[str, Any] = {"settings": {"training.seed": 1, "sizes": (2, 3)}, "data": "abc"}


@pytest.fixture
def work(tmp_path: Path) -> Path:
    return tmp_path / "work"


def row(name: str, calls: list[Any], **results: Any) -> Row:
    def function(directory: Path, max_minutes: float | None, *arguments: Any) -> dict[str, Any]:
        calls.append((directory, max_minutes, *arguments))
        (directory / "run").mkdir(exist_ok=True)
        return {"finished": True, **results}

    return Row(name, function, ("argument",))


def test_each_row_runs_once_and_leaves_its_results(work: Path) -> None:
    calls: list[Any] = []
    rows = [row("a", calls, bleu=1.5), row("b", calls)]
    runner = Experiment(work, IDENTITY, {"recipe": "x"})
    reported: list[list[str]] = []
    results = runner.run_all(rows, lambda: reported.append([*runner.records()]))
    assert calls == [(work / name, None, "argument") for name in "ab"]
    assert reported == [["a"], ["a", "b"]]
    lines = (work / "results.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [*results.values()]
    assert (results["a"]["row"], results["a"]["bleu"], results["a"]["recipe"]) == ("a", 1.5, "x")
    assert {"command", "commit", "date", "machine"} < results["a"].keys()
    assert results["a"]["versions"].keys() >= {"tensorflow", "tensorflow-text"}
    again = Experiment(work, IDENTITY)
    assert again.run_all([*rows, row("c", calls)]).keys() == {"a", "b", "c"}
    assert len(calls) == 3


def test_a_stopped_row_is_resumed_before_the_next_one(work: Path) -> None:
    calls: list[Any] = []
    runner = Experiment(work, IDENTITY)
    stopped = runner.run_all([row("a", calls, finished=False), row("b", calls)])
    assert stopped.keys() == {"a"} and not stopped["a"]["finished"]
    results = runner.run_all([row("a", calls), row("b", calls)])
    assert [directory.name for directory, *_ in calls] == ["a", "a", "b"]
    assert all(record["finished"] for record in results.values())


def test_one_row_always_starts_and_none_after_the_deadline(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, minutes = [0.0], []
    monkeypatch.setattr(experiment.time, "time", lambda: seconds[0])

    def function(directory: Path, max_minutes: float) -> dict[str, Any]:
        minutes.append(max_minutes)
        seconds[0] += 40
        return {"finished": True}

    rows = [Row(name, function) for name in "abcd"]
    assert Experiment(work, IDENTITY, max_minutes=1.0).run_all(rows).keys() == {"a", "b"}
    assert minutes == [1.0, pytest.approx(1 / 3)]
    late = Experiment(work, IDENTITY, max_minutes=1.0)
    seconds[0] += 600
    assert late.run_all(rows).keys() == {"a", "b", "c"}
    assert 0 < minutes[2] < 1e-6
    for wrong in (0, -1.0, float("nan")):
        refuses(lambda w: Experiment(work, IDENTITY, max_minutes=w), (wrong,), "max_minutes", wrong)


def test_errors_name_the_row_and_a_second_process_is_rejected(work: Path) -> None:
    def fail(*_: Any) -> dict[str, Any]:
        raise DivergedError("the loss is not finite")

    runner = Experiment(work, IDENTITY)
    with pytest.raises(DivergedError, match="^a: the loss is not finite$"):
        runner.run(Row("a", fail))
    assert not (work / "a").exists(), "nothing has begun"
    with (
        exclusive_lock(work / "a"),
        pytest.raises(InputError, match=mentions("another", "process", "a")),
    ):
        runner.run(row("a", []))


def test_a_row_finished_by_another_process_meanwhile_is_not_run(work: Path) -> None:
    calls: list[Any] = []
    first, second = Experiment(work, IDENTITY), Experiment(work, IDENTITY)
    done = first.run(row("a", calls))
    assert second.run(row("a", calls)) == done and len(calls) == 1


@given(st.binary(max_size=20) | st.just(b"[" * 100_000) | st.just(b'{"row": ["a"]}'))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_other_lines_do_not_count_as_results(work: Path, line: bytes) -> None:
    (experiment := Experiment(work, IDENTITY)).start()
    (work / "results.jsonl").write_bytes(b'{"row": "a", "finished": true}\n' + line)
    assert experiment.records()["a"]["finished"]


def test_the_identity_is_written_once_and_compared(work: Path) -> None:
    Experiment(work, IDENTITY).start()
    (work / "a").mkdir()
    Experiment(work, IDENTITY).start()
    for changes, fact in (
        ({"data": "x"}, "work was started with data 'abc', not 'x'"),
        ({"settings": {"training.seed": 2}}, "settings: training.seed 1, not 2"),
        ({"tests": "y"}, "with tests (not set), not 'y'. Use the settings, the data"),
    ):
        refuses(Experiment, (work, {**IDENTITY, **changes}), fact)
    (work / "experiment.json").write_text("[")
    refuses(Experiment, (work, IDENTITY), "work", "read")
    (work / "experiment.json").unlink()
    refuses(Experiment, (work, IDENTITY), "work exists, but lacks experiment.json. Name a new")
    (work / "a").rmdir()
    (work / ".experiment.json.4711.unfinished").touch()  # left by a kill
    Experiment(work, IDENTITY)
    (work / "file").touch()
    refuses(Experiment, (work / "file", IDENTITY), "file cannot be read or written")


# Functions in a separate process.


def described(directory: Path, max_minutes: float | None) -> dict[str, object]:
    logging.getLogger("keras_transformer.room").info("said %s", directory.name)
    return {"finished": True, "process": os.getpid(), "tensorflow": "tensorflow" in sys.modules}


def mistaken() -> None:
    raise InputError("x is 3, not 4")


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def wait_to_be_told(folder: str) -> None:
    """On any signal, writes its last output and ends."""
    (Path(folder) / "started").write_text(str(os.getpid()))
    try:
        time.sleep(600)
    finally:
        time.sleep(0.3)
        (Path(folder) / "ended").touch()


def test_rows_in_processes(work: Path, capfd: pytest.CaptureFixture[str]) -> None:
    logging.getLogger("keras_transformer").setLevel(logging.INFO)
    runner = Experiment(work, IDENTITY, in_processes=True)
    try:
        found = runner.run(Row("a", described))
    finally:
        logging.getLogger("keras_transformer").setLevel(logging.NOTSET)
    assert found["process"] != os.getpid() and not found["tensorflow"]
    assert capfd.readouterr().err == "said a\n"


def test_errors_and_kills_of_a_process(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="^x is 3, not 4$"):
        call_in_process(mistaken)
    assert capfd.readouterr().err == ""
    refuses(call_in_process, (killed,), "signal 9", "memory")
    with pytest.raises(RuntimeError, match="exit code 1"):
        call_in_process(os.strerror, "a defect")


PROGRAM = """
import sys
from keras_transformer.extensions.paper.experiment import call_in_process
from tests.extensions.paper.experiment_test import wait_to_be_told
if __name__ == "__main__":
    try:
        call_in_process(wait_to_be_told, sys.argv[1])
    except KeyboardInterrupt:
        sys.exit(130)
"""


@pytest.mark.parametrize("how", ["terminal", "SIGTERM", "SIGKILL"])
def test_a_signal_to_the_parent_stops_the_child_after_a_checkpoint(
    tmp_path: Path, how: str
) -> None:
    (tmp_path / "main.py").write_text(PROGRAM)
    parent = subprocess.Popen(
        [sys.executable, tmp_path / "main.py", tmp_path],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    started = tmp_path / "started"
    while not (started.exists() and started.read_text()):
        assert parent.poll() is None
        time.sleep(0.02)
    if how == "terminal":
        os.killpg(parent.pid, signal.SIGINT)
    else:
        parent.send_signal(getattr(signal, how))
    _, said = parent.communicate(timeout=60)
    if how == "SIGKILL":  # then no process waits for it
        while Path(f"/proc/{started.read_text()}").exists():
            time.sleep(0.02)
    assert parent.returncode == (-signal.SIGKILL if how == "SIGKILL" else 130)
    assert "Traceback" not in said
    assert (tmp_path / "ended").exists() == (how != "SIGKILL")
