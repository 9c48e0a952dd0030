#!/usr/bin/env python3
r"""Decodes in several ways side by side: this package's, CTranslate2's, MarianMT's, KerasHub's.

Examples:
    benchmarks/decode.py --source=multi30k/test_2016_flickr.en --vocabulary=build/data/tokenizer \
        --peers_python=peers/bin/python --kerashub_python=kerashub/bin/python
    benchmarks/decode.py --model_dir=build/run --source=multi30k/test_2016_flickr.en \
        --reference=multi30k/test_2016_flickr.de --peers_python=peers/bin/python

Without --model_dir all models are random ones of the same sizes, and every output has
exactly --steps tokens. Timed is what lies between ids in and ids out.

With --model_dir a trained model translates the whole source, text in and text out, and so
does CTranslate2 with the same weights, as bin/export.py --format=ctranslate2 writes
them. Sentences are sorted by their bytes, --batches in a batch. Both search with the run's
settings; CTranslate2's length penalty is another formula of the same exponent.

A way is ENGINE:PRECISION[:OPTION...] and has a process of its own:

* graph:float32, graph:bfloat16: this package's graph, as an export runs it; xla:float32,
  xla:bfloat16: compiled for each shape, sources padded to multiples of 8;
* litert:float32, litert:float16, litert:int8: as a LiteRT model, sentence by sentence (random
  models only);
* ctranslate2:float32, ctranslate2:int8, ctranslate2:bfloat16, and with `mkl` under
  CT2_USE_MKL=1; transformers:float32, transformers:bfloat16: MarianMT in PyTorch (random
  models only);
* kerashub:float32, and with `xla` compiled as ours is: KerasHub's layers and BeamSampler, which
  has no length penalty, put together as in its BartSeq2SeqLM (random models only).

A number among the options is how many threads an operation may use, in place of
--threads: at batch 1 one can be faster than two. With `cores` it is one, and so many parts of
a batch (of a text, batches) are decoded at once, as bin/translate.py does. In each round
every way decodes the same sentences while the others wait, in another order each time.

Prints one JSON object: for each way sentences per second, median over the rounds (least and
most), memory and more, and ratios of ways, each the median over rounds of the ratio
within a round. `quiet` says whether other processes left the cores alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import command
from absl import flags
from decoders import batches, machine
from decoders.comparison import quiet, ratios, report, say, take_rounds
from decoders.process import Decoder, Way
from steppers.cost import Sizes

from keras_transformer.data.corpora.reading import read_lines, read_text
from keras_transformer.errors import InputError
from keras_transformer.presets import preset
from keras_transformer.text.vocabulary import Vocabulary, learn_vocabulary

FLAGS = flags.FLAGS
flags.DEFINE_list("sizes", ["small", "base"], "presets of the random models")
command.define_numbers("batches", [1, 32], "sentences of a batch; of a trained model, the last")
command.define_numbers("sentences", [20, 64], "sentences of a turn, for each of --batches")
flags.DEFINE_string("source", None, "sentences to translate, one a line", required=True)
flags.DEFINE_string("vocabulary", None, "folder that holds joint.model, or a SentencePiece model")
flags.DEFINE_list("text", None, "files that a vocabulary is learnt from, in place of --vocabulary")
flags.DEFINE_integer("vocab_size", 8000, "of a vocabulary that is learnt", lower_bound=5)
flags.DEFINE_integer("beam_size", 4, "hypotheses of a sentence", lower_bound=1)
flags.DEFINE_integer("steps", 30, "tokens of every output of a random model", lower_bound=1)
flags.DEFINE_string("model_dir", None, "run directory of a trained model, in place of random ones")
flags.DEFINE_string("reference", None, "translations of the source; for BLEU")
flags.DEFINE_string("tokenize", "13a", "sacreBLEU's tokenizer")
flags.DEFINE_list("ways", None, "what to compare; see above")
flags.DEFINE_string("peers_python", None, "a Python with ctranslate2, transformers, sentencepiece")
flags.DEFINE_string("kerashub_python", None, "a Python with keras-hub and tensorflow")
flags.DEFINE_integer("rounds", 5, "rounds, in each of which all take a turn", lower_bound=1)
flags.DEFINE_integer("threads", 2, "threads of each way", lower_bound=1)

OWN = [
    *("graph:float32", "graph:bfloat16", "graph:float32:cores", "graph:bfloat16:cores"),
    "xla:float32",
]
CTRANSLATE2 = [
    f"ctranslate2:{precision}{option}"
    for precision in ("float32", "int8")
    for option in ("", ":mkl", ":cores")
]
MARIAN = ["transformers:float32", "transformers:bfloat16"]
KERASHUB = ["kerashub:float32", "kerashub:float32:xla"]
LENGTH_PENALTY = 0.6  # of random models
SEED = 0


@contextlib.contextmanager
def started(ways: Sequence[Way], settings_of: Callable[[Way], Any]) -> Iterator[list[Decoder]]:
    """Gives the ways' processes, which end with the block."""
    decoders: list[Decoder] = []
    try:
        for way in ways:
            say(f"{way.name}: starting")
            python = sys.executable if way.is_own else getattr(FLAGS, _interpreter(way))
            decoders.append(Decoder(way, python, settings_of(way), FLAGS.threads))
        yield decoders
    finally:
        for decoder in decoders:
            decoder.close()


