r"""How a stepper is spoken to: a line of text in, a line of JSON out.

A stepper is started as `python -m steppers.NAME SETTINGS`, the settings a JSON
object. It makes its model, takes a step on every shape of batch that it will
see, writes its facts, and waits. On "go N" it takes N steps and answers what
`measure` returns. It ends with its input.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from steppers.cost import Lengths, Sizes, training_flop

Answer = dict[str, Any]
Batch = TypeVar("Batch")


def serve(start: Callable[[Answer], tuple[Answer, Mapping[str, Callable[[str], Answer]]]]) -> None:
    """Runs a stepper.

    Args:
        start: from settings to the facts to begin with and the commands: each a
            name, and a function of the text behind it.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no answer

    def write(answer: Answer) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    facts, commands = start(json.loads(sys.argv[1]))
    write(facts)
    for line in sys.stdin:
        name, _, argument = line.strip().partition(" ")
        write(commands[name](argument))


def measure(
    count: int,
    sizes: Sizes,
    next_batch: Callable[[], Batch],
    take_step: Callable[[Batch], Any],
    arrays: Callable[[int], tuple[npt.NDArray[Any], npt.NDArray[Any]]],
    pad_id: int,
) -> Answer:
    """Takes some steps, and returns what they did and cost.

    Args:
        count: number of steps.
        sizes: the model's.
        next_batch: returns a batch, for which the step may have to wait.
        take_step: trains on it and returns something that `float` makes the loss of.
        arrays: source ids and labels, padded, of the i-th batch of these.
        pad_id: what they are padded with.

    Returns:
        `target_tokens` that are real, end ids included; target `positions` with
        padding; `seconds` in all, and `input_wait_seconds` of them; `flop` of real
        tokens' products; `cores` that this process used and `other_cores` that others
        did, on average; the last step's `loss`; `peak_memory_mb` of the process so far.
    """
    losses, wait = [], 0.0
    core_use, start = CoreUse(), time.perf_counter()
    for _ in range(count):
        asked = time.perf_counter()
        batch = next_batch()
        wait += time.perf_counter() - asked
        losses.append(take_step(batch))
    loss = float(losses[-1])
    seconds = time.perf_counter() - start
    cores, other_cores = core_use.read()
    tokens, positions, flop = 0, 0, 0.0
    for source_ids, labels in map(arrays, range(count)):
        source, target = (lengths(ids, pad_id) for ids in (source_ids, labels))
        tokens, positions = tokens + int(target.sum()), positions + labels.size
        flop += training_flop(sizes, source, target)
    return {
        "target_tokens": tokens,
        "positions": positions,
        "seconds": seconds,
        "input_wait_seconds": wait,
        "flop": flop,
        "cores": cores,
        "other_cores": other_cores,
        "loss": loss,
        "peak_memory_mb": peak_memory_mb(),
    }


def warm_up(batches: Iterable[Batch], take_step: Callable[[Batch], Any]) -> Answer:
    """Takes a step on each batch, one of each shape, and returns what there is to tell of it."""
    seconds, losses = [], []
    for batch in batches:
        start = time.perf_counter()
        losses.append(float(take_step(batch)))
        seconds.append(time.perf_counter() - start)
    return {
        "first_loss": losses[0],
        "first_step_seconds": seconds[0],
        "new_shape_seconds": float(np.median(seconds[1:])) if seconds[1:] else None,
        "shapes": len(seconds),
    }


def lengths(ids: npt.NDArray[Any], pad_id: int) -> Lengths:
    """Returns int[rows], the tokens of each row before its padding."""
    return (ids != pad_id).sum(axis=1)


def peak_memory_mb() -> float:
    """Most resident memory that this process has had."""
    status = Path("/proc/self/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


class CoreUse:
    """How many cores this process and all others keep busy, on average since this was made."""

    def __init__(self) -> None:
        self._begin = self._now()

    def read(self) -> tuple[float, float]:
        """Returns the cores of this process and those of others, virtual machines included."""
        wall, own, all_ = (
            now - before for now, before in zip(self._now(), self._begin, strict=True)
        )
        return own / wall, max(all_ - own, 0.0) / wall

    @staticmethod
    def _now() -> tuple[float, float, float]:
        """Seconds by the clock, of this process's work, and of all cores' work."""
        user, nice, system, _, _, irq, softirq, stolen = (
            int(ticks) for ticks in Path("/proc/stat").read_text().split()[1:9]
        )
        ticks = user + nice + system + irq + softirq + stolen
        return time.perf_counter(), time.process_time(), ticks / os.sysconf("SC_CLK_TCK")
