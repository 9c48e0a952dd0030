"""What an exported model is asked through: the signatures of its SavedModel.

A server merges requests into one batch and splits the results again. So every input and
output has the batch first, all other dimensions of outputs are the same for every
request, and nothing fails: a value that cannot be meant is replaced by the nearest that can,
and `status` says so, for that row alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from keras_transformer.decoding import RequestedOutputs, SearchInputs
from keras_transformer.export.request_params import (
    Status,
    checked_source_ids,
    clamped_alpha,
    clamped_max_lengths,
    is_nothing,
    status_of,
)
from keras_transformer.export.saved_model.attention_signature import Inspection
from keras_transformer.inference.scoring import Scorer
from keras_transformer.inference.translator import Translator, sample_offsets
from keras_transformer.text.tokenizer import cut


def _texts(name: str) -> tf.TensorSpec:
    return tf.TensorSpec([None], tf.string, name=name)


def _integers(name: str) -> tf.TensorSpec:
    return tf.TensorSpec([None], tf.int32, name=name)


_LENGTH_PENALTY = tf.TensorSpec([None], tf.float32, name="length_penalty")


class Signatures(tf.Module):
    """The functions that a server offers of one translator.

    B is the batch; of an export constant are K, the translations of a sentence (`n_best`),
    S, the most tokens of a source (`max_source_tokens`), and L, those of a translation
    (`max_output_tokens`). Texts are UTF-8.

    Args:
        translator: what translates.
        extra: further functions by name.
    """

    def __init__(
        self, translator: Translator, extra: Mapping[str, Callable[..., Any]] | None = None
    ):
        super().__init__(name="signatures")
        self._translator = translator
        self._scorer = Scorer(translator, translator.max_output_tokens)
        self.inspection = Inspection(translator)
        self._extra = dict(extra or {})
        self._source_places = translator.max_source_tokens
        self._target_places = translator.max_output_tokens

    def by_name(self) -> dict[str, Any]:
        """Returns the functions as `tf.saved_model.save` takes them."""
        return {
            **self._extra,
            "serving_default": self._translator.translate,
            "translate": self.translate,
            "translate_ids": self._of_ids(self.translate_ids, self._source_places),
            "score": self._scorer.score,
            "embed": self.embed,
            "attention": self.inspection.attention,
            "tokenize": self.tokenize,
            "detokenize": self._of_ids(self.detokenize, self._target_places),
            "lengths": self.lengths,
        }

    @staticmethod
    def _of_ids(function: Any, places: int) -> Any:
        """Returns a function of ids int32 `[B, places]` and lengths int32 `[B]` as a graph.

        The width is constant: a server merges requests of one width alone, or pads them, and
        one without any ids, which cannot be padded, would fail all others.
        """
        ids = tf.TensorSpec([None, places], tf.int32, name="ids")
        return tf.function(function, input_signature=[ids, _integers("lengths")], autograph=False)

    @tf.function(
        input_signature=[
            _texts("text"), _integers("max_length"), _LENGTH_PENALTY, _texts("prefix")
        ],
        autograph=False, jit_compile=False,
    )  # fmt: skip
    def translate(
        self, text: tf.Tensor, max_length: tf.Tensor, length_penalty: tf.Tensor, prefix: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Translates each text as it asks for, and returns all that is known of the result.

        Args:
            text: string `[B]`.
            max_length: int32 `[B]`, the most tokens, the end token included; 0: as exported. It
                can only lower what the text's own length allows.
            length_penalty: float32 `[B]`, α, from 0 to `config.MAX_LENGTH_PENALTY`.
            prefix: string `[B]`, what the translations begin with; may be empty.

        Returns:
            `translations` string and `scores` float32 `[B, K]`, best first, and `lengths` int32
            `[B, K]`, the end token included. `[B, K, L]`: `tokens` string (the pieces, ""
            beyond the length), `token_scores` float32 (their log-probabilities, 0 beyond) and
            `alignments` int32, the place among `source_tokens`, string `[B, S]`, that got
            most of the last layer's attention, -1 beyond. `truncated` bool `[B]`, whether the
            source was cut, and `status` int32 `[B]`, bits of `Status`.
        """
        translator = self._translator
        source_ids, source_lengths, is_cut = translator.cut_source_ids(text)
        max_lengths, length_changed = clamped_max_lengths(translator, source_lengths, max_length)
        alpha, alpha_changed = clamped_alpha(translator, length_penalty)
        prefix_ids, prefix_cut = self._prefix_ids(prefix, max_lengths)
        result = translator.search_ids(
            source_ids,
            SearchInputs(max_lengths, prefix_ids, alpha=alpha, sample_offsets=sample_offsets(text)),
            RequestedOutputs(token_log_probs=True, alignment=True),
        )
        places = self._target_places
        inside = tf.sequence_mask(result.lengths, places)  # --> [B, K, L]
        pieces = translator.tokenizer.target_pieces(_widened(result.ids, places))
        alignments = _widened(result.alignment, places)
        source = translator.tokenizer.source_pieces(_widened(source_ids, self._source_places))
        in_source = tf.sequence_mask(source_lengths, self._source_places)
        return {
            "translations": translator.texts(result),
            "scores": result.scores,
            "tokens": tf.where(inside, pieces, ""),
            "token_scores": tf.where(inside, _widened(result.token_log_probs, places), 0.0),
            "lengths": result.lengths,
            "alignments": tf.where(inside, alignments, -1),
            "source_tokens": tf.where(in_source, source, ""),
            "truncated": is_cut,
            "status": status_of(
                {
                    Status.SOURCE_CUT: is_cut,
                    Status.MAX_LENGTH_CHANGED: length_changed,
                    Status.LENGTH_PENALTY_CHANGED: alpha_changed,
                    Status.PREFIX_CUT: prefix_cut,
                    Status.NOT_TRANSLATED: is_nothing(result),
                }
            ),
        }

    def _prefix_ids(self, prefix: tf.Tensor, max_lengths: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns int32 `[B, any]`, -1 behind each prefix, and whether it was cut, bool `[B]`."""
        prefix, is_cut = cut(prefix, self._translator.config.max_source_bytes)
        tokens = self._translator.tokenizer.tokenize_target(prefix)[:, :-1]
        is_cut |= tf.cast(tokens.row_lengths(), tf.int32) > max_lengths
        return tokens[:, : self._target_places].to_tensor(-1), is_cut

    def translate_ids(self, ids: tf.Tensor, lengths: tf.Tensor) -> dict[str, tf.Tensor]:
        """Translates ids, for clients with the same tokenizer of their own.

        Args:
            ids: int32 `[B, S]`, of the source, as `tokenize` returns them. An end token is
                added where the last is none.
            lengths: int32 `[B]`; only the first so many ids of a row count.

        Returns:
            `ids` int32 `[B, K, L]`, the pad id beyond `lengths` int32 `[B, K]`, which count the
            end token; `scores` float32 `[B, K]`; `status` int32 `[B]`, bits of `Status`.
        """
        source_ids, source_lengths, status = checked_source_ids(self._translator, ids, lengths)
        max_lengths = self._translator.max_lengths(source_lengths)
        # What is drawn, where outputs are drawn, depends on a row's own ids alone.
        counted = tf.sequence_mask(source_lengths, tf.shape(source_ids)[1])
        spelled = tf.where(counted, tf.strings.as_string(source_ids) + " ", "")
        offsets = sample_offsets(tf.strings.reduce_join(spelled, axis=1))
        result = self._translator.search_fn(source_ids, max_lengths, offsets)
        return {
            "ids": _widened(result.ids, self._target_places, self._translator.tokenizer.pad_id),
            "lengths": result.lengths,
            "scores": result.scores,
            "status": status + status_of({Status.NOT_TRANSLATED: is_nothing(result)}),
        }

    @tf.function(input_signature=[_texts("text")], autograph=False, jit_compile=False)
    def embed(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns `embeddings` float32 `[B, d_model]`, the means of the encoder's outputs.

        Over real tokens, the end token among them; of an ensemble those of its first model.
        """
        source_ids, _ = self._translator.source_ids(text)
        memory, *_ = self._translator.encode(source_ids)
        mask = tf.expand_dims(tf.cast(memory.mask, tf.float32), -1)
        total = tf.reduce_sum(tf.cast(memory.states, tf.float32) * mask, axis=1)
        return {"embeddings": total / tf.reduce_sum(mask, axis=1)}

    @tf.function(input_signature=[_texts("text")], autograph=False, jit_compile=False)
    def tokenize(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns what the model reads of each source.

        `ids` int32 and `tokens` string `[B, S]`, beyond `lengths` int32 `[B]` the pad id and "".
        """
        tokenizer, places = self._translator.tokenizer, self._source_places
        source_ids, lengths = self._translator.source_ids(text)
        ids = _widened(source_ids, places, tokenizer.pad_id)
        tokens = tf.where(tf.sequence_mask(lengths, places), tokenizer.source_pieces(ids), "")
        return {"ids": ids, "tokens": tokens, "lengths": lengths}

    def detokenize(self, ids: tf.Tensor, lengths: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns `text` string `[B]` of the first `lengths` of target ids int32 `[B, L]`."""
        return {"text": self._translator.tokenizer.detokenize(ids, lengths)}

    @tf.function(input_signature=[_texts("text")], autograph=False, jit_compile=False)
    def lengths(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns `tokens` int32 `[B]` of each text, and how many are `used`, int32 `[B]`.

        Fewer are used where the text is cut. Of a text of more than twice `max_source_bytes` only
        as much is counted: what SentencePiece takes for a word of n bytes grows with n².
        """
        limit = self._translator.config.max_source_bytes
        _, is_cut = cut(text, limit)
        counts = self._translator.lengths(cut(text, 2 * limit)[0])
        least = counts["used"] + tf.cast(is_cut, tf.int32)
        return {"tokens": tf.maximum(counts["tokens"], least), "used": counts["used"]}


def _widened(tensor: tf.Tensor, places: int, value: int = 0) -> tf.Tensor:
    """Pads the last dimension to `places`, more than which it never has."""
    missing = tf.maximum(places - tf.shape(tensor)[-1], 0)
    paddings = [*[[0, 0]] * (len(tensor.shape) - 1), [0, missing]]
    padded = tf.pad(tensor, paddings, constant_values=tf.cast(value, tensor.dtype))[..., :places]
    return tf.ensure_shape(padded, [*tensor.shape[:-1], places])