def compare_random(ways: Sequence[Way]) -> dict[str, Any]:
    """Measures random models of each size, and returns what is printed of them."""
    for size in FLAGS.sizes:
        preset(size)  # a wrong name is told before an hour of measuring
    vocabulary = joint_vocabulary()
    sources = vocabulary.encode_source(list(read_lines(Path(FLAGS.source))))
    plan = _plan(len(sources))
    with tempfile.TemporaryDirectory() as folder:
        vocabulary.save(folder)
        chosen = {
            rows: batches.sorted_batches(sources, rows, FLAGS.rounds * each, SEED)
            for rows, each in plan.items()
        }
        batches.save(Path(folder) / "batches.npz", chosen, vocabulary.pad_id)
        result = {size: _compare_size(size, ways, vocabulary, folder, plan) for size in FLAGS.sizes}
    return {
        "steps": FLAGS.steps,
        "vocab_size": vocabulary.target_vocab_size,
        "sentences_of_a_turn": {f"batch {rows}": rows * each for rows, each in plan.items()},
        "sizes": result,
    }


def _compare_size(
    size: str, ways: Sequence[Way], vocabulary: Vocabulary, folder: str, plan: dict[int, int]
) -> dict[str, Any]:
    say(f"size {size}")
    result = {}
    with started(ways, lambda way: random_settings(way, size, vocabulary, folder)) as decoders:
        for rows, each in plan.items():
            say(f"batches of {rows}")
            commands = [f"ids {rows} {number * each} {each}" for number in range(FLAGS.rounds)]
            turns = take_rounds(decoders, commands)
            for name, many in turns.items():
                if any(turn["lengths"] != [FLAGS.steps] * 2 for turn in many):
                    raise RuntimeError(f"{name} gave outputs of other than {FLAGS.steps} tokens")
            result[f"batch {rows}"] = {
                "ways": {d.way.name: report(d, turns[d.way.name]) for d in decoders},
                "ratios": ratios(decoders, turns),
                "quiet": quiet(turns),
            }
    return result


def random_settings(way: Way, size: str, vocabulary: Vocabulary, folder: str) -> dict[str, Any]:
    """Returns what a way's process is told of its random model; the folder has the batches."""
    special_ids = {
        name: getattr(vocabulary, f"{name}_id") for name in ("pad", "unknown", "start", "end")
    }
    configuration = {
        "model.source_vocab_size": vocabulary.source_vocab_size,
        "model.target_vocab_size": vocabulary.target_vocab_size,
        **{f"model.{name}_id": value for name, value in special_ids.items()},
        "decoding.beam_size": FLAGS.beam_size,
        "decoding.length_penalty": LENGTH_PENALTY,
        "decoding.min_length": FLAGS.steps,
        "decoding.max_length": FLAGS.steps,
    }
    common = {"batches": f"{folder}/batches.npz", "steps": FLAGS.steps, "seed": SEED}
    if way.is_own:
        return {**common, "preset": size, "configuration": configuration, "vocabulary": folder}
    model = preset(size).updated(configuration).model
    return {
        **common,
        "sizes": {field.name: getattr(model, field.name) for field in dataclasses.fields(Sizes)},
        "special_ids": special_ids,
        "beam_size": FLAGS.beam_size,
        "length_penalty": LENGTH_PENALTY,
    }


