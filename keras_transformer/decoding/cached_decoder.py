"""Connects models that decode one position at a time to the search, with one cache per sentence.

The K hypotheses (beams) of a sentence are K alternatives at one position. The model gets them as K
tokens of one sequence. Each step and each beam writes its keys and values to a fixed entry of the
cache. A mask lets each hypothesis see only its ancestors. When hypotheses change their order, only
the table of ancestors (a few integers per sentence) is reordered. The cache itself is reordered
only in models that keep one entry per hypothesis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.decoding.interface import NEG_INF, SearchDecoder
from keras_transformer.decoding.next_token import log_softmax
from keras_transformer.layers.state import DecodeState
from keras_transformer.models.encoder_decoder import EncoderDecoder, Memory


def product(rows: tf.Tensor) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function that multiplies features `[R, d_model]` by output rows `[C, d_model]`."""
    return lambda features: tf.matmul(features, rows, transpose_b=True)


class CachedDecoder(SearchDecoder):
    """A `SearchDecoder` of one model, or of an ensemble.

    Args:
        transformers: models with the same target vocabulary. An ensemble averages the
            log-probabilities of the next token.
        memories: the encoded source of each model, projected.
        beam: hypotheses of each sentence, K.
        length: number of positions in the cache, an int or int32 scalar, if its shape must not
            change (XLA, LiteRT). By default the cache grows with each step.
        candidates: the only tokens that a sentence may use, int32 `[batch, any]`; None for all. The
            log-probabilities are normalized over them.
        product: the function for products with the output rows of the candidates.
    """

    def __init__(
        self,
        transformers: Sequence[EncoderDecoder],
        memories: Sequence[Memory],
        beam: int,
        length: int | tf.Tensor | None = None,
        candidates: tf.Tensor | None = None,
        product: Callable[[tf.Tensor], Callable[[tf.Tensor], tf.Tensor]] = product,
    ):
        self._transformers = transformers
        self._beam = beam
        self._length = length
        self._memories = memories
        self.source_mask = memories[0].mask  # bool [batch, source], True for real tokens
        self._products: list[Any] = []  # products with the output rows of the candidates
        self._biases: list[tf.Tensor] = []
        self.vocab_size = int(transformers[0].config.target_vocab_size)
        self._has_ancestors = not all(model.cache_per_hypothesis for model in transformers)
        self.returns_log_probs = len(transformers) > 1
        # Read here, because the loop of the search would read all variables at every step.
        self._weights = [
            [(weight, tf.convert_to_tensor(weight.value)) for weight in transformer.weights]
            for transformer in transformers
        ]
        if candidates is not None:
            self._score_only(candidates, product)

    def _score_only(self, candidates: tf.Tensor, product: Callable[[tf.Tensor], Any]) -> None:
        """Scores the union of the candidates of all sentences.

        A mask excludes the candidates of other sentences, so that a sentence gets the same results
        in any batch.
        """
        batch, vocab_size = tf.shape(candidates)[0], self.vocab_size
        first = tf.expand_dims(tf.range(batch) * vocab_size, 1)
        indices = tf.reshape(first + candidates, [-1, 1])
        counts = tf.scatter_nd(indices, tf.ones(tf.shape(indices)[:1]), [batch * vocab_size])
        # --> [batch, vocab_size]
        counts = tf.reshape(counts, [batch, vocab_size])
        # A search needs 2K tokens, also if these are not candidates.
        is_scored = (tf.reduce_max(counts, axis=0) > 0) | (tf.range(vocab_size) < 2 * self._beam)
        # --> [C], ascending
        self.scored_tokens = tf.cast(tf.where(is_scored)[:, 0], tf.int32)
        is_own = tf.gather(counts, self.scored_tokens, axis=1) > 0
        for transformer in self._transformers:
            rows, bias = transformer.output_rows(self.scored_tokens)
            excluded = tf.where(is_own, tf.constant(0, rows.dtype), NEG_INF)
            self._products.append(product(rows))
            # [batch, 1, C]. A search that drops finished sentences selects its rows.
            self._biases.append(tf.expand_dims(excluded if bias is None else excluded + bias, 1))

    def init_cache(self) -> dict[str, Any]:
        """Returns the cache before position 0."""
        # A placeholder makes the length of a growing cache unknown in the graph.
        growing = tf.compat.v1.placeholder_with_default(0, [])
        length = growing if self._length is None else self._length
        return {
            **self._empty(tf.shape(self.source_mask)[0], length),
            # Steps do not change these, but `select_rows` does.
            "memory": [memory.cache for memory in self._memories],
            "source_mask": self.source_mask,
            "output_biases": self._biases,
        }

    def _empty(self, batch: tf.Tensor, length: int | tf.Tensor) -> dict[str, Any]:
        """Returns the part of the cache that steps write to."""
        # int32 [batch, beam, length]: the beam that wrote the token of a hypothesis at a position;
        # -1 for later positions. Nothing if no model needs it.
        ancestors = tf.fill([batch, self._beam, length], -1) if self._has_ancestors else ()
        return {
            "ancestors": ancestors,
            "layers": [model.init_cache(batch, length, self._beam) for model in self._transformers],
        }

    def step(
        self, ids: tf.Tensor, position: tf.Tensor, cache: dict[str, Any]
    ) -> tuple[tf.Tensor, dict[str, Any], tf.Tensor]:
        """Decodes int32 `[batch * beam]` at `position`.

        The attention is the mean of `EncoderDecoder.alignment` over all models.
        """
        cache, states = self._begin_step(cache, position)
        # --> [batch, beam]
        ids = tf.reshape(ids, [-1, self._beam])
        attention, logits = [], []
        layers: Any
        for number, (transformer, weights, state) in enumerate(
            zip(self._transformers, self._weights, states, strict=True)
        ):
            memory = Memory(None, cache["source_mask"], cache["memory"][number])
            with keras.StatelessScope(state_mapping=weights):
                features, layers = transformer.decode(ids, memory, state, training=False)
                # --> [batch, beam, V or C]
                if self.scored_tokens is None:
                    logits.append(transformer.logits(features))
                else:
                    products = self._listed_products(number, features)
                    logits.append(products + cache["output_biases"][number])
            # --> [batch, beam, source]
            attention.append(transformer.alignment(layers))
        mean = tf.add_n(attention) / len(attention)
        if all(model.config.guided_alignment == "read" for model in self._transformers):
            # The start token translates nothing.
            mean = tf.where(tf.equal(position, 0), tf.zeros_like(mean), mean)
        cache = {**cache, "layers": [state.layers for state in states]}
        return _mean_log_probs(logits), cache, tf.reshape(mean, [-1, tf.shape(mean)[-1]])

    def _listed_products(self, number: int, features: tf.Tensor) -> tf.Tensor:
        """Returns the logits of the scored tokens without biases, `[batch, beam, C]`."""
        batch, beam, width = features.shape
        products = self._products[number](tf.reshape(features, [-1, width]))
        # LiteRT needs the constant size of its batch.
        shape = [-1 if batch is None else batch, beam, tf.shape(self.scored_tokens)[0]]
        return tf.reshape(products, shape)

    def _begin_step(
        self, cache: dict[str, Any], position: tf.Tensor
    ) -> tuple[dict[str, Any], Sequence[DecodeState]]:
        """Adds each hypothesis to its ancestors, and returns the state of each model."""
        visible, grows = None, self._length is None
        if self._has_ancestors:
            cache = {**cache, "ancestors": self._add_ancestors(cache["ancestors"], position)}
            visible = self._visible(cache)
        return cache, [DecodeState(layers, position, visible, grows) for layers in cache["layers"]]

    def _visible(self, cache: dict[str, Any]) -> tf.Tensor:
        """Returns the entries that each hypothesis may see, bool `[batch, beam, entries]`."""
        ancestors = cache["ancestors"]
        # --> [batch, beam, length, beam]: the entry of a position and a beam
        visible = tf.expand_dims(ancestors, -1) == tf.range(self._beam)
        # --> [batch, beam, length * beam], constants if the length is one
        if ancestors.shape[2] is None:
            return tf.reshape(visible, [tf.shape(ancestors)[0], self._beam, -1])
        return tf.reshape(visible, [-1, self._beam, ancestors.shape[2] * self._beam])

    def _add_ancestors(self, ancestors: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
        beams = tf.reshape(tf.range(self._beam), [-1, 1])
        if self._length is None:
            shape = [tf.shape(ancestors)[0], self._beam, 1]
            return tf.concat([ancestors, tf.broadcast_to(beams, shape)], axis=-1)
        return tf.where(tf.range(tf.shape(ancestors)[2]) == position, beams, ancestors)

    def reorder_cache(self, cache: dict[str, Any], parents: tf.Tensor) -> dict[str, Any]:
        """Returns the cache of hypotheses that continue `parents`, int32 `[batch, beam]`."""

        def reorder(entries: tf.Tensor) -> tf.Tensor:
            return tf.gather(entries, parents, batch_dims=1)

        layers = [
            tf.nest.map_structure(reorder, of_one) if model.cache_per_hypothesis else of_one
            for model, of_one in zip(self._transformers, cache["layers"], strict=True)
        ]
        ancestors = tf.nest.map_structure(reorder, cache["ancestors"])
        return {**cache, "ancestors": ancestors, "layers": layers}

    def select_rows(self, cache: dict[str, Any], sentences: tf.Tensor) -> dict[str, Any]:
        """Returns the cache of `sentences`, int32 `[open]`."""
        return tf.nest.map_structure(
            # A scalar is the same for all sentences.
            lambda tensor: tf.gather(tensor, sentences) if tensor.shape.rank else tensor,
            cache,
        )


def _mean_log_probs(logits: Sequence[Any]) -> tf.Tensor:
    """Returns the mean log-probabilities `[batch * beam, V]`, or the logits of a single model."""
    # --> [batch * beam, V]
    batch, beam, _ = logits[0].shape
    rows = -1 if batch is None else batch * beam
    logits = [tf.reshape(one, [rows, one.shape[-1] or tf.shape(one)[-1]]) for one in logits]
    if len(logits) == 1:
        return logits[0]
    return tf.add_n([log_softmax(tf.cast(one, tf.float32)) for one in logits]) / len(logits)
