"""Guided alignment: one head of the decoder is taught which source word comes next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.paper.parsing.symbol_vocabulary import word_boundaries
from keras_transformer.text.vocabulary import Vocabulary


def auxiliary_loss(vocabulary: Vocabulary) -> GuidedAlignment | None:
    """Returns the auxiliary loss for the training of a parser; None for other vocabularies."""
    boundaries = word_boundaries(vocabulary)
    return None if boundaries is None else GuidedAlignment(*boundaries, vocabulary.pad_id)


class GuidedAlignment:
    """The source word that each target token belongs to, and the loss of a head that finds it.

    It is an auxiliary loss of the trainer, which `training.loss.AuxiliaryLoss` describes.

    For targets that have one token for each word of their sources. Up to the n-th such token
    that is word n, and behind the last one the end token. The attention of a head to the pieces of
    a word is taken for its probability, and trained by cross-entropy beside the tokens (Chen et
    al., 2016); the head is the first of the decoder's last layer but one (Garg et al., 2019).

    Args:
        begins: for each source id whether a word begins with it; the end token counts as one.
        stands: for each target id whether it stands for a word.
        pad_id: of both sides.

    Raises:
        InputError: where no word begins, or nothing stands for one.
    """

    name = "alignment_loss"

    def __init__(self, begins: Sequence[bool], stands: Sequence[bool], pad_id: int):
        if sum(begins) < 2 or not any(stands):
            raise InputError(
                "the vocabularies do not tell where words begin, or what stands for one; "
                "expected source pieces that begin with a space, and target pieces of tags"
            )
        self._begins = np.asarray(begins, np.int32)
        self._stands = np.asarray(stands, np.int32)
        self._pad_id = pad_id

    def belongs(self, inputs: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Returns bool `[B, T, S]`: the source tokens of the word that each target token is of.

        None in sentences of more or fewer words than there are tokens for: some words have a space
        within, as SentencePiece sees them, and would move all that follow.

        Args:
            inputs: `source_ids` int32 `[B, S]` and `target_ids` int32 `[B, T]`, the decoder's
                inputs, which begin with the start id; the token is the one behind each.
        """
        source, target = inputs["source_ids"], inputs["target_ids"]
        is_real = source != self._pad_id
        begun = tf.cumsum(tf.where(is_real, tf.gather(self._begins, source), 0), axis=1)
        said = tf.cumsum(tf.gather(self._stands, target), axis=1)
        found = said[:, :, None] == tf.where(is_real, begun - 1, -1)[:, None, :]
        return found & (begun[:, -1:] - 1 == said[:, -1:])[:, :, None]

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
