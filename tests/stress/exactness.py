r"""Compares the search of a trained model with CTranslate2 and with slower computations.

Example:
    python -m tests.stress exactness --model_dir=build/run --source=multi30k/test_2016_flickr.en

The search has a beam of 4, the length limits and the length penalty of the run, and the defaults
of all other options. It runs in float32, in batches of similar lengths, like keras-transformer
translate.

Prints one JSON object. The exit code is 1 if one of these bounds does not hold:

* `ctranslate2`: without a length penalty, 99.5 % of the sentences have the same tokens as with
  CTranslate2. The others are near ties (scores less than 1e-3 apart).
* `batch_against_alone`: the tokens are the same, or the scores are less than 1e-4 apart.
* `beams`: the mean score of beams 1 to 6 never falls.
* `scores`: the reported scores are within 1e-4 of those of a whole forward pass, without a cache.

For sentences whose tokens differ, the JSON has both translations as pieces with their scores
(`keras_transformer.inference.scoring`).
"""

import concurrent.futures
import dataclasses
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import command
import numpy as np
import sentencepiece
import tensorflow as tf
from absl import flags, logging
from command import info
from measuring import describe_machine

from keras_transformer.config import DecodingConfig
from keras_transformer.data.reading import read_text
from keras_transformer.decoding import SearchResult
from keras_transformer.errors import InputError
from keras_transformer.export import export
from keras_transformer.inference import batching, loading
from keras_transformer.inference.scoring import Scorer, penalized, score_ids
from keras_transformer.inference.translation_module import TranslationModule
from keras_transformer.runs.run_directory import RunDirectory

FLAGS = flags.FLAGS
flags.DEFINE_string("model_dir", None, "run directory of a trained model", required=True)
flags.DEFINE_string("source", None, "sentences to translate, one per line", required=True)

BEAM = 4
BEAMS = range(1, 7)
SAME = 0.995  # minimum share of sentences with the same tokens as CTranslate2
NEAR_TIE = 1e-3  # difference of scores between engines
TIE = 1e-4  # difference of scores within an engine
ROUNDING = 1e-6  # of a mean score
OF_THE_RUN = ("length_penalty", "max_length", "max_extra_tokens", "max_source_tokens")

Ids = list[int]  # ids of a translation, with the end id
Search = Callable[[tf.Tensor], SearchResult]  # from text, string [B]


