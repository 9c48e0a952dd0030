"""Connects models that decode one position at a time to the search, with one cache per sentence.

The K hypotheses (beams) of a sentence are K alternatives at one position. The model gets them as K
tokens of one sequence. Each step and each beam writes its keys and values to a fixed place in the
cache. A mask lets each hypothesis see only its ancestors. When hypotheses change places, only the
table of ancestors (a few integers per sentence) is reordered. The cache itself is reordered only
for models that keep one state per hypothesis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.decoding.next_token import log_softmax
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
        in_blocks: the cache starts without positions, and grows only by `extend_cache`.

    Example:
    >>> from keras_transformer.models import Transformer
    >>> sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 8, "num_heads": 2}
    >>> model = Transformer({**sizes, "source_vocab_size": 20, "target_vocab_size": 20})
    >>> memory = model.project_memory(model.encode(tf.constant([[5, 6, 3]])))
    >>> decoder = CachedDecoder([model], [memory], beam=2)
    >>> scores, _, attention = decoder.step(tf.constant([2, 2]), 0, decoder.init_cache())
    >>> scores.shape, attention.shape
    (TensorShape([2, 20]), TensorShape([2, 3]))
    """

    def __init__(
        self,
        transformers: Sequence[EncoderDecoder],
        memories: Sequence[Memory],
        beam: int,
        length: int | tf.Tensor | None = None,
        in_blocks: bool = False,
    ):
        self._transformers = transformers
        self._beam = beam
        self._length = length
        self._grows = length is None and not in_blocks
        self._memories = memories
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
        length = growing if self._length is None else self._length
        return {
            # int32 [batch, beam, length]: the beam that wrote the token of a hypothesis at a
            # position; -1 for later positions.
            "ancestors": tf.fill([batch, self._beam, length], -1),
            "layers": [each.init_cache(batch, length, self._beam) for each in self._transformers],
            # Steps do not change these, but `select_rows` does.
            "memory": [memory.cache for memory in self._memories],
            "source_mask": self.source_mask,
        }

    def step(
        self, ids: tf.Tensor, position: tf.Tensor, cache: dict[str, Any]
    ) -> tuple[tf.Tensor, dict[str, Any], tf.Tensor]:
        """Decodes int32 `[batch * beam]` at `position`.

        The attention is the mean over the heads of the last layer, and over all models.
        """
        ancestors = self._add_ancestors(cache["ancestors"], position)
        # --> [batch, beam, length, beam]: the place of a position and a beam
        visible = tf.expand_dims(ancestors, -1) == tf.range(self._beam)
        # --> [batch, beam, length * beam]
        visible = tf.reshape(visible, [tf.shape(ancestors)[0], self._beam, -1])
        # --> [batch, beam]
        ids = tf.reshape(ids, [-1, self._beam])
        outputs, logits = [], []
        for transformer, projected, weights, layers in zip(
            self._transformers, cache["memory"], self._weights, cache["layers"], strict=True
        ):
            memory = Memory(None, cache["source_mask"], projected)
            with keras.StatelessScope(state_mapping=weights):
                decoded = transformer.decode(
                    ids,
                    memory,
                    layers,
                    position,
                    attention_mask=visible,
                    grow=self._grows,
                    training=False,
                )
                outputs.append(decoded)
                logits.append(transformer.logits(decoded.features))
        layers = [output.cache for output in outputs]
        return (
            _mean_log_probs(logits),
            {**cache, "ancestors": ancestors, "layers": layers},
            _attention(outputs),
        )

    def _add_ancestors(self, ancestors: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
        """Adds each hypothesis to its ancestors, at `position`."""
        beams = tf.reshape(tf.range(self._beam), [-1, 1])
        if self._grows:
            shape = [tf.shape(ancestors)[0], self._beam, 1]
            return tf.concat([ancestors, tf.broadcast_to(beams, shape)], axis=-1)
        return tf.where(tf.range(tf.shape(ancestors)[2]) == position, beams, ancestors)

    def extend_cache(self, cache: dict[str, Any], length: tf.Tensor) -> dict[str, Any]:
        """Returns a cache with room for `length` positions, int32 scalar."""
        ancestors = cache["ancestors"]
        batch, beam, old_length = tf.unstack(tf.shape(ancestors))
        missing = length - old_length
        more = [each.init_cache(batch, missing, self._beam) for each in self._transformers]
        return {
            **cache,
            "ancestors": tf.concat([ancestors, tf.fill([batch, beam, missing], -1)], axis=2),
            "layers": tf.nest.map_structure(
                lambda old, new: tf.concat([old, new], axis=2), cache["layers"], more
            ),
        }

    def reorder_cache(self, cache: dict[str, Any], parents: tf.Tensor) -> dict[str, Any]:
        """Returns the cache of hypotheses that continue `parents`, int32 `[batch, beam]`."""

        def reordered(structure: Any) -> Any:
            return tf.nest.map_structure(lambda t: tf.gather(t, parents, batch_dims=1), structure)

        layers = [
            reordered(of_one) if transformer.needs_cache_reordering else of_one
            for transformer, of_one in zip(self._transformers, cache["layers"], strict=True)
        ]
        return {**cache, "ancestors": reordered(cache["ancestors"]), "layers": layers}

    def select_rows(self, cache: dict[str, Any], sentences: tf.Tensor) -> dict[str, Any]:
        """Returns the cache of `sentences`, int32 `[open]`."""
        return tf.nest.map_structure(lambda each: tf.gather(each, sentences), cache)


def _mean_log_probs(logits: Sequence[Any]) -> tf.Tensor:
    """Returns the mean log-probabilities `[batch * beam, V]`, or the logits of a single model."""
    # --> [batch * beam, V]
    logits = [tf.reshape(each, [-1, each.shape[-1]]) for each in logits]
    if len(logits) == 1:
        return logits[0]
    return tf.add_n([log_softmax(tf.cast(each, tf.float32)) for each in logits]) / len(logits)


def _attention(outputs: Sequence[Any]) -> tf.Tensor:
    # --> [batch, beam, source]
    means = [tf.reduce_mean(each.attention[-1]["cross"], axis=1) for each in outputs]
    mean = tf.add_n(means) / len(means)
    # --> [batch * beam, source]
    return tf.reshape(mean, [-1, tf.shape(mean)[-1]])
