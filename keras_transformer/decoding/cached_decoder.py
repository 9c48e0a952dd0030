"""Connects models that decode one position at a time to the search, with one cache per sentence.

The K hypotheses (beams) of a sentence are K alternatives at one position. The model gets them as K
tokens of one sequence. Each step and each beam writes its keys and values to a fixed place in the
cache. A mask lets each hypothesis see only its ancestors. When hypotheses change places, only the
table of ancestors (a few integers per sentence) is reordered. The cache itself is reordered only
for models that keep one state per hypothesis.

With a `block`, the cache has two levels. Steps write to the `recent` positions, and only read the
`past`. When a block is full, its places move to the past. Places that are in the history of no
hypothesis are dropped then: most hypotheses share all but their last tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.decoding.next_token import log_softmax
from keras_transformer.decoding.shortlist import CandidateOutputs, Candidates
from keras_transformer.layers.attention import BlockCache
from keras_transformer.models.encoder_decoder import EncoderDecoder, Memory


class CachedDecoder:
    """A `decoding.SearchDecoder` of one model, or of an ensemble.

    Args:
        transformers: models with the same target vocabulary. An ensemble averages the
            log-probabilities of the next token.
        memories: the encoded source of each model, projected.
        beam: hypotheses of each sentence, K.
        length: number of positions in the cache, an int or int32 scalar, if its shape must not
            change (XLA, LiteRT). By default the cache grows with each step.
        block: number of positions that `extend_cache` adds. It excludes a `length`.
        candidates: the tokens that are scored; None for all.
        int8_rows: see `Shortlist`.
    """

    def __init__(
        self,
        transformers: Sequence[EncoderDecoder],
        memories: Sequence[Memory],
        beam: int,
        length: int | tf.Tensor | None = None,
        block: int | None = None,
        candidates: Candidates | None = None,
        int8_rows: bool = False,
    ):
        self._transformers = transformers
        self._beam = beam
        self._length = length
        self._block = block
        self._grows = length is None and block is None
        self._memories = memories
        self.scored_tokens = None if candidates is None else candidates.ids
        self._outputs = None
        if candidates is not None:
            self._outputs = [
                CandidateOutputs(*each.output_rows(candidates.ids), candidates, int8_rows)
                for each in transformers
            ]
        # Read here, because the loop of the search would read all variables at every step.
        self._weights = [
            [(variable, tf.convert_to_tensor(variable.value)) for variable in each.weights]
            for each in transformers
        ]

    @property
    def vocab_size(self) -> int:
        """Number of target tokens."""
        return int(self._transformers[0].config.target_vocab_size)

    @property
    def returns_log_probs(self) -> bool:
        """True for an ensemble, which averages log-probabilities."""
        return len(self._transformers) > 1

    @property
    def source_mask(self) -> tf.Tensor:
        """The mask of the source, bool `[batch, source]`, True for real tokens."""
        return self._memories[0].mask

    def init_cache(self) -> dict[str, Any]:
        """Returns the cache before position 0."""
        batch = tf.shape(self.source_mask)[0]
        # A placeholder makes the length of a growing cache unknown in the graph.
        growing = tf.compat.v1.placeholder_with_default(0, [])
        length = self._block or (growing if self._length is None else self._length)
        cache = {
            # int32 [batch, beam, length]: the beam that wrote the token of a hypothesis at a
            # position; -1 for later positions.
            "ancestors": tf.fill([batch, self._beam, length], -1),
            "layers": [each.init_cache(batch, length, self._beam) for each in self._transformers],
            # Steps do not change these, but `select_rows` does.
            "memory": [memory.cache for memory in self._memories],
            "source_mask": self.source_mask,
            "output_biases": [each.bias for each in self._outputs or ()],
        }
        if self._block is None:
            return cache
        # One position that nothing may see, because LiteRT cannot multiply empty matrices.
        unseen = tf.compat.v1.placeholder_with_default(1, [])
        return {
            **cache,
            "past": [each.init_cache(batch, unseen, self._beam) for each in self._transformers],
            # bool [batch, beam, places]: the places of the past that a hypothesis may see
            "past_visible": tf.fill([batch, self._beam, unseen * self._beam], False),
            "block_start": tf.constant(0),
        }

    def step(
        self, ids: tf.Tensor, position: tf.Tensor, cache: dict[str, Any]
    ) -> tuple[tf.Tensor, dict[str, Any], tf.Tensor]:
        """Decodes int32 `[batch * beam]` at `position`.

        The attention is the mean over the heads of the last layer, and over all models.
        """
        place = position if self._block is None else position - cache["block_start"]
        ancestors = self._add_ancestors(cache["ancestors"], place)
        visible = self._visible({**cache, "ancestors": ancestors})
        # --> [batch, beam]
        ids = tf.reshape(ids, [-1, self._beam])
        # The past of each model, or None.
        past = cache.get("past", [None] * len(self._transformers))
        outputs, logits = [], []
        for transformer, projected, weights, recent, earlier in zip(
            self._transformers, cache["memory"], self._weights, cache["layers"], past, strict=True
        ):
            memory = Memory(None, cache["source_mask"], projected)
            with keras.StatelessScope(state_mapping=weights):
                decoded = transformer.decode(
                    ids,
                    memory,
                    recent if earlier is None else BlockCache(recent, earlier, place),
                    position,
                    attention_mask=visible,
                    grow=self._grows,
                    training=False,
                )
                outputs.append(decoded)
                if self._outputs is None:
                    logits.append(transformer.logits(decoded.features))
                else:
                    number = len(logits)
                    bias = cache["output_biases"][number]
                    logits.append(self._outputs[number].logits(decoded.features, bias))
        layers = [output.cache for output in outputs]
        return (
            _mean_log_probs(logits),
            {**cache, "ancestors": ancestors, "layers": layers},
            _attention(outputs),
        )

    def _visible(self, cache: dict[str, Any]) -> tf.Tensor:
        """Returns the places that each hypothesis may see, bool `[batch, beam, places]`."""
        ancestors = cache["ancestors"]
        # --> [batch, beam, length, beam]: the place of a position and a beam
        visible = tf.expand_dims(ancestors, -1) == tf.range(self._beam)
        if self._block is None:
            # --> [batch, beam, length * beam]
            return tf.reshape(visible, [tf.shape(ancestors)[0], self._beam, -1])
        # --> [batch, beam, block * beam], a constant shape, except for the batch
        visible = tf.reshape(visible, [-1, self._beam, self._block * self._beam])
        return tf.concat([cache["past_visible"], visible], axis=2)

    def _add_ancestors(self, ancestors: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
        """Adds each hypothesis to its ancestors, at `position`."""
        beams = tf.reshape(tf.range(self._beam), [-1, 1])
        if self._grows:
            shape = [tf.shape(ancestors)[0], self._beam, 1]
            return tf.concat([ancestors, tf.broadcast_to(beams, shape)], axis=-1)
        return tf.where(tf.range(tf.shape(ancestors)[2]) == position, beams, ancestors)

    def extend_cache(self, cache: dict[str, Any], position: tf.Tensor) -> dict[str, Any]:
        """Moves the recent places that some hypothesis may see to the past.

        Args:
            cache: the cache before `position`.
            position: int32 scalar, the first position of the next block.
        """
        assert self._block is not None
        # --> [batch, beam, places]
        visible = self._visible(cache)
        # --> [batch, places]
        is_kept = tf.reduce_any(visible, axis=1)
        if any(each.needs_all_places for each in self._transformers):
            written = self._beam * (position - cache["block_start"])
            num_past = tf.shape(cache["past_visible"])[2]
            is_kept |= tf.range(tf.shape(visible)[2]) < num_past + written
        is_kept = tf.cast(is_kept, tf.int32)
        count = tf.maximum(tf.reduce_max(tf.reduce_sum(is_kept, axis=1)), 1)
        # --> [batch, count]: the kept places in ascending order, and others that nothing may see
        _, places = tf.math.top_k(is_kept, count)
        past = tf.nest.map_structure(
            lambda old, new: tf.gather(tf.concat([old, new], 2), places, axis=2, batch_dims=1),
            cache["past"],
            cache["layers"],
        )
        batch = tf.shape(visible)[0]
        return {
            **cache,
            "ancestors": tf.fill([batch, self._beam, self._block], -1),
            "layers": [
                each.init_cache(batch, self._block, self._beam) for each in self._transformers
            ],
            "past": past,
            "past_visible": tf.gather(visible, places, axis=2, batch_dims=1),
            "block_start": position,
        }

    def reorder_cache(self, cache: dict[str, Any], parents: tf.Tensor) -> dict[str, Any]:
        """Returns the cache of hypotheses that continue `parents`, int32 `[batch, beam]`."""

        def reordered(structure: Any) -> Any:
            return tf.nest.map_structure(lambda t: tf.gather(t, parents, batch_dims=1), structure)

        layers = [
            reordered(of_one) if transformer.needs_cache_reordering else of_one
            for transformer, of_one in zip(self._transformers, cache["layers"], strict=True)
        ]
        masks = {
            name: reordered(cache[name]) for name in {"ancestors", "past_visible"} & cache.keys()
        }
        return {**cache, **masks, "layers": layers}

    def select_rows(self, cache: dict[str, Any], sentences: tf.Tensor) -> dict[str, Any]:
        """Returns the cache of `sentences`, int32 `[open]`."""
        return tf.nest.map_structure(
            # `block_start` is the same for all sentences.
            lambda each: tf.gather(each, sentences) if each.shape.rank else each,
            cache,
        )


def _mean_log_probs(logits: Sequence[Any]) -> tf.Tensor:
    """Returns the mean log-probabilities `[batch * beam, V]`, or the logits of a single model."""
    # --> [batch * beam, V]
    batch, beam, _ = logits[0].shape
    rows = -1 if batch is None else batch * beam
    logits = [tf.reshape(each, [rows, each.shape[-1] or tf.shape(each)[-1]]) for each in logits]
    if len(logits) == 1:
        return logits[0]
    return tf.add_n([log_softmax(tf.cast(each, tf.float32)) for each in logits]) / len(logits)


def _attention(outputs: Sequence[Any]) -> tf.Tensor:
    # --> [batch, beam, source]
    means = [tf.reduce_mean(each.attention[-1]["cross"], axis=1) for each in outputs]
    mean = tf.add_n(means) / len(means)
    # --> [batch * beam, source]
    return tf.reshape(mean, [-1, tf.shape(mean)[-1]])
