"""Workers: results in the order of tasks, a few tasks ahead, unchanged errors, no process left."""

import contextlib
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from keras_transformer.data.workers import run_tasks
from keras_transformer.errors import InputError, StoppedError
from tests.messages import mentions

ROOT = Path(__file__).resolve().parents[2]


def slow_first(task):
    if multiprocessing.parent_process():
        os.kill(os.getpid(), signal.SIGINT)
    if task == 0:
        time.sleep(0.5)
    return {"task": task, "process": os.getpid(), "ignored": IGNORED}


def picky(task):
    if task == 3:
        raise InputError(f"task {task} is odd")
    return {"task": task}


def begin_and_wait(task):
    (Path(os.environ["WORKERS"]) / f"{os.getpid()}.pid").touch()
    time.sleep(600)
    return {}


def wait_unless_first(task):
    return {} if task == 0 else begin_and_wait(task)


# The state before our code ran in the process.
IGNORED = signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def killed(number, _):
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return {}


@pytest.mark.parametrize("count", [1, 2])
def test_results_come_in_the_order_of_the_tasks(count):
    results = list(run_tasks(slow_first, zip([0, 1, 0, 1, 2], strict=True), count, Path()))
    assert [result["task"] for result in results] == [0, 1, 0, 1, 2]
    processes = {result["process"] for result in results}
    assert (os.getpid() in processes) == (count == 1) and len(processes) == count
    if count == 2:  # interrupts are left to the process that began the workers
        assert all(result["ignored"] for result in results)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_script_does_not_run_in_its_workers(monkeypatch, tmp_path):
    script = types.ModuleType("__main__")
    script.__file__ = str(tmp_path / "script.py")
    (tmp_path / "script.py").write_text("raise SystemExit(3)")
    monkeypatch.setitem(sys.modules, "__main__", script)
    assert len(list(run_tasks(slow_first, zip([0, 1], strict=True), 2, Path()))) == 2
    assert sys.modules["__main__"] is script


def test_a_single_task_needs_no_process():
    assert next(run_tasks(slow_first, zip([1], strict=True), 2, Path()))["process"] == os.getpid()


@pytest.mark.parametrize("count", [1, 2])
def test_errors_pass_through_unchanged_and_tasks_are_made_as_they_are_needed(count):
    made = []
    tasks = ((number,) for number in itertools.count() if not made.append(number))
    results = run_tasks(picky, tasks, count, Path())
    assert [next(results)["task"] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(InputError, match="task 3 is odd"):
        next(results)
    assert len(made) < 9


def test_a_killed_process_is_an_error():
    tasks = ((number, bytes(2**20)) for number in range(6))  # more than a pipe holds
    with pytest.raises(StoppedError, match=mentions("worker", "process", "killed")):
        list(run_tasks(killed, tasks, 2, Path()))


@pytest.mark.parametrize("end", ["kill", "ctrl-c", "ctrl-c while starting"])
def test_workers_end_with_the_process_that_began_them_without_output(tmp_path, end):
    """A terminal interrupts all processes. Those that wait for a block would wait for a minute."""
    program = """
import sys
from pathlib import Path
from keras_transformer.data.workers import run_tasks
from tests.data.workers_test import begin_and_wait
if __name__ == "__mp_main__" and "starting" in sys.argv[1]:
    begin_and_wait(None)
if __name__ == "__main__":
    try:
        # More than a pipe holds, as blocks are.
        for result in run_tasks(begin_and_wait, [(bytes(2**20),)] * 6, 2, Path()):
            pass
    except KeyboardInterrupt:
        sys.exit(130)
"""
    (tmp_path / "main.py").write_text(program)
    parent = subprocess.Popen(
        [sys.executable, tmp_path / "main.py", end], start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "WORKERS": str(tmp_path)},
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while len(started := list(tmp_path.glob("*.pid"))) < 2:
        assert parent.poll() is None
        time.sleep(0.02)
    if end == "kill":
        parent.kill()
    else:
        os.killpg(parent.pid, signal.SIGINT)
    try:
        _, errors = parent.communicate(timeout=60)
        while any(Path(f"/proc/{path.stem}").exists() for path in started):  # a hang is a failure
            time.sleep(0.02)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)
    assert end == "kill" or (parent.returncode, errors) == (130, "")


def test_closing_the_results_stops_the_workers(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKERS", str(tmp_path))
    results = run_tasks(wait_unless_first, zip(range(9), strict=True), 2, Path())
    assert next(results) == {}
    start = time.monotonic()
    results.close()
    assert time.monotonic() - start < 60 and not multiprocessing.active_children()
