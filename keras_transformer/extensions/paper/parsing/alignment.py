"""Guided alignment: one head of the decoder is taught which source word comes next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.extensions.paper.parsing.treebank import word_boundaries
from keras_transformer.text.vocabulary import Vocabulary


def auxiliary_loss(vocabulary: Vocabulary) -> GuidedAlignment | None:
    """Returns the auxiliary loss for the training of a parser; None for other vocabularies."""
    boundaries = word_boundaries(vocabulary)
    return None if boundaries is None else GuidedAlignment(*boundaries, vocabulary.pad_id)


class GuidedAlignment:
    """The source word of each target token, and the loss of a head that finds it.

    This is an auxiliary loss of the trainer (`training.loss.AuxiliaryLoss`). Targets must have one
    token that stands for each source word. Up to the n-th such token, targets are aligned to word
    n. After the last one, they are aligned to the end token. The attention of a head to the tokens
    of a word is the probability of that word, trained by cross-entropy (Chen et al., 2016). The
    head is the first one of the second-to-last decoder layer (Garg et al., 2019).

    `begins` is True for each source id that starts a word, and for the end token. `stands` is True
    for each target id that stands for a word.
    """

    def __init__(self, begins: Sequence[bool], stands: Sequence[bool], pad_id: int):
        if sum(begins) < 2 or not any(stands):
            raise InputError(
                "The vocabularies do not show where words begin, or which tokens represent one. "
                "Guided alignment needs source tokens that begin with a space, and target tokens "
                "that are tags."
            )
        self._begins = np.asarray(begins, np.int32)
        self._stands = np.asarray(stands, np.int32)
        self._pad_id = pad_id

    def belongs(self, inputs: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Returns the source tokens of the word of each target token, bool `[B, T, S]`.

        `target_ids` are the inputs of the decoder, and each stands for the token behind it. If a
        sentence has a different number of words and of targets that stand for a word, all its
        values are False. SentencePiece finds a space inside some words, which would shift all
        following words.
        """
        source, target = inputs["source_ids"], inputs["target_ids"]
        is_real = source != self._pad_id
        num_words = tf.cumsum(tf.where(is_real, tf.gather(self._begins, source), 0), axis=1)
        num_targets = tf.cumsum(tf.gather(self._stands, target), axis=1)
        found = num_targets[:, :, None] == tf.where(is_real, num_words - 1, -1)[:, None, :]
        return found & (num_words[:, -1:] - 1 == num_targets[:, -1:])[:, :, None]

    def __call__(
        self,
        inputs: Mapping[str, tf.Tensor],
        features: tf.Tensor,
        attention: Sequence[Mapping[str, Any]],
    ) -> tf.Tensor:
        """Returns the cross-entropy, float32 scalar, summed over all target tokens, in nats."""
        del features
        weights = attention[max(0, len(attention) - 2)]["cross"][:, 0]
        belongs = self.belongs(inputs)
        probability = tf.reduce_sum(tf.where(belongs, weights, 0.0), axis=-1)
        counts = tf.reduce_any(belongs, axis=-1) & (inputs["target_ids"] != self._pad_id)
        log = tf.math.log(tf.maximum(probability, np.finfo(np.float32).tiny))
        return -tf.reduce_sum(tf.where(counts, log, 0.0))
