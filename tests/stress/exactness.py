r"""Compares the search of a trained model with CTranslate2 and with slower implementations.

Example:
    python -m tests.stress exactness --model_dir=build/run --source=multi30k/test_2016_flickr.en

The search has a beam of 4, the length limits and the length penalty of the run, and the defaults
of all other options. It runs in float32, in batches of similar lengths, like keras-transformer
translate.

Prints one JSON object. The exit code is 1 if one of these bounds does not hold:

* `ctranslate2`: without a length penalty, 99.5 % of the sentences have the same tokens as with
  CTranslate2. The other ones are near ties (scores less than 1e-3 apart).
* `batch_against_alone`, `cached_against_uncached`: the tokens are the same, or the scores are less
  than 1e-4 apart. The uncached search runs a whole forward pass at each step, for --uncached
  sentences.
* `beams`: the mean score of beams 1 to 6 never falls.
* `scores`: the reported scores are within 1e-4 of recomputed ones.
* `precisions`: bfloat16 compared with float32, without a bound.

For sentences whose tokens differ, the JSON has both translations as pieces, their scores
(`keras_transformer.inference.scoring`), and `difference`, the first score minus the second.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import command
import numpy as np
import sentencepiece
import tensorflow as tf
from absl import flags, logging
from command import say
from measuring import describe_machine

from keras_transformer import decoding
from keras_transformer.config import DecodingConfig
from keras_transformer.data.reading import read_text
from keras_transformer.decoding import (
    SearchConfig,
    SearchInputs,
    SearchResult,
    SpecialIds,
    StepDecoder,
)
from keras_transformer.errors import InputError
from keras_transformer.export import export
from keras_transformer.inference import batching, loading
from keras_transformer.inference.scoring import Scorer, score_ids
from keras_transformer.inference.translation_module import TranslationModule
from keras_transformer.models.encoder_decoder import Memory
from keras_transformer.runs.run_directory import RunDirectory

FLAGS = flags.FLAGS
flags.DEFINE_string("model_dir", None, "run directory of a trained model", required=True)
flags.DEFINE_string("source", None, "sentences to translate, one per line", required=True)
flags.DEFINE_integer("sentences", None, "use only the first N sentences", lower_bound=1)
flags.DEFINE_integer("uncached", 50, "sentences decoded without a cache", lower_bound=1)

BEAM = 4
BEAMS = range(1, 7)
SAME = 0.995  # minimum share of sentences with the same tokens as CTranslate2
NEAR_TIE = 1e-3  # difference of scores between engines
TIE = 1e-4  # difference of scores within an engine
ROUNDING = 1e-6  # of a mean score
OF_THE_RUN = ("length_penalty", "max_length", "max_extra_tokens", "max_source_tokens")

Ids = list[int]  # ids of a translation, with the end id
Search = Callable[[tf.Tensor], SearchResult]  # from text, string [B]


class Examined(NamedTuple):
    """The reference search and its results."""

    translator: TranslationModule
    lines: list[str]
    ids: list[Ids]
    scores: np.ndarray  # float32 [lines], as the search reports them


def examine(run: RunDirectory, lines: list[str]) -> dict[str, Any]:
    """Runs all comparisons and returns their results."""
    defaults = DecodingConfig().as_dict().items()
    settings = {f"decoding.{name}": value for name, value in defaults if name not in OF_THE_RUN}
    settings["decoding.beam_size"] = BEAM
    translator = loading.load_translator(run, settings)
    tokens = translator.lengths(tf.constant(lines))["tokens"].numpy()
    for number in np.flatnonzero(tokens == 1) + 1:  # only the end token
        raise InputError(f"Line {number} of the source is empty. Give a file without empty lines.")
    examined = Examined(translator, lines, *decode("batches", translator.search, lines))
    bfloat16 = loading.load_translator(run, settings, precision="bfloat16")
    return {
        "ctranslate2": beside_ctranslate2(run, examined),
        "batch_against_alone": batch_against_alone(examined),
        "cached_against_uncached": cached_against_uncached(examined),
        **beams_and_scores(examined),
        "precisions": precisions(examined, bfloat16),
    }


def decode(
    name: str, search: Search, lines: Sequence[str], groups: list[list[int]] | None = None
) -> tuple[list[Ids], np.ndarray]:
    """Returns the ids and the scores, float32 `[lines]`, of the best translations.

    `groups` has the indices of the lines of each batch. By default, batches have similar lengths.
    """
    start = time.perf_counter()
    groups = groups or batching.batches(lines)
    ids: list[Ids] = [[] for _ in lines]
    scores = np.zeros(len(lines), np.float32)
    with concurrent.futures.ThreadPoolExecutor(batching.concurrent_batches()) as pool:
        results = pool.map(lambda group: search(tf.constant([lines[i] for i in group])), groups)
        for group, result in zip(groups, results, strict=True):
            scores[group] = result.scores[:, 0]
            rows, lengths = result.ids[:, 0].numpy(), result.lengths[:, 0].numpy()
            for index, row, length in zip(group, rows, lengths, strict=True):
                ids[index] = row[:length].tolist()
    say(f"{name}: {len(lines):,} sentences in {time.perf_counter() - start:.1f} s")
    return ids, scores


def beside_ctranslate2(run: RunDirectory, examined: Examined) -> dict[str, Any]:
    """Compares an independent search with the same weights."""
    lines = examined.lines
    translator = _with(examined.translator, length_penalty=0.0)
    ours, _ = decode("no length penalty", translator.search, lines)
    with tempfile.TemporaryDirectory() as folder:
        exported = export(run, folder, lines[:8], format="ctranslate2")
        theirs = _ctranslate2_ids(exported.path, translator, lines)
    return _compare(translator, lines, {"run": ours, "ctranslate2": theirs}, NEAR_TIE, SAME)


def _ctranslate2_ids(path: Path, translator: TranslationModule, lines: Sequence[str]) -> list[Ids]:
    """Translates with an export and the search options of `translator`."""
    import ctranslate2  # an extra; without it, the export has failed

    start = time.perf_counter()
    names = ["joint"] * 2 if translator.tokenizer.joint else ["source", "target"]
    models = [str(path / f"{name}.model") for name in names]
    source, target = (sentencepiece.SentencePieceProcessor(model_file=model) for model in models)
    engine = ctranslate2.Translator(str(path), compute_type="float32", intra_threads=1)
    longest = translator.config.max_source_tokens - 1  # CTranslate2 adds the end token
    sources = [source.id_to_piece(source.encode(line)[:longest]) for line in lines]
    limits = translator.max_lengths(tf.constant([len(pieces) + 1 for pieces in sources])).numpy()
    options = {"length_penalty": 0, "min_decoding_length": 0, "max_input_length": 0}
    options |= {"beam_size": translator.config.beam_size, "return_end_token": True}
    ids: list[Ids] = [[] for _ in lines]
    for limit in np.unique(limits):  # all sentences of a call have the same limit
        group = np.flatnonzero(limits == limit)
        pieces = [sources[index] for index in group]
        results = engine.translate_batch(pieces, max_decoding_length=int(limit), **options)
        for index, result in zip(group, results, strict=True):
            ids[index] = target.piece_to_id(result.hypotheses[0])
    say(f"CTranslate2: {len(lines):,} sentences in {time.perf_counter() - start:.1f} s")
    return ids


def batch_against_alone(examined: Examined) -> dict[str, Any]:
    """Compares sentences in batches with the same sentences one by one."""
    translator, lines = examined.translator, examined.lines
    alone, _ = decode("alone", translator.search, lines, [[i] for i in range(len(lines))])
    return _compare(translator, lines, {"batch": examined.ids, "alone": alone})


def cached_against_uncached(examined: Examined) -> dict[str, Any]:
    """Compares the cached decoder of `TranslationModule.search_ids` with an uncached one."""
    translator = examined.translator
    stride = max(1, len(examined.lines) // FLAGS.uncached)
    lines = examined.lines[::stride][: FLAGS.uncached]
    cached, _ = decode("cached", translator.search, lines)
    uncached, _ = decode("uncached", _uncached(translator), lines)
    return _compare(translator, lines, {"cached": cached, "uncached": uncached})


def _uncached(translator: TranslationModule) -> Search:
    """Returns a search that runs a whole forward pass over the tokens so far at every step."""
    transformer, ids, config = translator.transformer, translator.tokenizer, translator.config

    def step(tokens: tf.Tensor, position: tf.Tensor, cache: Any) -> tuple[tf.Tensor, Any, None]:
        targets, *memory = cache
        here = tf.range(tf.shape(targets)[1]) == position
        targets = tf.where(here, tf.expand_dims(tokens, 1), targets)
        so_far = targets[:, : position + 1]
        decoded = transformer.decode(so_far, Memory(*memory), training=False)
        return transformer.logits(decoded.features[:, -1]), [targets, *memory], None

    def search(text: tf.Tensor) -> SearchResult:
        source_ids, lengths = translator.source_ids(text)
        max_lengths = translator.max_lengths(lengths)
        states, mask, _ = transformer.encode(source_ids, training=False)
        # --> [batch * beam, ...]
        memory = [tf.repeat(each, config.beam_size, axis=0) for each in (states, mask)]
        targets = tf.fill([tf.shape(memory[0])[0], tf.reduce_max(max_lengths)], ids.pad_id)
        special, size = SpecialIds(ids.start_id, ids.end_id, ids.pad_id), ids.target_vocab_size
        decoder = StepDecoder(step, [targets, *memory], size, config.beam_size)
        return decoding.search(decoder, SearchInputs(max_lengths), SearchConfig(config), special)

    return tf.function(search, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)


def beams_and_scores(examined: Examined) -> dict[str, Any]:
    """Returns `beams`, the mean score of each beam, and `scores`, the check of the scores."""
    means, largest = {}, 0.0
    for beam in BEAMS:
        ids, scores = examined.ids, examined.scores
        if beam != BEAM:
            translator = _with(examined.translator, beam_size=beam)
            ids, scores = decode(f"beam {beam}", translator.search, examined.lines)
        means[str(beam)] = round(float(scores.mean(dtype=np.float64)), 6)
        differences = scores - _rescored(examined.translator, examined.lines, ids)
        largest = np.maximum(largest, np.abs(differences).max())  # keeps a NaN
    rising = all(b >= a - ROUNDING for a, b in itertools.pairwise(means.values()))
    return {
        "beams": {"mean_scores": means, "holds": rising},
        "scores": {"largest_difference": round(float(largest), 8), "holds": bool(largest < TIE)},
    }


def precisions(examined: Examined, bfloat16: TranslationModule) -> dict[str, Any]:
    """Compares translations in bfloat16 with translations in float32."""
    ids, reported = decode("bfloat16", bfloat16.search, examined.lines)
    identical = sum(a == b for a, b in zip(examined.ids, ids, strict=True))
    rescored = _rescored(examined.translator, examined.lines, ids)
    # Differences are scores of bfloat16 translations minus scores of float32 translations.
    return {
        "share": round(identical / len(ids), 4),
        "mean_difference_reported": round(float(np.mean(reported - examined.scores)), 6),
        "mean_difference_in_float32": round(float(np.mean(rescored - examined.scores)), 6),
    }


def _compare(
    translator: TranslationModule,
    lines: Sequence[str],
    found: dict[str, list[Ids]],
    tie: float = TIE,
    same: float = 0.0,
) -> dict[str, Any]:
    """Compares the translations of `lines` by two searches.

    `holds` is true if the share of equal translations is at least `same`, and the scores of the
    other ones are less than `tie` apart.
    """
    pairs = zip(*found.values(), strict=True)
    different = [index for index, (first, second) in enumerate(pairs) if first != second]
    sources = [lines[index] for index in different]
    differences: list[dict[str, Any]] = [{"source": source} for source in sources]
    for name, ids in found.items():
        targets = [ids[index] for index in different]
        scores = _rescored(translator, sources, targets)
        for entry, target, score in zip(differences, targets, scores, strict=True):
            pieces = translator.tokenizer.target_pieces(tf.constant(target, tf.int32)).numpy()
            entry[name] = {"pieces": b" ".join(pieces).decode(), "score": round(float(score), 6)}
    for entry in differences:
        first, second = (entry[name]["score"] for name in found)
        entry["difference"] = round(first - second, 6)
    ties = sum(abs(entry["difference"]) < tie for entry in differences)
    share = (len(lines) - len(different)) / len(lines)
    return {
        "sentences": len(lines),
        "share": round(share, 4),
        "different": len(different),
        "ties": ties,
        "holds": share >= same and ties == len(different),
        "differences": differences,
    }


def _rescored(
    translator: TranslationModule, lines: Sequence[str], ids: Sequence[Ids]
) -> np.ndarray:
    """Returns scores float64 `[lines]`, recomputed."""
    scores = score_ids(Scorer(translator), lines, ids)
    return np.array([score.penalized(translator.config) for score in scores])


def _with(translator: TranslationModule, **changes: Any) -> TranslationModule:
    """Returns a translator of the same model with other search options."""
    config = dataclasses.replace(translator.config, **changes)
    return TranslationModule(translator.transformers, translator.tokenizer, config)


def main() -> int:
    """Prints what came out."""
    batching.use_cores_for_batches(lines=1000)
    logging.set_verbosity(logging.ERROR)  # every translator has a separate graph, by design
    run = RunDirectory(FLAGS.model_dir)
    result = examine(run, read_text(FLAGS.source)[: FLAGS.sentences])
    holds = all(section.get("holds", True) for section in result.values())
    print(json.dumps({"machine": describe_machine(), **result, "holds": holds}))
    return int(not holds)


if __name__ == "__main__":
    command.run(main)
