"""A way to take training steps, and the process that takes them."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class Way:
    """One entry of --ways."""

    name: str
    framework: str
    precision: str
    options: tuple[str, ...]

    @classmethod
    def parse(cls, name: str) -> Way:
        """Reads a name.

        Raises:
            ValueError: for one that means nothing.
        """
        framework, _, rest = name.partition(":")
        precision, *options = rest.split(":")
        known = {"keras": ("xla",), "torch": ("compile", "paper_dropout")}.get(framework)
        if known is None or precision not in ("float32", "bfloat16"):
            raise ValueError(name)
        for option in options:
            if option not in known and not (framework == "keras" and option in ("1", "2", "4")):
                raise ValueError(name)
        return cls(name, framework, precision, tuple(options))

    @property
    def replicas(self) -> int:
        return max([int(option) for option in self.options if option.isdigit()], default=1)


class Stepper:
    """A process that takes steps when asked to.

    Attributes:
        way: what it does.
        facts: what it said when it was ready.
        turns: what each turn did and cost, as `protocol.measure` returns it.
    """

    def __init__(self, way: Way, python: str, settings: Mapping[str, Any]):
        """Starts it, and waits until it is ready.

        Args:
            way: what it does.
            python: an interpreter that has what the way needs.
            settings: those of the stepper's `start`.
        """
        self.way = way
        self.turns: list[dict[str, Any]] = []
        benchmarks = Path(__file__).resolve().parent.parent
        paths = [str(benchmarks), str(benchmarks.parent)]
        self._process = subprocess.Popen(
            [python, "-m", f"steppers.{way.framework}_stepper", json.dumps(settings)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )  # fmt: skip
        self.facts = self._answer()

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
        return json.loads(line)

    def take_turn(self, steps: int) -> None:
        """Takes steps, remembers how it went, and says so."""
        turn = self.ask(f"go {steps}")
        self.turns.append(turn)
        print(
            f"{self.way.name}: {self.rates()[-1]:,.0f} tokens/s, loss {turn['loss']:.3f}, "
            f"{turn['other_cores']:.2f} cores busy with others",
            file=sys.stderr, flush=True,
        )  # fmt: skip

    def rates(self) -> list[float]:
        """Target tokens a second, by round."""
        return [turn["target_tokens"] / turn["seconds"] for turn in self.turns]

    def peak_memory_mb(self) -> float:
        return max(turn["peak_memory_mb"] for turn in self.turns)

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
