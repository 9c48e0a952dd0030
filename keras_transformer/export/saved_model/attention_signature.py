"""What an exported model shows of itself: who attends to whom, and its positional encodings."""

from __future__ import annotations

import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.export.request_params import Status, is_nothing, status_of
from keras_transformer.inference.translator import Translator, sample_offsets
from keras_transformer.models.transformer import Transformer
from keras_transformer.text.tokenizer import cut

# The most tokens of a side whose attention is told. The weights of a row grow with their square:
# those of `base` have 2.4 MB at 64 tokens, and would have 600 MB at 1,024.
MAX_TOKENS = 64

_PAIR = [
    tf.TensorSpec([None], tf.string, name="source"),
    tf.TensorSpec([None], tf.string, name="target"),
]


class Inspection(tf.Module):
    """The functions that show a translator's model; of an ensemble the first.

    Args:
        translator: whose model, tokenizer and search are used.

    Raises:
        InputError: for a model that is no `Transformer`.
    """

    def __init__(self, translator: Translator):
        super().__init__(name="inspection")
        self._translator = translator
        model = translator.transformer
        if not isinstance(model, Transformer):
            raise InputError(
                f"{model.run_config.architecture} has no attention to show; expected a Transformer"
            )
        self._model = model
        self._source_places = min(MAX_TOKENS, translator.max_source_tokens)
        self._target_places = min(MAX_TOKENS, translator.max_output_tokens)

    @tf.function(input_signature=_PAIR, autograph=False, jit_compile=False)
    def attention(self, source: tf.Tensor, target: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the weights of all attention while `target` is read after `source`.

        B is the batch; of an export constant are N and M, the layers of the encoder and the
        decoder, H, the heads, and S and T, the most tokens of either side: `MAX_TOKENS`, or what
        the model takes if that is less. A row of the decoder is of the token that is read at
        that place, the start token first; what is predicted there is the token after it.

        Args:
            source: string `[B]`.
            target: string `[B]`; one without tokens stands for the model's own translation.

        Returns:
            `encoder` `[B, N, H, S, S]`, `decoder` `[B, M, H, T, T]` and `cross`
            `[B, M, H, T, S]`, float32: each row has the sum 1 within the lengths, and all beyond
            is 0. The pieces, string, "" beyond the lengths: `source_tokens` `[B, S]`,
            `target_tokens` `[B, T]`, those that are read, and `predicted_tokens` `[B, T]`. Their
            numbers, int32 `[B]`, at least 1: `source_lengths` and `target_lengths`. `target_text`
            string `[B]`, what is predicted as text, and `status` int32 `[B]`, bits of `Status`.
        """
        tokenizer = self._translator.tokenizer
        source_ids, source_lengths, source_cut = self._translator.cut_source_ids(
            source, self._source_places
        )
        predicted, lengths, status = self._predicted_ids(source, target, source_ids, source_lengths)
        inside = tf.sequence_mask(lengths, tf.shape(predicted)[1])  # --> [B, T]
        start = tf.fill([tf.shape(predicted)[0], 1], tokenizer.start_id)
        read = tf.where(inside, tf.concat([start, predicted[:, :-1]], 1), tokenizer.pad_id)
        return {
            **self._weights(source_ids, source_lengths, read, inside),
            "source_tokens": self._tokens(source_ids, source_lengths, "source"),
            "target_tokens": self._tokens(read, lengths, "target"),
            "predicted_tokens": self._tokens(predicted, lengths, "target"),
            "source_lengths": source_lengths,
            "target_lengths": lengths,
            "target_text": tokenizer.detokenize(predicted, lengths),
            "status": status + status_of({Status.SOURCE_CUT: source_cut}),
        }

    def _weights(
        self,
        source_ids: tf.Tensor,
        source_lengths: tf.Tensor,
        read_ids: tf.Tensor,
        inside: tf.Tensor,
    ) -> dict[str, tf.Tensor]:
        """Returns `[B, layers, H, queries, keys]` of each kind of attention (section 3.2.3)."""
        translator = self._translator
        encoder = self._model.encoder_attention(source_ids)
        # The source once more, by a function that is there already: a second copy of the
        # decoder, for another memory, would make all of an export a twentieth larger.
        memories = translator.encode(source_ids)
        _, decoder = translator.read_targets(read_ids, memories, True)[0]
        in_source = tf.sequence_mask(source_lengths, tf.shape(source_ids)[1])
        rows, columns = self._target_places, self._source_places
        return {
            "encoder": _widened(encoder, in_source, columns, columns),
            "decoder": _widened([layer["self"] for layer in decoder], inside, rows, rows),
            "cross": _widened([layer["cross"] for layer in decoder], inside, rows, columns),
        }

    def _tokens(self, ids: tf.Tensor, lengths: tf.Tensor, side: str) -> tf.Tensor:
        """Returns the pieces of ids int32 `[B, any]`, string `[B, places]`, "" beyond."""
        tokenizer, is_source = self._translator.tokenizer, side == "source"
        places = self._source_places if is_source else self._target_places
        padded = tf.pad(ids, [[0, 0], [0, places - tf.shape(ids)[1]]])
        ids = tf.ensure_shape(padded, [None, places])
        pieces = tokenizer.source_pieces(ids) if is_source else tokenizer.target_pieces(ids)
        return tf.where(tf.sequence_mask(lengths, places), pieces, "")

    def _predicted_ids(
        self,
        source: tf.Tensor,
        target: tf.Tensor,
        source_ids: tf.Tensor,
        source_lengths: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the ids that are predicted, int32 `[B, T]`, their lengths and the status.

        They end with the end token where they are not cut.
        """
        translator, places = self._translator, self._target_places
        pad_id, end_id = translator.tokenizer.pad_id, translator.tokenizer.end_id
        text, is_cut = cut(target, 16 * places)  # as many bytes a token as `Scorer` counts
        tokens = translator.tokenizer.tokenize_target(text)
        given_lengths = tf.cast(tokens.row_lengths(), tf.int32)
        is_given = given_lengths > 1  # more than the end token
        # No step of the search is spent on sentences whose translation may have no token.
        limits = tf.where(is_given, 0, translator.max_lengths(source_lengths))
        found = translator.search_fn(source_ids, limits, sample_offsets(source))
        lengths = tf.where(is_given, given_lengths, found.lengths[:, 0])
        is_cut = (is_cut & is_given) | (lengths > places)
        status = status_of(
            {Status.TARGET_CUT: is_cut, Status.NOT_TRANSLATED: is_nothing(found) & ~is_given}
        )
        # Of no source there is no translation: the end token alone is read off the start.
        given = tokens[:, :places].to_tensor(pad_id, shape=[None, places])
        own = found.ids[:, 0, :places]
        own = tf.pad(own, [[0, 0], [0, places - tf.shape(own)[1]]], constant_values=pad_id)
        ids = tf.where(tf.expand_dims(is_given, 1), given, own)
        no_token = tf.expand_dims(lengths < 1, 1) & (tf.range(places) == 0)
        ids = tf.where(no_token, end_id, ids)
        lengths = tf.clip_by_value(lengths, 1, places)
        longest = tf.reduce_max(tf.concat([lengths, [1]], axis=0))
        inside = tf.sequence_mask(lengths, longest)
        return tf.where(inside, ids[:, :longest], pad_id), lengths, status

    @tf.function(
        input_signature=[tf.TensorSpec([], tf.int32, name="count")],
        autograph=False,
        jit_compile=False,
    )
    def positions(self, count: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the encodings of the first `count` positions, or of all where they are learned.

        Returns:
            `source` and `target`, float32 `[count, d_model]`, and `learned`, bool.
        """
        model = self._model
        learned = model.config.positions == "learned"
        if learned:
            count = tf.minimum(count, model.config.max_positions)
        places = tf.range(count)
        return {
            "source": model.source_positions(places),
            "target": model.target_positions(places),
            "learned": tf.constant(learned),
        }


def _widened(layers: list[tf.Tensor], inside: tf.Tensor, rows: int, columns: int) -> tf.Tensor:
    """Returns the weights of all layers, `[B, layers, H, rows, columns]`, 0 beyond the lengths.

    Args:
        layers: of each `[B, H, queries, keys]`, no more than `rows` and `columns`. Of a query
            that counts, the keys that do not have the weight 0 already.
        inside: bool `[B, queries]`, True for those that count.
    """
    weights = tf.stack(layers, axis=1)
    weights *= tf.cast(inside, weights.dtype)[:, None, None, :, None]
    size = tf.shape(weights)
    missing = [[0, rows - size[3]], [0, columns - size[4]]]
    padded = tf.pad(weights, [*[[0, 0]] * 3, *missing])
    return tf.ensure_shape(padded, [*weights.shape[:3], rows, columns])
