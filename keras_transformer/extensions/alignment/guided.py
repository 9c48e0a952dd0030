"""Guided alignment: a head of the decoder is taught which source token a token translates.

The head aligns the token that the decoder reads, because it does not know the next one yet (Chen et
al., 2020). Parsing guides the same head by other alignments (`paper/parsing/alignment.py`).
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from keras_transformer.data.token_store import TokenStore
from keras_transformer.extensions.alignment import ibm_model_1
from keras_transformer.models.encoder_decoder import guided_head
from keras_transformer.text.vocabulary import Vocabulary

_MAX_LINKS = 10_000_000  # learning from them takes seconds
_TRANSLATIONS = 16  # the most that a source token has
_LEAST_SCORE = 0.001


class GuidedAlignment(abc.ABC):
    """An auxiliary loss of the trainer (`training.loss.AuxiliaryLoss`), for one head of attention.

    The attention of the head to the source tokens of a target token is the probability of the
    alignment, trained by cross-entropy (Chen et al., 2016; Garg et al., 2019).

    Attributes:
        aligns: `model.guided_alignment` of models that it trains.
    """

    aligns: ClassVar[str] = "read"

    def __init__(self, pad_id: int):
        self._pad_id = pad_id

    @abc.abstractmethod
    def links(self, inputs: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Returns the source tokens of each input of the decoder, bool `[B, T, S]`.

        An input without a source token is left out of the loss.
        """

    def __call__(
        self,
        inputs: Mapping[str, tf.Tensor],
        features: tf.Tensor,
        attention: Sequence[Mapping[str, Any]],
    ) -> tf.Tensor:
        """Returns the cross-entropy, float32 scalar, summed over all target tokens, in nats."""
        del features
        links = self.links(inputs)
        probability = tf.reduce_sum(tf.where(links, guided_head(attention), 0.0), axis=-1)
        counts = tf.reduce_any(links, axis=-1) & (inputs["target_ids"] != self._pad_id)
        log = tf.math.log(tf.maximum(probability, np.finfo(np.float32).tiny))
        return -tf.reduce_sum(tf.where(counts, log, 0.0))


class TranslationAlignment(GuidedAlignment):
    """Aligns tokens that are each other's best translation in a pair by IBM model 1.

    The score of two tokens is the product of both translation probabilities. It is lower for tokens
    at different positions in their sentences. The links are computed for each batch, because a
    token may have other neighbors in each epoch (`training.subword_alpha`).
    """

    def __init__(self, vocabulary: Vocabulary, stores: Sequence[TokenStore]):
        super().__init__(vocabulary.pad_id)
        source, target = (
            ibm_model_1.Sentences(
                np.concatenate([side.ids(np.arange(len(side.lengths))) for side in sides]),
                np.concatenate([side.lengths for side in sides]).astype(np.int64),
            )
            for sides in zip(*(store.sides for store in stores), strict=True)
        )
        size = max(vocabulary.source_vocab_size, vocabulary.target_vocab_size)
        is_word = np.ones(size, bool)
        is_word[[vocabulary.pad_id, vocabulary.unknown_id, vocabulary.end_id]] = False
        tokens, others, scores = ibm_model_1.mutual_probabilities(
            source, target, is_word, _MAX_LINKS, title="learning alignments"
        )
        order = np.lexsort((-scores, tokens))
        tokens, others, scores = tokens[order], others[order], scores[order]
        rank = np.arange(len(tokens)) - np.searchsorted(tokens, tokens)
        best = (rank < _TRANSLATIONS) & (scores >= _LEAST_SCORE)
        # For each source token, its translations and their scores; -1 and 0 for none.
        self._translations = np.full((size, _TRANSLATIONS), -1, np.int32)
        self._scores = np.zeros((size, _TRANSLATIONS), np.float32)
        self._translations[tokens[best], rank[best]] = others[best]
        self._scores[tokens[best], rank[best]] = scores[best]

    def links(self, inputs: Mapping[str, tf.Tensor]) -> tf.Tensor:
        source, target = inputs["source_ids"], inputs["target_ids"]
        # --> [B, T, S, translations]
        is_translation = target[:, :, None, None] == tf.gather(self._translations, source)[:, None]
        scores = tf.where(is_translation, tf.gather(self._scores, source)[:, None], 0.0)
        distances = self._positions(target, first=1)[:, :, None] - self._positions(source)[:, None]
        # --> [B, T, S]
        scores = tf.reduce_sum(scores, axis=-1) * tf.exp(-tf.abs(distances) / ibm_model_1.SPREAD)
        best = [tf.reduce_max(scores, axis, keepdims=True) for axis in (1, 2)]
        return (scores > 0) & (scores == best[0]) & (scores == best[1])

    def _positions(self, ids: tf.Tensor, first: int = 0) -> tf.Tensor:
        """Returns the relative position of each token, from the first one, float32 `[B, any]`."""
        is_real = tf.cast(ids != self._pad_id, tf.float32)
        index = tf.range(tf.shape(ids)[1], dtype=tf.float32) - first
        return index / tf.maximum(tf.reduce_sum(is_real, axis=1, keepdims=True) - first, 1.0)
