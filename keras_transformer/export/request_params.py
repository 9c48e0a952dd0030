"""Clamps request parameters to valid ranges and reports this in `status`; no request fails."""

from __future__ import annotations

import tensorflow as tf

from keras_transformer.config import MAX_LENGTH_PENALTY
from keras_transformer.decoding import NEG_INF, SearchResult
from keras_transformer.inference import Status
from keras_transformer.inference.translation_module import TranslationModule, with_end


def clamp_max_lengths(
    translator: TranslationModule, source_ids: tf.Tensor, requested: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the maximum length of each translation, int32 `[B]`, and bool `[B]`, True if clamped.

    A requested length of 0 is the limit of the export. The requested lengths are int32 `[B]`, in
    tokens, and the source ids int32 `[B, S]`.
    """
    changed = (requested < 0) | (requested > translator.max_output_tokens)
    return translator.max_lengths(source_ids, requested), changed


def clamp_alpha(translator: TranslationModule, requested: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the α of each length penalty, float32 `[B]`, and bool `[B]`, True if clamped.

    A requested α of NaN is the α of the export.
    """
    known = tf.where(tf.math.is_nan(requested), translator.config.length_penalty, requested)
    alpha = tf.clip_by_value(known, 0.0, MAX_LENGTH_PENALTY)
    return alpha, alpha != known


def clean_source_ids(
    translator: TranslationModule, ids: tf.Tensor, lengths: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns valid source ids int32 `[B, longest]`, their lengths int32 `[B]`, and the status.

    The ids are int32 `[B, length]`, and the status int32 `[B]`. An end token is added to a row that
    ends with another one, and languages if they are missing.
    """
    tokenizer, limit = translator.tokenizer, translator.max_source_tokens
    given = tf.clip_by_value(lengths, 0, limit)
    last = tf.gather(ids, tf.maximum(given - 1, 0), axis=1, batch_dims=1)
    has_end = (given > 0) & (last == tokenizer.end_id)
    used = tf.minimum(given + tf.cast(~has_end, tf.int32), limit)
    ids = ids[:, : tf.reduce_max(tf.concat([used, [1]], axis=0))]
    positions = tf.range(tf.shape(ids)[1])
    is_last = positions == tf.expand_dims(used - 1, 1)
    is_text = (positions < tf.expand_dims(used, 1)) & ~is_last
    known = (ids >= 0) & (ids < tokenizer.source_vocab_size) & (ids != tokenizer.pad_id)
    status = encode_status(
        {
            Status.SOURCE_CUT: ~has_end & (given == limit),
            Status.IDS_REPLACED: tf.reduce_any(is_text & ~known, axis=1),
            Status.LENGTHS_CHANGED: given != lengths,
        }
    )
    ids = tf.where(known, ids, tokenizer.unknown_id)
    ids = tf.where(is_last, tokenizer.end_id, tf.where(is_text, ids, tokenizer.pad_id))
    if tokenizer.has_languages:
        ids, lengths = tokenizer.with_languages(ids, used)
        ids = with_end(ids, lengths, limit, tokenizer.end_id)
        used = tf.minimum(lengths, limit)
    return ids, used, status


def has_no_translation(result: SearchResult) -> tf.Tensor:
    """Returns bool `(batch,)`, True if no hypothesis was found."""
    return result.scores[:, 0] <= NEG_INF / 2


def encode_status(flags: dict[Status, tf.Tensor]) -> tf.Tensor:
    """Returns int32 `(batch,)` for conditions bool `(batch,)`."""
    return tf.add_n([tf.where(condition, int(flag), 0) for flag, condition in flags.items()])
