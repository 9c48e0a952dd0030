"""Batches of a token store: a batch is a pure function of (corpus, seed, step).

Nothing is iterated to get to a step: the epoch's order is drawn from
(seed, epoch), and the step is a place in it. So training resumes anywhere at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_transformer.data.batch_plan import plan_batches
from keras_transformer.errors import InputError

IntArray: TypeAlias = npt.NDArray[np.int64]
TokenArray: TypeAlias = npt.NDArray[np.int32]
Batch: TypeAlias = tuple[dict[str, TokenArray], TokenArray]


class TokenPairs(Protocol):
    """What is needed of a `TokenStore`: ids end to end, and where each sentence begins.

    Sentence i of the source is `source_ids[source_offsets[i]:source_offsets[i + 1]]`;
    it ends with the end id and has neither start id nor padding. So has the target.
    """

    @property
    def source_ids(self) -> npt.NDArray[np.integer]:
        """int32[all source tokens]."""
        ...

    @property
    def source_offsets(self) -> IntArray:
        """int64[pairs + 1]."""
        ...

    @property
    def target_ids(self) -> npt.NDArray[np.integer]:
        """int32[all target tokens]."""
        ...

    @property
    def target_offsets(self) -> IntArray:
        """int64[pairs + 1]."""
        ...

    def __len__(self) -> int: ...


class Batches:
    """All batches of all epochs over a corpus.

    Every epoch holds every pair exactly once, in new company and in a new order,
    and has the same number of batches of each shape. Sentences of like lengths
    share a batch (paper, section 5.1).

    Attributes:
        steps_per_epoch: batches in an epoch.
        shapes: at most 16 triples (rows, S, T), rows a multiple of 8; rows * T is
            at most `batch_tokens`, except where that leaves fewer than 8 rows.
        padding_share: share of an epoch's source and target positions, rows that
            are only filler included, that hold no token of a sentence.
    """

    def __init__(
        self,
        store: TokenPairs,
        batch_tokens: int,
        seed: int,
        pad_id: int,
        start_id: int,
        shuffle: bool = True,
    ) -> None:
        """Plans the epoch.

        Args:
            store: the encoded corpus.
            batch_tokens: target positions a batch has, about, over all replicas.
            seed: at least 0; another seed gives other epochs.
            pad_id: fills up sentences and rows.
            start_id: precedes each target sentence in the decoder's input.
            shuffle: False gives all epochs the same order, whatever the seed.

        Raises:
            InputError: for a corpus without pairs, `batch_tokens` less than the
                longest target sentence, or a negative seed.
        """
        if len(store) == 0:
            raise InputError("the corpus to batch has 0 sentence pairs; expected at least 1")
        if seed < 0:
            raise InputError(f"the seed of the batches is {seed}; expected at least 0")
        source_lengths = np.diff(store.source_offsets)
        target_lengths = np.diff(store.target_offsets)
        longest = int(target_lengths.max())
        if batch_tokens < longest:
            raise InputError(
                f"batch_tokens is {batch_tokens}, but the longest target sentence has {longest}"
                " tokens: a global batch cannot hold one sentence; expected batch_tokens of at"
                f" least {longest}"
            )
        self._store = store
        self._seed = seed
        self._pad_id = pad_id
        self._start_id = start_id
        self._shuffle = shuffle
        plan = plan_batches(source_lengths, target_lengths, batch_tokens)
        self.shapes: tuple[tuple[int, int, int], ...] = tuple(
            (rows, source, target) for rows, source, target in plan.shapes.tolist()
        )
        self.steps_per_epoch = int(plan.num_batches.sum())
        tokens = int(source_lengths.sum() + target_lengths.sum())
        self.padding_share = 1.0 - tokens / plan.positions

        cells = np.arange(len(self.shapes), dtype=np.uint8)
        self._bucket = plan.bucket
        # With the pairs sorted by bucket: the shape of each place.
        self._cell_of_place = np.repeat(
            np.tile(cells, plan.places.shape[1]), plan.places.T.reshape(-1)
        )
        self._shape_of_batch = np.repeat(cells, plan.num_batches)
        rows_of_batch = plan.shapes[self._shape_of_batch, 0]
        self._first_row = np.cumsum(rows_of_batch) - rows_of_batch
        self._num_rows = int(rows_of_batch.sum())
        # With the pairs sorted by shape: the row of each; a shape's filler rows come last.
        pairs = plan.places.sum(axis=1)
        filler = plan.num_batches * plan.shapes[:, 0] - pairs
        self._row_of_pair = np.arange(len(store)) + np.repeat(np.cumsum(filler) - filler, pairs)
        self._epoch: tuple[int, IntArray, IntArray] | None = None

    def _order(self, epoch: int) -> tuple[IntArray, IntArray]:
        """Returns int64[rows of an epoch], the pair in each, and int64[steps], the batch of each.

        The last epoch asked for is kept.
        """
        kept = self._epoch
        if kept is not None and kept[0] == epoch:
            return kept[1], kept[2]
        count = len(self._bucket)
        if self._shuffle:
            random = np.random.default_rng([self._seed, epoch])
            drawn, mixed = random.permutation(count), random.permutation(count)
            steps = random.permutation(self.steps_per_epoch)
        else:
            drawn = mixed = np.arange(count)
            steps = np.arange(self.steps_per_epoch)
        # `drawn` decides which pairs of a bucket go to which shape, `mixed` which pairs of a
        # shape share a batch.
        by_bucket = drawn[np.argsort(self._bucket[drawn], kind="stable")]
        by_shape = mixed[np.argsort(self._cell_of_place[mixed], kind="stable")]
        pairs = np.full(self._num_rows, -1, np.int64)
        pairs[self._row_of_pair] = by_bucket[by_shape]
        self._epoch = (epoch if self._shuffle else 0, pairs, steps)
        return pairs, steps

    def _place(self, step: int) -> tuple[IntArray, tuple[int, int, int]]:
        if step < 0:
            raise InputError(f"step {step} has no batch; expected at least 0")
        epoch, place = divmod(step, self.steps_per_epoch)
        pairs, steps = self._order(epoch if self._shuffle else 0)
        batch = int(steps[place])
        shape = self.shapes[int(self._shape_of_batch[batch])]
        first = int(self._first_row[batch])
        return pairs[first : first + shape[0]], shape

    def indices(self, step: int) -> IntArray:
        """Returns int64[rows]: the pair of the corpus in each row, -1 for filler rows."""
        return self._place(step)[0].copy()

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
        """
        pairs, (_, source_length, target_length) = self._place(step)
        rows = -(-len(pairs) // parts)
        filler = np.full(rows * parts - len(pairs), -1, np.int64)
        pairs = np.concatenate([pairs, filler])[part * rows : (part + 1) * rows]
        store = self._store
        source, _ = self._pad(store.source_ids, store.source_offsets, pairs, source_length)
        labels, real = self._pad(store.target_ids, store.target_offsets, pairs, target_length)
        shifted = np.roll(labels, 1, axis=1)
        shifted[:, 0] = self._start_id
        target = np.where(real, shifted, np.int32(self._pad_id))
        return {"source_ids": source, "target_ids": target}, labels

    def _pad(
        self, ids: npt.NDArray[np.integer], offsets: IntArray, pairs: IntArray, length: int
    ) -> tuple[TokenArray, npt.NDArray[np.bool_]]:
        """Returns the sentences as int32[R, length] and which of its positions are theirs."""
        begin = offsets[pairs]
        lengths = np.where(pairs >= 0, offsets[pairs + 1] - begin, 0)
        position = np.arange(length)
        real = position < lengths[:, None]
        padded = np.full((len(pairs), length), self._pad_id, np.int32)
        padded[real] = ids[(begin[:, None] + position)[real]]
        return padded, real

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
        return indices.map(tensors).prefetch(2 * len(own))

    def distributed(
        self, strategy: tf.distribute.Strategy, first_step: int = 0, num_steps: int | None = None
    ) -> tf.distribute.DistributedDataset:
        """Returns `dataset` with each replica's rows for it; a worker computes only its own."""

        def own_rows(context: tf.distribute.InputContext) -> tf.data.Dataset:
            parts = context.num_replicas_in_sync
            count = parts // context.num_input_pipelines
            first = context.input_pipeline_id * count
            return self.dataset(first_step, num_steps, parts, range(first, first + count))

        return strategy.distribute_datasets_from_function(own_rows)
