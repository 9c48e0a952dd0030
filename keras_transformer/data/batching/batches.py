"""Batches of a corpus: a batch is a pure function of (corpus, seed, step).

Nothing is iterated or drawn to get to a step: which pair stands in a row follows
from (seed, epoch, row) by permutations that are computed there and then. So
training resumes anywhere at once, in a corpus of any size.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from keras_transformer.data.batching.bucketing import (
    MAX_SHAPES,
    Histogram,
    choose_shapes,
    place_pairs,
)
from keras_transformer.data.batching.permutation import Keys, hashed, key_of, permuted
from keras_transformer.data.batching.subword_batches import Sentences, draw
from keras_transformer.data.batching.subword_sampling import Room, SubwordSampler
from keras_transformer.data.batching.token_pairs import IntArray, Lengths, TokenArray, TokenPairs
from keras_transformer.errors import InputError

Batch: TypeAlias = tuple[dict[str, TokenArray], TokenArray]
Shape: TypeAlias = tuple[int, int, int]

_STEPS_AT_ONCE = 32
_TOKENS_AT_ONCE = 2**16  # where segmentations are drawn, of words that were never seen before


class _Steps(NamedTuple):
    """Some steps one after another."""

    block: int  # how many such went before
    shapes: list[int]  # of each step
    pairs: list[IntArray]  # in its rows, filler rows left out
    drawn: list[Sentences]  # where segmentations are drawn, else empty


class Batches(abc.ABC):
    """The batch of every step.

    Attributes:
        steps_per_epoch: batches in an epoch.
        shapes: at most 16 triples (rows, S, T), rows a multiple of 8; rows * T is
            at most `batch_tokens`, except where that leaves fewer than 8 rows.
        padding_share: share of an epoch's source and target positions, rows that
            are only filler included, that hold no token of a sentence.
            Where segmentations are drawn it is that of the plan: some are then drawn
            shorter to fit, which leaves up to 4 % more.
        filler_rows: rows of an epoch that hold no pair.
    """

    shapes: tuple[Shape, ...]
    steps_per_epoch: int
    padding_share: float
    filler_rows: int

    @abc.abstractmethod
    def batch(self, step: int, part: int = 0, parts: int = 1) -> Batch:
        """Returns the batch of a step, counted over all epochs from 0, or one part of its rows.

        Args:
            step: the step.
            part: which of the `parts`, in each of which as many rows are.
            parts: filler rows make up for rows that cannot be divided by it.

        Returns:
            `({"source_ids": int32[R, S], "target_ids": int32[R, T]}, labels int32[R, T])`.
            Labels are the target sentence with its end id; `target_ids` is the same
            shifted right by one behind the start id. The rest is pad_id; a filler row
            is pad_id altogether.

        Raises:
            InputError: for a negative step.
        """

    def dataset(
        self,
        first_step: int = 0,
        num_steps: int | None = None,
        parts: int = 1,
        own: Sequence[int] = (0,),
    ) -> tf.data.Dataset:
        """Returns the batches of `num_steps` steps from `first_step` on, endless if None.

        With `parts` more than 1 there is an element for each part in `own` of each step.
        Elements are those of `batch`, with the spec
        `({"source_ids": int32[None, None], "target_ids": int32[None, None]}, int32[None, None])`.
        """

        def arrays(index: np.int64) -> tuple[TokenArray, TokenArray, TokenArray]:
            step, place = divmod(int(index), len(own))
            inputs, labels = self.batch(first_step + step, own[place], parts)
            return inputs["source_ids"], inputs["target_ids"], labels

        def tensors(index: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
            arrays_ = tf.numpy_function(arrays, [index], [tf.int32] * 3, stateful=False)
            source, target, labels = (tf.ensure_shape(ids, [None, None]) for ids in arrays_)
            return {"source_ids": source, "target_ids": target}, labels

        if num_steps is None:  # a dataset that is known to have no end needs no look ahead
            indices = tf.data.Dataset.counter()
        else:
            indices = tf.data.Dataset.range(num_steps * len(own))
        return indices.map(tensors).prefetch(2 * len(own)).with_options(_untuned())

    def distributed(
        self, strategy: tf.distribute.Strategy, first_step: int = 0, num_steps: int | None = None
    ) -> tf.distribute.DistributedDataset:
        """Returns `dataset` with each replica's rows for it; a worker computes only its own."""

        def own_rows(context: tf.distribute.InputContext) -> tf.data.Dataset:
            parts = context.num_replicas_in_sync
            count = parts // context.num_input_pipelines
            first = context.input_pipeline_id * count
            return self.dataset(first_step, num_steps, parts, range(first, first + count))

        return strategy.distribute_datasets_from_function(own_rows, _own_pipelines(strategy))


