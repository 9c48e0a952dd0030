"""Batches of one corpus or several: a batch is a pure function of (corpora, seed, step).

One permutation, a function of (seed, epoch), gives the order of an epoch of a corpus. It takes a
fifth of a second for 5 million pairs. So training resumes at any step without reading the earlier
ones.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_transformer.data import subwords
from keras_transformer.data.bucketing import MAX_SHAPES, Histogram, choose_shapes, plan_epoch
from keras_transformer.data.subwords import Lengths, Samplers, TokenArray
from keras_transformer.data.token_store import IntArray, TokenStore
from keras_transformer.errors import InputError, require
from keras_transformer.text.vocabulary import Vocabulary

Batch: TypeAlias = tuple[dict[str, TokenArray], TokenArray]
Shape: TypeAlias = tuple[int, int, int]
Pairs: TypeAlias = npt.NDArray[np.unsignedinteger]
# The sampled segmentations of the rows of a batch, for the source and the target.
Segmentations: TypeAlias = tuple[list[TokenArray], list[TokenArray]]

# Segmentations are drawn for this many steps together, or for this many tokens of new words.
_STEPS_AT_ONCE = 32
_TOKENS_AT_ONCE = 2**16


class Batches:
    """The batches of all steps, from one corpus or from several in turns with given shares.

    Each corpus has separate epochs: no pair is repeated before all pairs have been used. The steps
    of a corpus are spread evenly. An epoch has as many steps as one epoch of every corpus together.
    Without weights, it contains each corpus once.
    """

    def __init__(
        self,
        stores: Sequence[TokenStore],
        batch_tokens: int,
        seed: int | None,
        vocabulary: Vocabulary,
        subword_alpha: float | None = None,
        *,
        weights: Sequence[Fraction] | None = None,
        temperature: float = 1.0,
        max_shapes: int = MAX_SHAPES,
    ) -> None:
        """Plans the epochs of all corpora, with common shapes.

        Without `weights`, the shares of corpora are their sizes to the power of 1 / `temperature`.
        With `subword_alpha`, segmentations are sampled (see `subwords.py`).
        """
        require((seed or 0) >= 0, f"The seed of the batches is {seed}, but it must be at least 0.")
        message = f"The temperature of the mixture is {temperature}, but it must be at least 1."
        require(1 <= temperature < math.inf, message)
        self._pad_id, self._start_id = vocabulary.pad_id, vocabulary.start_id
        samplers = None
        if subword_alpha is not None:
            samplers = subwords.samplers_of(vocabulary, subword_alpha)
        lengths = [_planned_lengths(store, batch_tokens, samplers) for store in stores]
        tokens = [int(store.target.lengths.sum(dtype=np.int64)) for store in stores]
        by_tokens = weights or [_tempered(count, temperature) for count in tokens]
        frequencies = [float(share / count) for share, count in zip(by_tokens, tokens, strict=True)]
        histograms = []
        for corpus_lengths, frequency in zip(lengths, frequencies, strict=True):
            histogram, _ = Histogram.of(*corpus_lengths)
            scaled = np.rint(histogram.count * max(frequency / max(frequencies), 1e-6))
            count = np.maximum(1, scaled).astype(np.int64)
            histograms.append(dataclasses.replace(histogram, count=count))
        shapes = choose_shapes(Histogram.union(histograms), batch_tokens, max_shapes)
        self.corpora = [
            CorpusBatches(*planned, shapes, seed, number, samplers)
            for number, planned in enumerate(zip(stores, lengths, strict=True))
        ]
        sizes = [corpus.steps_per_epoch for corpus in self.corpora]
        exact = weights or [_tempered(size, temperature) for size in sizes]
        denominator = math.lcm(*(weight.denominator for weight in exact))
        self._weights = [int(weight * denominator) for weight in exact]
        self.shapes = tuple(sorted({shape for corpus in self.corpora for shape in corpus.shapes}))
        self.steps_per_epoch = sum(sizes)
        # How often an epoch contains each corpus.
        passes = np.array(self._weights) / sum(self._weights) * self.steps_per_epoch / sizes
        used, positions = (
            float(passes @ [getattr(corpus, name) for corpus in self.corpora])
            for name in ("tokens", "positions")
        )
        self.padding_share = 1 - used / positions

    def batch(self, step: int, part: int = 0, parts: int = 1) -> Batch:
        """Returns the batch of a step, or one part of its rows.

        It is `({"source_ids": int32[R, S], "target_ids": int32[R, T]}, labels int32[R, T])`. Labels
        are the target sentence with its end id. `target_ids` is the same, shifted right by one
        behind the start id. The rest is pad_id, also in filler rows.
        """
        require(step >= 0, f"The step is {step}, but it must be at least 0.")
        number, own_step = corpus_and_step(step, self._weights)
        corpus = self.corpora[number]
        (rows, source_length, target_length), pairs, sampled = corpus.rows(own_step)
        rows = -(-rows // parts)
        own = slice(part * rows, (part + 1) * rows)
        if sampled is None:
            pairs = pairs[own]
            source, target = ((side.ids(pairs), side.lengths[pairs]) for side in corpus.store.sides)
        else:
            source, target = (subwords.joined(side[own]) for side in sampled)
        source_ids = self._padded(*source, rows, source_length)
        labels = self._padded(*target, rows, target_length)
        lengths = target[1]
        target_ids = np.full_like(labels, self._pad_id)
        target_ids[:, 1:] = labels[:, :-1]
        target_ids[: len(lengths), 0] = self._start_id
        ends = np.flatnonzero(lengths < target_length)
        target_ids[ends, lengths[ends]] = self._pad_id  # the end id is not an input
        return {"source_ids": source_ids, "target_ids": target_ids}, labels

    def _padded(self, ids: TokenArray, lengths: Lengths, rows: int, length: int) -> TokenArray:
        """Pads consecutive sentences to int32[rows, length]."""
        padded = np.full(rows * length, self._pad_id, np.int32)
        gaps = np.arange(len(lengths)) * length - _begins(lengths)
        padded[np.arange(len(ids)) + np.repeat(gaps, lengths)] = ids
        return padded.reshape(rows, length)

    def dataset(
        self,
        first_step: int | tf.Tensor = 0,
        num_steps: int | None = None,
        parts: int = 1,
        own: Sequence[int] = (0,),
    ) -> tf.data.Dataset:
        """Returns the batches of `num_steps` steps from `first_step` on, or of all steps if None.

        With `parts` more than 1 there is an element for each part in `own` of each step.
        Elements have the structure of `batch`'s result, with the spec
        `({"source_ids": int32[None, None], "target_ids": int32[None, None]}, int32[None, None])`.
        """

        def arrays(index: np.int64) -> tuple[TokenArray, TokenArray, TokenArray]:
            step, number = divmod(int(index), len(own))
            inputs, labels = self.batch(step, own[number], parts)
            return inputs["source_ids"], inputs["target_ids"], labels

        def tensors(index: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
            arrays_ = tf.numpy_function(arrays, [index], [tf.int32] * 3, stateful=False)
            source, target, labels = (tf.ensure_shape(ids, [None, None]) for ids in arrays_)
            return {"source_ids": source, "target_ids": target}, labels

        count = -1 if num_steps is None else num_steps * len(own)
        indices = tf.data.Dataset.counter(first_step * len(own)).take(count)
        return indices.map(tensors).prefetch(2 * len(own)).with_options(_no_autotuning())

    def epochs(self) -> tf.data.Dataset:
        """Returns a dataset of one epoch, for `model.fit`. Each pass over it is the next epoch."""
        steps = self.steps_per_epoch
        first_steps = itertools.count(step=steps)
        epoch = tf.data.Dataset.from_generator(
            lambda: [next(first_steps)], output_signature=tf.TensorSpec([], tf.int64)
        )
        batches = epoch.flat_map(lambda first_step: self.dataset(first_step, steps))
        cardinality = tf.data.experimental.assert_cardinality(steps)
        return batches.with_options(_no_autotuning()).apply(cardinality)

    def distributed(
        self, strategy: tf.distribute.Strategy, first_step: int = 0, num_steps: int | None = None
    ) -> tf.distribute.DistributedDataset:
        """Returns `dataset`, distributed: each replica gets its rows, and computes no others."""

        def own_rows(context: tf.distribute.InputContext) -> tf.data.Dataset:
            parts = context.num_replicas_in_sync
            count = parts // context.num_input_pipelines
            first = context.input_pipeline_id * count
            return self.dataset(first_step, num_steps, parts, range(first, first + count))

        return strategy.distribute_datasets_from_function(own_rows, _pipelines(strategy))


class CorpusBatches:
    """All batches of all epochs over one corpus.

    Every epoch contains every pair once, in new batches and a new order, with the same number of
    batches of each shape. Sentences of similar lengths share a batch (paper, section 5.1).

    Pairs of equal lengths form a bucket. The plan has the number of pairs of each bucket in batches
    of each shape. An epoch shuffles the pairs of every bucket, distributes them to the shapes, and
    shuffles the pairs of every shape and the order of all batches. It needs 4 bytes for each pair,
    and 4 more for each of the last two epochs.
    """

    def __init__(
        self,
        store: TokenStore,
        lengths: tuple[Lengths, Lengths],
        shapes: IntArray,
        seed: int | None,
        number: int,
        samplers: Samplers | None,
    ) -> None:
        """Plans the epoch for these lengths, with the shapes int64[C, 3] that all corpora share.

        `number` is that of the corpus, because the orders of equal corpora differ.
        """
        self.store = store
        self._seed = seed
        self._number = number
        self._samplers = samplers
        histogram, bucket = Histogram.of(*lengths)
        plan = plan_epoch(shapes, histogram)
        self.shapes = tuple((rows, source, target) for rows, source, target in plan.shapes.tolist())
        self.steps_per_epoch = int(plan.num_batches.sum())
        self.tokens = sum(int(side.sum(dtype=np.int64)) for side in lengths)
        self.positions = plan.positions

        # For each shape, and for the end: the first batch, and the first pair in the order of an
        # epoch.
        self._first_batch = np.cumsum([0, *plan.num_batches])
        self._first_pair = np.cumsum([0, *plan.counts.sum(axis=1)])
        self._first_in_bucket = _begins(histogram.count)
        # Each shape takes the pairs of a bucket that the larger shapes have left.
        ends = (self._first_in_bucket + np.cumsum(plan.counts, axis=0))[plan.counts > 0]
        self._segments = list(map(slice, ends - plan.counts[plan.counts > 0], ends))
        # Sorting small integers is a radix sort in NumPy: linear.
        by_bucket = np.argsort(bucket, kind="stable")
        self._by_bucket: Pairs = by_bucket.astype(np.min_scalar_type(len(bucket)))
        self._steps_at_once = min(
            _STEPS_AT_ONCE, max(1, _TOKENS_AT_ONCE * self.steps_per_epoch // self.tokens)
        )
        # Keeps two epochs, because the pipeline of one replica may be ahead of another.
        self._epoch = functools.lru_cache(maxsize=2)(self._make_epoch)
        self._sampled_steps = functools.lru_cache(maxsize=1)(self._sample_steps)

    def _make_epoch(self, epoch: int) -> tuple[IntArray, Pairs]:
        """Returns the order of the batches of an epoch, and the order of its pairs.

        Batches are numbered by shape, and pairs are sorted by shape.
        """
        batches, pairs = np.arange(self.steps_per_epoch), self._by_bucket.copy()
        random = np.random.default_rng([self._seed or 0, self._number, epoch])
        if self._seed is not None:
            for bucket in np.split(pairs, self._first_in_bucket[1:]):
                random.shuffle(bucket)
        pairs = np.concatenate([pairs[segment] for segment in self._segments])
        if self._seed is not None:
            for shape in np.split(pairs, self._first_pair[1:-1]):
                random.shuffle(shape)
            random.shuffle(batches)
        return batches, pairs

    def planned(self, step: int) -> tuple[Shape, IntArray]:
        """Returns the shape of a step, and the pairs in its rows, filler rows left out."""
        epoch, step_of_epoch = divmod(step, self.steps_per_epoch)
        batches, pairs = self._epoch(epoch)
        batch = batches[step_of_epoch]
        number = int(np.searchsorted(self._first_batch, batch, side="right")) - 1
        rows = self.shapes[number][0]
        first = self._first_pair[number] + (batch - self._first_batch[number]) * rows
        end = min(first + rows, self._first_pair[number + 1])
        return self.shapes[number], pairs[first:end].astype(np.int64)

    def rows(self, step: int) -> tuple[Shape, IntArray, Segmentations | None]:
        """Returns the result of `planned`, and the segmentations if they are sampled."""
        if self._samplers is None:
            return *self.planned(step), None
        block, number = divmod(step, self._steps_at_once)
        return self._sampled_steps(block)[number]

    def _sample_steps(self, block: int) -> list[tuple[Shape, IntArray, Segmentations]]:
        """Returns several consecutive steps. Within an epoch, pairs may change their rows.

        Several steps are drawn together, because a segmentation that is longer than planned may fit
        into another step.
        """
        assert self._samplers is not None
        steps = range(block * self._steps_at_once, (block + 1) * self._steps_at_once)
        sampled = []
        for epoch, group in itertools.groupby(steps, lambda step: step // self.steps_per_epoch):
            shapes, planned = zip(*map(self.planned, group), strict=True)
            counts = [len(pairs) for pairs in planned]
            together = np.concatenate(planned)
            bounds = np.repeat([lengths for _, *lengths in shapes], counts, axis=0)
            # The last number makes this key differ from those of `planned_lengths`.
            key = subwords.key_of(self._seed or 0, self._number, epoch, 1)
            keys = subwords.hashed(key, together)
            drawn = subwords.draw(self._samplers, self.store, together, keys, bounds)
            row_of, (sources, targets) = drawn
            rows = np.split(np.argsort(row_of), np.cumsum(counts)[:-1])
            for shape, pairs in zip(shapes, rows, strict=True):
                chosen = ([sources[i] for i in pairs], [targets[i] for i in pairs])
                sampled.append((shape, together[pairs], chosen))
        return sampled


def _planned_lengths(
    store: TokenStore, batch_tokens: int, samplers: Samplers | None
) -> tuple[Lengths, Lengths]:
    """Returns the source and target lengths that batches are planned for."""
    require(len(store) > 0, "The corpus has 0 sentence pairs, so there is nothing to batch.")
    longest = int(store.target.lengths.max())
    require(
        batch_tokens >= longest,
        f"batch_tokens is {batch_tokens}, but the longest target sentence has {longest} tokens. "
        f"Raise batch_tokens to at least {longest}, or lower max_tokens when you prepare the "
        "data.",
    )
    if samplers is None:
        return store.source.lengths, store.target.lengths
    return subwords.planned_lengths(samplers, store, batch_tokens)


def _begins(counts: Lengths) -> IntArray:
    """Returns the first index of each of several consecutive groups."""
    return np.cumsum(counts, dtype=np.int64) - counts


def _pipelines(strategy: tf.distribute.Strategy) -> tf.distribute.InputOptions | None:
    """Returns options that give each replica on a CPU a separate pipeline; none on other devices.

    With a single pipeline for all replicas, the options of a dataset would not reach the iterators.
    """
    is_mirrored = isinstance(strategy, tf.distribute.MirroredStrategy)
    if not is_mirrored or any("CPU" not in name for name in strategy.extended.worker_devices):
        return None
    return tf.distribute.InputOptions(
        experimental_fetch_to_device=False,
        experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA,
    )


def _no_autotuning() -> tf.data.Options:
    """Autotuning runs a thread per iterator. Releasing an iterator waits for its thread, for
    seconds after each validation and during garbage collection.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return options


