"""Lexical shortlists: the search scores only the likely tokens of a sentence.

The candidates of a sentence are the most frequent target tokens, and the most probable translations
of each of its source tokens. A batch scores the union of the candidates of its sentences with one
matrix product, and a mask excludes the candidates of other sentences. So a sentence gets the same
results in any batch. Log-probabilities are normalized over the candidates.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy.typing as npt
import tensorflow as tf

from keras_transformer.decoding.interface import NEG_INF

_STEPS = 127  # of int8 rows, in each direction


class Candidates(NamedTuple):
    """The tokens that a search of a batch may generate.

    Attributes:
        ids: int32 `[C]`, ascending: the union over the sentences.
        mask: bool `[batch, C]`, True for the candidates of each sentence.
    """

    ids: tf.Tensor
    mask: tf.Tensor


class Shortlist(tf.Module):
    """Chooses the candidates of each sentence from its source tokens.

    Args:
        frequent: int `[F]`, target tokens that are candidates of every sentence. They contain the
            end token.
        translations: int `[source vocabulary, N]`, target tokens for each source token. Rows with
            fewer translations, and the row of the pad token, are filled with a frequent token.
        int8_rows: round the rows of the output matrix to int8. LiteRT multiplies them in int8.
    """

    def __init__(
        self, frequent: npt.ArrayLike, translations: npt.ArrayLike, int8_rows: bool = False
    ):
        super().__init__(name="shortlist")
        # Variables are stored once in a SavedModel. Each function has copies of its constants.
        self.frequent = tf.Variable(frequent, dtype=tf.int32, trainable=False)
        self.translations = tf.Variable(translations, dtype=tf.int32, trainable=False)
        self.int8_rows = int8_rows

    @property
    def size(self) -> int:
        """The largest number of translations of a source token."""
        return int(self.translations.shape[1])

    def describe(self) -> dict[str, int]:
        """Returns the sizes, as JSON values."""
        return {"frequent": int(self.frequent.shape[0]), "translations": self.size}

    def candidates(
        self, source_ids: tf.Tensor, vocab_size: int, prefix: tf.Tensor | None = None
    ) -> Candidates:
        """Returns the candidates of a batch.

        Args:
            source_ids: int32 `[batch, S]`, padded.
            vocab_size: number of target tokens.
            prefix: int32 `[batch, any]`, more candidates of each sentence. Ids outside the
                vocabulary are ignored.
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
        places = tf.reshape(first + ids, [-1, 1])
        counts = tf.scatter_nd(places, tf.ones(tf.shape(places)[:1]), [batch * vocab_size])
        # --> [batch, vocab_size]
        counts = tf.reshape(counts, [batch, vocab_size])
        union = tf.where(tf.reduce_max(counts, axis=0) > 0)[:, 0]
        union = tf.cast(union, tf.int32)
        return Candidates(union, tf.gather(counts, union, axis=1) > 0)


class CandidateOutputs:
    """The output layer of a model, for the candidates of a batch.

    Args:
        rows: `[C, d_model]`, the rows of the output matrix.
        bias: `[C]`, or None.
        candidates: the candidates.
        int8_rows: see `Shortlist`.
    """

    def __init__(self, rows: Any, bias: Any, candidates: Candidates, int8_rows: bool):
        excluded = tf.where(candidates.mask, tf.constant(0, rows.dtype), NEG_INF)
        # [batch, 1, C]. A search that drops finished sentences selects its rows.
        self.bias = tf.expand_dims(excluded if bias is None else excluded + bias, 1)
        self._scales = None
        if int8_rows:
            largest = tf.reduce_max(tf.abs(rows), axis=1, keepdims=True)
            steps = tf.round(rows * tf.math.divide_no_nan(float(_STEPS), largest))
            rows, self._scales = tf.cast(steps, tf.int8), largest[:, 0] / _STEPS
        self._rows = rows

    def logits(self, features: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
        """Returns `[batch, K, C]` for features `[batch, K, d_model]` and a bias `[batch, 1, C]`."""
        batch, beam, width = features.shape
        rows = self._rows
        if self._scales is not None:
            # The LiteRT export removes this cast, so that the product is one of int8.
            rows = tf.cast(rows, features.dtype)
        products = tf.matmul(tf.reshape(features, [-1, width]), rows, transpose_b=True)
        if self._scales is not None:
            products *= self._scales
        # LiteRT needs the constant size of its batch.
        shape = [-1 if batch is None else batch, beam, tf.shape(self._rows)[0]]
        return tf.reshape(products, shape) + bias
