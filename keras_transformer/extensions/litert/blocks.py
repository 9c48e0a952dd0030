"""A cache in two parts: a decode step writes only the second one.

LiteRT copies the tensors that a loop changes at every step, and packs the keys and values of
attention for its products. Steps write to the `recent` positions, and only read the `past`. When a
block of positions is full, its entries move to the past. Entries that are in the history of no
hypothesis are dropped then: most hypotheses share all but their last tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from keras import ops

from keras_transformer.decoding.cached_decoder import CachedDecoder
from keras_transformer.layers.attention import attention_weights
from keras_transformer.layers.masks import both, position_mask
from keras_transformer.layers.state import DecodeState

# Longer blocks copy more, and shorter ones change shapes more often. An int8 search takes 2 % more
# time with 5 positions, 1 to 4 % with 8, and 10 % with 12.
BLOCK = 6


def int8_product(rows: tf.Tensor) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function of features that LiteRT multiplies by output rows in int8.

    `quantize` does not round the rows of a shortlist, because they are computed at run time.
    """
    largest = tf.reduce_max(tf.abs(rows), axis=1, keepdims=True)
    steps = tf.round(rows * tf.math.divide_no_nan(127.0, largest))
    int8_rows, scales = tf.cast(steps, tf.int8), largest[:, 0] / 127
    # `multiply_int8_rows` removes the cast back, so that the product is one of int8.
    return lambda features: (
        tf.matmul(features, tf.cast(int8_rows, features.dtype), transpose_b=True) * scales
    )


class BlockState(DecodeState):
    """A state whose entries are those of the past, which stays, and then the recent ones.

    `recent_position` is the position of the queries within the recent entries.
    """

    def __init__(self, past: Any, recent_position: Any, *arguments: Any):
        super().__init__(*arguments)
        self._past, self._recent_position = past, recent_position

    def write(self, layer: int, key: Any, value: Any) -> Any:
        recent, past = self.layers[layer], self._past[layer]
        self._num_queries = key.shape[2]
        start = (0, 0, self._recent_position * self._num_queries, 0)
        new = {
            "key": ops.slice_update(recent["key"], start, key),
            "value": ops.slice_update(recent["value"], start, value),
        }
        self.layers[layer] = new
        return [past["key"], new["key"]], [past["value"], new["value"]]

    @staticmethod
    def attend(
        query: Any, key: Any, value: Any, attention_mask: Any = None, dropout: Any = None
    ) -> tuple[Any, Any]:
        """Attends to lists of two tensors like to their concatenation, without copying them.

        The second tensor has a constant size. There is no dropout in a search.
        """
        query = ops.multiply(query, key[0].shape[-1] ** -0.5)
        scores = [ops.matmul(query, ops.swapaxes(part, -1, -2)) for part in key]
        weights = attention_weights(ops.concatenate(scores, axis=-1), attention_mask)
        # Positions count from the end, so that LiteRT knows all shapes of a step.
        size = value[1].shape[-2]
        first, second = weights[..., :-size], weights[..., -size:]
        return ops.matmul(first, value[0]) + ops.matmul(second, value[1]), weights

    def mask(self, window: int | None = None) -> Any:
        if window is None:
            return self.visible
        num_past = ops.shape(self._past[0]["key"])[2]
        recent = ops.arange(ops.shape(self.layers[0]["key"])[2])
        # One range would not do: LiteRT would know a sum of two sizes only when it runs.
        entries = ops.concatenate([ops.arange(num_past), num_past + recent], axis=0)
        last = ops.reshape(num_past // self._num_queries + self._recent_position, (1,))
        near = position_mask(last, entries // self._num_queries, causal=True, window=window)
        return both(ops.expand_dims(near, 0), self.visible)


class BlockDecoder(CachedDecoder):
    """A `CachedDecoder` of Transformers, with a `BlockState`."""

    steps_per_round = BLOCK

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._length = self.steps_per_round

    def init_cache(self) -> dict[str, Any]:
        batch = tf.shape(self.source_mask)[0]
        # One position that nothing may see, because LiteRT cannot multiply empty matrices.
        unseen = tf.compat.v1.placeholder_with_default(1, [])
        return {
            **super().init_cache(),
            "past": [
                transformer.init_cache(batch, unseen, self._beam)
                for transformer in self._transformers
            ],
            # bool [batch, beam, entries]: the entries of the past that a hypothesis may see
            "past_visible": tf.fill([batch, self._beam, unseen * self._beam], False),
            "round_start": tf.constant(0),
        }

    def _begin_step(
        self, cache: dict[str, Any], position: tf.Tensor
    ) -> tuple[dict[str, Any], Sequence[DecodeState]]:
        recent_position = position - cache["round_start"]
        cache = {**cache, "ancestors": self._add_ancestors(cache["ancestors"], recent_position)}
        visible = self._visible(cache)
        return cache, [
            BlockState(past, recent_position, layers, position, visible)
            for layers, past in zip(cache["layers"], cache["past"], strict=True)
        ]

    def _visible(self, cache: dict[str, Any]) -> tf.Tensor:
        return tf.concat([cache["past_visible"], super()._visible(cache)], axis=2)

    def begin_round(self, cache: dict[str, Any], position: tf.Tensor) -> dict[str, Any]:
        """Moves the recent entries that some hypothesis may see to the past."""
        # --> [batch, beam, entries]
        visible = self._visible(cache)
        # --> [batch, entries]
        is_kept = tf.reduce_any(visible, axis=1)
        if not all(model.can_return_attention for model in self._transformers):
            # A window counts entries.
            written = self._beam * (position - cache["round_start"])
            num_past = tf.shape(cache["past_visible"])[2]
            is_kept |= tf.range(tf.shape(visible)[2]) < num_past + written
        is_kept = tf.cast(is_kept, tf.int32)
        count = tf.maximum(tf.reduce_max(tf.reduce_sum(is_kept, axis=1)), 1)
        # --> [batch, count]: the kept entries in ascending order, and others that nothing may see
        _, entries = tf.math.top_k(is_kept, count)
        past = tf.nest.map_structure(
            lambda old, new: tf.gather(tf.concat([old, new], 2), entries, axis=2, batch_dims=1),
            cache["past"],
            cache["layers"],
        )
        return {
            **cache,
            **self._empty(tf.shape(visible)[0], self.steps_per_round),
            "past": past,
            "past_visible": tf.gather(visible, entries, axis=2, batch_dims=1),
            "round_start": position,
        }

    def reorder_cache(self, cache: dict[str, Any], parents: tf.Tensor) -> dict[str, Any]:
        past_visible = tf.gather(cache["past_visible"], parents, batch_dims=1)
        return {**super().reorder_cache(cache, parents), "past_visible": past_visible}
