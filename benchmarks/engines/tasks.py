"""The tasks of all engines: training, and decoding of ids or text.

An engine's module defines some of the functions `train`, `decode_ids` and `decode_text`. Each
prepares the engine, calls the function of the same name here, and returns its result: the facts and
the commands of the process (see `protocol.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import sentence_batches
from cost import Sizes, training_flop
from protocol import Answer, Started
from resources import CoreUse, resident_mb

Batch = TypeVar("Batch")
Arrays = tuple[npt.NDArray[Any], npt.NDArray[Any]]  # source ids and labels, padded

_WARM_UP = 2  # batches
_PROFILED = 3  # times that a batch is decoded for a profile


def turn(started: float, core_use: CoreUse, count: int) -> Answer:
    """Returns the costs of a turn that has just ended.

    Args:
        started: `time.perf_counter()` at its start.
        core_use: created at its start.
        count: number of tokens or sentences that were processed.
    """
    seconds = time.perf_counter() - started
    cores, other_cores = core_use.read()
    return {
        "seconds": seconds,
        "per_second": count / seconds,
        "cores": cores,
        "other_cores": other_cores,
        "peak_memory_mb": resident_mb(),
    }


def train(
    sizes: Sizes,
    pad_id: int,
    shapes: Iterable[Batch],
    next_batch: Callable[[int], tuple[Batch, Callable[[], Arrays]]],
    take_step: Callable[[Batch], Any],
    device_mb: Callable[[], float] | None = None,
) -> Started:
    """Warms up on every shape of batch; the command `train` takes `steps` steps.

    Args:
        sizes: sizes of the model.
        pad_id: padding id of the arrays.
        shapes: one batch of each shape.
        next_batch: returns the batch of a step, and a function that returns its arrays.
        take_step: trains on a batch; `float` of the result is the loss.
        device_mb: returns the most memory of a GPU so far.
    """
    seconds, losses, ended = [], [], 0.0
    for batch in shapes:
        started = time.perf_counter()
        losses.append(float(take_step(batch)))
        seconds.append(time.perf_counter() - started)
        ended = ended or time.monotonic()
    facts = {
        "first_loss": losses[0],
        "first_step_seconds": seconds[0],
        "new_shape_seconds": float(np.median(seconds[1:])) if seconds[1:] else None,
        "shapes": len(seconds),
        "shape_seconds": [round(duration, 1) for duration in seconds],
        "first_ended": ended,  # on the clock that all processes share
    }
    step = 0

    def train(steps: int) -> Answer:
        nonlocal step
        taken, wait = [], 0.0
        core_use, started = CoreUse(), time.perf_counter()
        for _ in range(steps):
            asked = time.perf_counter()
            batch, arrays = next_batch(step)
            wait += time.perf_counter() - asked
            loss = take_step(batch)
            taken.append(arrays)
            step += 1
        loss = float(loss)
        costs = turn(started, core_use, 0)
        counted = [_count(sizes, pad_id, *arrays()) for arrays in taken]
        tokens, positions, flop = (sum(column) for column in zip(*counted, strict=True))
        return {
            **costs,
            "per_second": tokens / costs["seconds"],
            "flop_per_second": flop / costs["seconds"],
            "real_share_of_positions": tokens / positions,
            "input_wait_share": wait / costs["seconds"],
            "loss": loss,
            **({} if device_mb is None else {"device_memory_mb": device_mb()}),
        }

    return facts, {"train": train}


def _count(
    sizes: Sizes, pad_id: int, source_ids: npt.NDArray[Any], labels: npt.NDArray[Any]
) -> tuple[int, int, float]:
    """Returns the real target tokens, the target positions and the FLOP of real tokens."""
    source, target = ((ids != pad_id).sum(axis=1) for ids in (source_ids, labels))
    return int(target.sum()), labels.size, training_flop(sizes, source, target)


def decode_ids(
    settings: Mapping[str, Any],
    prepare: Callable[[sentence_batches.Ids], Batch],
    decode: Callable[[Batch], Sequence[int]],
    shape_of: Callable[[Batch], Any] | None = None,
    profile: Callable[[Callable[[], Any], int], Answer] | None = None,
) -> Started:
    """Warms up; the command `decode` decodes `count` of the batches that have `rows` rows.

    Args:
        settings: `batches`, the file that holds them; `at_once`, the number of parts of a batch
            that are decoded at the same time.
        prepare: converts padded ids int32 `[rows, length]` to the engine's input; not timed.
        decode: translates, and returns the number of tokens of the best outputs.
        shape_of: returns the shape that the engine compiles for; if given, all shapes are
            warmed up.
        profile: profiles a call, repeated a number of times. The command `profile` profiles the
            decoding of a batch.
    """
    at_once = settings["at_once"]
    prepared = {
        rows: [[prepare(part) for part in np.array_split(ids, min(at_once, rows))] for ids in many]
        for rows, many in sentence_batches.read(settings["batches"]).items()
    }
    started = time.perf_counter()
    for many in prepared.values():
        chosen = [part for parts in many[:_WARM_UP] for part in parts]
        if shape_of is not None:
            chosen = list({shape_of(part): part for parts in many for part in parts}.values())
        for batch in chosen:
            decode(batch)
    facts = {"warm_up_seconds": time.perf_counter() - started}
    pool = ThreadPoolExecutor(at_once)

    def decode_batches(rows: int, first: int, count: int) -> Answer:
        lengths: list[int] = []
        core_use, started = CoreUse(), time.perf_counter()
        for parts in prepared[rows][first : first + count]:
            results = pool.map(decode, parts) if len(parts) > 1 else map(decode, parts)
            lengths += [length for result in results for length in result]
        extremes = [int(min(lengths)), int(max(lengths))]
        return {**turn(started, core_use, len(lengths)), "lengths": extremes}

    def profile_batches(rows: int) -> Answer:
        assert profile is not None
        [batch, *_], *_ = prepared[rows]
        return profile(lambda: decode(batch), _PROFILED)

    commands: dict[str, Callable[..., Answer]] = {"decode": decode_batches}
    return facts, {**commands, **({} if profile is None else {"profile": profile_batches})}


def first_translations(engine: Any) -> Callable[[list[str]], list[str]]:
    """Returns a function that translates lines with an engine of keras_transformer."""

    def translate(lines: list[str]) -> list[str]:
        text = np.array([line.encode() for line in lines], object)
        return [row[0].decode() for row in np.asarray(engine.translate(text)["translations"])]

    return translate


def decode_text(
    settings: Mapping[str, Any], translate: Callable[[list[str]], list[str]], compiled: bool = False
) -> Started:
    """Warms up; the command `decode` translates the whole file.

    Args:
        settings: `source`, a file of one sentence a line; `rows` of a batch; `at_once`, the
            number of batches that are translated at the same time; `warm_up`, whether to
            translate the first batches before (by default yes).
        translate: returns the translations of the lines of a batch.
        compiled: if True, all batches are warmed up.
    """
    lines = Path(settings["source"]).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    groups = sentence_batches.sorted_groups(
        [-len(line.encode()) for line in lines], settings["rows"]
    )  # the longest first, so that all cores end at about the same time
    started = time.perf_counter()
    warm_up = groups if compiled else groups[:_WARM_UP]
    for group in warm_up if settings.get("warm_up", True) else []:
        translate([lines[i] for i in group])
    facts = {"rows": settings["rows"], "warm_up_seconds": time.perf_counter() - started}
    pool = ThreadPoolExecutor(settings["at_once"])

    def decode() -> Answer:
        translations = [""] * len(lines)
        texts = ([lines[i] for i in group] for group in groups)
        core_use, started = CoreUse(), time.perf_counter()
        for group, translated in zip(groups, pool.map(translate, texts), strict=True):
            for index, translation in zip(group, translated, strict=True):
                translations[index] = translation
        return {**turn(started, core_use, len(lines)), "translations": translations}

    return facts, {"decode": decode}
