#!/usr/bin/env python3
r"""Measures how training and decoding scale with cores, threads and replicas.

Example:
    benchmarks/scaling.py --data_dir=build/data --source=multi30k/test_2016_flickr.en --cores=1,2

For each number of --cores, processes that are bound to these cores take turns:

* `train, threads`: one training, one replica with a thread for each core;
* `train, replicas`: one training, a replica for each core, which share the global batch;
* `train, processes`: a separate training on each core, all at the same time. This is the
  limit of the machine if nothing is shared, and needs several times the memory;
* `decode, threads`: one search, with all threads in each operation;
* `decode, parts`: each core decodes a part of each batch, with one thread an operation. This is
  how bin/translate.py and the servers work.

All models have random weights and the sizes of --preset.

Prints one JSON object: for each line and number of cores, target tokens or sentences per second,
and `ratio` over the fewest cores with threads, the median over the rounds of the ratio within a
round. If `quiet` is false, other processes used the cores: do not rely on the ratios.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import command
import sentence_batches
from absl import flags
from command import say
from measuring import Turn, describe_machine, is_quiet, ratio, spread, take_turns
from models import SEED, RandomModels, joint_vocabulary, training_settings
from protocol import EngineChild
from variants import Variant

from keras_transformer.data.reading import read_lines
from keras_transformer.errors import InputError
from keras_transformer.presets import preset
from keras_transformer.runs.machine import available_cores

FLAGS = flags.FLAGS
command.define_numbers("cores", [1, 2], "numbers of cores")
flags.DEFINE_string("data_dir", None, "prepared data with a joint vocabulary", required=True)
flags.DEFINE_string("source", None, "sentences to translate, one per line", required=True)
flags.DEFINE_string("preset", "tiny", "sizes of the model")
flags.DEFINE_enum("precision", "bfloat16", ["float32", "bfloat16"], "precision of the products")
flags.DEFINE_integer("batch_tokens", 4096, "target positions of a training batch", lower_bound=1)
flags.DEFINE_integer("rows", 32, "sentences of a batch that is decoded", lower_bound=1)
flags.DEFINE_integer("beam_size", 4, "hypotheses of a sentence", lower_bound=1)
flags.DEFINE_integer("output_tokens", 30, "tokens of every output", lower_bound=1)
flags.DEFINE_integer("steps", 5, "training steps or batches of a turn", lower_bound=1)
flags.DEFINE_integer("rounds", 3, "rounds; all have a turn in each", lower_bound=1)


class Scaling:
    """The processes that are compared, and their turns.

    Args:
        stack: ends the processes.
        folder: a folder for the vocabulary and the batches that are decoded.
    """

    def __init__(self, stack: contextlib.ExitStack, folder: Path):
        self._stack, self._pool = stack, ThreadPoolExecutor(available_cores())
        tokenizer_dir = Path(FLAGS.data_dir) / "tokenizer"
        vocabulary = joint_vocabulary(str(tokenizer_dir), None, 0)
        vocabulary.save(folder)
        sources = vocabulary.encode_source(list(read_lines(Path(FLAGS.source))))
        if len(sources) < FLAGS.rows:
            raise InputError(f"--source has {len(sources)} sentences; a batch needs {FLAGS.rows}.")
        count = FLAGS.rounds * FLAGS.steps
        batches = sentence_batches.sorted_batches(sources, FLAGS.rows, count, SEED)
        sentence_batches.save(folder / "batches.npz", {FLAGS.rows: batches}, vocabulary.pad_id)
        self._models = RandomModels(
            FLAGS.preset, vocabulary, folder, FLAGS.output_tokens, FLAGS.beam_size
        )

    def calls(self, cores: int) -> dict[str, Callable[[int], Turn]]:
        """Starts the processes that use `cores` cores, and returns their turns by name."""
        chosen = sorted(os.sched_getaffinity(0))[:cores]
        calls = {
            f"train, threads, {cores} cores": self._train([self._trainer(chosen)]),
            f"decode, threads, {cores} cores": self._decode(chosen, by_part=False),
        }
        if cores > 1:
            trainers = [self._trainer([core]) for core in chosen]
            replicas = self._trainer(chosen, replicas=cores)
            calls[f"train, replicas, {cores} cores"] = self._train([replicas])
            calls[f"train, processes, {cores} cores"] = self._train(trainers)
            calls[f"decode, parts, {cores} cores"] = self._decode(chosen, by_part=True)
        return calls

    def _start(self, task: str, cores: list[int], settings: dict[str, Any]) -> EngineChild:
        name = f"keras:{FLAGS.precision}"
        variant = Variant(name, "keras", FLAGS.precision, ())
        intraop_threads = 1 if settings.get("at_once", 1) > 1 else len(cores)
        environment = variant.environment(intraop_threads, len(cores))
        settings = {**settings, "cores": cores}
        say(f"Starting {task} on {len(cores)} cores.")
        return self._stack.enter_context(
            EngineChild(name, "keras", task, settings, environment=environment)
        )

    def _trainer(self, cores: list[int], replicas: int = 1) -> EngineChild:
        options = (str(replicas),) if replicas > 1 else ()
        variant = Variant(f"keras:{FLAGS.precision}", "keras", FLAGS.precision, options)
        num_steps = FLAGS.rounds * FLAGS.steps
        settings = training_settings(
            variant, FLAGS.preset, FLAGS.data_dir, FLAGS.batch_tokens, num_steps
        )
        return self._start("train", cores, settings)

    def _train(self, children: list[EngineChild]) -> Callable[[int], Turn]:
        def turn(_: int) -> Turn:
            turns = list(self._pool.map(lambda c: c.ask("train", steps=FLAGS.steps), children))
            others = min(turn["other_cores"] for turn in turns) - (len(turns) - 1)
            return {
                "per_second": sum(turn["per_second"] for turn in turns),
                "other_cores": max(others, 0.0),
                "peak_memory_mb": sum(turn["peak_memory_mb"] for turn in turns),
            }

        return turn

    def _decode(self, cores: list[int], by_part: bool) -> Callable[[int], Turn]:
        variant = Variant(f"keras:{FLAGS.precision}", "keras", FLAGS.precision, ())
        settings = {
            **self._models.settings(variant),
            "precision": FLAGS.precision,
            "compile": False,
            "at_once": len(cores) if by_part else 1,
        }
        child = self._start("decode_ids", cores, settings)

        def turn(number: int) -> Turn:
            first = number * FLAGS.steps
            return child.ask("decode", rows=FLAGS.rows, first=first, count=FLAGS.steps)

        return turn


def compare() -> dict[str, Any]:
    """Measures everything, and returns the results."""
    preset(FLAGS.preset)  # an unknown name fails before anything starts
    available = available_cores()
    numbers = sorted(map(int, FLAGS.cores))
    if numbers[-1] > available:
        raise InputError(f"--cores has {numbers[-1]}, but this process may use {available}.")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        scaling = Scaling(stack, Path(folder))
        calls = {name: call for cores in numbers for name, call in scaling.calls(cores).items()}
        turns = take_turns(calls, FLAGS.rounds)
    results = {}
    for name, many in turns.items():
        fewest = f"{name.partition(',')[0]}, threads, {numbers[0]} cores"
        results[name] = {
            "per_second": spread([turn["per_second"] for turn in many], 1),
            "ratio": ratio(turns, name, fewest),
            "peak_memory_mb": round(max(turn["peak_memory_mb"] for turn in many)),
        }
    return {"results": results, "quiet": is_quiet(turns)}


def main() -> int:
    """Prints the measurements."""
    names = ("preset", "precision", "batch_tokens", "rows", "beam_size", "output_tokens", "steps")
    settings = {name: getattr(FLAGS, name) for name in (*names, "rounds")}
    print(json.dumps({"machine": describe_machine(), "settings": settings, **compare()}))
    return 0


if __name__ == "__main__":
    command.run(main)
