"""Lexical shortlists: the search scores only the likely tokens of a sentence.

The candidates of a sentence are the most frequent target tokens, and the most probable translations
of each of its source tokens. A batch scores the union of the candidates of its sentences with one
matrix product, and a mask excludes the candidates of other sentences. So a sentence gets the same
results in any batch. Log-probabilities are normalized over the candidates.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy.typing as npt
import tensorflow as tf


class Shortlist(tf.Module):
    """Chooses the candidates of each sentence from its source tokens.

    Args:
        frequent: int `[F]`, target tokens that are candidates of every sentence. They contain the
            end token.
        translations: int `[source vocabulary, N]`, target tokens for each source token. Rows with
            fewer translations, and the row of the pad token, are filled with a frequent token.
    """

    def __init__(self, frequent: npt.ArrayLike, translations: npt.ArrayLike):
        super().__init__(name="shortlist")
        # Variables are stored once in a SavedModel. Each function has copies of its constants.
        self.frequent = tf.Variable(frequent, dtype=tf.int32, trainable=False)
        self.translations = tf.Variable(translations, dtype=tf.int32, trainable=False)

    @property
    def size(self) -> int:
        """The largest number of translations of a source token."""
        return int(self.translations.shape[1])

    def describe(self) -> dict[str, int]:
        """Returns the sizes, as JSON values."""
        return {"frequent": int(self.frequent.shape[0]), "translations": self.size}

    def candidates(
        self, source_ids: tf.Tensor, vocab_size: int, prefix: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the candidates of a batch.

        Args:
            source_ids: int32 `[batch, S]`, padded.
            vocab_size: number of target tokens.
            prefix: int32 `[batch, any]`, more candidates of each sentence. Ids outside the
                vocabulary are ignored.

        Returns:
            The union over the sentences, int32 `[C]`, ascending, and bool `[batch, C]`, True for
            the candidates of each sentence.
        """
        batch = tf.shape(source_ids)[0]
        frequent = tf.convert_to_tensor(self.frequent)
        translations = tf.gather(
            tf.convert_to_tensor(self.translations), tf.reshape(source_ids, [-1])
        )
        found = [
            tf.tile(frequent[None], [batch, 1]),
            tf.reshape(translations, [batch, tf.shape(source_ids)[1] * self.size]),
        ]
        if prefix is not None:
            prefix = tf.cast(prefix, tf.int32)
            is_token = (prefix >= 0) & (prefix < vocab_size)
            found.append(tf.where(is_token, prefix, frequent[0]))
        # --> [batch, any]
        ids = tf.concat(found, axis=1)
        first = tf.expand_dims(tf.range(batch) * vocab_size, 1)
        indices = tf.reshape(first + ids, [-1, 1])
        counts = tf.scatter_nd(indices, tf.ones(tf.shape(indices)[:1]), [batch * vocab_size])
        # --> [batch, vocab_size]
        counts = tf.reshape(counts, [batch, vocab_size])
        union = tf.where(tf.reduce_max(counts, axis=0) > 0)[:, 0]
        union = tf.cast(union, tf.int32)
        return union, tf.gather(counts, union, axis=1) > 0

    def product(self, rows: tf.Tensor) -> Callable[[tf.Tensor], tf.Tensor]:
        """Returns the function that multiplies features `[R, d]` by output rows `[C, d]`.

        An export overrides it for products in another number format.
        """
        return lambda features: tf.matmul(features, rows, transpose_b=True)
