"""The runner of experiments: identity, resuming, deadline, locks, processes, results."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from keras_transformer.errors import DivergedError, InputError
from keras_transformer.extensions.paper import experiment
from keras_transformer.extensions.paper.experiment import (
    Deadline,
    Trial,
    check_identity,
    mean_and_std,
    open_experiment,
    results_of,
    run_trials,
)
from keras_transformer.runs.atomic import exclusive_lock
from tests.messages import mentions

IDENTITY: dict[str, Any] = {"settings": {"training.seed": 1, "sizes": (2, 3)}, "data": "abc"}


class Clock:
    """Replaces `time`. Trials advance it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(experiment, "time", clock)
    return clock


def trial(name: str, calls: list[Any], **results: Any) -> Trial:
    def function(directory: Path, max_minutes: float | None, *arguments: Any) -> dict[str, Any]:
        calls.append((directory, max_minutes, *arguments))
        (directory / "run").mkdir(exist_ok=True)
        return {"finished": True, **results}

    return Trial(name, function, ("argument",), facts={"seed": name})


def own_process(directory: Path, max_minutes: float | None) -> dict[str, Any]:
    return {"finished": True, "process": os.getpid(), "directory": str(directory)}


def test_each_trial_runs_once_and_leaves_its_results(tmp_path: Path) -> None:
    calls: list[Any] = []
    trials = [trial("a", calls, bleu=1.5), trial("b", calls)]
    reported: list[list[str]] = []
    results = run_trials(trials, tmp_path, Deadline(None), lambda found: reported.append([*found]))
    assert calls == [(tmp_path / name, None, "argument") for name in "ab"]
    assert reported == [["a"], ["a", "b"]]
    assert results["a"] == json.loads((tmp_path / "a" / "results.json").read_text())
    assert results["a"]["bleu"] == 1.5 and results["a"]["seed"] == "a"
    assert {"command", "commit", "date", "versions", "machine"} < results["a"].keys()
    more = [*trials, trial("c", calls)]
    assert run_trials(more, tmp_path, Deadline(None)).keys() == {"a", "b", "c"}
    assert len(calls) == 3
    assert results_of(trials, tmp_path) == results


def test_a_stopped_trial_is_resumed_before_the_next_one(tmp_path: Path) -> None:
    calls: list[Any] = []
    stopped = run_trials(
        [trial("a", calls, finished=False), trial("b", calls)], tmp_path, Deadline(None)
    )
    assert stopped.keys() == {"a"} and not stopped["a"]["finished"]
    results = run_trials([trial("a", calls), trial("b", calls)], tmp_path, Deadline(None))
    assert [directory.name for directory, *_ in calls] == ["a", "a", "b"]
    assert all(each["finished"] for each in results.values())


def test_one_trial_always_starts_and_none_after_the_deadline(tmp_path: Path, clock: Clock) -> None:
    minutes: list[float] = []

    def function(directory: Path, max_minutes: float) -> dict[str, Any]:
        minutes.append(max_minutes)
        clock.seconds += 40
        return {"finished": True}

    trials = [Trial(name, function) for name in "abcd"]
    assert run_trials(trials, tmp_path, Deadline(1.0)).keys() == {"a", "b"}
    assert minutes == [1.0, pytest.approx(1 / 3)]
    late = Deadline(1.0)
    clock.seconds += 600
    assert run_trials(trials, tmp_path, late).keys() == {"a", "b", "c"}
    assert 0 < minutes[2] < 1e-6
    for wrong in (0, -1.0, float("nan")):
        with pytest.raises(InputError, match=mentions("max_minutes", wrong)):
            Deadline(wrong)


def test_errors_name_the_trial_and_a_second_process_is_rejected(tmp_path: Path) -> None:
    def fail(*_: Any) -> dict[str, Any]:
        raise DivergedError("the loss is not finite")

    with pytest.raises(DivergedError, match="^a: the loss is not finite$"):
        run_trials([Trial("a", fail)], tmp_path, Deadline(None))
    assert not (tmp_path / "a").exists(), "nothing has begun"
    with (
        exclusive_lock(tmp_path / "a"),
        pytest.raises(InputError, match=mentions("another", "process", "a")),
    ):
        run_trials([trial("a", [])], tmp_path, Deadline(None))


def test_a_trial_finished_by_another_process_meanwhile_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(experiment, "run_metadata", lambda: _finish(tmp_path / "a"))
    results = run_trials([trial("a", calls)], tmp_path, Deadline(None))
    assert calls == [] and results["a"]["by"] == "another"


def _finish(directory: Path) -> dict[str, Any]:
    directory.mkdir(exist_ok=True)
    (directory / "results.json").write_text('{"finished": true, "by": "another"}')
    return {}


def test_a_trial_in_a_child_process(tmp_path: Path) -> None:
    trials = [Trial("a", own_process, in_child=True), Trial("b", own_process)]
    results = run_trials(trials, tmp_path, Deadline(None))
    assert results["a"]["process"] != os.getpid() == results["b"]["process"]
    assert results["a"]["directory"] == str(tmp_path / "a")


def test_the_identity_is_written_once_and_compared(tmp_path: Path) -> None:
    work = tmp_path / "work"
    with open_experiment(work, IDENTITY):
        (work / "a").mkdir()
    check_identity(work, IDENTITY)
    for changes, message in (
        ({"data": "x"}, "work was started with data 'abc', not 'x'"),
        ({"settings": {"training.seed": 2}}, "settings: training.seed 1, not 2"),
        (
            {"tests": "y"},
            "with tests .not set., not 'y'. Use the settings, the data",
        ),
    ):
        for check in (check_identity, lambda *args: open_experiment(*args).__enter__()):
            with pytest.raises(InputError, match=message):
                check(work, {**IDENTITY, **changes})
    (work / "experiment.json").write_text("[")
    with pytest.raises(InputError, match=mentions("experiment.json", "JSON")):
        check_identity(work, IDENTITY)
    (work / "experiment.json").unlink()
    with pytest.raises(InputError, match="work exists, but lacks experiment.json. Name a new"):
        check_identity(work, IDENTITY)


def test_a_directory_without_a_trial_is_unchanged(tmp_path: Path) -> None:
    def refused(work: Path) -> None:
        with pytest.raises(InputError, match="refused"), open_experiment(work, IDENTITY):
            assert (work / "experiment.json").is_file()
            raise InputError("refused")

    refused(tmp_path / "deep" / "work")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty")
    assert list(tmp_path.rglob("*")) == [tmp_path / "empty"]
    (tmp_path / "empty" / ".experiment.json.4711.unfinished").touch()  # left by a kill
    check_identity(tmp_path / "empty", IDENTITY)


def test_a_failed_call_keeps_the_directory_of_another_call(tmp_path: Path) -> None:
    work = tmp_path / "work"
    with open_experiment(work, IDENTITY):
        with pytest.raises(InputError, match="refused"), open_experiment(work, IDENTITY):
            raise InputError("refused")
        check_identity(work, IDENTITY)
        assert [path.name for path in work.iterdir()] == ["experiment.json"]


def test_a_file_as_work_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file cannot be read or written"):
        open_experiment(tmp_path / "file", IDENTITY).__enter__()


def test_mean_and_standard_deviation() -> None:
    assert mean_and_std([40.0, 41.0, 43.0]) == (41.33, 1.53)
