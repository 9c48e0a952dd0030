#!/usr/bin/env python3
r"""How exact the search is: with a trained model on a test set, beside what it has to agree with.

Example:
    benchmarks/exactness.py --model_dir=build/run --source=multi30k/test_2016_flickr.en

Searches with the run's limits and length penalty, a beam of 4, and nothing else that guides
a search; in float32, and in batches of 64 sentences of similar lengths, as bin/translate.py does.

Prints one JSON object. Each comparison lists all sentences whose tokens differ, both
translations in pieces, their scores as keras_transformer.scoring recomputes them, and
`difference`, the first score minus the second:

* `ctranslate2`: the run, exported and decoded by CTranslate2 with the same beam, neither with a
  length penalty, so that scores are log P. At least 99.5 % are the same, all others near ties
  (under 1e-3).
* `batch_against_alone`, `cached_against_uncached`: a sentence among others and by itself; keys
  and values kept, and the whole prefix decoded anew at each step (of --uncached sentences
  alone). All that differ are ties (under 1e-4).
* `beams`: the mean score of beams 1 to 6, which never falls.
* `scores`: the largest difference between the scores that those searches report and recomputed
  ones: under 1e-4.
* `precisions`: translations in bfloat16 beside those in float32, for information.

The exit code is 1 where one of these bounds does not hold.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import sentencepiece
import tensorflow as tf
from absl import app, flags
from decoders import machine
from decoders.comparison import say

from keras_transformer import decoding, inference
from keras_transformer.config import DecodingConfig
from keras_transformer.data.corpus import read_text
from keras_transformer.decoding import SearchResult, SpecialIds
from keras_transformer.errors import InputError
from keras_transformer.export import export
from keras_transformer.model import Memory
from keras_transformer.run_directory import RunDirectory
from keras_transformer.scoring import Scorer, score_ids
from keras_transformer.translator import Translator

FLAGS = flags.FLAGS
flags.DEFINE_string("model_dir", None, "run directory of a trained model", required=True)
flags.DEFINE_string("source", None, "sentences to translate, one a line", required=True)
flags.DEFINE_integer("sentences", None, "only the first so many", lower_bound=1)
flags.DEFINE_integer("uncached", 50, "sentences decoded without a cache", lower_bound=1)

BEAM = 4
BEAMS = range(1, 7)
SAME = 0.995  # share of sentences that have CTranslate2's tokens, at least
NEAR_TIE = 1e-3  # between engines whose kernels differ
TIE = 1e-4  # between ways through the same kernels
ROUNDING = 1e-6  # of a mean score
OF_THE_RUN = ("length_penalty", "max_length", "max_extra_tokens", "max_source_tokens")

Ids = list[int]
Search = Callable[[tf.Tensor], SearchResult]  # of text, string [B]


class Found(NamedTuple):
    """The best translation of a sentence."""

    ids: Ids  # the end id included
    score: float  # as the search reports it


class Examined(NamedTuple):
    """The search that others are compared with, and what it found."""

    translator: Translator
    scorer: Scorer
    lines: list[str]
    found: list[Found]


def examine(run: RunDirectory, lines: list[str]) -> dict[str, Any]:
    """Returns what is printed of the run."""
    fields = [f for f in dataclasses.fields(DecodingConfig) if f.name not in OF_THE_RUN]
    settings = {f"decoding.{f.name}": f.default for f in fields} | {"decoding.beam_size": BEAM}
    translator = inference.load_translator(run, settings)
    _check_text(translator, lines)
    found = decode("batches", translator.search, lines, inference.batches(lines))
    examined = Examined(translator, Scorer(translator), lines, found)
    return {
        "ctranslate2": beside_ctranslate2(run, examined),
        "batch_against_alone": batch_against_alone(examined),
        "cached_against_uncached": cached_against_uncached(examined),
        **beams_and_scores(examined),
        "precisions": precisions(run, settings, examined),
    }


def decode(
    name: str, search: Search, lines: Sequence[str], groups: Sequence[Sequence[int]]
) -> list[Found]:
    """Searches in groups (indices of `lines`), of which each core takes one at a time."""
    results: dict[int, Found] = {}
    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(inference.workers()) as pool:
        outputs = pool.map(lambda group: search(tf.constant([lines[i] for i in group])), groups)
        for group, output in zip(groups, outputs, strict=True):
            columns = (each[:, 0].numpy() for each in (output.ids, output.lengths, output.scores))
            for index, ids, length, score in zip(group, *columns, strict=True):
                results[index] = Found(ids[:length].tolist(), float(score))
    say(f"{name}: {len(lines):,} sentences in {time.perf_counter() - start:.1f} s")
    return [results[index] for index in range(len(lines))]


def beside_ctranslate2(run: RunDirectory, examined: Examined) -> dict[str, Any]:
    """Compares log P without a length penalty."""
    lines = examined.lines
    translator = _with(examined.translator, length_penalty=0.0)
    found = decode("no length penalty", translator.search, lines, inference.batches(lines))
    with tempfile.TemporaryDirectory() as folder:
        exported = export(run, folder, lines[:8], format="ctranslate2")
        theirs = _ctranslate2_ids(exported.path, translator, lines)
    ours = {"run": [each.ids for each in found]}
    return _compare(examined, lines, ours | {"ctranslate2": theirs}, NEAR_TIE, alpha=0.0, same=SAME)


def _ctranslate2_ids(path: Path, translator: Translator, lines: Sequence[str]) -> list[Ids]:
    """Translates with an export, told to search as `translator` does."""
    import ctranslate2  # an extra: the exporter has said so where it is missing

    start = time.perf_counter()
    names = ["joint"] * 2 if translator.tokenizer.joint else ["source", "target"]
    source, target = (
        sentencepiece.SentencePieceProcessor(model_file=str(path / f"{name}.model"))
        for name in names
    )
    engine = ctranslate2.Translator(str(path), device="cpu", compute_type="float32")
    longest = translator.config.max_source_tokens - 1  # and the end token, which it adds itself
    sources = [source.id_to_piece(source.encode(line)[:longest]) for line in lines]
    limits = translator.max_lengths(tf.constant([len(pieces) + 1 for pieces in sources])).numpy()
    results: dict[int, Ids] = {}
    for limit in np.unique(limits):  # which is one for all sentences of a call
        group = np.flatnonzero(limits == limit)
        outputs = engine.translate_batch(
            [sources[i] for i in group],
            beam_size=translator.config.beam_size,
            num_hypotheses=1,
            length_penalty=0,
            min_decoding_length=0,
            max_decoding_length=int(limit),
            max_input_length=0,
            return_end_token=True,
        )
        for index, output in zip(group, outputs, strict=True):
            results[index] = target.piece_to_id(output.hypotheses[0])
    say(f"CTranslate2: {len(lines):,} sentences in {time.perf_counter() - start:.1f} s")
    return [results[index] for index in range(len(lines))]


def batch_against_alone(examined: Examined) -> dict[str, Any]:
    """Compares each sentence among others with the same by itself."""
    lines = examined.lines
    alone = decode("alone", examined.translator.search, lines, [[i] for i in range(len(lines))])
    ids = {"batch": [each.ids for each in examined.found], "alone": [each.ids for each in alone]}
    return _compare(examined, lines, ids, TIE)


def cached_against_uncached(examined: Examined) -> dict[str, Any]:
    """Compares the step function of `Translator.search_ids` with one that keeps nothing."""
    stride = max(1, len(examined.lines) // FLAGS.uncached)
    lines = examined.lines[::stride][: FLAGS.uncached]
    ids = {}
    for name, search in (
        ("cached", examined.translator.search),
        ("uncached", _uncached(examined.translator)),
    ):
        found = decode(name, search, lines, inference.batches(lines))
        ids[name] = [each.ids for each in found]
    return _compare(examined, lines, ids, TIE)


def _uncached(translator: Translator) -> Search:
    """Returns a search whose every step is a whole forward pass over the tokens so far."""
    transformer, tokenizer, config = translator.transformer, translator.tokenizer, translator.config

    def step(ids: tf.Tensor, position: tf.Tensor, cache: dict[str, Any]) -> tuple[Any, Any, None]:
        here = tf.range(tf.shape(cache["targets"])[1]) == position
        targets = tf.where(here, tf.expand_dims(ids, 1), cache["targets"])
        decoded = transformer.decode(targets[:, : position + 1], cache["memory"], training=False)
        return decoded.logits[:, -1], {**cache, "targets": targets}, None

    def search(text: tf.Tensor) -> SearchResult:
        source_ids, lengths = translator.source_ids(text)
        max_lengths = translator.max_lengths(lengths)
        memory = transformer.encode(source_ids, training=False)
        # --> [batch * beam, ...]: each hypothesis has a memory of its own
        memory = Memory(*(tf.repeat(each, config.beam_size, axis=0) for each in memory[:2]))
        shape = [tf.shape(memory.mask)[0], tf.reduce_max(max_lengths)]
        cache = {"memory": memory, "targets": tf.fill(shape, tokenizer.pad_id)}
        special_ids = SpecialIds(tokenizer.start_id, tokenizer.end_id, tokenizer.pad_id)
        size = tokenizer.target_vocab_size
        return decoding.search(step, cache, max_lengths, config, special_ids, size)

    signature = [tf.TensorSpec([None], tf.string)]
    return tf.function(search, input_signature=signature, autograph=False)


def beams_and_scores(examined: Examined) -> dict[str, Any]:
    """Returns `beams`, the mean score of each beam, and `scores`, whether scores are right."""
    lines, alpha = examined.lines, examined.translator.config.length_penalty
    means, largest = [], 0.0
    for beam in BEAMS:
        found = examined.found
        if beam != BEAM:
            search = _with(examined.translator, beam_size=beam).search
            found = decode(f"beam {beam}", search, lines, inference.batches(lines))
        scores = score_ids(examined.scorer, lines, [each.ids for each in found])
        means.append(float(np.mean([each.score for each in found])))
        differences = [a.score - b.penalized(alpha) for a, b in zip(found, scores, strict=True)]
        largest = max(largest, float(np.max(np.abs(differences))))
    rising = all(b >= a - ROUNDING for a, b in itertools.pairwise(means))
    mean_scores = {str(beam): round(mean, 6) for beam, mean in zip(BEAMS, means, strict=True)}
    return {
        "beams": {"length_penalty": alpha, "mean_scores": mean_scores, "holds": rising},
        "scores": {"largest_difference": round(largest, 8), "holds": largest < TIE},
    }


def precisions(run: RunDirectory, settings: dict[str, Any], examined: Examined) -> dict[str, Any]:
    """Returns how translations in bfloat16 differ from those in float32."""
    lines, alpha = examined.lines, examined.translator.config.length_penalty
    search = inference.load_translator(run, settings, precision="bfloat16").search
    found = decode("bfloat16", search, lines, inference.batches(lines))
    rescored = score_ids(examined.scorer, lines, [each.ids for each in found])
    full = np.array([each.score for each in examined.found])
    reported = np.array([each.score for each in found]) - full
    lost = np.array([each.penalized(alpha) for each in rescored]) - full
    identical = sum(a.ids == b.ids for a, b in zip(examined.found, found, strict=True))
    return {
        "identical": identical,
        "share": round(identical / len(lines), 4),
        # Score of the bfloat16 translation minus that of the float32 one, ...
        "mean_difference_in_float32": round(float(lost.mean()), 6),  # both by the float32 model
        "mean_difference_reported": round(float(reported.mean()), 6),  # each by its own
    }


def _compare(
    examined: Examined,
    lines: Sequence[str],
    ids: dict[str, list[Ids]],
    tie: float,
    alpha: float | None = None,
    same: float = 0.0,
) -> dict[str, Any]:
    """Returns what is printed of two ways that translated `lines`.

    Args:
        examined: whose model scores.
        lines: the sentences.
        ids: what each way found, by its name.
        tie: below it a difference of scores counts for nothing.
        alpha: the length penalty of the scores; by default that of `examined`.
        same: share of the sentences that must have the same tokens.
    """
    alpha = examined.translator.config.length_penalty if alpha is None else alpha
    pairs = list(zip(*ids.values(), strict=True))
    different = [i for i, (first, second) in enumerate(pairs) if first != second]
    listed: list[dict[str, Any]] = [{"source": lines[i]} for i in different]
    for name, found in ids.items():
        targets = [found[i] for i in different]
        scores = score_ids(examined.scorer, [lines[i] for i in different], targets)
        for entry, target, score in zip(listed, targets, scores, strict=True):
            pieces = examined.translator.tokenizer.target_pieces(tf.constant(target, tf.int32))
            text = b" ".join(pieces.numpy()).decode()
            entry[name] = {"pieces": text, "score": round(score.penalized(alpha), 6)}
    for entry in listed:
        first, second = (entry[name]["score"] for name in ids)
        entry["difference"] = round(first - second, 6)
    share = 1 - len(different) / len(lines)
    ties = sum(abs(entry["difference"]) < tie for entry in listed)
    return {
        "sentences": len(lines),
        "identical": len(lines) - len(different),
        "share": round(share, 4),
        "ties": ties,
        "differences": listed,
        "holds": share >= same and ties == len(different),
    }


def _with(translator: Translator, **changes: Any) -> Translator:
    """Returns a translator of the same model that searches otherwise."""
    config = dataclasses.replace(translator.config, **changes)
    return Translator(translator.transformers, translator.tokenizer, config)


def _check_text(translator: Translator, lines: Sequence[str]) -> None:
    tokens = translator.lengths(tf.constant(lines))["tokens"].numpy()
    for number in np.flatnonzero(tokens == 1) + 1:  # the end token alone
        raise InputError(
            f"{FLAGS.source}, line {number} has no text; expected a sentence to translate"
        )


def main(argv: list[str]) -> int:
    """Prints what came out."""
    del argv
    inference.use_cores_for_batches()
    try:
        run = RunDirectory(FLAGS.model_dir)
        result = examine(run, read_text(FLAGS.source)[: FLAGS.sentences])
    except InputError as error:
        say(f"error: {error}")
        return 1
    holds = all(section.get("holds", True) for section in result.values())
    print(json.dumps({"machine": machine.describe(), **result, "holds": holds}))
    return int(not holds)


if __name__ == "__main__":
    app.run(main)