def examine(run: RunDirectory, lines: list[str]) -> dict[str, Any]:
    """Runs all comparisons and returns their results."""
    defaults = DecodingConfig().as_dict().items()
    settings = {f"decoding.{name}": value for name, value in defaults if name not in OF_THE_RUN}
    settings["decoding.beam_size"] = BEAM
    translator = loading.load_translator(run, settings)
    tokens = translator.lengths(tf.constant(lines))["tokens"].numpy()
    for number in np.flatnonzero(tokens == 1) + 1:  # only the end token
        raise InputError(f"Line {number} of the source is empty. Give a file without empty lines.")
    batched = decode("batches", translator.translate_to_ids, lines)
    alone, _ = decode("alone", translator.translate_to_ids, lines, [[i] for i in range(len(lines))])

    plain = with_options(translator, length_penalty=0.0)
    ours, _ = decode("no length penalty", plain.translate_to_ids, lines)
    with tempfile.TemporaryDirectory() as folder:
        exported = export(run, folder, lines[:8], format="ctranslate2")
        theirs = ctranslate2_ids(exported.path, plain, lines)
    return {
        "ctranslate2": compare(plain, lines, ours, theirs, NEAR_TIE, SAME),
        "batch_against_alone": compare(translator, lines, batched[0], alone),
        **beams_and_scores(translator, lines, batched),
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
    info(f"{name}: {len(lines):,} sentences in {time.perf_counter() - start:.1f} s")
    return ids, scores


def ctranslate2_ids(path: Path, translator: TranslationModule, lines: Sequence[str]) -> list[Ids]:
    """Translates with an export and the search options of `translator`."""
    import ctranslate2  # an extra; without it, the export has failed

    names = ["joint"] * 2 if translator.tokenizer.joint else ["source", "target"]
    models = [str(path / f"{name}.model") for name in names]
    source, target = (sentencepiece.SentencePieceProcessor(model_file=model) for model in models)
    engine = ctranslate2.Translator(str(path), compute_type="float32", intra_threads=1)
    longest = translator.config.max_source_tokens - 1  # CTranslate2 adds the end token
    sources = [source.id_to_piece(source.encode(line)[:longest]) for line in lines]
    source_ids, *_ = translator.source_ids(tf.constant(lines))
    limits = translator.max_lengths(source_ids).numpy()
    options = {"length_penalty": 0, "min_decoding_length": 0, "max_input_length": 0}
    options |= {"beam_size": translator.config.beam_size, "return_end_token": True}
    ids: list[Ids] = [[] for _ in lines]
    for limit in np.unique(limits):  # all sentences of a call have the same limit
        group = np.flatnonzero(limits == limit)
        pieces = [sources[index] for index in group]
        results = engine.translate_batch(pieces, max_decoding_length=int(limit), **options)
        for index, result in zip(group, results, strict=True):
            ids[index] = target.piece_to_id(result.hypotheses[0])
    return ids


def beams_and_scores(
    translator: TranslationModule, lines: Sequence[str], batched: tuple[list[Ids], np.ndarray]
) -> dict[str, Any]:
    """Returns `beams`, the mean score of each beam, and `scores`, the check of the scores."""
    means, largest = {}, 0.0
    for beam in BEAMS:
        search = with_options(translator, beam_size=beam).translate_to_ids
        ids, scores = batched if beam == BEAM else decode(f"beam {beam}", search, lines)
        means[str(beam)] = round(float(scores.mean(dtype=np.float64)), 6)
        differences = np.abs(scores - rescored(translator, lines, ids))
        largest = np.maximum(largest, differences.max())  # keeps a NaN
    rising = all(b >= a - ROUNDING for a, b in itertools.pairwise(means.values()))
    return {
        "beams": {"mean_scores": means, "holds": rising},
        "scores": {"largest_difference": round(float(largest), 8), "holds": bool(largest < TIE)},
    }


def compare(
    translator: TranslationModule,
    lines: Sequence[str],
    first: Sequence[Ids],
    second: Sequence[Ids],
    tie: float = TIE,
    same: float = 0.0,
) -> dict[str, Any]:
    """Compares the translations of `lines` by two searches.

    `holds` is true if the share of equal translations is at least `same`, and the scores of the
    other ones are less than `tie` apart.
    """
    different = [i for i in range(len(lines)) if first[i] != second[i]]
    sources = [lines[i] for i in different]
    translations = [[ids[i] for i in different] for ids in (first, second)]
    scores = np.array([rescored(translator, sources, targets) for targets in translations])
    share = (len(lines) - len(different)) / len(lines)
    is_tie = bool((np.abs(scores[0] - scores[1]) < tie).all())
    pieces = translator.tokenizer.target_pieces
    return {
        "sentences": len(lines),
        "share": round(share, 4),
        "different": [
            {
                "source": source,
                "pieces": [b" ".join(pieces(tf.constant(t)).numpy()).decode() for t in targets],
                "scores": both.tolist(),
            }
            for source, *targets, both in zip(sources, *translations, scores.T, strict=True)
        ],
        "holds": share >= same and is_tie,
    }


def rescored(translator: TranslationModule, lines: Sequence[str], ids: Sequence[Ids]) -> np.ndarray:
    """Returns scores float64 `[lines]`, recomputed."""
    scores = score_ids(Scorer(translator), lines, ids)
    return np.array([penalized(row, translator.config) for row in scores])


def with_options(translator: TranslationModule, **changes: Any) -> TranslationModule:
    """Returns a translator of the same model with other search options."""
    config = dataclasses.replace(translator.config, **changes)
    return TranslationModule(translator.transformers, translator.tokenizer, config)


def main() -> int:
    """Prints the results."""
    batching.use_cores_for_batches(lines=1000)
    logging.set_verbosity(logging.ERROR)  # every translator has a separate graph, by design
    run = RunDirectory(FLAGS.model_dir)
    result = examine(run, read_text(FLAGS.source))
    holds = all(section["holds"] for section in result.values())
    print(json.dumps({"machine": describe_machine(), **result, "holds": holds}))
    return int(not holds)


if __name__ == "__main__":
    command.run(main)