def _tempered(size: int, temperature: float) -> Fraction:
    # At temperature 1 the shares are exact, so all corpora end an epoch at the same step.
    return Fraction(size) if temperature == 1 else Fraction(size ** (1 / temperature))


def corpus_and_step(step: int, weights: Sequence[int]) -> tuple[int, int]:
    """Returns the corpus of a step, and the number of the step in this corpus, from 0.

    Step j of a corpus with weight w is due at time (j + 1/2) / w, and steps are sorted by this time
    (Sainte-Laguë method). After any number of steps, each corpus has its share, up to about one
    step.
    """
    total, count = sum(weights), len(weights)
    # Start from the steps that are certainly taken: at most `step`, and only a few less.
    passed = max(2 * step - count, 0)
    taken = [(passed * weight + total) // (2 * total) for weight in weights]
    common = math.lcm(*weights)
    intervals = [common // weight for weight in weights]
    while True:
        corpus = min(range(count), key=lambda i: (2 * taken[i] + 1) * intervals[i])
        if sum(taken) == step:
            return corpus, taken[corpus]
        taken[corpus] += 1


def parse_mix(mix: str, names: Sequence[str]) -> list[Fraction]:
    """Reads weights such as "a:2,b:0.5", in the order of `names`."""
    weights: dict[str, Fraction] = {}
    for entry in mix.split(","):
        found = re.fullmatch(r"(.+):([0-9]+(?:\.[0-9]+)?)", entry.strip())
        if found is None or not Fraction(found[2]) or found[1] in weights:
            raise InputError(
                f"mix={mix}: {entry.strip()!r} is not a new name and a weight above 0. Give a "
                "number for each corpus, as in mix=a:2,b:0.5."
            )
        weights[found[1]] = Fraction(found[2])
    require(
        sorted(weights) == sorted(names),
        f"mix={mix} names {', '.join(weights)}, but it needs one weight for each of "
        f"{', '.join(names)}. Use data directories with different names.",
    )
    return [weights[name] for name in names]
