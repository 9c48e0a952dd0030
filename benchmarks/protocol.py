r"""The subprocess protocol of the benchmarks: a JSON line in, a JSON line out.

A benchmark runs each engine in a separate process, so that engines share neither threads nor
memory, and each can use its own Python interpreter. The process runs this module:

    python -m protocol ENGINE TASK

It reads its settings from the first line of standard input. It imports
`engines/ENGINE_engine.py`, calls `TASK(settings)` there, and prints the facts that `TASK`
returned. After that it answers requests, one JSON line each, until its input ends. A request is
an object whose `command` names one of the functions that `TASK` returned; the other members are
the function's arguments.

This module uses only the standard library. Another interpreter needs only its engine and NumPy.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parent
Answer = dict[str, Any]
Started = tuple[Answer, Mapping[str, Callable[..., Answer]]]  # facts and commands

_OURS = ("engines", "keras_transformer")  # a missing module of ours is a defect
_STOP_S = 60.0
_LONGEST_S = 1e6  # the operating system does not wait for infinity
_SHOWN = 3000  # characters of a failed process's output


class UnavailableError(Exception):
    """An engine cannot run here: a package is missing, or the CPU lacks instructions.

    An engine raises it while it starts. Benchmarks then leave the engine out.
    """


class SlowStartError(Exception):
    """An engine was not ready in time."""


class Child:
    """A process that serves one engine, or any other command that runs until it is stopped.

    Its standard error goes to a temporary file, whose end is part of every error message.

    Args:
        name: name used in messages.
        command: the program and its arguments.
        environment: environment variables; by default those of this process.
        answers: whether the process answers requests on its standard output. If False, its
            standard output goes to the same file as its standard error.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        answers: bool = True,
    ):
        self.name = name
        self.started = time.monotonic()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  closed by close()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if answers else self._output,
            stderr=self._output,
            text=True,
            env=environment,
        )

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def ask(self, command: str, **arguments: Any) -> Answer:
        """Sends a request and returns its answer.

        Raises:
            RuntimeError: if the process ended; the message has the end of its output.
        """
        self._send({"command": command, **arguments})
        return self._receive()

    def _send(self, message: Answer) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `_receive` reports a process that ended
            print(json.dumps(message), file=self._process.stdin, flush=True)

    def _receive(self) -> Answer:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise RuntimeError(f"{self.name} ended with exit code {code}.\n{self._end_of_output()}")
        answer: Answer = json.loads(line)
        return answer

    def wait_for(self, pattern: str, limit_s: float) -> re.Match[str]:
        """Waits until the output has a match of a pattern, and returns the match.

        Raises:
            RuntimeError: if the process ends or `limit_s` seconds pass before.
        """
        while not (found := re.search(pattern, self.output())):
            if self._process.poll() is not None or time.monotonic() > self.started + limit_s:
                self._process.kill()
                raise RuntimeError(f"{self.name} did not start.\n{self._end_of_output()}")
            time.sleep(0.05)
        return found

    def output(self) -> str:
        """Returns everything that the process has written, except for its answers."""
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), size, 0).decode(errors="replace")

    def _end_of_output(self) -> str:
        return self.output()[-_SHOWN:].strip()

    def close(self) -> int:
        """Ends the process and returns its exit code: by the end of its input, else by signals."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        if self._process.stdout is None:  # a server does not read its input
            self._process.terminate()
        try:
            code = self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        if code:
            print(f"{self.name} ended with exit code {code}.", file=sys.stderr)
            print(self._end_of_output(), file=sys.stderr, flush=True)
        self._output.close()
        return code


class EngineChild(Child):
    """A process that serves one engine.

    Args:
        name: name used in messages.
        engine: the module `engines/ENGINE_engine.py`.
        task: the function in that module that starts the engine.
        settings: the function's argument.
        python: the interpreter.
        environment: environment variables to change.
        limit_s: the engine is stopped if it is not ready after this many seconds.

    Attributes:
        facts: the facts that the engine returned when it was ready; `ready_seconds` is the time
            from the start of the process.

    Raises:
        UnavailableError: if the engine cannot run here.
        SlowStartError: if the engine is not ready in time.
        RuntimeError: if the process fails.
    """

    def __init__(
        self,
        name: str,
        engine: str,
        task: str,
        settings: Mapping[str, Any],
        python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
        limit_s: float = float("inf"),
    ):
        paths = os.pathsep.join([str(BENCHMARKS), str(BENCHMARKS.parent)])
        super().__init__(
            name,
            [python, "-m", "protocol", engine, task],
            {**os.environ, "PYTHONPATH": paths, **(environment or {})},
        )
        try:
            self._send(dict(settings))
            # Otherwise the next line would wait for an answer.
            with selectors.DefaultSelector() as selector:
                assert self._process.stdout is not None
                selector.register(self._process.stdout, selectors.EVENT_READ)
                if not selector.select(min(limit_s, _LONGEST_S)):
                    raise SlowStartError(f"{name} was not ready after {limit_s:g} seconds.")
            self.facts = self._receive()
            if "unavailable" in self.facts:
                raise UnavailableError(self.facts["unavailable"])
            if "missing" in self.facts:
                raise UnavailableError(
                    f"{python} has no package {self.facts['missing']}. Install it there, or name "
                    f"another interpreter, as in --engine_python={name.partition(':')[0]}=PYTHON."
                )
        except BaseException:
            self._process.kill()  # close() would print the error that is raised here
            self._process.wait()
            self._output.close()
            raise
        self.facts["ready_seconds"] = time.monotonic() - self.started


def serve(engine: str, task: str) -> None:
    """Starts an engine and answers requests until the standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a library's print must not look like an answer

    def write(answer: Answer) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    settings = json.loads(sys.stdin.readline())
    try:
        module = importlib.import_module(f"engines.{engine}_engine")
        facts, commands = getattr(module, task)(settings)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in _OURS:
            raise
        write({"missing": missing})
        return
    except UnavailableError as error:
        write({"unavailable": str(error)})
        return
    write(facts)
    for line in sys.stdin:
        request = json.loads(line)
        write(commands[request.pop("command")](**request))


if __name__ == "__main__":
    import protocol  # engines import the module by this name, and raise its exceptions

    protocol.serve(*sys.argv[1:])
