"""Lexical shortlists: functions that return the likely target tokens of a sentence."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import tensorflow as tf


class Shortlist(tf.Module):
    """The most frequent target tokens, and the best translations of the tokens of a sentence.

    Args:
        frequent: int `[F]`, target tokens that are candidates of every sentence. They contain the
            end token.
        translations: int `[source vocabulary, N]`, target tokens for each source token. Rows with
            fewer translations, and the row of the pad token, are filled with a frequent token.

    Attributes:
        size: the largest number of translations of a source token, N.
    """

    def __init__(self, frequent: npt.ArrayLike, translations: npt.ArrayLike):
        super().__init__(name="shortlist")
        # Variables are stored once in a SavedModel. Each function has copies of its constants.
        self.frequent = tf.Variable(frequent, dtype=tf.int32, trainable=False)
        self.translations = tf.Variable(translations, dtype=tf.int32, trainable=False)
        self.size = int(self.translations.shape[1])

    def limits(self) -> tuple[int, int, int]:
        """Returns the number of source tokens, the smallest and the largest target token."""
        ids = np.append(self.frequent.numpy(), self.translations.numpy())
        return int(self.translations.shape[0]), int(ids.min()), int(ids.max())

    def describe(self) -> dict[str, int]:
        """Returns the sizes, as JSON values."""
        return {"frequent": int(self.frequent.shape[0]), "translations": self.size}

    def __call__(self, source_ids: tf.Tensor) -> tf.Tensor:
        """Returns the candidates of sentences, int32 `[batch, any]`, for ids `[batch, S]`."""
        batch, length = tf.shape(source_ids)[0], tf.shape(source_ids)[1]
        frequent = tf.convert_to_tensor(self.frequent)
        translations = tf.convert_to_tensor(self.translations)
        found = tf.gather(translations, tf.reshape(source_ids, [-1]))
        found = tf.reshape(found, [batch, length * self.size])
        return tf.concat([tf.tile(frequent[None], [batch, 1]), found], axis=1)
