"""Runs experiments: a sequence of trials. Each runs once, and resumes after a kill.

The recipes, Table 3 and the comparison of architectures are experiments. Each has a work directory:

    experiment.json    the identity: all settings, data and tests of the first call
    NAME/              the files of a trial
    NAME/results.json  the results of the trial, with its command, code and machine

A second process may run other trials of the same experiment at the same time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_transformer.errors import DivergedError, InputError
from keras_transformer.extensions.paper import child_process
from keras_transformer.extensions.paper.results import (
    read_results,
    run_metadata,
    write_results,
)
from keras_transformer.runs.atomic import exclusive_lock
from keras_transformer.tf_import import load_tensorflow

if TYPE_CHECKING:  # they load TensorFlow, which a process that only starts others does not need
    from keras_transformer.models.encoder_decoder import EncoderDecoder
    from keras_transformer.runs.run_directory import RunDirectory
    from keras_transformer.training.training_run import TrainingResult

log = logging.getLogger(__name__)

_IDENTITY = "experiment.json"
RESULTS = "results.json"


@dataclasses.dataclass(frozen=True)
class Trial:
    """A part of an experiment that is trained, scored and recorded separately.

    Attributes:
        name: name of its directory.
        function: trains and scores, or resumes. Its arguments are the directory of the trial, the
            remaining minutes (None: no limit) and `arguments`. It returns JSON values. `finished`
            is False if time was over, and missing if a later call should repeat the trial.
        arguments: further arguments.
        title: a few words for the log.
        facts: recorded with the results.
        in_child: calls `function` in a new process. It must then be a function of a module.
    """

    name: str
    function: Callable[..., dict[str, Any]]
    arguments: tuple[Any, ...] = ()
    title: str = ""
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    in_child: bool = False


class Deadline:
    """The end of this call's training."""

    def __init__(self, max_minutes: float | None) -> None:
        if max_minutes is not None and not max_minutes > 0:
            raise InputError(f"max_minutes is {max_minutes}, but it must be more than 0.")
        self._end = None if max_minutes is None else time.monotonic() + 60 * max_minutes

    @property
    def minutes_left(self) -> float | None:
        """Minutes until the end, more than 0; None for no limit."""
        return None if self._end is None else max(1e-9, (self._end - time.monotonic()) / 60)

    @property
    def passed(self) -> bool:
        return self._end is not None and time.monotonic() >= self._end


def check_identity(work_dir: Path, identity: Mapping[str, Any]) -> None:
    """Checks that a directory is new, or belongs to the same experiment."""
    path = work_dir / _IDENTITY
    with _readable(work_dir):
        found = read_results(path)
        entries = list(work_dir.iterdir()) if work_dir.is_dir() and not found else []
    if any(not entry.name.startswith(".") for entry in entries):  # a kill may leave hidden ones
        raise InputError(f"{work_dir} exists, but lacks {_IDENTITY}. Name a new directory.")
    if found and (difference := _difference(found, json.loads(json.dumps(identity)))):
        raise InputError(
            f"{work_dir} was started with {difference}. Use the settings, the data and the tests "
            f"that it was started with ({path}), or another directory."
        )


@contextlib.contextmanager
def open_experiment(work_dir: Path, identity: Mapping[str, Any]) -> Iterator[None]:
    """Starts an experiment in a directory.

    If the block writes nothing there, for example because of invalid settings, the directory does
    not change.
    """
    check_identity(work_dir, identity)
    with _readable(work_dir):
        new = [each for each in (work_dir, *work_dir.parents) if not each.exists()]
        work_dir.mkdir(parents=True, exist_ok=True)
        is_first = not (work_dir / _IDENTITY).exists()  # otherwise another process created it
        write_results(work_dir / _IDENTITY, identity)
        try:
            yield
        finally:
            if is_first and [each.name for each in work_dir.iterdir()] == [_IDENTITY]:
                (work_dir / _IDENTITY).unlink()
                with contextlib.suppress(OSError):  # another experiment is in a parent
                    for each in new:
                        each.rmdir()


@contextlib.contextmanager
def _readable(work_dir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{work_dir} cannot be read or written ({error}). Fix this, and run the same command "
            "again."
        ) from error