def _own_pipelines(strategy: tf.distribute.Strategy) -> tf.distribute.InputOptions | None:
    """Options by which each replica on a CPU has a pipeline of its own; elsewhere none.

    Otherwise one would feed all through iterators of another kind, which `_untuned` does not reach.
    """
    if not isinstance(strategy, tf.distribute.MirroredStrategy):
        return None
    if any("CPU" not in device for device in strategy.extended.worker_devices):
        return None
    return tf.distribute.InputOptions(
        experimental_fetch_to_device=False,
        experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA,
    )


def _untuned() -> tf.data.Options:
    """Options of a dataset in which nothing is left to tune.

    What would tune it is a thread of each iterator, for which whoever lets go of an iterator waits,
    seconds at a time: after every validation, and where objects are collected.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return options


class CorpusBatches(Batches):
    """All batches of all epochs over one corpus.

    Every epoch holds every pair exactly once, in new company and in a new order,
    and has the same number of batches of each shape. Sentences of like lengths
    share a batch (paper, section 5.1).

    It keeps 4 bytes for each pair: the pairs sorted by their lengths, so that
    those of a bucket (of equal lengths) lie together. The rows of a shape are
    divided among buckets as the plan says. Two permutations for each epoch
    decide the rest: one for each shape, which of its places stand in which row;
    one for each bucket, which of its pairs takes which place.
    """

    def __init__(
        self,
        store: TokenPairs,
        batch_tokens: int,
        seed: int,
        pad_id: int,
        start_id: int,
        shuffle: bool = True,
        sampler: SubwordSampler | None = None,
        *,
        shapes: IntArray | None = None,
        number: int = 0,
    ) -> None:
        """Plans the epoch.

        Args:
            store: the encoded corpus.
            batch_tokens: target positions a batch has, about, over all replicas.
            seed: at least 0; another seed gives other epochs.
            pad_id: fills up sentences and rows.
            start_id: precedes each target sentence in the decoder's input.
            shuffle: False gives all epochs the same order, whatever the seed.
            sampler: segments sentences anew in every epoch; None takes the store's ids.
            shapes: int64[C, 3], the shapes to take, as `common_shapes` gives them for
                several corpora; by default those that are best for this one.
            number: of the corpus, so that equal ones get orders of their own.

        Raises:
            InputError: for a corpus without pairs, `batch_tokens` less than the
                longest target sentence, or a negative seed.
        """
        if seed < 0:
            raise InputError(f"the seed of the batches is {seed}; expected at least 0")
        self._store = store
        self._key = key_of(seed, number)
        self._pad_id = pad_id
        self._start_id = start_id
        self._shuffle = shuffle
        self._sampler = sampler
        room = _room(store, batch_tokens, sampler)
        histogram, bucket = Histogram.of(room.source, room.target)
        if shapes is None:
            shapes = choose_shapes(histogram, batch_tokens)
        plan = place_pairs(shapes, histogram)
        self.shapes = tuple((rows, source, target) for rows, source, target in plan.shapes.tolist())
        self.steps_per_epoch = int(plan.num_batches.sum())
        self.filler_rows = plan.filler_rows
        self.tokens, self.positions = room.tokens, plan.positions
        self.padding_share = 1.0 - self.tokens / self.positions

        self._first_batch = _begins(plan.num_batches)  # of each shape
        self._num_places = plan.places.sum(axis=1)  # of each shape; filler rows are none
        self._first_place = _begins(self._num_places)
        # The places of a shape that one bucket fills are a segment; those of all shapes:
        shape, self._bucket = np.nonzero(plan.places)
        self._segment = _begins(plan.places[shape, self._bucket])
        # What smaller shapes leave of a bucket is taken from where the larger ones ended.
        self._taken = (np.cumsum(plan.places, axis=0) - plan.places)[shape, self._bucket]
        self._bucket_size = histogram.count
        self._first_pair = _begins(histogram.count)
        # Sorting small integers is a radix sort in NumPy: linear.
        by_bucket = np.argsort(bucket, kind="stable")
        self._by_bucket = by_bucket.astype(np.min_scalar_type(len(bucket)))
        at_once = _STEPS_AT_ONCE
        if sampler is not None:
            at_once = min(at_once, max(1, _TOKENS_AT_ONCE * self.steps_per_epoch // self.tokens))
        self._steps_at_once = at_once
        self._kept: _Steps | None = None

    def _permuted(self, places: IntArray, sizes: IntArray, keys: Keys, of: IntArray) -> IntArray:
        """Returns where permutations of the things numbered `of` put places."""
        return permuted(places, sizes, hashed(keys, of)) if self._shuffle else places

    def _pairs_of_steps(self, steps: IntArray) -> tuple[list[int], list[IntArray]]:
        """Returns the shape of each step, and the pairs in its rows, filler rows left out."""
        epochs, places = np.divmod(steps, self.steps_per_epoch)
        keys = hashed(self._key, epochs)
        batches = self._permuted(places, np.full_like(steps, self.steps_per_epoch), keys, 0 * steps)
        shapes = np.searchsorted(self._first_batch, batches, side="right") - 1
        most = np.array(self.shapes)[shapes, 0]
        first = (batches - self._first_batch[shapes]) * most
        counts = np.minimum(most, self._num_places[shapes] - first)

        # From here on for each row of all steps.
        keys, shape = np.repeat(keys, counts), np.repeat(shapes, counts)
        row = np.arange(len(shape)) + np.repeat(first - _begins(counts), counts)
        place = self._permuted(row, self._num_places[shape], keys, 1 + shape)
        place = place + self._first_place[shape]
        segment = np.searchsorted(self._segment, place, side="right") - 1
        bucket = self._bucket[segment]
        within = place - self._segment[segment] + self._taken[segment]
        size = self._bucket_size[bucket]
        within = self._permuted(within, size, keys, 1 + MAX_SHAPES + bucket)
        pairs = self._by_bucket[self._first_pair[bucket] + within].astype(np.int64)
        return shapes.tolist(), np.split(pairs, np.cumsum(counts)[:-1])

    def _around(self, step: int) -> tuple[_Steps, int]:
        """Returns steps of which one is this, and which.

        They are computed together and kept: for many rows it takes hardly longer than for
        few, and where segmentations are drawn, rows change places among the steps.
        """
        if step < 0:
            raise InputError(f"step {step} has no batch; expected at least 0")
        block, place = divmod(step, self._steps_at_once)
        kept = self._kept
        if kept is None or kept.block != block:
            steps = np.arange(block * self._steps_at_once, (block + 1) * self._steps_at_once)
            shapes, pairs = self._pairs_of_steps(steps)
            drawn: list[Sentences] = []
            if self._sampler is not None:  # epoch by epoch, so that each has all pairs
                epochs = steps // self.steps_per_epoch
                for epoch in np.unique(epochs).tolist():
                    first, end = np.searchsorted(epochs, [epoch, epoch + 1]).tolist()
                    pairs[first:end], sentences = self._draw(
                        self._sampler, epoch, shapes[first:end], pairs[first:end]
                    )
                    drawn += sentences
            kept = self._kept = _Steps(block, shapes, pairs, drawn)
        return kept, place

    def _draw(
        self,
        sampler: SubwordSampler,
        epoch: int,
        shapes: Sequence[int],
        pairs: Sequence[IntArray],
    ) -> tuple[list[IntArray], list[Sentences]]:
        """Draws the sentences of some steps of an epoch; pairs change rows to have room."""
        counts = [len(each) for each in pairs]
        together = np.concatenate(pairs)
        bounds = np.repeat([self.shapes[shape][1:] for shape in shapes], counts, axis=0)
        keys = hashed(hashed(~self._key, np.full_like(together, epoch)), together)
        row_of, drawn = draw(sampler, self._store, together, keys, bounds)
        rows = np.split(np.argsort(row_of), np.cumsum(counts)[:-1])
        return [together[each] for each in rows], [drawn.of(each.tolist()) for each in rows]

    def indices(self, step: int) -> IntArray:
        """Returns int64[rows]: the pair of the corpus in each row, -1 for filler rows."""
        kept, place = self._around(step)
        pairs, rows = kept.pairs[place], self.shapes[kept.shapes[place]][0]
        return np.pad(pairs, (0, rows - len(pairs)), constant_values=-1)

    def batch(self, step: int, part: int = 0, parts: int = 1) -> Batch:
        """Returns the batch of a step; see `Batches.batch`."""
        kept, place = self._around(step)
        rows, source_length, target_length = self.shapes[kept.shapes[place]]
        rows = -(-rows // parts)
        begin, end = part * rows, (part + 1) * rows
        if kept.drawn:
            sentences = kept.drawn[place].rows(begin, end)
        else:
            store, pairs = self._store, kept.pairs[place][begin:end]
            sentences = Sentences(
                store.source_ids(pairs), store.source_lengths[pairs],
                store.target_ids(pairs), store.target_lengths[pairs],
            )  # fmt: skip
        source = self._padded(sentences.source_ids, sentences.source_lengths, rows, source_length)
        labels = self._padded(sentences.target_ids, sentences.target_lengths, rows, target_length)
        shifted = self._shifted(labels, sentences.target_lengths)
        return {"source_ids": source, "target_ids": shifted}, labels

    def _padded(self, ids: TokenArray, lengths: Lengths, rows: int, length: int) -> TokenArray:
        """Returns sentences that lie one after another as int32[rows, length]."""
        padded = np.full(rows * length, self._pad_id, np.int32)
        gaps = np.arange(len(lengths)) * length - _begins(lengths)
        padded[np.arange(len(ids)) + np.repeat(gaps, lengths)] = ids
        return padded.reshape(rows, length)

    def _shifted(self, labels: TokenArray, lengths: Lengths) -> TokenArray:
        """Returns what the decoder gets to see before each label, int32[R, T]."""
        shifted = np.full_like(labels, self._pad_id)
        shifted[:, 1:] = labels[:, :-1]
        shifted[: len(lengths), 0] = self._start_id
        ends = np.flatnonzero(lengths < labels.shape[1])
        shifted[ends, lengths[ends]] = self._pad_id  # the end id, which foretells nothing
        return shifted


def common_shapes(
    stores: Sequence[TokenPairs],
    batch_tokens: int,
    sampler: SubwordSampler | None = None,
    frequencies: Sequence[float] | None = None,
) -> IntArray:
    """Returns int64[C, 3]: at most 16 shapes (rows, S, T) that serve several corpora.

    Args:
        stores, batch_tokens, sampler: as for `CorpusBatches`.
        frequencies: of each corpus, above 0: how often one of its pairs comes, beside the
            others'; equally often if not given.

    Raises:
        InputError: as `CorpusBatches` for each of them.
    """
    rooms = (_room(store, batch_tokens, sampler) for store in stores)
    histograms = [Histogram.of(room.source, room.target)[0] for room in rooms]
    if frequencies is not None:
        most = max(frequencies)
        histograms = [
            histogram.scaled(max(frequency / most, 1e-6))
            for histogram, frequency in zip(histograms, frequencies, strict=True)
        ]
    return choose_shapes(Histogram.union(histograms), batch_tokens)


def _room(store: TokenPairs, batch_tokens: int, sampler: SubwordSampler | None) -> Room:
    if len(store) == 0:
        raise InputError("the corpus to batch has 0 sentence pairs; expected at least 1")
    longest = int(store.target_lengths.max())
    if batch_tokens < longest:
        raise InputError(
            f"batch_tokens is {batch_tokens}, but the longest target sentence has {longest}"
            " tokens: a global batch cannot hold one sentence; expected batch_tokens of at"
            f" least {longest}"
        )
    if sampler is None:
        source, target = store.source_lengths, store.target_lengths
        tokens = source.sum(dtype=np.int64) + target.sum(dtype=np.int64)
        return Room(source, target, int(tokens))
    return sampler.room(store, batch_tokens)


def _begins(counts: Lengths) -> IntArray:
    """Returns where each of several runs begins that lie one after another."""
    return np.cumsum(counts, dtype=np.int64) - counts
