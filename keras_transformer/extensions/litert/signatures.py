"""The signatures of `model.tflite`. No request fails: invalid values are clamped.

`translate_ids` and `translate`, for phones, translate one sentence at a time. `translate_batch`,
for servers, translates several, with a cache in `blocks`. Between the blocks, finished sentences
leave the batch.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf
import tensorflow_text

from keras_transformer.decoding import SearchInputs, SearchResult
from keras_transformer.decoding.cached_decoder import CachedDecoder, product
from keras_transformer.export.request_params import (
    clamp_alpha,
    clamp_max_lengths,
    clean_source_ids,
    encode_status,
    has_no_translation,
)
from keras_transformer.extensions.litert.blocks import BlockDecoder, int8_product
from keras_transformer.extensions.litert.tokenizer import fast_detokenizer_model, fast_model
from keras_transformer.inference import Status
from keras_transformer.inference.translation_module import TranslationModule
from keras_transformer.layers.base import sublayers
from keras_transformer.models.encoder_decoder import Memory

# Hypotheses in the fastest call of an int8 search: a multiple of the 5 rows that an int8 product of
# XNNPACK computes at once on CPUs with AVX-512. With a beam of 4, more are slower for some models.
# Greedy search takes 14 % less time with 40 than with 10, and 64 are about as fast.
_BEST_ROWS = 40


def best_batch_size(rows_per_sentence: int) -> int:
    """Returns the number of sentences, at least 2, in the fastest call of `translate_batch`."""
    return max(2, _BEST_ROWS // rows_per_sentence)


class LiteRTSignatures(tf.Module):
    """The functions of a translator that become a LiteRT model.

    B is the number of sentences, 1 unless `for_cpu`, S the number of source tokens, and K the
    number of translations of a sentence (`n_best`). If `is_int8`, the products with the output rows
    of a shortlist are int8, too.
    """

    def __init__(
        self,
        translator: TranslationModule,
        *,
        for_cpu: bool,
        is_int8: bool,
        with_text: bool = False,
        with_alignments: bool = False,
    ):
        super().__init__(name="litert_signatures")
        models = translator.transformers
        has_entries = not any(model.cache_per_hypothesis for model in models)
        decoder = BlockDecoder if for_cpu and has_entries else CachedDecoder
        self._make_decoder = functools.partial(
            decoder, product=int8_product if is_int8 else product
        )
        self._translator, self._with_text, self._for_cpu = translator, with_text, for_cpu
        self._outputs = ["alignment"] if with_alignments else []
        if translator.quality is not None:
            self._outputs.append("token_log_probs")
        for model in models:
            for layer in sublayers(model, recursive=True):
                layer.window_in_blocks = False  # LiteRT would plan its memory in every call
        vocabulary = translator.tokenizer.vocabulary
        if with_text:
            source_model = fast_model(vocabulary.source_model)
            target_model = fast_detokenizer_model(vocabulary.target_model)
            self._source = tensorflow_text.FastSentencepieceTokenizer(source_model)
            self._target = self._source  # a joint model is stored once
            if not vocabulary.joint or target_model != vocabulary.target_model:
                self._target = tensorflow_text.FastSentencepieceTokenizer(target_model)

    def by_name(self) -> dict[str, Any]:
        """Returns the functions as `tf.saved_model.save` accepts them."""
        rows, width = (None, None) if self._for_cpu else (1, self._translator.max_source_tokens)
        ids = tf.TensorSpec([rows, width], tf.int32, name="ids")
        lengths = tf.TensorSpec([rows], tf.int32, name="lengths")
        options = [
            tf.TensorSpec([rows], tf.int32, name="max_length"),
            tf.TensorSpec([rows], tf.float32, name="length_penalty"),
        ]

        def function(method: Any, *inputs: tf.TensorSpec) -> Any:
            return tf.function(method, [*inputs, *options], autograph=False)

        if self._for_cpu:
            return {"translate_batch": function(self.translate_batch, ids, lengths)}
        functions = {"translate_ids": function(self.translate_ids, ids, lengths)}
        if self._with_text:
            text = tf.TensorSpec([1], tf.string, name="text")
            functions["translate"] = function(self.translate, text)
        return functions

    def translate_batch(
        self, ids: tf.Tensor, lengths: tf.Tensor, max_length: tf.Tensor, length_penalty: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Translates the ids of several sentences; docs/phone.md describes inputs and outputs.

        `ids` are int32 `[B, S]`, and the others `[B]`. The results are `ids` int32 `[B, K, L]`,
        where L is the limit for the longest sentence, `lengths` int32 and `scores` float32
        `[B, K]`, and `status` int32 `[B]`, and on request `alignments` int32 `[B, K, L]`, and
        with a quality `quality` float32 `[B, K]`.
        """
        lengths = tf.minimum(lengths, self._translator.max_source_tokens)
        return _outputs(*self._search(ids, lengths, max_length, length_penalty))

    def translate_ids(
        self, ids: tf.Tensor, lengths: tf.Tensor, max_length: tf.Tensor, length_penalty: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Translates the ids of one sentence, like `translate_batch`.

        All shapes are constant, because `CompiledModel` allocates the buffers of inputs and outputs
        before it runs: S is `max_source_tokens`, and L is `max_output_tokens`. Inside, only the
        used ids are encoded.
        """
        result, others = self._search(ids, lengths, max_length, length_penalty)
        width = self._translator.max_output_tokens
        shape = [1, self._translator.config.n_best, width]

        def padded(tensor: tf.Tensor, value: int) -> tf.Tensor:
            longer = tf.concat([tensor, tf.fill(shape, value)], axis=2)
            return tf.reshape(longer[:, :, :width], shape)

        ids = padded(result.ids, self._translator.tokenizer.pad_id)
        if result.alignment is not None:
            result = result._replace(alignment=padded(result.alignment, -1))
        return _outputs(result._replace(ids=ids), others)

    def translate(
        self, text: tf.Tensor, max_length: tf.Tensor, length_penalty: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Translates one UTF-8 sentence, string `[1]`. Truncates it if it has too many tokens.

        LiteRT has no operation that truncates bytes, so the caller must limit the text size. The
        results are `translations` string and `scores` float32 `[1, K]`, and `status` int32 `[1]`,
        and `quality` as in `translate_batch`.
        """
        rows = self._source.tokenize(text)
        # One length per text: several texts then fail instead of being joined to one.
        lengths = tf.cast(rows.row_lengths(), tf.int32)
        lengths = tf.minimum(lengths, self._translator.max_source_tokens)
        ids = tf.expand_dims(rows.flat_values, 0)
        result, others = self._search(ids, lengths, max_length, length_penalty)
        return {"translations": self._texts(result), "scores": result.scores, **others}

    def _search(
        self, ids: tf.Tensor, lengths: tf.Tensor, max_length: tf.Tensor, length_penalty: tf.Tensor
    ) -> tuple[SearchResult, dict[str, tf.Tensor]]:
        """Returns the translations of ids int32 `[B, S]`, the `status`, and maybe the `quality`."""
        translator = self._translator
        ids = tf.pad(ids, [[0, 0], [0, 1]])  # room for an end token
        source_ids, _, status = clean_source_ids(translator, ids, lengths)
        max_lengths, length_changed = clamp_max_lengths(translator, source_ids, max_length)
        alpha, alpha_changed = clamp_alpha(translator, length_penalty)
        status += encode_status(
            {
                Status.MAX_LENGTH_CHANGED: length_changed,
                Status.LENGTH_PENALTY_CHANGED: alpha_changed,
            }
        )
        # The size of the caches for one sentence, which LiteRT copies at every step.
        longest = None if self._for_cpu else tf.maximum(max_lengths[0], 1)
        result = translator.translate_ids(
            source_ids,
            SearchInputs(max_lengths, alpha=alpha, length_limit=longest),
            self._outputs,
            memories=_encode_in_loop(translator, source_ids, max_lengths),
            make_decoder=self._make_decoder,
        )
        assessment = translator.assess(result, source_ids)
        status += encode_status({Status.NOT_TRANSLATED: has_no_translation(result)})
        return result, {**assessment, "status": status + assessment.get("status", 0)}

    def _texts(self, result: SearchResult) -> tf.Tensor:
        """Returns the texts of the hypotheses, string `[1, K]`; only pieces of text are used.

        LiteRT's detokenizer drops one space of the first piece. SentencePiece drops all spaces
        before the text, but not the space in the text of an unknown piece.
        """
        tokenizer = self._translator.tokenizer
        ids = result.ids[0]  # --> [K, L]
        is_text = tf.constant(tokenizer.vocabulary.target_text_pieces)  # --> [V]
        is_space = tf.constant(tokenizer.vocabulary.target_spaces())  # --> [V]
        kept = tf.sequence_mask(result.lengths[0], tf.shape(ids)[1]) & tf.gather(is_text, ids)
        is_word = kept & ~tf.gather(is_space, ids)
        words = tf.cumsum(tf.cast(is_word, tf.int32), axis=1)
        kept &= words > 0
        is_first_unknown = is_word & tf.equal(words, 1) & tf.equal(ids, tokenizer.unknown_id)
        # A control piece has no text, but then the next piece keeps its space.
        column = tf.fill([tf.shape(ids)[0], 1], tokenizer.start_id)
        ids = tf.concat([column, ids], axis=1)
        kept = tf.concat([tf.reduce_any(is_first_unknown, axis=1, keepdims=True), kept], axis=1)
        counts = tf.reduce_sum(tf.cast(kept, tf.int32), axis=1)
        splits = tf.concat([[0], tf.cumsum(counts)], axis=0)
        pieces = tf.gather(tf.reshape(ids, [-1]), tf.where(tf.reshape(kept, [-1]))[:, 0])
        texts = self._target.detokenize(
            tf.RaggedTensor.from_row_splits(pieces, splits, validate=False)
        )
        return tf.reshape(texts, [1, -1])


def _outputs(result: SearchResult, others: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    names = ("ids", "lengths", "scores")
    outputs = {name: getattr(result, name) for name in names}
    if result.alignment is not None:
        outputs["alignments"] = result.alignment
    return {**outputs, **others}


def _encode_in_loop(
    translator: TranslationModule, source_ids: tf.Tensor, max_lengths: tf.Tensor
) -> list[Memory]:
    """Encodes sentences for each model of a translator, in a loop of one step.

    Several signatures can share the body of a loop, and `passes.prepare_loops_twice` needs one. If
    no sentence has an output, the loop takes no step.
    """

    def encoded(step: tf.Tensor, _: Any) -> tuple[tf.Tensor, list[Any]]:
        # `step` is 0. Without it, the converter computes shapes of the ids before the loop, and
        # then LiteRT does not know them while it prepares the body.
        memories = translator.encode(source_ids + step)
        return step + 1, [[memory.mask, memory.cache] for memory in memories]

    batch, size = tf.shape(source_ids)[0], tf.shape(source_ids)[1]
    mask = tf.fill([batch, size], False)
    empty = [
        [mask, [layer.cross_attention.init_cache(batch, size) for layer in model.decoder.layers]]
        for model in translator.transformers
    ]
    steps = tf.cast(tf.reduce_any(max_lengths > 0), tf.int32)
    _, memories = tf.while_loop(lambda step, _: step < steps, encoded, (tf.constant(0), empty))
    return [Memory(None, mask, cache) for mask, cache in memories]
