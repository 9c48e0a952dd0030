#!/usr/bin/env python3
r"""Measures batches: padding and shapes, reading, and how soon a run can go on at any step.

Example:
    benchmarks/batches.py --source=multi30k/train.en,newstest2013.en \
        --target=multi30k/train.de,newstest2013.de

For each pair of files a vocabulary is learned (joint, --vocab_size) and a token store
written to a temporary folder; then, for each of --batch_tokens:

* the plan: batch shapes, steps and filler rows of an epoch, the share of positions that
  hold no token (`padding`), and the seconds that planning takes;
* `tokens_per_second`: real tokens, source and target, that are read through
  `Batches.batch` and through `Batches.dataset` in a second of processor time (all threads
  of the process count);
* `sampled`: the same with segmentations drawn at --subword_alpha.

`large` is a corpus of --pairs whose lengths are drawn from those of the first files and
changed by up to 2: seconds to plan it, seconds until the first batch of a step that was
never asked for, and the most memory in use meanwhile, beyond what was before, in bytes a
pair (lengths themselves, 8 bytes a pair, left out).

Prints one JSON object.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import command
import numpy as np
from absl import flags
from decoders import machine

from keras_transformer.data import token_store
from keras_transformer.data.batching.batches import Batches, CorpusBatches
from keras_transformer.data.batching.subword_sampling import SubwordSampler
from keras_transformer.errors import InputError
from keras_transformer.text.vocabulary import Vocabulary, learn_vocabulary

FLAGS = flags.FLAGS
flags.DEFINE_list("source", None, "files of source sentences", required=True)
flags.DEFINE_list("target", None, "as many files of their translations", required=True)
flags.DEFINE_integer("vocab_size", 8000, "pieces of each vocabulary")
command.define_numbers("batch_tokens", [2048, 4096, 8192, 25000], "target positions of a batch")
flags.DEFINE_integer("epochs", 5, "so many are read for each number", lower_bound=1)
flags.DEFINE_float("subword_alpha", 0.2, "that of Kudo (2018)")
flags.DEFINE_integer("pairs", 10_000_000, "of the large corpus; 0 leaves it out")


class Lengths:
    """A corpus that is only planned: the lengths of its pairs."""

    def __init__(self, source: Any, target: Any) -> None:
        self.source_lengths, self.target_lengths = source, target

    def __len__(self) -> int:
        return len(self.source_lengths)


def write_store(
    source: Path, target: Path, folder: Path
) -> tuple[token_store.TokenStore, Vocabulary]:
    """Encodes a pair of files."""
    sides = [path.read_bytes().removesuffix(b"\n").split(b"\n") for path in (source, target)]
    if len(sides[0]) != len(sides[1]):
        raise InputError(
            f"{source} has {len(sides[0])} lines and {target} {len(sides[1])}; expected as many"
        )
    vocabulary = Vocabulary(learn_vocabulary(itertools.chain(*sides), FLAGS.vocab_size))
    encoded = (
        token_store.encoded(lines, encode(lines), FLAGS.vocab_size)
        for lines, encode in zip(
            sides, (vocabulary.encode_source, vocabulary.encode_target), strict=True
        )
    )
    digest = token_store.write_shard(folder / "0", *encoded)
    token_store.write_index(folder, [("0", len(sides[0]), digest)])
    return token_store.TokenStore(folder), vocabulary


def reading(batches: Batches) -> dict[str, Any]:
    """Returns the padding of an epoch as it is read, and real tokens per second of processor
    time through both ways to read.
    """
    tokens = positions = 0
    for step in range(batches.steps_per_epoch):
        inputs, labels = batches.batch(step)
        tokens += sum(int(np.count_nonzero(ids)) for ids in (inputs["source_ids"], labels))
        positions += inputs["source_ids"].size + labels.size

    def arrays(steps: int) -> None:
        for step in range(steps):
            batches.batch(step)

    def dataset(steps: int) -> None:
        for _ in batches.dataset(0, steps):
            pass

    result = {}
    for way in (arrays, dataset):
        start = time.process_time()
        way(FLAGS.epochs * batches.steps_per_epoch)
        seconds = time.process_time() - start
        result[way.__name__] = round(FLAGS.epochs * tokens / seconds)
    return {"padding": round(1 - tokens / positions, 4), "tokens_per_second": result}


def of_corpus(
    store: token_store.TokenStore, vocabulary: Vocabulary, batch_tokens: int
) -> dict[str, Any]:
    """Returns what is printed of a corpus in batches of one size."""
    ids = (vocabulary.pad_id, vocabulary.start_id)  # 0, and not 0
    start = time.perf_counter()
    batches = CorpusBatches(store, batch_tokens, 1, *ids)
    seconds = time.perf_counter() - start
    sampler = SubwordSampler(vocabulary, FLAGS.subword_alpha)
    sampled = CorpusBatches(store, batch_tokens, 1, *ids, sampler=sampler)
    return {
        "shapes": len(batches.shapes),
        "steps": batches.steps_per_epoch,
        "filler_rows": batches.filler_rows,
        "planning_seconds": round(seconds, 2),
        **reading(batches),
        "sampled": {"planned_padding": round(sampled.padding_share, 4), **reading(sampled)},
    }


def of_large_corpus(store: token_store.TokenStore, batch_tokens: int) -> dict[str, Any]:
    """Returns what is printed of a corpus of --pairs."""
    random = np.random.default_rng(0)
    like = random.integers(0, len(store), FLAGS.pairs, np.int32)
    source, target = (
        np.maximum(1, lengths[like] + random.integers(-2, 3, FLAGS.pairs, np.int8))
        for lengths in (
            store.source_lengths.astype(np.int32),
            store.target_lengths.astype(np.int32),
        )
    )
    lengths: Any = Lengths(source, target)
    batch_tokens = max(batch_tokens, int(target.max()))
    tracemalloc.start()
    CorpusBatches(lengths, batch_tokens, 1, 0, 2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    start = time.perf_counter()
    batches = CorpusBatches(lengths, batch_tokens, 1, 0, 2)
    planned = time.perf_counter()
    batches.indices(987_654_321)
    entered = time.perf_counter()
    return {
        "pairs": FLAGS.pairs,
        "padding": round(batches.padding_share, 4),
        "filler_rows": batches.filler_rows,
        "planning_seconds": round(planned - start, 2),
        "entering_a_step_seconds": round(entered - planned, 5),
        "peak_bytes_a_pair": round(peak / FLAGS.pairs, 1),
    }


def main() -> int:
    """Prints the measurements."""
    result: dict[str, Any] = {"machine": machine.describe(), "vocab_size": FLAGS.vocab_size}
    first = None
    with tempfile.TemporaryDirectory() as folder:
        for source, target in zip(FLAGS.source, FLAGS.target, strict=True):
            print(source, target, file=sys.stderr, flush=True)
            directory = Path(folder) / str(len(result))
            store, vocabulary = write_store(Path(source), Path(target), directory)
            first = first or store
            corpus: dict[str, Any] = {"pairs": len(store)}
            for batch_tokens in map(int, FLAGS.batch_tokens):
                corpus[str(batch_tokens)] = of_corpus(store, vocabulary, batch_tokens)
            result[f"{source} {target}"] = corpus
        if FLAGS.pairs and first is not None:
            result["large"] = of_large_corpus(first, int(FLAGS.batch_tokens[-1]))
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    command.run(main)