def compare_trained(ways: Sequence[Way]) -> dict[str, Any]:
    """Measures translations by a trained model, and returns what is printed of them."""
    from keras_transformer.evaluation import metrics  # late: TensorFlow takes seconds
    from keras_transformer.export import export
    from keras_transformer.runs.run_directory import RunDirectory

    sources, references = read_text(FLAGS.source), read_text(FLAGS.reference)
    if len(sources) != len(references):
        raise InputError(
            f"the source has {len(sources):,} lines and the reference {len(references):,}; "
            "expected the same number"
        )
    run = RunDirectory(FLAGS.model_dir)
    decoding = {"decoding.beam_size": FLAGS.beam_size, "decoding.n_best": 1}
    config = run.config.updated(decoding).decoding
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        source.write_text("".join(f"{line}\n" for line in sources), encoding="utf-8")
        common = {"source": str(source), "rows": int(FLAGS.batches[-1])}
        own = {**common, "run": FLAGS.model_dir, "decoding": decoding}
        peer = {
            **common,
            "beam_size": config.beam_size,
            "length_penalty": config.length_penalty,
            "max_extra_tokens": config.max_extra_tokens,
        }
        if not all(way.is_own for way in ways):
            say("exporting")
            exported = export(run, f"{folder}/export", sources[:8], format="ctranslate2")
            peer["export"] = str(exported.path)
        with started(ways, lambda way: own if way.is_own else peer) as decoders:
            turns = take_rounds(decoders, ["text"] * FLAGS.rounds)
            reports = {d.way.name: report(d, turns[d.way.name]) for d in decoders}
            result = {"ratios": ratios(decoders, turns), "quiet": quiet(turns)}
    for name, many in turns.items():
        scores = metrics.evaluate(many[0]["translations"], references, tokenize=FLAGS.tokenize)
        reports[name] |= {"bleu": round(scores.bleu, 2), "signature": scores.signature}
    return {"sentences": len(sources), "batch": common["rows"], "ways": reports, **result}


def joint_vocabulary() -> Vocabulary:
    """Returns the vocabulary that the flags name, or that is learnt."""
    if (FLAGS.vocabulary is None) == (FLAGS.text is None):
        raise InputError(
            "the vocabulary is given or learnt; expected either --vocabulary or --text"
        )
    if FLAGS.text is not None:
        lines = (line for path in FLAGS.text for line in read_lines(Path(path)))
        return Vocabulary(learn_vocabulary(lines, FLAGS.vocab_size))
    path = Path(FLAGS.vocabulary)
    vocabulary = Vocabulary(path.read_bytes()) if path.is_file() else Vocabulary.load(path)
    if not vocabulary.joint:
        raise InputError(f"{path} holds two vocabularies; expected a joint one")
    return vocabulary


def _plan(num_sources: int) -> dict[int, int]:
    """Returns how many batches a turn decodes, by the sentences of a batch."""
    plan = {}
    for rows, sentences in zip(FLAGS.batches, FLAGS.sentences, strict=True):
        if int(rows) > num_sources:
            raise InputError(f"--source has {num_sources} sentences; expected at least {rows}")
        plan[int(rows)] = -(-int(sentences) // int(rows))
    return plan


def _interpreter(peer: Way) -> str:
    """Returns the flag that names the interpreter of a peer's way."""
    return "kerashub_python" if peer.engine == "kerashub" else "peers_python"


def _named_ways() -> list[Way]:
    trained = FLAGS.model_dir is not None
    names = FLAGS.ways
    if names is None:
        names = [way for way in OWN if not (trained and way.startswith("xla"))]
        if FLAGS.peers_python:
            names += CTRANSLATE2 if trained else CTRANSLATE2 + MARIAN
        if FLAGS.kerashub_python and not trained:
            names += KERASHUB
    ways = [Way.parse(name) for name in names]
    for way in ways:
        if not way.is_own and not getattr(FLAGS, _interpreter(way)):
            raise InputError(
                f"--ways names {way.name}; expected --{_interpreter(way)}, an interpreter that "
                "has it"
            )
        if trained and way.engine in ("transformers", "kerashub", "litert"):
            raise InputError(
                f"--ways names {way.name}, which has random models alone; expected graph, xla or "
                "ctranslate2 beside --model_dir"
            )
    return ways


def _are_ways(names: Sequence[str] | None) -> bool:
    try:
        return names is None or bool([Way.parse(name) for name in names])
    except ValueError:
        return False


flags.register_validator("ways", _are_ways, "expected names like graph:bfloat16:1")
flags.register_multi_flags_validator(
    ["batches", "sentences"],
    lambda values: len(values["batches"]) == len(values["sentences"]),
    "expected as many --sentences as --batches",
)
flags.register_multi_flags_validator(
    ["model_dir", "reference"],
    lambda values: (values["model_dir"] is None) == (values["reference"] is None),
    "expected both --model_dir and --reference, or neither",
)


def main() -> int:
    """Prints the measurements."""
    ways = _named_ways()
    result = compare_random(ways) if FLAGS.model_dir is None else compare_trained(ways)
    settings = {name: getattr(FLAGS, name) for name in ("beam_size", "rounds", "threads")}
    print(json.dumps({"machine": machine.describe(), "settings": settings, **result}))
    return 0


if __name__ == "__main__":
    command.run(main)
