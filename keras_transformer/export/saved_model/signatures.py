"""The signatures of an exported SavedModel, and the functions for its attention.

A server merges requests into a batch and splits the results again. Therefore the first dimension
of every input and output is the batch, all other dimensions of outputs are constants, and no
request fails. Invalid values are clamped, which the `status` of the row reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from keras_transformer.decoding import SearchInputs
from keras_transformer.errors import InputError
from keras_transformer.export.request_params import (
    clamp_alpha,
    clamp_max_lengths,
    clean_source_ids,
    encode_status,
    has_no_translation,
)
from keras_transformer.inference import Status
from keras_transformer.inference.scoring import Scorer
from keras_transformer.inference.translation_module import TranslationModule
from keras_transformer.models.transformer import Transformer
from keras_transformer.text.tokenizer import truncate_text

# Maximum length of a source and a target of `attention`. The size of a row grows with the square
# of the length. For `base`, it is 2.4 MB at 64 tokens, and would be 600 MB at 1,024.
MAX_ATTENTION_TOKENS = 64


def _function(*specs: tf.TensorSpec) -> Callable[[Any], Any]:
    """Returns a decorator for graph functions with these inputs."""
    return tf.function(input_signature=specs, autograph=False, jit_compile=False)


def _rows(name: str, dtype: tf.DType = tf.string) -> tf.TensorSpec:
    return tf.TensorSpec([None], dtype, name=name)


class Signatures(tf.Module):
    """The functions that a server offers for a translator.

    Texts are UTF-8. In the shapes, B is the batch size. The other sizes are constants of an export:

    - K: translations per sentence (`n_best`)
    - S: maximum source length (`max_source_tokens`)
    - L: maximum length of a translation (`max_output_tokens`)

    `extra` has further functions by name.
    """

    def __init__(
        self, translator: TranslationModule, extra: Mapping[str, Callable[..., Any]] | None = None
    ):
        super().__init__(name="signatures")
        model = translator.transformer
        if not isinstance(model, Transformer):
            raise InputError(
                f"The architecture {model.run_config.architecture} cannot return attention. Use a "
                "Transformer."
            )
        self._translator, self._model = translator, model
        self._scorer = Scorer(translator, translator.max_output_tokens)
        self._extra = dict(extra or {})
        self._source_width = translator.max_source_tokens
        self._target_width = translator.max_output_tokens
        self._attention_widths = (
            min(MAX_ATTENTION_TOKENS, self._source_width),
            min(MAX_ATTENTION_TOKENS, self._target_width),
        )

    def by_name(self) -> dict[str, Any]:
        """Returns the functions as `tf.saved_model.save` accepts them."""
        return {
            **self._extra,
            "serving_default": self._translator.translate,
            "translate": self.translate,
            "translate_ids": self._ids_function(self.translate_ids, self._source_width),
            "score": self._scorer.score,
            "embed": self.embed,
            "attention": self.attention,
            "tokenize": self.tokenize,
            "detokenize": self._ids_function(self.detokenize, self._target_width),
            "lengths": self.lengths,
            "symbols": self.symbols,
        }

    @staticmethod
    def _ids_function(function: Any, width: int) -> Any:
        """Returns a graph function with the inputs `ids` int32 `[B, width]`, `lengths` int32 `[B]`.

        The width is constant, because a server merges only requests of the same width, or pads
        them. A request without ids cannot be padded, and would make the whole batch fail.
        """
        ids = tf.TensorSpec([None, width], tf.int32, name="ids")
        return tf.function(
            function, input_signature=[ids, _rows("lengths", tf.int32)], autograph=False
        )

    @_function(
        _rows("text"),
        _rows("max_length", tf.int32),
        _rows("length_penalty", tf.float32),
        _rows("prefix"),
    )
    def translate(
        self, text: tf.Tensor, max_length: tf.Tensor, length_penalty: tf.Tensor, prefix: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Translates each text with its own options, and returns details of the translations.

        Args:
            text: string `[B]`.
            max_length: int32 `[B]`, maximum length of the translation, including the end token. 0
                means the limit of the export, which depends on the length of the text. Larger
                values are lowered to this limit.
            length_penalty: float32 `[B]`, α, from 0 to `config.MAX_LENGTH_PENALTY`.
            prefix: string `[B]`, the beginning of the translations; may be empty.

        Returns:
            A dictionary of tensors. The K translations of a text are sorted, best first.

            - `translations` string `[B, K]`
            - `scores` float32 `[B, K]`
            - `lengths` int32 `[B, K]`: including the end token
            - `tokens` string `[B, K, L]`: the pieces, then ""
            - `token_scores` float32 `[B, K, L]`: log-probabilities of the tokens, then 0
            - `alignments` int32 `[B, K, L]`: position of the source token with the most attention
              in the last layer, then -1
            - `source_tokens` string `[B, S]`: the pieces, then ""
            - `truncated` bool `[B]`: whether the source was truncated
            - `status` int32 `[B]`: bits of `Status`
            - `quality` float32 `[B, K]`: from 0 to 1; only with `ExportOptions.quality`
        """
        translator = self._translator
        source_ids, source_lengths, is_cut = translator.source_ids(text)
        max_lengths, length_changed = clamp_max_lengths(translator, source_ids, max_length)
        alpha, alpha_changed = clamp_alpha(translator, length_penalty)
        prefix_ids, prefix_cut = self._prefix_ids(prefix, max_lengths)
        result = translator.translate_ids(
            source_ids,
            SearchInputs(max_lengths, prefix_ids, alpha=alpha),
            ("token_log_probs", "alignment"),
        )
        assessment = translator.assess(result, source_ids)
        width = self._target_width
        is_token = tf.sequence_mask(result.lengths, width)  # --> [B, K, L]
        alignments = _pad_last(result.alignment, width)
        tokenizer = translator.tokenizer
        return {
            "translations": translator.texts(result, text),
            "scores": result.scores,
            "tokens": _pieces(tokenizer.target_pieces, result.ids, result.lengths, width),
            "token_scores": tf.where(is_token, _pad_last(result.token_log_probs, width), 0.0),
            "lengths": result.lengths,
            "alignments": tf.where(is_token, alignments, -1),
            "source_tokens": _pieces(
                tokenizer.source_pieces, source_ids, source_lengths, self._source_width
            ),
            "truncated": is_cut,
            **assessment,
            "status": assessment.get("status", 0)
            + encode_status(
                {
                    Status.SOURCE_CUT: is_cut,
                    Status.MAX_LENGTH_CHANGED: length_changed,
                    Status.LENGTH_PENALTY_CHANGED: alpha_changed,
                    Status.PREFIX_CUT: prefix_cut,
                    Status.NOT_TRANSLATED: has_no_translation(result),
                }
            ),
        }

    def _prefix_ids(self, prefix: tf.Tensor, max_lengths: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns int32 `[B, any]`, padded with -1, and bool `[B]`, True if the prefix was cut."""
        prefix, is_cut = truncate_text(prefix, self._translator.config.max_source_bytes)
        tokens = self._translator.tokenizer.tokenize_target(prefix)[:, :-1]
        room = max_lengths - int(self._translator.tokenizer.has_languages)
        is_cut |= tf.cast(tokens.row_lengths(), tf.int32) > room
        return tokens[:, : self._target_width].to_tensor(-1), is_cut

    def translate_ids(self, ids: tf.Tensor, lengths: tf.Tensor) -> dict[str, tf.Tensor]:
        """Translates ids, for clients that have the tokenizer.

        Args:
            ids: int32 `[B, S]`, source ids as `tokenize` returns them. An end token is added if
                it is missing.
            lengths: int32 `[B]`, the number of ids of each row.

        Returns:
            - `ids` int32 `[B, K, L]`: padded
            - `lengths` int32 `[B, K]`: including the end token
            - `scores` float32 `[B, K]`
            - `status` int32 `[B]`: bits of `Status`
        """
        source_ids, _, status = clean_source_ids(self._translator, ids, lengths)
        max_lengths = self._translator.max_lengths(source_ids)
        result = self._translator.shared_translate_ids(source_ids, max_lengths)
        return {
            "ids": _pad_last(result.ids, self._target_width, self._translator.tokenizer.pad_id),
            "lengths": result.lengths,
            "scores": result.scores,
            "status": status + encode_status({Status.NOT_TRANSLATED: has_no_translation(result)}),
        }

    @_function(_rows("text"))
    def embed(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns `embeddings` float32 `[B, d_model]`, the mean of the encoder's outputs.

        The mean includes the end token and excludes padding. An ensemble uses its first model.
        """
        source_ids, *_ = self._translator.source_ids(text)
        memory, *_ = self._translator.encode(source_ids)
        mask = tf.expand_dims(tf.cast(memory.mask, tf.float32), -1)
        total = tf.reduce_sum(tf.cast(memory.states, tf.float32) * mask, axis=1)
        return {"embeddings": total / tf.reduce_sum(mask, axis=1)}

    @_function(_rows("text"))
    def tokenize(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the model's input for each source text.

        Returns:
            `ids` int32 and `tokens` string `[B, S]`, padded; `lengths` int32 `[B]`.
        """
        tokenizer, width = self._translator.tokenizer, self._source_width
        source_ids, lengths, _ = self._translator.source_ids(text)
        ids = _pad_last(source_ids, width, tokenizer.pad_id)
        tokens = _pieces(tokenizer.source_pieces, ids, lengths, width)
        return {"ids": ids, "tokens": tokens, "lengths": lengths}

    def detokenize(self, ids: tf.Tensor, lengths: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns `text` string `[B]` for target ids int32 `[B, L]` and lengths int32 `[B]`."""
        return {"text": self._translator.tokenizer.detokenize(ids, lengths)}

    @_function(_rows("text"))
    def lengths(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Counts the source tokens of `text`, string `[B]`, including the end token.

        Only the first 2 * `max_source_bytes` bytes of a text are counted, because the time of
        SentencePiece grows with the square of the length of a word.

        Returns:
            int32 `[B]`: `tokens` of the whole text, `used` for the part that is translated, and
            `unknown` for the tokens that are not in the vocabulary.
        """
        limit = self._translator.config.max_source_bytes
        _, is_cut = truncate_text(text, limit)
        counts = self._translator.lengths(truncate_text(text, 2 * limit)[0])
        least = counts["used"] + tf.cast(is_cut, tf.int32)
        return {**counts, "tokens": tf.maximum(counts["tokens"], least)}

    @_function(_rows("text"))
    def symbols(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns `symbols` string `[B, any]`, the symbols of the source vocabulary in each row.

        They are the same for all texts. Clients find the tags of target languages in them.
        """
        symbols = sorted(self._translator.tokenizer.vocabulary.source_symbols)
        row = tf.constant(symbols, tf.string, [1, len(symbols)])
        return {"symbols": tf.tile(row, [tf.shape(text)[0], 1])}

    @_function(_rows("source"), _rows("target"))
    def attention(self, source: tf.Tensor, target: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns all attention weights of a forward pass over `source` and `target`.

        An ensemble uses its first model.

        In the shapes, B is the batch size. The other sizes are constants of the export:

        - N, M: layers of the encoder and of the decoder
        - H: heads
        - S, T: maximum lengths of the source and of the target. Each is `MAX_ATTENTION_TOKENS`, or
          the limit of the model if that is lower.

        Row t of the decoder's weights belongs to input token t, and predicts the token after it.
        Input token 0 is the start token.

        Args:
            source: string `[B]`.
            target: string `[B]`. A target without tokens is replaced by the model's translation.

        Returns:
            A dictionary of tensors. In the weights, rows within the lengths sum to 1, and all
            other values are 0.

            - `encoder` float32 `[B, N, H, S, S]`: weights of self-attention in the encoder
            - `decoder` float32 `[B, M, H, T, T]`: weights of self-attention in the decoder, or
              `[B, 0, 1, T, T]` if it has a recurrent unit instead
            - `cross` float32 `[B, M, H, T, S]`: weights of cross-attention
            - `source_tokens` string `[B, S]`: pieces of the source, then ""
            - `target_tokens` string `[B, T]`: pieces of the decoder's input, then ""
            - `predicted_tokens` string `[B, T]`: pieces of the predicted tokens, then ""
            - `source_lengths`, `target_lengths` int32 `[B]`: at least 1
            - `target_text` string `[B]`: the predicted text
            - `status` int32 `[B]`: bits of `Status`
        """
        tokenizer, (s, t) = self._translator.tokenizer, self._attention_widths
        source_ids, source_lengths, source_cut = self._translator.source_ids(source, s)
        predicted, lengths, status = self._predicted_ids(target, source_ids)
        is_token = tf.sequence_mask(lengths, tf.shape(predicted)[1])  # --> [B, T]
        start = tf.fill([tf.shape(predicted)[0], 1], tokenizer.start_id)
        inputs = tf.where(is_token, tf.concat([start, predicted[:, :-1]], 1), tokenizer.pad_id)
        encoder = self._model.encoder_attention(source_ids)
        # Encodes the source again. The shared functions `encode` and `read_targets` then fit
        # together. Otherwise, the export would need another copy of the decoder and be 5 % larger.
        memories = self._translator.encode(source_ids)
        _, decoder = self._translator.read_targets(inputs, memories, True)[0]
        in_source = tf.sequence_mask(source_lengths, tf.shape(source_ids)[1])
        target_pieces = tokenizer.target_pieces
        return {
            "encoder": _pad_weights(encoder, in_source, s, s),
            "decoder": (
                tf.zeros([tf.shape(predicted)[0], 0, 1, t, t])
                if any(layer["self"] is None for layer in decoder)
                else _pad_weights([layer["self"] for layer in decoder], is_token, t, t)
            ),
            "cross": _pad_weights([layer["cross"] for layer in decoder], is_token, t, s),
            "source_tokens": _pieces(tokenizer.source_pieces, source_ids, source_lengths, s),
            "target_tokens": _pieces(target_pieces, inputs, lengths, t),
            "predicted_tokens": _pieces(target_pieces, predicted, lengths, t),
            "source_lengths": source_lengths,
            "target_lengths": lengths,
            "target_text": tokenizer.detokenize(predicted, lengths),
            "status": status + encode_status({Status.SOURCE_CUT: source_cut}),
        }

    def _predicted_ids(
        self, target: tf.Tensor, source_ids: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the predicted ids, int32 `[B, T]`, their lengths and the status."""
        translator, (_, width) = self._translator, self._attention_widths
        pad_id, end_id = translator.tokenizer.pad_id, translator.tokenizer.end_id
        # 16 bytes per token are accepted, as in `Scorer`.
        text, is_cut = truncate_text(target, 16 * width)
        tokens = translator.tokenizer.tokenize_pairs(source_ids, text)
        given_lengths = tf.cast(tokens.row_lengths(), tf.int32)
        # The row has more than the end token, and maybe a language.
        is_given = given_lengths > 1 + int(translator.tokenizer.has_languages)
        # The limit of rows that have a target is 0 tokens, so that the search skips them.
        limits = tf.where(is_given, 0, translator.max_lengths(source_ids))
        found = translator.shared_translate_ids(source_ids, limits)
        lengths = tf.where(is_given, given_lengths, found.lengths[:, 0])
        is_cut = (is_cut & is_given) | (lengths > width)
        status = encode_status(
            {
                Status.TARGET_CUT: is_cut,
                Status.NOT_TRANSLATED: has_no_translation(found) & ~is_given,
            }
        )
        given = tokens[:, :width].to_tensor(pad_id, shape=[None, width])
        own = _pad_last(found.ids[:, 0], width, pad_id)
        ids = tf.where(tf.expand_dims(is_given, 1), given, own)
        # The translation of an empty source is empty: only the end token is predicted.
        no_token = tf.expand_dims(lengths < 1, 1) & (tf.range(width) == 0)
        ids = tf.where(no_token, end_id, ids)
        lengths = tf.clip_by_value(lengths, 1, width)
        longest = tf.reduce_max(tf.concat([lengths, [1]], axis=0))
        is_token = tf.sequence_mask(lengths, longest)
        return tf.where(is_token, ids[:, :longest], pad_id), lengths, status

    @_function(tf.TensorSpec([], tf.int32, name="count"))
    def positions(self, count: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the encodings of the first `count` positions, or of all learned ones if fewer.

        Returns:
            `source` and `target`, float32 `[count, d_model]`, and `learned`, bool.
        """
        model = self._model
        learned = model.config.positions == "learned"
        if learned:
            count = tf.minimum(count, model.config.max_positions)
        positions = tf.range(count)
        return {
            "source": model.source_positions(positions),
            "target": model.target_positions(positions),
            "learned": tf.constant(learned),
        }


def _pieces(
    pieces_of: Callable[[tf.Tensor], tf.Tensor], ids: tf.Tensor, lengths: tf.Tensor, width: int
) -> tf.Tensor:
    """Returns the pieces of ids int32 `[..., any]`, string `[..., width]`, padded with ""."""
    is_token = tf.sequence_mask(lengths, width)
    return tf.where(is_token, pieces_of(_pad_last(ids, width)), "")


def _pad_last(tensor: tf.Tensor, width: int, value: int = 0) -> tf.Tensor:
    """Pads the last dimension, which has at most `width` elements, to `width`."""
    missing = tf.maximum(width - tf.shape(tensor)[-1], 0)
    paddings = [*[[0, 0]] * (len(tensor.shape) - 1), [0, missing]]
    padded = tf.pad(tensor, paddings, constant_values=tf.cast(value, tensor.dtype))[..., :width]
    return tf.ensure_shape(padded, [*tensor.shape[:-1], width])


def _pad_weights(
    layers: list[tf.Tensor], is_token: tf.Tensor, rows: int, columns: int
) -> tf.Tensor:
    """Returns the weights of all layers, `[B, layers, H, rows, columns]`, padded with 0.

    Each of `layers` is `[B, H, queries, keys]`. The weights of padded keys are already 0.
    """
    weights = tf.stack(layers, axis=1)
    weights *= tf.cast(is_token, weights.dtype)[:, None, None, :, None]
    size = tf.shape(weights)
    missing = [[0, rows - size[3]], [0, columns - size[4]]]
    padded = tf.pad(weights, [*[[0, 0]] * 3, *missing])
    return tf.ensure_shape(padded, [*weights.shape[:3], rows, columns])
