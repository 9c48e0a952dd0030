"""A way to decode, and the process that does."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PRECISIONS = {
    "graph": ("float32", "bfloat16"),
    "xla": ("float32", "bfloat16"),
    "litert": ("float32", "float16", "int8"),
    "ctranslate2": ("float32", "bfloat16", "int8"),
    "transformers": ("float32", "bfloat16"),
    "kerashub": ("float32",),
}
_OPTIONS = {"graph": {"cores"}, "ctranslate2": {"mkl", "cores"}, "kerashub": {"xla"}}
_MODULES = {"graph": "keras_decoder", "xla": "keras_decoder"}  # of others, their own


@dataclasses.dataclass(frozen=True)
class Way:
    """One entry of --ways."""

    name: str
    engine: str
    precision: str
    options: tuple[str, ...]

    @classmethod
    def parse(cls, name: str) -> Way:
        """Reads a name.

        Raises:
            ValueError: for one that means nothing.
        """
        engine, _, rest = name.partition(":")
        precision, *options = rest.split(":")
        others = [option for option in options if not option.isdecimal() or option == "0"]
        known = precision in _PRECISIONS.get(engine, ())
        if not known or not set(others) <= _OPTIONS.get(engine, set()):
            raise ValueError(name)
        return cls(name, engine, precision, tuple(options))

    @property
    def is_own(self) -> bool:
        """Whether it is this package's."""
        return self.engine in ("graph", "xla", "litert")

    @property
    def compiled(self) -> bool:
        """Whether XLA compiles it for each shape."""
        return "xla" in (self.engine, *self.options)

    def threads(self, default: int) -> int:
        """Returns how many threads an operation may use."""
        if "cores" in self.options:
            return 1
        return max([int(option) for option in self.options if option.isdecimal()], default=default)

    def at_once(self, threads: int) -> int:
        """Returns in how many parts a batch is decoded at once."""
        return threads if "cores" in self.options else 1

    def environment(self, threads: int) -> dict[str, str]:
        """Returns the variables of its process, which has `threads` unless the name says more."""
        variables = {k: v for k, v in os.environ.items() if k != "CT2_USE_MKL"}
        if self.is_own or self.engine == "kerashub":
            variables["TF_NUM_INTRAOP_THREADS"] = str(self.threads(threads))
            variables["TF_NUM_INTEROP_THREADS"] = str(threads)
        if "mkl" in self.options:
            variables["CT2_USE_MKL"] = "1"
        return variables


class Decoder:
    """A process that decodes when asked to.

    Attributes:
        way: what it does.
        facts: what it said when it was ready.
        ready_seconds: from its start until then, warmed up.
    """

    def __init__(self, way: Way, python: str, settings: Mapping[str, Any], threads: int):
        """Starts it, and waits until it is ready.

        Args:
            way: what it does.
            python: an interpreter that has what the way needs.
            settings: those of the decoder's `start` that its name does not say.
            threads: of a way whose name says no other number.
        """
        self.way = way
        benchmarks = Path(__file__).resolve().parent.parent
        paths = os.pathsep.join([str(benchmarks), str(benchmarks.parent)])
        module = _MODULES.get(way.engine, f"{way.engine}_decoder")
        named = {
            "precision": way.precision,
            "threads": way.threads(threads),
            "at_once": way.at_once(threads),
            "compile": way.compiled,
        }
        start = time.perf_counter()
        self._process = subprocess.Popen(
            [python, "-m", f"decoders.{module}", json.dumps({**settings, **named})],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
            env={**way.environment(threads), "PYTHONPATH": paths},
        )  # fmt: skip
        self.facts = self._answer()
        self.ready_seconds = time.perf_counter() - start

    def ask(self, line: str) -> dict[str, Any]:
        """Sends a command and waits for its answer."""
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.way.name} ended with code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
