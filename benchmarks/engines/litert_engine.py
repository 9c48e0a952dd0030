"""LiteRT: a model file in a process without TensorFlow."""

from __future__ import annotations

import importlib.metadata
import queue
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from protocol import Answer, Started
from resources import resident_mb
from sentence_batches import Ids, without_padding

from engines import tasks

_ROUNDS = 3
_FIRST = 30  # tokens of the first translation
_PACKAGE = "ai-edge-litert"


def _translate(settings: dict[str, Any]) -> Callable[[Sequence[int], int], int]:
    """Loads a model and returns a function of source ids and `max_length`.

    The function returns the number of tokens of the translation.
    """
    options = {}
    if settings.get("low_memory"):  # without XNNPACK, whose kernels copy the weights
        kind = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        options["experimental_op_resolver_type"] = kind
    interpreter = Interpreter(settings["path"], num_threads=settings["threads"], **options)
    run = interpreter.get_signature_runner("translate_ids")

    def translate(ids: Sequence[int], max_length: int) -> int:
        outputs = run(
            ids=np.array([ids], np.int32),
            max_length=np.array([max_length], np.int32),
            length_penalty=np.array([np.nan], np.float32),  # NaN: the length penalty of the file
        )
        return int(outputs["lengths"][0, 0])

    return translate


def decode_ids(settings: dict[str, Any]) -> Started:
    """Loads a model that decodes ids, sentence by sentence.

    Args:
        settings: `path`, `threads` of an operation, `pad_id`, and the settings of
            `tasks.decode_ids`. Each of the parts of a batch that are decoded at the same time has
            an interpreter.
    """
    idle: queue.SimpleQueue[Callable[[Sequence[int], int], int]] = queue.SimpleQueue()
    for _ in range(settings["at_once"]):
        translate = _translate(settings)
        translate([settings["pad_id"]], 1)
        idle.put(translate)

    def prepare(ids: Ids) -> list[list[int]]:
        return without_padding(ids, settings["pad_id"])

    def decode(sentences: Sequence[Sequence[int]]) -> Sequence[int]:
        translate = idle.get()
        try:
            return [translate(ids, 0) for ids in sentences]
        finally:
            idle.put(translate)

    facts, commands = tasks.decode_ids(settings, prepare, decode)
    return {**facts, "versions": {_PACKAGE: importlib.metadata.version(_PACKAGE)}}, commands


def decode_text(settings: dict[str, Any]) -> Started:
    """Loads an export that decodes text, as bin/translate.py does.

    Args:
        settings: the file `export`, `at_once`, and the settings of `tasks.decode_text`.
    """
    from keras_transformer.inference.litert import LiteRTModel  # late: not for other tasks

    model = LiteRTModel(settings["export"], settings["at_once"])

    def translate(lines: list[str]) -> list[str]:
        return [model.translate(line)[0].text for line in lines]

    facts, commands = tasks.decode_text(settings, translate)
    return {**facts, "versions": {_PACKAGE: importlib.metadata.version(_PACKAGE)}}, commands


def start_up(settings: dict[str, Any]) -> Started:
    """Loads a model and translates once; the command `time` times outputs of several lengths.

    Args:
        settings: `path`, `threads`, `low_memory`, and the source `ids`.
    """
    bare_mb, started = resident_mb(), time.perf_counter()
    translate = _translate(settings)
    loaded = time.perf_counter()
    translate(settings["ids"], _FIRST)
    facts = {
        "load_seconds": loaded - started,
        "first_seconds": time.perf_counter() - loaded,
        "peak_mb": resident_mb() - bare_mb,
        "package_mb": bare_mb,
    }

    def time_lengths(lengths: Sequence[int]) -> Answer:
        """Returns the milliseconds of a token, by the length of the output."""
        found = {}
        for length in lengths:
            seconds = []
            for _ in range(_ROUNDS):
                started = time.perf_counter()
                tokens = translate(settings["ids"], length)
                seconds.append(time.perf_counter() - started)
            found[tokens] = round(1e3 * statistics.median(seconds) / tokens, 3)
        return found

    return facts, {"time": time_lengths}
