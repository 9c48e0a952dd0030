r"""What a decoder is asked for.

It is started and spoken to as a stepper is (`steppers.protocol.serve`). Made for ids, it
answers "ids ROWS FIRST COUNT" by decoding so many of the batches of so many rows, from that
one on; made for text, it answers "text" by translating a whole file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from steppers.protocol import Answer, CoreUse, peak_memory_mb

from decoders import batches

Started = tuple[Answer, Mapping[str, Callable[[str], Answer]]]
Batch = TypeVar("Batch")

_WARM_UP = 2  # batches


def decode_ids(
    settings: Mapping[str, Any],
    prepare: Callable[[batches.Ids], Batch],
    decode: Callable[[Batch], Sequence[int]],
    shape_of: Callable[[Batch], Any] | None = None,
) -> Started:
    """Warms up, and returns the facts and the commands of a decoder of ids.

    Args:
        settings: `batches`, the file that holds them; in how many parts each is decoded
            `at_once`.
        prepare: from padded ids int32 `[rows, length]` to what the engine takes; not timed.
        decode: translates, and returns the numbers of tokens of the best outputs.
        shape_of: what the engine compiles for, all of which is then warmed up.
    """
    at_once = settings["at_once"]
    prepared = {
        rows: [[prepare(part) for part in np.array_split(ids, min(at_once, rows))] for ids in many]
        for rows, many in batches.read(settings["batches"]).items()
    }
    seconds = []
    for many in prepared.values():
        chosen = [part for parts in many[:_WARM_UP] for part in parts]
        if shape_of is not None:
            chosen = list({shape_of(part): part for parts in many for part in parts}.values())
        for batch in chosen:
            start = time.perf_counter()
            decode(batch)
            seconds.append(time.perf_counter() - start)
    pool = ThreadPoolExecutor(at_once)

    def ids(argument: str) -> Answer:
        rows, first, count = map(int, argument.split())
        chosen = prepared[rows][first : first + count]
        return measure(
            lambda: [
                length
                for parts in chosen
                for lengths in (pool.map(decode, parts) if len(parts) > 1 else map(decode, parts))
                for length in lengths
            ]
        )

    return {"first_seconds": seconds[0], "warm_up_seconds": sum(seconds)}, {"ids": ids}


def decode_text(
    settings: Mapping[str, Any],
    translate: Callable[[list[str]], list[str]],
    compiled: bool = False,
) -> Started:
    r"""Warms up, and returns the facts and the commands of a decoder of text.

    Args:
        settings: `source`, a file of one sentence a line; `rows` of a batch; how many
            batches are translated `at_once`.
        translate: from the lines of a batch, of similar lengths, to their translations.
        compiled: whether every shape has to be met before anything is timed.
    """
    data = Path(settings["source"]).read_bytes().decode()
    lines = data.removesuffix("\n").split("\n")
    groups = batches.sorted_groups([len(line.encode()) for line in lines], settings["rows"])
    start = time.perf_counter()
    for group in groups if compiled else groups[:_WARM_UP]:
        translate([lines[i] for i in group])
    facts = {"warm_up_seconds": time.perf_counter() - start}

    pool = ThreadPoolExecutor(settings["at_once"])

    def text(_: str) -> Answer:
        translations = [""] * len(lines)

        def translate_all() -> list[int]:
            texts = ([lines[i] for i in group] for group in groups)
            for group, translated in zip(groups, pool.map(translate, texts), strict=True):
                for index, translation in zip(group, translated, strict=True):
                    translations[index] = translation
            return [len(translation) for translation in translations]

        return {**measure(translate_all), "translations": translations}

    return facts, {"text": text}


def measure(decode: Callable[[], Sequence[int]]) -> Answer:
    """Decodes, and returns what it cost.

    Args:
        decode: returns the length of the output of each sentence.

    Returns:
        `seconds` in all; `sentences` and the `lengths` of the shortest and the longest output;
        `cores` that this process used and `other_cores` that others did, on average;
        `peak_memory_mb` of the process so far.
    """
    core_use, start = CoreUse(), time.perf_counter()
    lengths = decode()
    seconds = time.perf_counter() - start
    cores, other_cores = core_use.read()
    return {
        "seconds": seconds,
        "sentences": len(lengths),
        "lengths": [int(min(lengths)), int(max(lengths))],
        "cores": cores,
        "other_cores": other_cores,
        "peak_memory_mb": peak_memory_mb(),
    }
