"""The signature `translate_batch` of `model.tflite`, which servers use: several sentences at once.

LiteRT copies the tensors that a loop changes at every step, and packs the keys and values of
attention for its products. In this signature, steps write only to the last block of the caches.
Between the blocks, the other places move to a part that steps only read, if a hypothesis may still
see them, and finished sentences leave the batch.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_transformer.decoding import SearchInputs
from keras_transformer.export.request_params import (
    Status,
    clean_request,
    encode_status,
    has_no_translation,
)
from keras_transformer.extensions.litert.signatures import encode_in_loop
from keras_transformer.inference.translation_module import TranslationModule

# Longer blocks copy more, and shorter ones change shapes more often. An int8 search takes 2 % more
# time with 5 positions, 1 to 4 % with 8, and 10 % with 12.
_CACHE_BLOCK = 6
# Hypotheses in a call for which an int8 search is fastest: a multiple of the 5 rows that XNNPACK's
# int8 products compute at once on CPUs with AVX-512. With a beam of 4, more are slower for some
# models. Greedy search takes 14 % less time with 40 than with 10, and 64 are about as fast.
_BEST_ROWS = 40
_INPUTS = [
    tf.TensorSpec([None, None], tf.int32, name="ids"),
    tf.TensorSpec([None], tf.int32, name="lengths"),
    tf.TensorSpec([None], tf.int32, name="max_length"),
    tf.TensorSpec([None], tf.float32, name="length_penalty"),
]


def best_batch_size(rows_per_sentence: int) -> int:
    """Returns the number of sentences, at least 2, for which `translate_batch` is fastest.

    Args:
        rows_per_sentence: hypotheses of each sentence, K.

    Example:
    >>> best_batch_size(4), best_batch_size(1)
    (10, 40)
    """
    return max(2, _BEST_ROWS // rows_per_sentence)


class BatchSignature(tf.Module):
    """The function of the signature `translate_batch`.

    Args:
        translator: the translator. Its models must be Transformers, whose caches have positions.

    Example:
    >>> from keras_transformer.inference.loading import load_translator
    >>> signature = BatchSignature(load_translator("build/run"))
    >>> numbers = tf.zeros([2], tf.int32)
    >>> found = signature.translate_batch(
    ...     tf.constant([[9, 3], [7, 3]]), numbers + 2, numbers, tf.fill([2], float("nan"))
    ... )
    >>> found["scores"].shape
    TensorShape([2, 1])
    """

    def __init__(self, translator: TranslationModule):
        super().__init__(name="batch_signature")
        self._translator = translator

    def by_name(self) -> dict[str, Any]:
        """Returns the function as `tf.saved_model.save` accepts it."""
        return {"translate_batch": self.translate_batch}

    @tf.function(input_signature=_INPUTS, autograph=False)
    def translate_batch(
        self, ids: tf.Tensor, lengths: tf.Tensor, max_length: tf.Tensor, length_penalty: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Translates the ids of several sentences. No request fails: invalid values are clamped.

        Args:
            ids: int32 `[B, S]`, padded, S at least 1. An end token is added if it is missing.
            lengths: int32 `[B]`, the number of ids of each sentence.
            max_length: int32 `[B]`, as in `LiteRTSignatures.translate_ids`.
            length_penalty: float32 `[B]`, α. NaN means the α of the export.

        Returns:
            - `ids` int32 `[B, K, L]`: padded; L is the limit for the longest sentence
            - `lengths` int32 `[B, K]`: including the end token
            - `scores` float32 `[B, K]`: best first
            - `status` int32 `[B]`: bits of `Status`
        """
        translator = self._translator
        lengths = tf.minimum(lengths, translator.max_source_tokens)
        request = clean_request(translator, ids, lengths, max_length, length_penalty)
        result = translator.search_ids(
            request.source_ids,
            SearchInputs(request.max_lengths, alpha=request.alpha),
            memories=encode_in_loop(translator, request.source_ids, request.max_lengths),
            cache_block=_CACHE_BLOCK,
        )
        not_translated = encode_status({Status.NOT_TRANSLATED: has_no_translation(result)})
        return {
            "ids": result.ids,
            "lengths": result.lengths,
            "scores": result.scores,
            "status": request.status + not_translated,
        }
