#!/usr/bin/env python3
r"""Starts exported models up in new processes, this package's, CTranslate2's and MarianMT's.

Examples:
    benchmarks/startup.py --vocabulary=build/data/tokenizer --peers_python=peers/bin/python
    benchmarks/startup.py --model_dir=build/run

All models have the sizes of one preset and random weights, or, with --model_dir, this package
and CTranslate2 the weights of a run. They are exported first, as bin/export.py does
it, which is not timed. A way is ENGINE:PRECISION: saved_model:float32,
saved_model:bfloat16, ctranslate2:float32, ctranslate2:int8, transformers:float32.

In each round every way has a process of its own, in another order each time, which imports
what it needs, loads the model, and translates --sentence twice, text in and text out, by
beam search to exactly --steps tokens. The files have been read before, and are in the
system's cache.

Prints one JSON object: for each way the medians over the rounds (least and most) of the
seconds of each import, of the load, of both translations, of load and first translation
(`own`), of these without what the second takes, the translation itself (`start`), and of all
from the start of the process to the first translation; resident memory after the imports,
after the load, and at its peak; for a SavedModel what its graph consists of, and `graph_load`,
a load without the values of the variables. `quiet` says whether other processes left the
cores alone.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import command
from absl import flags, logging
from decoders import machine
from decoders.comparison import Turns, quiet, say, spread
from steppers.cost import Sizes
from steppers.protocol import CoreUse

from keras_transformer.config import Config
from keras_transformer.errors import InputError
from keras_transformer.presets import preset
from keras_transformer.runs.run_directory import RunDirectory

FLAGS = flags.FLAGS
flags.DEFINE_string("size", "base", "preset of the random models")
flags.DEFINE_string("vocabulary", None, "folder that holds joint.model; for random models")
flags.DEFINE_string("model_dir", None, "run directory of a trained model, in place of random ones")
flags.DEFINE_list("ways", None, "what to compare; see above")
flags.DEFINE_string("peers_python", None, "a Python with ctranslate2, transformers, sentencepiece")
flags.DEFINE_string(
    "sentence", "Two young, White males are outside near many bushes.", "what is translated"
)
flags.DEFINE_integer("steps", 30, "tokens of every output", lower_bound=1)
flags.DEFINE_integer("beam_size", 4, "hypotheses of the sentence", lower_bound=1)
flags.DEFINE_integer("runs", 5, "rounds, in each of which all start once", lower_bound=1)
flags.DEFINE_integer("threads", 2, "threads of each way", lower_bound=1)

OWN = ["saved_model:float32", "saved_model:bfloat16"]
CTRANSLATE2 = ["ctranslate2:float32", "ctranslate2:int8"]
MARIAN = ["transformers:float32"]
LENGTH_PENALTY = 0.6
SEED = 0


def compare(ways: Sequence[str], folder: Path) -> dict[str, Any]:
    """Makes the models in `folder`, starts them, and returns what is printed of them."""
    run = _random_run(folder / "run") if FLAGS.model_dir is None else RunDirectory(FLAGS.model_dir)
    paths = {way: _export(way, run, folder / way.replace(":", "-")) for way in ways}
    for way, path in paths.items():  # reads all files, and compiles what Python has not yet
        _start(way, path)
    turns: Turns = {way: [] for way in ways}
    for number in range(FLAGS.runs):
        say(f"round {number + 1}")
        first = number % len(ways)
        for way in [*ways[first:], *ways[:first]]:
            turn = _start(way, paths[way])
            turns[way].append(turn)
            say(
                f"{way}: load {turn['load_seconds']:.2f} s, first {turn['first_seconds']:.2f} s, "
                f"{turn['other_cores']:.2f} cores busy with others"
            )
    reports = {way: {**_summary(turns[way]), **_contents(way, paths[way])} for way in ways}
    return {"parameters": _parameters(run), "ways": reports, "quiet": quiet(turns)}


def _start(way: str, path: Path) -> dict[str, Any]:
    """Returns what a process of its own says of its start."""
    engine, _, precision = way.partition(":")
    benchmarks = Path(__file__).resolve().parent
    settings = {
        "path": str(path),
        "precision": precision,
        "sentence": FLAGS.sentence,
        "steps": FLAGS.steps,
        "beam_size": FLAGS.beam_size,
        "length_penalty": LENGTH_PENALTY,
        "threads": FLAGS.threads,
    }
    environment = {
        **os.environ,
        "PYTHONPATH": str(benchmarks),
        "TF_NUM_INTRAOP_THREADS": str(FLAGS.threads),
        "TF_NUM_INTEROP_THREADS": str(FLAGS.threads),
    }
    cores, before = CoreUse(), os.times()
    settings["started"] = begun = time.monotonic()
    output = subprocess.run(
        [_python(engine), "-m", f"starters.{engine}_starter", json.dumps(settings)],
        env=environment, check=True, stdout=subprocess.PIPE,
    ).stdout  # fmt: skip
    seconds, after = time.monotonic() - begun, os.times()
    children = sum(after[2:4]) - sum(before[2:4])  # user's and system's time of the process
    answer: dict[str, Any] = json.loads(output)
    return {**answer, "other_cores": max(cores.read()[1] - children / seconds, 0.0)}


def _python(engine: str) -> str:
    interpreter: str = sys.executable if engine == "saved_model" else FLAGS.peers_python
    return interpreter


def _export(way: str, run: RunDirectory, folder: Path) -> Path:
    """Makes the model of a way, and returns its path."""
    from keras_transformer.export import ExportOptions, export  # late: TensorFlow takes seconds

    say(f"{way}: exporting")
    engine, _, precision = way.partition(":")
    if engine == "transformers":
        _make_marian(run, folder)
        return folder
    sentences = [FLAGS.sentence]
    if engine == "ctranslate2":
        quantization = "none" if precision == "float32" else precision
        options = ExportOptions(quantization=quantization)
        return export(run, folder, sentences, options, format="ctranslate2").path
    options = ExportOptions()
    if precision != "float32":  # of random weights no BLEU can be lost
        options = ExportOptions(precision=precision, references=sentences, max_bleu_loss=100.0)
    settings = {
        "decoding.beam_size": FLAGS.beam_size,
        "decoding.n_best": 1,
        "decoding.length_penalty": LENGTH_PENALTY,
        "decoding.min_length": FLAGS.steps,
        "decoding.max_length": FLAGS.steps,
    }
    return export(run, folder, sentences, options, settings=settings).path


def _make_marian(run: RunDirectory, path: Path) -> None:
    model = run.config.model
    settings = {
        "path": str(path),
        "vocabulary": str(run.path / "tokenizer" / "joint.model"),
        "sizes": {field.name: getattr(model, field.name) for field in dataclasses.fields(Sizes)},
        "special_ids": {
            name: getattr(model, f"{name}_id") for name in ("pad", "unknown", "start", "end")
        },
        "steps": FLAGS.steps,
        "seed": SEED,
    }
    subprocess.run(
        [FLAGS.peers_python, "-m", "starters.transformers_starter", "make", json.dumps(settings)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent)},
        check=True, stdout=sys.stderr,
    )  # fmt: skip


def _random_run(path: Path) -> RunDirectory:
    import keras  # late, as above

    from keras_transformer.models.transformer import Transformer
    from keras_transformer.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(FLAGS.vocabulary)
    if not tokenizer.joint:
        raise InputError(f"{FLAGS.vocabulary} holds two vocabularies; expected a joint one")
    config: Config = preset(FLAGS.size).updated(
        {
            "model.source_vocab_size": tokenizer.source_vocab_size,
            "model.target_vocab_size": tokenizer.target_vocab_size,
            **{
                f"model.{name}_id": getattr(tokenizer, f"{name}_id")
                for name in ("pad", "unknown", "start", "end")
            },
        }
    )
    keras.utils.set_random_seed(SEED)
    model = Transformer(config.model, dtype="float32")
    model.build()
    run = RunDirectory.create(path, config, tokenizer, "random weights")
    weights = {path: variable.numpy() for path, variable in model.weights_by_path().items()}
    run.save_checkpoint(0, weights, {}, {})
    return run


def _parameters(run: RunDirectory) -> int:
    return sum(array.size for array in run.selected_weights().values())


def _summary(turns: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns median, least and most of every number, in the turns' own structure."""
    values = defaultdict(list)
    for turn in turns:
        for name, value in turn.items():
            values[name].append(value)
    return {
        name: _summary(many) if isinstance(many[0], dict) else spread(many, 3)
        for name, many in values.items()
    }