def _difference(found: Any, expected: Any, place: str = "") -> str | None:
    """Returns the first difference between two JSON values."""
    if not (isinstance(found, dict) and isinstance(expected, dict)):
        return None if found == expected else f"{place} {_shown(found)}, not {_shown(expected)}"
    for key in dict.fromkeys([*expected, *found]):
        below = f"{place}: {key}" if place else key
        if difference := _difference(found.get(key), expected.get(key), below):
            return difference
    return None


def _shown(value: Any) -> str:
    return "(not set)" if value is None else repr(value)


def run_trials(
    trials: Sequence[Trial],
    work_dir: Path,
    deadline: Deadline,
    report: Callable[[dict[str, dict[str, Any]]], object] | None = None,
) -> dict[str, dict[str, Any]]:
    """Runs trials in their order until all are finished or time is over.

    Finished trials are skipped. At least one unfinished trial is run, so every call makes
    progress.
    """
    metadata = run_metadata()  # read now, because the files may change while this process runs
    results: dict[str, dict[str, Any]] = {}
    has_run = False
    for number, trial in enumerate(trials, 1):
        found = read_results(work_dir / trial.name / RESULTS)
        if not found.get("finished"):
            if has_run and deadline.passed:
                break
            if len(trials) > 1:
                title = f" ({trial.title})" if trial.title else ""
                log.info("trial %d of %d: %s%s", number, len(trials), trial.name, title)
            found = run_trial(
                trial, work_dir, deadline, run_metadata() if trial.in_child else metadata
            )
            has_run = True
            if report is not None:
                report({**results, trial.name: found})
        results[trial.name] = found
        if not found["finished"]:
            break
    return results


def run_trial(
    trial: Trial, work_dir: Path, deadline: Deadline, metadata: Mapping[str, Any]
) -> dict[str, Any]:
    """Runs a trial unless it is finished, and writes and returns its results."""
    directory = work_dir / trial.name
    with exclusive_lock(directory):  # held until the results are written
        found = read_results(directory / RESULTS)
        if found.get("finished"):
            return found
        arguments = (directory, deadline.minutes_left, *trial.arguments)
        try:
            if trial.in_child:
                found = child_process.call(trial.function, *arguments)
            else:
                found = trial.function(*arguments)
        except InputError as error:
            raise type(error)(f"{trial.name}: {error}") from error
        results = {**metadata, **trial.facts, **found}
        write_results(directory / RESULTS, results)
        return results


def train(
    directory: Path,
    max_minutes: float | None,
    data_dir: Path,
    settings: Mapping[str, Any],
    *,
    preset_name: str | None = None,
    architecture: type[EncoderDecoder] | None = None,
) -> tuple[TrainingResult, RunDirectory]:
    """Trains or resumes the run of a trial."""
    load_tensorflow()  # here, because the parent process must not hold the GPU
    from keras_transformer.models.transformer import Transformer
    from keras_transformer.runs.run_directory import RunDirectory
    from keras_transformer.training import training_run

    architecture = architecture or Transformer
    run_dir = directory / "run"
    trained = training_run.train(
        data_dir,
        run_dir,
        preset_name,
        settings,
        training_run.TrainOptions(max_minutes=max_minutes),
        architecture=architecture,
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


def costs(trained: TrainingResult, run: RunDirectory) -> dict[str, Any]:
    """Returns the size of a model and the costs of its training, for the results of a trial."""
    return {
        "parameters": run.config.model.num_parameters(),
        "steps": trained.step,
        "training_minutes": round(trained.metrics["training_seconds"] / 60, 1),
        "tokens_per_second": round(trained.tokens_per_second),
        "peak_memory_mb": round(trained.metrics["peak_memory_mb"]),
    }


def results_of(trials: Iterable[Trial], work_dir: Path) -> dict[str, dict[str, Any]]:
    """Returns the results of all calls so far, by the name of the trial."""
    found = {trial.name: read_results(work_dir / trial.name / RESULTS) for trial in trials}
    return {name: results for name, results in found.items() if results}


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Returns the mean and the standard deviation of at least two values, with two decimals."""
    return round(statistics.mean(values), 2), round(statistics.stdev(values), 2)
