#!/usr/bin/env python3
r"""Times the start of exported models of this package, CTranslate2 and MarianMT.

Examples:
    benchmarks/startup.py --vocabulary=build/data/tokenizer \
        --engine_python=transformers=peers/bin/python
    benchmarks/startup.py --model_dir=build/run

All models have random weights and the sizes of one preset. With --model_dir, this package and
CTranslate2 have the weights of a run. The models are exported first, which is not timed. Engines
are saved_model (float32, bfloat16, int8), litert (float32, int8, and int8:compiled with less
memory), ctranslate2 (float32, int8), marian (float32, int8) and transformers (float32).

In each round every engine starts once in a new process. The process imports its packages, loads
the model, and translates --sentence twice, from text to text, by beam search to exactly --steps
tokens. The files have been read before and are in the system's cache.

Prints one JSON object. For each engine: seconds of the imports, of the load and of both
translations; `own_seconds`, load and first translation; `start_seconds`, own_seconds without the
time of the second translation; `all_seconds`, from the start of the process to the first
translation; resident memory after the imports, after the load, and at its peak; and for a
SavedModel the contents of its graph and the time to load the graph without weights. Marian's
sentence has --steps / 2 words without a meaning. `ratios` compares `own_seconds`; larger than 1
means that ours is faster.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import command
from absl import flags, logging
from command import say
from measuring import Turn, best_ratios, describe_machine, is_quiet, spread, take_turns
from models import LENGTH_PENALTY, SEED, random_run, sizes_of, special_ids
from protocol import EngineChild, UnavailableError
from resources import CoreUse
from variants import Variant, chosen, define_engines, grouped, python_of

from keras_transformer.errors import InputError
from keras_transformer.presets import preset
from keras_transformer.runs.run_directory import RunDirectory

FLAGS = flags.FLAGS
flags.DEFINE_string("size", "base", "preset of the random models")
flags.DEFINE_string("vocabulary", None, "folder that holds joint.model; for random models")
flags.DEFINE_string("model_dir", None, "run directory of a trained model, instead of random ones")
flags.DEFINE_string(
    "sentence", "Two young, White males are outside near many bushes.", "sentence to translate"
)
flags.DEFINE_integer("steps", 30, "tokens of every output", lower_bound=1)
flags.DEFINE_integer("beam_size", 4, "hypotheses of the sentence", lower_bound=1)
flags.DEFINE_integer("rounds", 5, "rounds; every engine starts once in each", lower_bound=1)
flags.DEFINE_integer("threads", 2, "threads of each engine", lower_bound=1)

KNOWN = {
    "saved_model": (["float32", "bfloat16", "int8"], []),
    "litert": (["float32", "int8"], ["compiled"]),
    "ctranslate2": (["float32", "int8"], []),
    "marian": (["float32", "int8"], []),
    "transformers": (["float32"], []),
}


def compare(variants: Sequence[Variant], folder: Path) -> dict[str, Any]:
    """Makes the models in `folder`, starts them, and returns the results."""
    if FLAGS.model_dir is None:
        run = random_run(folder / "run", FLAGS.size, FLAGS.vocabulary)
    else:
        run = RunDirectory(FLAGS.model_dir)
    paths: dict[str, Path] = {}
    left_out: dict[str, str] = {}
    for variant in variants:
        say(f"Exporting for {variant.name}.")
        path = folder / variant.name.replace(":", "-")
        try:
            paths[variant.name] = _export(variant, run, path)
            _start(variant, paths[variant.name])  # reads all files, compiles Python's modules
        except UnavailableError as error:
            say(f"{variant.name} is left out: {error}")
            left_out[variant.name] = str(error)
            paths.pop(variant.name, None)
    variants = [variant for variant in variants if variant.name in paths]
    calls = {v.name: lambda _, v=v: _start(v, paths[v.name]) for v in variants}
    turns = take_turns(calls, FLAGS.rounds, "starts/s")
    engines = {}
    for name, many in turns.items():
        spreads = {key: spread([turn[key] for turn in many], 3) for key in many[0]}
        engines[name] = {**spreads, **_contents(paths[name])}
    return {
        "parameters": sum(array.size for array in run.selected_weights().values()),
        "engines": engines,
        "ratios": best_ratios(turns, *grouped(variants)),
        "quiet": is_quiet(turns),
        "left_out": left_out,
    }


def _start(variant: Variant, path: Path) -> Turn:
    """Starts an engine in a new process, and returns the times and the memory of its start."""
    settings = {
        "path": str(path),
        "precision": variant.precision,
        "sentence": FLAGS.sentence,
        "steps": FLAGS.steps,
        "beam_size": FLAGS.beam_size,
        "length_penalty": LENGTH_PENALTY,
        "threads": FLAGS.threads,
        "compiled": "compiled" in variant.options,
    }
    environment = variant.environment(FLAGS.threads, FLAGS.threads)
    core_use = CoreUse()
    child = EngineChild(
        variant.name, variant.engine, "start_up", settings, python_of(variant), environment
    )
    with child:
        facts = dict(child.facts)
        if variant.engine == "saved_model":
            facts |= child.ask("load_graph")
    own = facts["load_seconds"] + facts["first_seconds"]
    return {
        **{name: value for name, value in facts.items() if name != "first_ended"},
        "own_seconds": own,
        "per_second": 1 / own,
        "start_seconds": own - facts["second_seconds"],
        "all_seconds": facts["first_ended"] - child.started,
        "other_cores": core_use.read()[1],
    }


def _export(variant: Variant, run: RunDirectory, path: Path) -> Path:
    """Makes the model of an engine, and returns its path."""
    from keras_transformer.export import ExportOptions, export  # late: TensorFlow takes seconds

    sentences = [FLAGS.sentence]
    if variant.engine in ("transformers", "marian"):
        settings = {
            "path": str(path),
            "precision": variant.precision,
            "vocabulary": str(run.path / "tokenizer" / "joint.model"),
            "sizes": dataclasses.asdict(sizes_of(run.config.model)),
            "special_ids": special_ids(run.config.model),
            "steps": FLAGS.steps,
            "seed": SEED,
        }
        with EngineChild(variant.name, variant.engine, "make", settings, python_of(variant)):
            return path
    if variant.engine == "ctranslate2":
        quantization = "none" if variant.precision == "float32" else variant.precision
        options = ExportOptions(quantization=quantization)
        return export(run, path, sentences, options, format="ctranslate2").path
    lossy: dict[str, Any] = {}
    if variant.precision != "float32":  # the BLEU of random weights means nothing
        lossy = {"references": sentences, "max_bleu_loss": 100.0}
    decoding = {
        "decoding.beam_size": FLAGS.beam_size,
        "decoding.n_best": 1,
        "decoding.length_penalty": LENGTH_PENALTY,
        "decoding.min_length": FLAGS.steps,
        "decoding.max_length": FLAGS.steps,
    }
    if variant.engine == "litert":
        quantization = "none" if variant.precision == "float32" else variant.precision
        options = ExportOptions(quantization=quantization, text_signature=False, **lossy)
        return export(run, path, sentences, options, format="litert", settings=decoding).path
    options = ExportOptions(precision=variant.precision, **lossy)
    return export(run, path, sentences, options, settings=decoding).path


def _contents(path: Path) -> dict[str, Any]:
    """Returns the bytes of a model, and the size of the graph of a SavedModel."""
    sizes = {file: file.stat().st_size for file in path.rglob("*") if file.is_file()}
    contents: dict[str, Any] = {"bytes": sum(sizes.values())}
    file = path / "saved_model.pb"
    with contextlib.suppress(FileNotFoundError):
        from tensorflow.core.protobuf import saved_model_pb2  # late, as above

        [graph] = saved_model_pb2.SavedModel.FromString(file.read_bytes()).meta_graphs
        functions = graph.graph_def.library.function
        contents |= {
            "graph_bytes": sizes[file],
            "signatures": len(graph.signature_def),
            "functions": len(functions),
            "nodes": sum(len(function.node_def) for function in functions),
        }
    return contents


define_engines(
    KNOWN,
    [f"{engine}:{p}" for engine, (precisions, _) in KNOWN.items() for p in precisions],
)
flags.register_multi_flags_validator(
    ["model_dir", "vocabulary"],
    lambda values: (values["model_dir"] is None) != (values["vocabulary"] is None),
    "expected either --model_dir or --vocabulary",
)


def main() -> int:
    """Prints the measurements."""
    logging.set_verbosity(logging.WARNING)  # TensorFlow logs a lot while it saves
    variants = chosen(KNOWN)
    if FLAGS.model_dir is None:
        preset(FLAGS.size)  # an unknown name fails before anything is made
    elif FLAGS["engines"].using_default_value:
        variants = [variant for variant in variants if variant.engine != "transformers"]
    elif any(variant.engine == "transformers" for variant in variants):
        raise InputError("transformers has only random models. Leave out --model_dir.")
    with tempfile.TemporaryDirectory() as folder:
        result = compare(variants, Path(folder))
    names = ("size", "steps", "beam_size", "rounds", "threads")
    settings = {name: getattr(FLAGS, name) for name in names}
    print(json.dumps({"machine": describe_machine(), "settings": settings, **result}))
    return 0


if __name__ == "__main__":
    command.run(main)