def _contents(way: str, path: Path) -> dict[str, Any]:
    """Returns the bytes of a model, and what the graph of a SavedModel consists of."""
    sizes = {file: file.stat().st_size for file in path.rglob("*") if file.is_file()}
    contents: dict[str, Any] = {"bytes": sum(sizes.values())}
    if not way.startswith("saved_model:"):
        return contents
    from tensorflow.core.protobuf import saved_model_pb2  # late, as above

    file = path / "saved_model.pb"
    [graph] = saved_model_pb2.SavedModel.FromString(file.read_bytes()).meta_graphs
    functions = graph.graph_def.library.function
    return {
        **contents,
        "graph_bytes": sizes[file],
        "signatures": len(graph.signature_def),
        "functions": len(functions),
        "nodes": sum(len(function.node_def) for function in functions),
    }


def _named_ways() -> list[str]:
    names: list[str] | None = FLAGS.ways
    peers = CTRANSLATE2 + (MARIAN if FLAGS.model_dir is None else [])
    if names is None:
        return OWN + (peers if FLAGS.peers_python else [])
    for name in names:
        if name not in OWN + peers:
            raise InputError(f"--ways names {name}; expected some of {', '.join(OWN + peers)}")
        if name not in OWN and not FLAGS.peers_python:
            raise InputError(
                f"--ways names {name}; expected --peers_python, an interpreter that has it"
            )
    return names


flags.register_multi_flags_validator(
    ["model_dir", "vocabulary"],
    lambda values: (values["model_dir"] is None) != (values["vocabulary"] is None),
    "expected either --model_dir or --vocabulary",
)


def main() -> int:
    """Prints the measurements."""
    logging.set_verbosity(logging.WARNING)  # TensorFlow has much to say of what it saves
    ways = _named_ways()
    if FLAGS.model_dir is None:
        preset(FLAGS.size)  # a wrong name is told before anything is made
    with tempfile.TemporaryDirectory() as folder:
        result = compare(ways, Path(folder))
    names = ("size", "steps", "beam_size", "runs", "threads")
    settings = {name: getattr(FLAGS, name) for name in names}
    print(json.dumps({"machine": machine.describe(), "settings": settings, **result}))
    return 0


if __name__ == "__main__":
    command.run(main)
