"""Connects models that decode one position at a time to the search, with one cache per sentence.

The K hypotheses (beams) of a sentence are K alternatives at one position. The model gets them as K
tokens of one sequence. Each step and each beam writes its keys and values to a fixed entry of the
cache. A mask lets each hypothesis see only its ancestors. When hypotheses change places, only the
table of ancestors (a few integers per sentence) is reordered, and the cache itself only in models
that keep one entry per hypothesis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.decoding.next_token import log_softmax
from keras_transformer.decoding.shortlist import CandidateOutputs, Candidates
from keras_transformer.layers.state import DecodeState
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
        candidates: the tokens that are scored; None for all.
        int8_rows: see `Shortlist`.
    """

    steps_per_round: int | None = None

    def __init__(
        self,
        transformers: Sequence[EncoderDecoder],
        memories: Sequence[Memory],
        beam: int,
        length: int | tf.Tensor | None = None,
        candidates: Candidates | None = None,
        int8_rows: bool = False,
    ):
        self._transformers = transformers
        self._beam = beam
        self._length = length
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
        # A placeholder makes the length of a growing cache unknown in the graph.
        growing = tf.compat.v1.placeholder_with_default(0, [])
        length = growing if self._length is None else self._length
        return {
            **self._empty(tf.shape(self.source_mask)[0], length),
            # Steps do not change these, but `select_rows` does.
            "memory": [memory.cache for memory in self._memories],
            "source_mask": self.source_mask,
            "output_biases": [each.bias for each in self._outputs or ()],
        }

    def _empty(self, batch: tf.Tensor, length: int | tf.Tensor) -> dict[str, Any]:
        """Returns the part of the cache that steps write to."""
        return {
            # int32 [batch, beam, length]: the beam that wrote the token of a hypothesis at a
            # position; -1 for later positions.
            "ancestors": tf.fill([batch, self._beam, length], -1),
            "layers": [each.init_cache(batch, length, self._beam) for each in self._transformers],
        }

    def step(
        self, ids: tf.Tensor, position: tf.Tensor, cache: dict[str, Any]
    ) -> tuple[tf.Tensor, dict[str, Any], tf.Tensor]:
        """Decodes int32 `[batch * beam]` at `position`.

        The attention is the mean over the heads of the last layer, and over all models.
        """
        cache, states = self._begin_step(cache, position)
        # --> [batch, beam]
        ids = tf.reshape(ids, [-1, self._beam])
        outputs, logits = [], []
        for number, (transformer, weights, state) in enumerate(
            zip(self._transformers, self._weights, states, strict=True)
        ):
            memory = Memory(None, cache["source_mask"], cache["memory"][number])
            with keras.StatelessScope(state_mapping=weights):
                decoded = transformer.decode(ids, memory, state, training=False)
                outputs.append(decoded)
                if self._outputs is None:
                    logits.append(transformer.logits(decoded.features))
                else:
                    bias = cache["output_biases"][number]
                    logits.append(self._outputs[number].logits(decoded.features, bias))
        layers = [state.layers for state in states]
        return _mean_log_probs(logits), {**cache, "layers": layers}, _attention(outputs)

    def _begin_step(
        self, cache: dict[str, Any], position: tf.Tensor
    ) -> tuple[dict[str, Any], Sequence[DecodeState]]:
        """Adds each hypothesis to its ancestors, and returns the state of each model."""
        cache = {**cache, "ancestors": self._add_ancestors(cache["ancestors"], position)}
        visible, grows = self._visible(cache), self._length is None
        return cache, [DecodeState(layers, position, visible, grows) for layers in cache["layers"]]

    def _visible(self, cache: dict[str, Any]) -> tf.Tensor:
        """Returns the entries that each hypothesis may see, bool `[batch, beam, entries]`."""
        ancestors = cache["ancestors"]
        # --> [batch, beam, length, beam]: the entry of a position and a beam
        visible = tf.expand_dims(ancestors, -1) == tf.range(self._beam)
        # --> [batch, beam, length * beam]
        return tf.reshape(visible, [tf.shape(ancestors)[0], self._beam, -1])

    def _add_ancestors(self, ancestors: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
        beams = tf.reshape(tf.range(self._beam), [-1, 1])
        if self._length is None:
            shape = [tf.shape(ancestors)[0], self._beam, 1]
            return tf.concat([ancestors, tf.broadcast_to(beams, shape)], axis=-1)
        return tf.where(tf.range(tf.shape(ancestors)[2]) == position, beams, ancestors)

    def begin_round(self, cache: dict[str, Any], position: tf.Tensor) -> dict[str, Any]:
        """Returns the cache before the next `steps_per_round` steps."""
        del position
        return cache

    def reorder_cache(self, cache: dict[str, Any], parents: tf.Tensor) -> dict[str, Any]:
        """Returns the cache of hypotheses that continue `parents`, int32 `[batch, beam]`."""
        layers = [
            transformer.reorder_cache(of_one, parents)
            for transformer, of_one in zip(self._transformers, cache["layers"], strict=True)
        ]
        ancestors = tf.gather(cache["ancestors"], parents, batch_dims=1)
        return {**cache, "ancestors": ancestors, "layers": layers}

    def select_rows(self, cache: dict[str, Any], sentences: tf.Tensor) -> dict[str, Any]:
        """Returns the cache of `sentences`, int32 `[open]`."""
        return tf.nest.map_structure(
            # A scalar is the same for all sentences.
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
