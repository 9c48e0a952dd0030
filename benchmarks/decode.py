#!/usr/bin/env python3
r"""Times decoding of this package, next to CTranslate2 and Marian.

Examples:
    benchmarks/decode.py --source=multi30k/test_2016_flickr.en --vocabulary=build/data/tokenizer \
        --engine_python=marian=marian/bin/python
    benchmarks/decode.py --model_dir=build/run --source=multi30k/test_2016_flickr.en \
        --reference=multi30k/test_2016_flickr.de --whole_program
    benchmarks/decode.py --device=gpu --sizes=base --batches=1,32,128 --sentences=8,128,512 \
        --rounds=3 --profile --source=multi30k/test_2016_flickr.en --vocabulary=build/data/tokenizer

Without --model_dir, all models have random weights and the same sizes, and every output has
exactly --steps tokens. --set changes the sizes. The time is that from ids to ids. Batches of one
sentence measure the latency of one request at a time. The larger --batches measure throughput: an
engine counts with the batch size that is best for it.

With --model_dir, a trained model translates the whole source, from text to text. CTranslate2 and
Marian do the same with the same weights: CTranslate2 in the form that keras-transformer export
--format=ctranslate2 writes, Marian in that of benchmarks/marian_model.py. All have --beam_size and
the run's exponent of the length penalty. With --early_stopping, the default, our search ends like
that of CTranslate2. CTranslate2 and Marian divide by length^exponent (`power` in docs/decoding.md),
and Marian stops at 3 times the longest source of a batch. Sentences are sorted by their bytes, the
longest first: 32 in a batch, 16 for CTranslate2 with `cores`, and as many as the file says for
LiteRT. Marian gets the whole text and batches it by tokens, 64 in a batch.
With --whole_program, a turn is a new process that imports, loads, translates the source once and
ends.

An engine is ENGINE:PRECISION[:OPTION...]. Each runs in a separate process:

* keras:float32, keras:bfloat16, keras:int8: the graph of an export; with `xla` compiled for each
  shape (not int8), with sources padded to multiples of 8;
* ctranslate2:float32, ctranslate2:int8, ctranslate2:bfloat16, and on GPUs ctranslate2:float16;
  with `mkl` CT2_USE_MKL=1 is set;
* marian:float32, marian:int8: Marian, by pymarian; a trained model also needs sentencepiece;
* litert:float32, litert:float16, litert:int8, litert:int4: the file of keras-transformer export
  --format=cpu; with `phone` that of --format=litert, which translates sentence by sentence; with
  `compiled` the latter in LiteRT's CompiledModel (only random models).

A number among the options is the number of threads of an operation; the default is --threads. With
`cores`, an operation has one thread, and each core decodes a part of a batch (of a text: a batch),
as keras-transformer translate does. CTranslate2, Marian and LiteRT are fastest like this. With
`shortlist`, a trained model scores only the tokens of `keras-transformer export --shortlist=50`,
learned from --data_dir. In each round every engine decodes the same sentences while the others
wait.

--spans=N adds the symbols of N spans to each sentence, if the vocabulary has them. With
`no_symbols`, a random model has no rule that they must be in the output.

With --device=gpu, Keras and CTranslate2 share the first GPU. --profile adds the kernels of a batch,
its copies to and from the host, and the time in which the GPU is busy, for Keras.

Prints one JSON object: for each engine sentences per second, the median over the rounds with the
minimum and the maximum; sentences per second of CPU time, which other processes disturb less;
memory; and `ratios`, medians of the ratio within a round, by wall time and (`cpu_time`) by CPU
time. `latency` and `throughput` compare our best engine with the best of each other engine. If
`quiet` is false, other processes used the cores: do not rely on the ratios by wall time.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import command
import sentence_batches
from absl import flags
from command import info
from measuring import (
    Turn,
    Turns,
    best_ratios,
    describe_machine,
    is_quiet,
    per_core_second,
    spread,
    take_turns,
)
from models import SEED, RandomModels, joint_vocabulary
from protocol import EngineChild
from resources import CoreUse
from variants import Variant, chosen, define_engines, grouped, python_of, started

from keras_transformer.cli.config_flags import parse_settings
from keras_transformer.data.reading import read_text
from keras_transformer.errors import InputError
from keras_transformer.presets import preset
from keras_transformer.text.symbols import SPAN_SYMBOLS

if TYPE_CHECKING:
    from keras_transformer.decoding.shortlist import Shortlist
    from keras_transformer.runs.run_directory import RunDirectory
    from keras_transformer.text.vocabulary import Vocabulary

FLAGS = flags.FLAGS
flags.DEFINE_list("sizes", ["small", "base"], "presets of the random models")
command.define_numbers("batches", [1, 32, 128], "sentences of a batch, for random models")
command.define_numbers("sentences", [12, 64, 128], "sentences of a turn, for each of --batches")
flags.DEFINE_string("source", None, "sentences to translate, one per line", required=True)
flags.DEFINE_string("vocabulary", None, "folder that holds joint.model, or a SentencePiece model")
flags.DEFINE_multi_string(
    "set", [], "changes of random models, as in --set=model.num_decoder_layers=1; repeatable"
)
flags.DEFINE_integer("beam_size", 4, "hypotheses of a sentence", lower_bound=1)
flags.DEFINE_integer("steps", 30, "tokens of every output of a random model", lower_bound=1)
flags.DEFINE_string("model_dir", None, "run directory of a trained model, instead of random ones")
flags.DEFINE_string("reference", None, "translations of the source, for BLEU")
flags.DEFINE_string("data_dir", None, "prepared data of the trained model, for shortlists")
flags.DEFINE_integer("rounds", 3, "rounds; every engine has a turn in each", lower_bound=1)
flags.DEFINE_integer("threads", 2, "threads of each engine", lower_bound=1)
flags.DEFINE_bool("early_stopping", True, "trained models: stop at beam_size complete outputs")
flags.DEFINE_bool("whole_program", False, "trained models: a new process for each turn")
flags.DEFINE_bool("profile", False, "also profile batches on a GPU")
flags.DEFINE_integer("spans", 0, "symbols at the start of each sentence", 0, len(SPAN_SYMBOLS))

KNOWN = {
    "keras": (
        ["float32", "bfloat16", "int8"],
        ["xla", "cores", "no_symbols", "shortlist", "number"],
    ),
    "ctranslate2": (
        ["float32", "bfloat16", "float16", "int8"],
        ["mkl", "cores", "shortlist", "number"],
    ),
    "marian": (["float32", "int8"], ["cores", "number"]),
    "litert": (
        ["float32", "float16", "int8", "int4"],
        ["compiled", "cores", "no_symbols", "phone", "shortlist", "number"],
    ),
}
DEFAULT = [
    *("keras:bfloat16:cores", "keras:int8:cores", "litert:float32:cores", "litert:int8:cores"),
    "litert:int8:phone:cores",  # faster for single sentences
    *(f"ctranslate2:{precision}:cores" for precision in ("float32", "bfloat16", "int8")),
    "ctranslate2:int8",  # all threads for each operation
    *("marian:float32:cores", "marian:int8:cores"),
]
_LATENCY_ROWS, _TRAINED_ROWS = 1, 32  # sentences of a batch
_SHORTLIST = 50
_COMPARED = 8  # sentences that an export is compared on
ON_GPU = ("keras:bfloat16", "keras:float32", "ctranslate2:float16")
_ON_GPU = ("keras", "ctranslate2")  # engines that can use a GPU
_TRAINED = ("keras", "litert", "ctranslate2", "marian")  # engines that load a trained model


def starting(
    task: str, settings_of: Callable[[Variant], Mapping[str, Any]], threads: int
) -> Callable[[Variant], EngineChild]:
    """Returns a function that starts the process of a variant.

    Args:
        task: "decode_ids" or "decode_text".
        settings_of: returns the settings that do not follow from the variant's name.
        threads: number of threads.
    """

    def start(variant: Variant) -> EngineChild:
        by_part = "cores" in variant.options
        intraop_threads = 1 if by_part else variant.number or threads
        settings = {
            **settings_of(variant),
            "precision": variant.precision,
            "device": FLAGS.device,
            "threads": intraop_threads,
            "at_once": threads if by_part else 1,
            "compile": "xla" in variant.options,
        }
        environment = variant.environment(intraop_threads, threads, FLAGS.device)
        return EngineChild(
            variant.name, variant.engine, task, settings, python_of(variant), environment,
            FLAGS.start_seconds,
        )  # fmt: skip

    return start


def compare_random(variants: Sequence[Variant]) -> dict[str, Any]:
    """Measures random models of each size, and returns the results."""
    changes = parse_settings(FLAGS.set)
    for size in FLAGS.sizes:
        preset(size).updated(changes)  # an unknown name fails before an hour of measuring
    vocabulary = joint_vocabulary(FLAGS.vocabulary)
    sources = vocabulary.encode_source([line.encode() for line in _sources(vocabulary)])
    plan = {}  # batches of a turn, by the sentences of a batch
    for rows, sentences in zip(map(int, FLAGS.batches), map(int, FLAGS.sentences), strict=True):
        if rows > len(sources):
            raise InputError(f"--source has {len(sources)} sentences; a batch needs {rows}.")
        plan[rows] = -(-sentences // rows)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        vocabulary.save(folder)
        batches = {
            rows: sentence_batches.sorted_batches(sources, rows, FLAGS.rounds * count, SEED)
            for rows, count in plan.items()
        }
        sentence_batches.save(folder / "batches.npz", batches, vocabulary.pad_id)
        sizes = {}
        for size in FLAGS.sizes:
            info(f"Size {size}.")
            models = RandomModels(size, vocabulary, folder, FLAGS.steps, FLAGS.beam_size, changes)
            sizes[size] = _compare_size(models, variants, plan)
    return {"vocab_size": vocabulary.target_vocab_size, "set": changes, "sizes": sizes}


def _compare_size(
    models: RandomModels, variants: Sequence[Variant], plan: Mapping[int, int]
) -> dict[str, Any]:
    result: dict[str, Any] = {}
    start = starting("decode_ids", models.settings, FLAGS.threads)
    all_turns: dict[int, Turns] = {}
    with started(variants, start) as (children, result["left_out"]):
        for rows, count in plan.items():
            info(f"Batches of {rows}.")

            def decode(name: str, number: int, rows: int = rows, count: int = count) -> Turn:
                first = number * count
                turn = children[name].ask("decode", rows=rows, first=first, count=count)
                if turn["lengths"] != [models.steps] * 2:
                    raise RuntimeError(f"{name}: an output does not have {models.steps} tokens.")
                return turn

            calls = {name: lambda n, name=name: decode(name, n) for name in children}
            turns = take_turns(calls, FLAGS.rounds, "sentences/s")
            result[f"batch {rows}"] = summarize(variants, children, turns)
            all_turns[rows] = turns
            if FLAGS.profile:
                result[f"batch {rows}"]["profile_of_a_batch"] = {
                    variant.name: children[variant.name].ask("profile", rows=rows)
                    for variant in variants
                    if variant.engine == "keras" and variant.name in children
                }
    return {**result, **latency_and_throughput(variants, all_turns)}


def latency_and_throughput(
    variants: Sequence[Variant], turns: Mapping[int, Turns]
) -> dict[str, dict[str, Any]]:
    """Returns the ratios of our best engine to the best of each peer.

    For `throughput`, each engine has the batch size that is best for it.

    Args:
        variants: the engines.
        turns: their turns, by the sentences of a batch.
    """
    own, peers = grouped(variants)
    result = {}
    for title, sizes in (
        ("latency", [rows for rows in turns if rows == _LATENCY_ROWS]),
        ("throughput", [rows for rows in turns if rows > _LATENCY_ROWS]),
    ):
        names = {(name, rows): f"{name}, batch {rows}" for rows in sizes for name in turns[rows]}
        merged = {names[name, rows]: turns[rows][name] for name, rows in names}
        own_names = [text for (name, _), text in names.items() if name in own]
        peer_names = {
            peer: [text for (name, _), text in names.items() if name in of_peer]
            for peer, of_peer in peers.items()
        }
        result[title] = best_ratios(merged, own_names, peer_names)
    return result


def compare_trained(variants: Sequence[Variant]) -> dict[str, Any]:
    """Measures translations of a trained model, and returns the results."""
    from marian_model import POSITIONS, write_marian  # loads TensorFlow

    from keras_transformer.evaluation import metrics
    from keras_transformer.export import ExportOptions, export
    from keras_transformer.extensions.shortlist.learning import learn_shortlist
    from keras_transformer.runs.run_directory import RunDirectory

    run = RunDirectory(FLAGS.model_dir)
    sources, references = _sources(run.tokenizer().vocabulary), read_text(FLAGS.reference)
    if len(sources) != len(references):
        raise InputError(
            f"--source has {len(sources):,} lines and --reference has {len(references):,}."
        )
    decoding = {
        "decoding.beam_size": FLAGS.beam_size,
        "decoding.n_best": 1,
        "decoding.early_stopping": FLAGS.early_stopping,
    }
    config = run.config.updated(decoding).decoding
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        source.write_text("".join(f"{line}\n" for line in sources), encoding="utf-8")
        common = {"source": str(source), "rows": _TRAINED_ROWS}
        common["warm_up"] = not FLAGS.whole_program
        shortlist = None
        if any("shortlist" in variant.options for variant in variants):
            shortlist = learn_shortlist(run, FLAGS.data_dir, _SHORTLIST)
        own = {**common, "run": FLAGS.model_dir, "decoding": decoding}
        own |= {"data_dir": FLAGS.data_dir, "shortlist": _SHORTLIST}
        peer = {**common, "beam_size": config.beam_size, "length_penalty": config.length_penalty}
        peer["max_extra_tokens"] = config.max_extra_tokens
        engines = {variant.engine for variant in variants}
        if "ctranslate2" in engines:
            info("Exporting for CTranslate2.")
            # The result states BLEU.
            options = ExportOptions(references[:_COMPARED], max_bleu_loss=100, shortlist=shortlist)
            exported = export(
                run, f"{folder}/export", sources[:_COMPARED], options, format="ctranslate2"
            )
            peer["export"] = str(exported.path)
        refused: dict[str, str] = {}
        if "marian" in engines:
            info("Writing the model for Marian.")
            marian = Path(folder) / "marian"
            marian.mkdir()
            try:
                write_marian(run, marian)
            except InputError as error:
                if not FLAGS["engines"].using_default_value:
                    raise
                refused = {v.name: str(error) for v in variants if v.engine == "marian"}
                variants = [v for v in variants if v.name not in refused]
            peer |= {"marian": str(marian), "positions": POSITIONS}
        settings = {variant.name: own if variant.is_ours else peer for variant in variants}
        for variant in variants:
            if variant.engine == "ctranslate2":
                settings[variant.name] = {**peer, "rows": _ctranslate2_rows(variant)}
            if variant.engine == "litert":
                info(f"Exporting for {variant.name}.")
                version = _export_litert(
                    variant, run, Path(folder), (sources, references), shortlist, decoding
                )
                settings[variant.name] = {**common, "export": str(version / "model.tflite")}

        def settings_of(variant: Variant) -> dict[str, Any]:
            return {**settings[variant.name], "use_shortlist": "shortlist" in variant.options}

        start = starting("decode_text", settings_of, FLAGS.threads)
        with started(variants, start) as (children, left_out):
            calls = {name: lambda _, name=name: children[name].ask("decode") for name in children}
            if FLAGS.whole_program:
                by_name = {variant.name: variant for variant in variants}
                calls = {
                    name: lambda _, name=name: _program(start, by_name[name]) for name in calls
                }
            turns = take_turns(calls, FLAGS.rounds, "sentences/s")
            result = summarize(variants, children, turns)
    for name, many in turns.items():
        scores = metrics.evaluate(many[0]["translations"], references)
        result["engines"][name] |= {"bleu": round(scores.bleu, 2), "signature": scores.signature}
    return {"sentences": len(sources), "left_out": refused | left_out, **result}


def _sources(vocabulary: Vocabulary) -> list[str]:
    """Returns the sentences, each with --spans symbols at its start."""
    if FLAGS.spans and vocabulary.symbol_ids is None:
        raise InputError(f"--spans is {FLAGS.spans}, but the vocabulary has no symbols of spans.")
    return ["".join(SPAN_SYMBOLS[: FLAGS.spans]) + line for line in read_text(FLAGS.source)]


def _ctranslate2_rows(variant: Variant) -> int:
    """Returns the fastest batch size: smaller batches if each core has its own."""
    on_cores = FLAGS.device == "cpu" and "cores" in variant.options
    return 16 if on_cores else _TRAINED_ROWS


def _program(start: Callable[[Variant], EngineChild], variant: Variant) -> Turn:
    """Returns a turn whose costs are those of a whole process, from its start to its end."""
    core_use, started = CoreUse(), time.monotonic()
    with start(variant) as child:
        turn = child.ask("decode")
    seconds = time.monotonic() - started
    cores, other_cores = core_use.read()
    return {
        **turn,
        "seconds": seconds,
        "per_second": turn["per_second"] * turn["seconds"] / seconds,
        "cores": cores,
        "other_cores": other_cores,
    }


def _export_litert(
    variant: Variant,
    run: RunDirectory,
    folder: Path,
    texts: tuple[Sequence[str], Sequence[str]],
    shortlist: Shortlist | None,
    decoding: Mapping[str, Any],
) -> Path:
    """Exports a run as a LiteRT model, and returns the version."""
    from keras_transformer.export import ExportOptions, export  # loads TensorFlow

    sources, references = (lines[:_COMPARED] for lines in texts)
    rounds, limits = variant.precision != "float32", "shortlist" in variant.options
    options = ExportOptions(
        references=references if rounds or limits else None,
        weights=variant.precision,
        max_bleu_loss=100.0 if rounds or limits else None,  # the result states BLEU
        shortlist=shortlist if limits else None,
    )
    path = folder / variant.name.replace(":", "_")
    format = "litert" if "phone" in variant.options else "cpu"
    return export(run, path, sources, options, format=format, settings=decoding).path


def summarize(
    variants: Sequence[Variant], children: Mapping[str, EngineChild], turns: Turns
) -> dict[str, Any]:
    """Returns the results of all engines, and their ratios."""
    engines = {}
    for name, child in children.items():
        facts = {k: round(v, 2) if isinstance(v, float) else v for k, v in child.facts.items()}
        engines[name] = {
            "sentences_per_second": spread([turn["per_second"] for turn in turns[name]], 3),
            "sentences_per_core_second": spread([per_core_second(turn) for turn in turns[name]], 3),
            "cores": spread([turn["cores"] for turn in turns[name]], 2),
            "other_cores": spread([turn["other_cores"] for turn in turns[name]], 2),
            "peak_memory_mb": round(max(turn["peak_memory_mb"] for turn in turns[name])),
            **facts,
        }
    own, peers = grouped(variants)
    ratios = best_ratios(turns, own, peers)
    return {"engines": engines, "ratios": ratios, "quiet": is_quiet(turns)}


define_engines(KNOWN, DEFAULT)
flags.register_multi_flags_validator(
    ["batches", "sentences"],
    lambda values: len(values["batches"]) == len(values["sentences"]),
    "expected the same number of --sentences and --batches",
)
flags.register_multi_flags_validator(
    ["model_dir", "reference"],
    lambda values: (values["model_dir"] is None) == (values["reference"] is None),
    "expected both --model_dir and --reference, or neither",
)


def main() -> int:
    """Prints the measurements."""
    variants = chosen(KNOWN)
    if FLAGS.device == "gpu":
        if FLAGS["engines"].using_default_value:
            variants = [Variant.parse(name, KNOWN) for name in ON_GPU]
        for variant in variants:
            if variant.engine not in _ON_GPU:
                raise InputError(f"{variant.name} does not run on a GPU here.")
    if FLAGS.model_dir is None:
        for variant in variants:
            if "shortlist" in variant.options:
                raise InputError(f"{variant.name} needs a trained model. Give --model_dir.")
        result = compare_random(variants)
    else:
        if FLAGS["engines"].using_default_value and FLAGS.device == "cpu":
            variants = [v for v in variants if v.engine in _TRAINED and "xla" not in v.options]
        for variant in variants:
            if variant.engine not in _TRAINED or {"compiled", "no_symbols"} & {*variant.options}:
                raise InputError(f"{variant.name} does not run a trained model. Leave it out.")
        result = compare_trained(variants)
    names = ("beam_size", "batches", "sentences", "steps", "rounds", "threads", "device")
    settings = {name: getattr(FLAGS, name) for name in names}
    print(json.dumps({"machine": describe_machine(FLAGS.device), "settings": settings, **result}))
    return 0


if __name__ == "__main__":
    command.run(main)
