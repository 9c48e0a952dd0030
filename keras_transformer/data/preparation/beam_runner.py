"""The stages of a preparation on Apache Beam: on Flink, Spark, Dataflow, or here."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import logging
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from keras_transformer.data.preparation.workers import Result
from keras_transformer.errors import InputError, StoppedError
from keras_transformer.runs.atomic import atomic_path

try:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import (
        PipelineOptions,
        SetupOptions,
        StandardOptions,
    )
    from apache_beam.runners.runner import create_runner
except ModuleNotFoundError as missing:
    raise InputError(
        "the package apache-beam is missing; expected keras_transformer[beam] to be installed"
    ) from missing

_Source = TypeVar("_Source")
_Task = TypeVar("_Task")


class BeamRunner:
    """Runs each stage as a pipeline, as `keras_transformer.data.preparation.workers.Runner` says.

    All machines must see the same files under the same names: what is read, and the
    directory that is written. Results are the same as anywhere.
    """

    def __init__(self, directory: str | Path, options: Sequence[str] = ()) -> None:
        """Makes a runner.

        Args:
            directory: an existing one in which results are passed to this process.
            options: of the pipelines, as on Beam's command lines, `--runner=FlinkRunner`;
                without a runner it is the DirectRunner, in this process.
        """
        self._directory = Path(directory).absolute()
        self._options = list(options)
        # Looked at before anything is done; argparse prints pages, and ends the process.
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                parsed = self._parsed()
                parsed.get_all_options()
                create_runner(parsed.view_as(StandardOptions).runner or "DirectRunner")
        except (Exception, SystemExit) as error:
            raise InputError(
                f"Apache Beam does not take {' '.join(options)} ({_reason(error)}); expected its "
                "options, as in --runner=DirectRunner"
            ) from error

    def _parsed(self) -> Any:
        options = PipelineOptions(self._options)
        options.view_as(SetupOptions).save_main_session = False
        return options

    def __call__(
        self,
        stage: Callable[[_Task], Result],
        sources: Sequence[_Source],
        expand: Callable[[_Source], Iterable[_Task]],
    ) -> Iterator[Result]:
        """Yields the results, once all are there."""
        results = self._directory / f".beam-{uuid.uuid4().hex}"
        results.mkdir()
        try:
            self._run(_Stage(stage, expand, results), list(enumerate(sources)))
            # What comes first goes wrong first, whatever machine it was on.
            for path in sorted(results.glob("*.json")):
                result = json.loads(path.read_bytes())
                if "error" in result:
                    raise InputError(result["error"])
                if "unwritten" in result:
                    raise OSError(result["unwritten"])
                yield result
        finally:
            shutil.rmtree(results, ignore_errors=True)

    def _run(self, stage: _Stage[Any, Any], sources: list[tuple[int, Any]]) -> None:
        logging.getLogger("apache_beam").setLevel(logging.WARNING)
        try:
            with beam.Pipeline(options=self._parsed()) as pipeline:
                (
                    pipeline
                    | "sources" >> beam.Create(sources)
                    | "one by one" >> beam.Reshuffle()
                    | "tasks" >> beam.FlatMap(stage.tasks)
                    | "spread" >> beam.Reshuffle()
                    | "work" >> beam.Map(stage.work)
                )
        except Exception as error:  # what runners raise is of many kinds
            raise StoppedError(
                f"Apache Beam, with {' '.join(self._options) or 'no options'}, has not done its "
                f"work ({_reason(error)}); the same command continues"
            ) from error


def _reason(error: BaseException) -> str:
    """Returns the last line of what is wrong, which tracebacks end with."""
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


class _Stage(Generic[_Source, _Task]):
    """A stage whose results and errors become files, numbered by source and task."""

    def __init__(
        self,
        stage: Callable[[_Task], Result],
        expand: Callable[[_Source], Iterable[_Task]],
        results: Path,
    ) -> None:
        self._stage = stage
        self._expand = expand
        self._results = results

    def tasks(self, numbered: tuple[int, _Source]) -> Iterator[tuple[str, _Task]]:
        """Yields the tasks of a source."""
        number, source = numbered
        tasks = iter(self._expand(source))
        for index in itertools.count():
            name = f"{number:06d}-{index:06d}"
            try:
                task = next(tasks, None)
            except InputError as error:
                self._write(name, {"error": str(error)})
                return
            if task is None:
                return
            yield name, task

    def work(self, named: tuple[str, _Task]) -> None:
        """Does a task."""
        name, task = named
        try:
            self._write(name, self._stage(task))
        except InputError as error:
            self._write(name, {"error": str(error)})
        except OSError as error:
            self._write(name, {"unwritten": str(error)})

    def _write(self, name: str, result: Result) -> None:
        # A bundle may be done twice: what counts is that the result is whole.
        with atomic_path(self._results / f"{name}.json") as partial:
            partial.write_text(json.dumps(result), encoding="utf-8")
