"""What a LiteRT model is asked through: the signatures of `model.tflite`.

One sentence at a time, as on a phone. Nothing fails here either, see `request_params`.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tensorflow_text

from keras_transformer.decoding import SearchInputs, SearchResult
from keras_transformer.export.request_params import (
    Status,
    checked_source_ids,
    clamped_alpha,
    clamped_max_lengths,
    is_nothing,
    status_of,
)
from keras_transformer.inference.translator import Translator
from keras_transformer.models.encoder_decoder import Memory

_OPTIONS = [
    tf.TensorSpec([1], tf.int32, name="max_length"),
    tf.TensorSpec([1], tf.float32, name="length_penalty"),
]
_IDS = [tf.TensorSpec([1, None], tf.int32, name="ids"), *_OPTIONS]
_TEXT = [tf.TensorSpec([1], tf.string, name="text"), *_OPTIONS]


class LiteRTSignatures(tf.Module):
    """The functions of one translator that become a LiteRT model.

    K are the translations of a sentence (`n_best`).

    Args:
        translator: what translates.
        with_text: also make `translate`. The vocabulary has to be one that LiteRT's tokenizer
            segments as SentencePiece does: unigram, without byte fallback.
    """

    def __init__(self, translator: Translator, with_text: bool):
        super().__init__(name="litert_signatures")
        self._translator = translator
        self._with_text = with_text
        vocabulary = translator.tokenizer.vocabulary
        if with_text:
            self._source = tensorflow_text.FastSentencepieceTokenizer(vocabulary.source_model)
            self._target = self._source
            if not vocabulary.joint:
                self._target = tensorflow_text.FastSentencepieceTokenizer(vocabulary.target_model)

    def by_name(self) -> dict[str, Any]:
        """Returns the functions as `tf.saved_model.save` takes them."""
        functions = {"translate_ids": self.translate_ids}
        return functions | ({"translate": self.translate} if self._with_text else {})

    @tf.function(input_signature=_IDS, autograph=False)
    def translate_ids(
        self, ids: tf.Tensor, max_length: tf.Tensor, length_penalty: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Translates the ids of one sentence.

        Args:
            ids: int32 `[1, S]`, S at least 1, as the source's SentencePiece model gives them. An
                end token is added where the last is none.
            max_length: int32 `[1]`, the most tokens, the end token included; 0: as exported. It
                can only lower what the sentence's own length allows.
            length_penalty: float32 `[1]`, α; NaN: as exported.

        Returns:
            `ids` int32 `[1, K, L]`, the pad id beyond `lengths` int32 `[1, K]`, which count the
            end token; `scores` float32 `[1, K]`, best first; `status` int32 `[1]`, bits of
            `Status`. L is the most tokens that the sentence may have.
        """
        lengths = tf.reshape(tf.shape(ids)[1], [1])
        result, status = self._search(ids, lengths, max_length, length_penalty)
        return {
            "ids": result.ids,
            "lengths": result.lengths,
            "scores": result.scores,
            "status": status,
        }

    @tf.function(input_signature=_TEXT, autograph=False)
    def translate(
        self, text: tf.Tensor, max_length: tf.Tensor, length_penalty: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Translates one sentence of text, UTF-8, string `[1]`, cut where it has too many tokens.

        LiteRT has no operation that cuts bytes, so how long a text may be is the caller's to say.

        Returns:
            `translations` string and `scores` float32 `[1, K]`, best first; `status` int32 `[1]`.
        """
        rows = self._source.tokenize(text)
        # As many as there are texts, so that more than one fails, and is not taken for one.
        lengths = tf.cast(rows.row_lengths(), tf.int32)
        ids = tf.expand_dims(rows.flat_values, 0)
        result, status = self._search(ids, lengths, max_length, length_penalty)
        return {"translations": self._texts(result), "scores": result.scores, "status": status}

    def _search(
        self,
        ids: tf.Tensor,
        lengths: tf.Tensor,
        max_length: tf.Tensor,
        length_penalty: tf.Tensor,
    ) -> tuple[SearchResult, tf.Tensor]:
        """Returns the translations of int32 `[1, S]` of `lengths` `[1]`, and the status, `[1]`."""
        translator = self._translator
        lengths = tf.minimum(lengths, translator.max_source_tokens)
        ids = tf.pad(ids, [[0, 0], [0, 1]])  # room for an end token
        source_ids, source_lengths, status = checked_source_ids(translator, ids, lengths)
        max_lengths, length_changed = clamped_max_lengths(translator, source_lengths, max_length)
        alpha, alpha_changed = clamped_alpha(translator, length_penalty)
        # Of this size are the caches, which LiteRT copies at every step.
        longest = tf.maximum(max_lengths[0], 1)
        memories = self._memories(source_ids, max_lengths[0] > 0)
        result = translator.search_ids(
            source_ids,
            SearchInputs(max_lengths, alpha=alpha, length_limit=longest),
            memories=memories,
        )
        # What stands for "as exported" is no change.
        alpha_changed &= ~tf.math.is_nan(length_penalty)
        return result, status + status_of(
            {
                Status.MAX_LENGTH_CHANGED: length_changed,
                Status.LENGTH_PENALTY_CHANGED: alpha_changed,
                Status.NOT_TRANSLATED: is_nothing(result),
            }
        )

    def _memories(self, source_ids: tf.Tensor, needed: tf.Tensor) -> list[Memory]:
        """Encodes int32 `[1, S]`, if `needed`: in a branch, which all signatures can share."""
        transformers = self._translator.transformers

        def encoded() -> list[Any]:
            return [[each.mask, each.cache] for each in self._translator.encode(source_ids)]

        def empty() -> list[Any]:
            size = tf.shape(source_ids)[1]
            return [[tf.fill([1, size], False), each.init_cache(1, size)] for each in transformers]

        memories = tf.cond(needed, encoded, empty)
        return [Memory(None, mask, cache) for mask, cache in memories]

    def _texts(self, result: SearchResult) -> tf.Tensor:
        """Returns string `[1, K]`, of the ids that are pieces of text."""
        tokenizer = self._translator.tokenizer
        ids = result.ids[0]  # --> [K, L]
        is_text = tf.constant(tokenizer.vocabulary.target_text_pieces())  # --> [V]
        kept = tf.sequence_mask(result.lengths[0], tf.shape(ids)[1]) & tf.gather(is_text, ids)
        counts = tf.reduce_sum(tf.cast(kept, tf.int32), axis=1)
        splits = tf.concat([[0], tf.cumsum(counts)], axis=0)
        pieces = tf.gather(tf.reshape(ids, [-1]), tf.where(tf.reshape(kept, [-1]))[:, 0])
        texts = self._target.detokenize(
            tf.RaggedTensor.from_row_splits(pieces, splits, validate=False)
        )
        return tf.reshape(texts, [1, -1])
