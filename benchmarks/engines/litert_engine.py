"""LiteRT: a model file in a process without TensorFlow."""

from __future__ import annotations

import importlib.metadata
import itertools
import queue
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from ai_edge_litert.interpreter import Interpreter
from protocol import Answer, Started
from resources import dirty_mb, resident_mb
from sentence_batches import Ids, without_padding

from engines import tasks

Run = Callable[[dict[str, np.ndarray]], list[int]]  # returns the lengths of the translations
_SIGNATURE = "translate_ids"
_ROUNDS = 3
_FIRST = 30  # tokens of the first translation
_Row = TypeVar("_Row")
_Translate = Callable[[Sequence[Sequence[int]], int], Sequence[int]]
_PACKAGE = "ai-edge-litert"
_IN_MEMORY = ":memory"  # as in `LiteRTModel(low_memory=True)`


def _translate(settings: dict[str, Any]) -> _Translate:
    """Loads a model and returns a function of the source ids of sentences, and `max_length`.

    The function returns the number of tokens of each translation.
    """
    path, threads = settings["path"], settings["threads"]
    if settings["compiled"]:
        run, width = _load_compiled(path, threads, settings.get("weight_cache", _IN_MEMORY))
    else:
        run, width = _load_interpreter(path, threads)

    def translate(rows: Sequence[Sequence[int]], max_length: int) -> list[int]:
        if width is None:
            return run(_inputs(rows, max(map(len, rows)), max_length))
        return [run(_inputs([row], width, max_length))[0] for row in rows]

    return translate


def _inputs(rows: Sequence[Sequence[int]], width: int, max_length: int) -> dict[str, np.ndarray]:
    ids = np.zeros([len(rows), width], np.int32)
    for ids_row, row in zip(ids, rows, strict=True):
        ids_row[: len(row)] = row
    return {
        "ids": ids,
        "lengths": np.array([len(row) for row in rows], np.int32),
        "max_length": np.full(len(rows), max_length, np.int32),
        "length_penalty": np.full(len(rows), np.nan, np.float32),  # NaN: the one of the file
    }


def _load_interpreter(path: str, threads: int) -> tuple[Run, int | None]:
    """Returns a function that runs the signature, and the width of `ids` if it is constant."""
    interpreter = Interpreter(path, num_threads=threads)
    [name] = {"translate_ids", "translate_batch"} & set(interpreter.get_signature_list())
    run = interpreter.get_signature_runner(name)
    if name == "translate_batch":  # as in `LiteRTModel`
        from keras_transformer.extensions.litert.engine import LiteRTModel  # only these need it

        LiteRTModel.keep_freed_memory()
    width = None if name == "translate_batch" else run.get_input_details()["ids"]["shape"][1]
    return lambda inputs: run(**inputs)["lengths"][:, 0].tolist(), width


def _load_compiled(path: str, threads: int, weight_cache: str) -> tuple[Run, int | None]:
    """Returns the same for `CompiledModel`, with a cache of weights in memory or in a file."""
    # Late, as in keras_transformer/extensions/litert/engine.py.
    from ai_edge_litert.compiled_model import CompiledModel, CpuOptions, Options

    cpu = CpuOptions(num_threads=threads, xnnpack_weight_cache_path=weight_cache)
    model = CompiledModel.from_file(path, options=Options(cpu_options=cpu))
    inputs = model.get_input_tensor_details(_SIGNATURE)
    outputs = model.get_output_tensor_details(_SIGNATURE)
    given = {name: model.create_input_buffer_by_name(_SIGNATURE, name) for name in inputs}
    found = {name: model.create_output_buffer_by_name(_SIGNATURE, name) for name in outputs}

    def run(arrays: dict[str, np.ndarray]) -> list[int]:
        for name, array in arrays.items():
            given[name].write(array)
        model.run_by_name(_SIGNATURE, given, found)
        return [int(found["lengths"].read(outputs["lengths"]["shape"][1], np.int32)[0])]

    return run, inputs["ids"]["shape"][1]


def decode_ids(settings: dict[str, Any]) -> Started:
    """Loads a model that decodes ids.

    Args:
        settings: `path`, `threads` of an operation, `compiled`, `pad_id`, the number of
            `sentences_at_once`, and the settings of `tasks.decode_ids`. Each of the parts of a
            batch that are decoded at the same time has an interpreter.
    """
    idle: queue.SimpleQueue[_Translate] = queue.SimpleQueue()
    for _ in range(settings["at_once"]):
        translate = _translate(settings)
        translate([[settings["pad_id"]]], 1)
        idle.put(translate)

    def prepare(ids: Ids) -> list[list[int]]:
        return without_padding(ids, settings["pad_id"])

    def decode(sentences: Sequence[Sequence[int]]) -> Sequence[int]:
        translate = idle.get()
        try:
            batches = _parts(sentences, settings["sentences_at_once"])
            return [length for batch in batches for length in translate(batch, 0)]
        finally:
            idle.put(translate)

    facts, commands = tasks.decode_ids(settings, prepare, decode)
    return {**facts, "versions": {_PACKAGE: importlib.metadata.version(_PACKAGE)}}, commands


def _parts(rows: Sequence[_Row], size: int) -> list[Sequence[_Row]]:
    """Splits rows into parts of nearly the same size, at most 1.5 times `size`.

    A small rest would read all weights for few sentences.
    """
    ends = np.linspace(0, len(rows), max(1, round(len(rows) / size)) + 1, dtype=int)
    return [rows[i:j] for i, j in itertools.pairwise(ends)]


def decode_text(settings: dict[str, Any]) -> Started:
    """Loads an export that decodes text.

    Args:
        settings: the file `export`, `at_once`, and the settings of `tasks.decode_text`.
    """
    from keras_transformer.inference.loading import load_model  # other tasks do not need it

    engine = load_model(settings["export"], threads=settings["at_once"])
    settings = {**settings, "rows": engine.max_batch_lines}  # as in keras-transformer translate
    facts, commands = tasks.decode_text(settings, tasks.first_translations(engine))
    return {**facts, "versions": {_PACKAGE: importlib.metadata.version(_PACKAGE)}}, commands


def load_file(settings: dict[str, Any]) -> Started:
    """Loads a model and translates once; the command `time` times outputs of several lengths.

    Args:
        settings: `path`, `threads`, `compiled`, `weight_cache` (by default in memory), and the
            source `ids`.
    """
    if settings["compiled"]:
        importlib.import_module("ai_edge_litert.compiled_model")  # does not count
    bare_mb, bare_dirty_mb, started = resident_mb(), dirty_mb(), time.perf_counter()
    translate = _translate(settings)
    loaded = time.perf_counter()
    translate([settings["ids"]], _FIRST)
    facts = {
        "load_seconds": loaded - started,
        "first_seconds": time.perf_counter() - loaded,
        "peak_mb": resident_mb() - bare_mb,
        "dirty_mb": dirty_mb() - bare_dirty_mb,
        "package_mb": bare_mb,
    }

    def time_lengths(lengths: Sequence[int]) -> Answer:
        """Returns the milliseconds of a token, by the length of the output."""
        found = {}
        for length in lengths:
            seconds = []
            for _ in range(_ROUNDS):
                started = time.perf_counter()
                [tokens] = translate([settings["ids"]], length)
                seconds.append(time.perf_counter() - started)
            found[tokens] = round(1e3 * statistics.median(seconds) / tokens, 3)
        return found

    return facts, {"time": time_lengths}
