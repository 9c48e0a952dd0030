"""Runs experiments: rows that are trained, scored and recorded, each once. A kill loses nothing.

The recipes, Table 2, Table 3 and the student are experiments. The work directory has

    experiment.json    the identity: all settings, data and tests of the first call
    results.jsonl      the results of each row, with its command, code and machine
    NAME/              the files of a row
    table.md           the results as a table
    chart.svg          a chart of them, if there is something to compare

A second process may run other rows of the same experiment at the same time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.metadata
import json
import logging
import multiprocessing
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from keras_transformer.data.workers import (
    TaskRunner,
    Workers,
    end_with_parent,
    interrupts_ignored,
    run_tasks,
)
from keras_transformer.errors import DivergedError, InputError
from keras_transformer.runs.atomic import exclusive_lock, sync_tree, write_text
from keras_transformer.runs.machine import available_cores, cpu_name, signal_handlers, stop_signals
from keras_transformer.tf_import import load_tensorflow

if TYPE_CHECKING:  # they load TensorFlow, which a process that only starts others does not need
    from keras_transformer.models.encoder_decoder import EncoderDecoder
    from keras_transformer.runs.run_directory import RunDirectory
    from keras_transformer.training.training_run import TrainingResult

log = logging.getLogger(__name__)

IDENTITY, RESULTS = "experiment.json", "results.jsonl"
Record = dict[str, Any]
_Result = TypeVar("_Result")


@dataclasses.dataclass(frozen=True)
class Row:
    """A part of an experiment that is trained, scored and recorded separately.

    `function` trains and scores, or resumes. Its arguments are the directory of the row, the
    remaining minutes (None: no limit) and `arguments`. It returns JSON values. `finished` is False
    if time was over, and missing if a later call should repeat the row. `title` is for the log.
    """

    name: str
    function: Callable[..., Record]
    arguments: tuple[Any, ...] = ()
    title: str = ""


class Experiment:
    """The rows and the results in a work directory.

    The directory must be new, or belong to an experiment with this `identity`: everything that
    results depend on, as JSON values. `facts` are recorded with the results of each row. After
    `max_minutes`, no row starts and training stops. With `in_processes`, each row runs in a new
    process, so functions of rows must be functions of a module.
    """

    def __init__(
        self,
        work_dir: Path,
        identity: Mapping[str, Any],
        facts: Mapping[str, Any] | None = None,
        *,
        max_minutes: float | None = None,
        in_processes: bool = False,
    ) -> None:
        if max_minutes is not None and not max_minutes > 0:
            raise InputError(f"max_minutes is {max_minutes}, but it must be more than 0.")
        self._end = None if max_minutes is None else time.time() + 60 * max_minutes
        self.work_dir, self.facts, self._in_processes = work_dir, dict(facts or {}), in_processes
        # This process has the files of its start, even if they change later.
        self._metadata = {} if in_processes else run_metadata()
        self._identity = json.loads(json.dumps(identity))
        path = work_dir / IDENTITY
        with _reported(work_dir):
            is_new = not path.exists()
            found = {} if is_new else json.loads(path.read_text(encoding="utf-8"))
            entries = [path.name for path in work_dir.iterdir()] if work_dir.exists() else []
        if is_new and any(not name.startswith(".") for name in entries):  # a kill may leave those
            raise InputError(f"{work_dir} exists, but lacks {IDENTITY}. Name a new directory.")
        if not is_new and (difference := _difference(found, self._identity)):
            raise InputError(
                f"{work_dir} was started with {difference}. Use the settings, the data and the "
                f"tests that it was started with ({path}), or another directory."
            )

    def start(self) -> None:
        """Creates the directory with the identity."""
        with _reported(self.work_dir):
            self.work_dir.mkdir(parents=True, exist_ok=True)
            if not (self.work_dir / IDENTITY).exists():
                write_text(self.work_dir / IDENTITY, json.dumps(self._identity, indent=2) + "\n")

    def records(self) -> dict[str, Record]:
        """Returns the newest results of each row, of all calls so far, by its name.

        A line that a kill has cut off is left out; its row runs again.
        """
        path = self.work_dir / RESULTS
        records = {}
        for line in path.read_bytes().splitlines() if path.exists() else ():
            with contextlib.suppress(ValueError, TypeError, LookupError, RecursionError):
                record = json.loads(line)
                records[str(record["row"])] = record
        return records

    def run(self, row: Row) -> Record:
        """Runs a row unless it is finished, and records and returns its results."""
        self.start()
        directory = self.work_dir / row.name
        with exclusive_lock(directory):  # the lock is held until the results are written
            found = self.records().get(row.name, {})
            if found.get("finished"):
                return found
            found = _run_row(row.name, row, directory, self._end, self._in_processes)
            return self._write(row, {**found, **self._metadata, **self.facts})

    def _write(self, row: Row, results: Record) -> Record:
        """Records the results of a row, and returns the record."""
        record = {"row": row.name, **results}
        with (self.work_dir / RESULTS).open("ab", buffering=0) as file:
            # One call, because a kill cannot split it.
            file.write((json.dumps(record) + "\n").encode())
        sync_tree(self.work_dir / RESULTS)
        return record

    def _run_on_other_machines(self, rows: Sequence[Row], runner: TaskRunner) -> Iterator[Record]:
        """Runs the unfinished rows at the same time, and yields their records in order."""
        self.start()
        with contextlib.ExitStack() as stack:
            for row in rows:
                stack.enter_context(exclusive_lock(self.work_dir / row.name))
            records = self.records()
            todo = [row for row in rows if not records.get(row.name, {}).get("finished")]
            directory = self.work_dir.absolute()
            tasks = ((row.name, row, directory / row.name, self._end) for row in todo)
            found = run_tasks(_run_row, tasks, runner, directory, uses_all_cores=True)
            for row, results in zip(todo, found, strict=True):
                facts = {"command": shlex.join(sys.argv), **self.facts}
                yield self._write(row, {**results, **facts})

    def run_all(
        self,
        rows: Sequence[Row],
        report: Callable[[], object] | None = None,
        workers: Workers = 1,
    ) -> dict[str, Record]:
        """Runs rows in their order until all are finished or time is over.

        Finished rows are skipped. At least one unfinished row is run, so every call makes progress.
        `report` is called after each. A `TaskRunner` runs all rows at the same time.
        """
        if not isinstance(workers, int):
            for _ in self._run_on_other_machines(rows, workers):
                if report is not None:
                    report()
            found = self.records()
            return {row.name: found[row.name] for row in rows}
        records: dict[str, Record] = {}
        has_run = False
        for number, row in enumerate(rows, 1):
            record = self.records().get(row.name, {})
            if not record.get("finished"):
                if has_run and self._end is not None and time.time() >= self._end:
                    break
                if len(rows) > 1:
                    title = f" ({row.title})" if row.title else ""
                    log.info("row %d of %d: %s%s", number, len(rows), row.name, title)
                record = self.run(row)
                has_run = True
                if report is not None:
                    report()
            records[row.name] = record
            if not record["finished"]:
                break
        return records


def _run_row(
    name: str, row: Row, directory: Path, end: float | None, in_process: bool = True
) -> Record:
    """Runs a row, by default in a new process, and returns its results and metadata."""
    # A row that has started makes progress, even if time is over.
    minutes = None if end is None else max(1e-9, (end - time.time()) / 60)
    metadata = run_metadata()
    call = functools.partial(call_in_process, row.function) if in_process else row.function
    try:
        return {**metadata, **call(directory, minutes, *row.arguments)}
    except InputError as error:
        raise type(error)(f"{name}: {error}") from error


@contextlib.contextmanager
def _reported(work_dir: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"{work_dir} cannot be read or written ({error}). Fix this, or name a new directory."
        ) from error


def _difference(found: Any, expected: Any, location: str = "") -> str | None:
    """Returns the first difference between two JSON values."""
    if not (isinstance(found, dict) and isinstance(expected, dict)):
        values = ("(not set)" if value is None else repr(value) for value in (found, expected))
        return None if found == expected else f"{location} {', not '.join(values)}"
    for key in dict.fromkeys([*expected, *found]):
        below = f"{location}: {key}" if location else key
        if difference := _difference(found.get(key), expected.get(key), below):
            return difference
    return None


def train(
    directory: Path,
    max_minutes: float | None,
    data_dir: Path,
    initial: Any,
    settings: Mapping[str, Any],
    *,
    architecture: type[EncoderDecoder] | None = None,
    init_from: str | None = None,
) -> tuple[TrainingResult, RunDirectory]:
    """Trains or resumes the run of a row, with the arguments of `training_run.train`."""
    load_tensorflow()  # the parent process must not hold the GPU
    from keras_transformer.models.transformer import Transformer
    from keras_transformer.runs.run_directory import RunDirectory
    from keras_transformer.training import training_run

    architecture = architecture or Transformer
    options = training_run.TrainOptions(init_from=init_from, max_minutes=max_minutes)
    run_dir = directory / "run"
    trained = training_run.train(
        data_dir, run_dir, initial, settings, options, architecture=architecture
    )
    log.info(trained.summary(run_dir))
    if trained.interrupted:
        raise KeyboardInterrupt
    run = RunDirectory(run_dir, architecture.run_config)
    saved = run.checkpoints()
    # Training writes no checkpoint if the validation loss is not finite.
    if not saved or saved[-1].step != trained.step:
        raise DivergedError(
            f"{run.path} has diverged: its validation loss at step {trained.step} is not finite. "
            "Lower training.learning_rate."
        )
    return trained, run


def costs(trained: TrainingResult, run: RunDirectory) -> Record:
    """Returns the size of a model and the costs of its training."""
    return {
        "parameters": run.config.model.num_parameters(),
        "steps": trained.step,
        "training_minutes": round(trained.metrics["training_seconds"] / 60, 1),
        "tokens_per_second": round(trained.tokens_per_second),
        "peak_memory_mb": round(trained.metrics["peak_memory_mb"]),
        "precision": trained.precision,
    }


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Writes lines, each with an LF, atomically. Creates the folder if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(f"{line}\n" for line in lines))


_packages = functools.cache(importlib.metadata.packages_distributions)


def run_metadata() -> Record:
    """Returns the command, the commit, the date, the versions of libraries, and the machine."""
    packages = _packages()  # tensorflow may be tensorflow-cpu
    libraries = ("tensorflow", "keras", "tensorflow_text", "sacrebleu")
    return {
        "command": shlex.join(sys.argv),
        "commit": code_commit(),
        "date": time.strftime("%Y-%m-%d"),
        "versions": {
            name.replace("_", "-"): importlib.metadata.version(packages[name][0])
            for name in libraries
        },
        "machine": {"processor": cpu_name(), "cores": available_cores()},
    }


def code_commit() -> str | None:
    """Returns the commit of this code, with a + if files differ from it; None outside a clone."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():  # a package may be in another repository
        return None

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=10", "HEAD") + ("+" if git("status", "--short") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def call_in_process(function: Callable[..., _Result], *arguments: Any) -> _Result:
    """Returns the result of `function` in a new process, which logs to standard error.

    TensorFlow frees memory only when a process ends, and in a new process each row has the same
    conditions. Ctrl-C, SIGTERM and SIGHUP are passed on to the process, and this call waits until
    it has ended.
    """
    level = logging.getLogger("keras_transformer").getEffectiveLevel()
    context = multiprocessing.get_context("spawn")  # a fork would lack the threads of libraries
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, level, function, arguments))
    received: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        # The first signal becomes SIGTERM, which is safe even before the process handles signals.
        received.append(number)
        if process.is_alive():
            os.kill(process.pid or 0, number if len(received) > 1 else signal.SIGTERM)

    with interrupts_ignored():  # the process has no process group yet
        process.start()
    with signal_handlers(pass_on):
        sender.close()
        try:
            result, error = receiver.recv()
        except EOFError:
            result = error = None
        process.join()
    if received:
        raise KeyboardInterrupt
    if error is not None:
        raise error
    code = process.exitcode or 0
    if code < 0:
        raise InputError(
            f"A process was killed by signal {-code}, most likely because memory ran out. The same "
            "command resumes."
        )
    if code:
        raise RuntimeError(f"A process ended with exit code {code}. Its stack trace is above.")
    return result


def _answer(
    sender: Connection, level: int, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    """Runs in the new process."""
    os.setpgid(0, 0)  # Ctrl-C in a terminal reaches it only through the parent process
    for number in {signal.SIGINT, *stop_signals()}:  # SIGINT was ignored while it started
        signal.signal(number, signal.default_int_handler)
    threading.Thread(target=end_with_parent, daemon=True).start()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("keras_transformer").setLevel(level)
    try:
        sender.send((function(*arguments), None))
    except InputError as error:
        sender.send((None, error))
    except KeyboardInterrupt:
        sender.send((None, KeyboardInterrupt()))
