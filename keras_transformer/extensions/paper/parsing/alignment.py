"""Guided alignment of parsers: one head of the decoder is taught which source word comes next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from keras_transformer.data.token_store import TokenStore
from keras_transformer.errors import InputError
from keras_transformer.extensions.alignment.guided import GuidedAlignment
from keras_transformer.extensions.paper.parsing.treebank import word_boundaries
from keras_transformer.text.vocabulary import Vocabulary


def auxiliary_loss(vocabulary: Vocabulary, stores: Sequence[TokenStore]) -> ParserAlignment | None:
    """Returns the auxiliary loss for the training of a parser; None for other vocabularies."""
    del stores
    boundaries = word_boundaries(vocabulary)
    return None if boundaries is None else ParserAlignment(*boundaries, vocabulary.pad_id)


class ParserAlignment(GuidedAlignment):
    """Aligns target tokens to the next source word.

    Targets must have one token that stands for each source word. Up to the n-th such token, targets
    are aligned to word n. After the last one, they are aligned to the end token.

    `begins` is True for each source id that starts a word, and for the end token. `stands` is True
    for each target id that stands for a word.
    """

    aligns = "next"

    def __init__(self, begins: Sequence[bool], stands: Sequence[bool], pad_id: int):
        super().__init__(pad_id)
        if sum(begins) < 2 or not any(stands):
            raise InputError(
                "The vocabularies do not show where words begin, or which tokens represent one. "
                "Guided alignment needs source tokens that begin with a space, and target tokens "
                "that are tags."
            )
        self._begins = np.asarray(begins, np.int32)
        self._stands = np.asarray(stands, np.int32)

    def links(self, inputs: Mapping[str, tf.Tensor]) -> tf.Tensor:
        # If a sentence has a different number of words and of targets that stand for a word, all
        # its values are False. SentencePiece finds a space inside some words, which would shift all
        # following words.
        source, target = inputs["source_ids"], inputs["target_ids"]
        is_real = source != self._pad_id
        num_words = tf.cumsum(tf.where(is_real, tf.gather(self._begins, source), 0), axis=1)
        num_targets = tf.cumsum(tf.gather(self._stands, target), axis=1)
        found = num_targets[:, :, None] == tf.where(is_real, num_words - 1, -1)[:, None, :]
        return found & (num_words[:, -1:] - 1 == num_targets[:, -1:])[:, :, None]
