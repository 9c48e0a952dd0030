"""Guided alignment: one head of the decoder is taught which source word is at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf


class GuidedAlignment:
    """The alignment of targets with a token for each word of their sources, and its loss.

    Before the n-th such token, word n is at hand, and behind the last one the end token. The
    attention of one head to the pieces of that word is taken for the probability of it, and
    trained by cross-entropy beside the tokens (Chen et al., 2016); the head is the first of the
    decoder's last layer but one (Garg et al., 2019).

    Args:
        begins: for each source id whether a word begins with it; the end token counts as one.
        stands: for each target id whether it stands for a word.
        pad_id: of both sides.
    """

    def __init__(self, begins: Sequence[bool], stands: Sequence[bool], pad_id: int):
        self._begins = np.asarray(begins, np.int32)
        self._stands = np.asarray(stands, np.int32)
        self._pad_id = pad_id

    def at_hand(self, inputs: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Returns bool `[B, T, S]`: the source tokens of the word at hand at each target input.

        Args:
            inputs: `source_ids` int32 `[B, S]` and `target_ids` int32 `[B, T]`, which begin with
                the start id.
        """
        source, target = inputs["source_ids"], inputs["target_ids"]
        words = tf.cumsum(tf.gather(self._begins, source), axis=1) - 1
        words = tf.where(source != self._pad_id, words, -1)
        said = tf.cumsum(tf.gather(self._stands, target), axis=1)
        return said[:, :, None] == words[:, None, :]

    def loss(
        self, inputs: Mapping[str, tf.Tensor], attention: Sequence[Mapping[str, Any]]
    ) -> tf.Tensor:
        """Returns the cross-entropy, float32 scalar, summed over all target tokens, in nats.

        Args:
            inputs: as `at_hand`'s.
            attention: of every layer of the decoder `cross` `[B, H, T, S]`.
        """
        weights = tf.cast(attention[max(0, len(attention) - 2)]["cross"][:, 0], tf.float32)
        probability = tf.reduce_sum(tf.where(self.at_hand(inputs), weights, 0.0), axis=-1)
        real = inputs["target_ids"] != self._pad_id
        # Where the words of the two do not match, as of a text that was cut, nothing is at hand.
        log = tf.math.log(tf.maximum(probability, 1e-9))
        return -tf.reduce_sum(tf.where(real, log, 0.0))
