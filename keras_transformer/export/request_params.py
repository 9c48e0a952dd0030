"""What a request asks for, made into what can be meant.

Nothing fails: a value that cannot be meant is replaced by the nearest that can, and
`status` says so.
"""

from __future__ import annotations

import enum

import tensorflow as tf

from keras_transformer.config import MAX_LENGTH_PENALTY
from keras_transformer.decoding import NEG_INF, SearchResult
from keras_transformer.inference.translator import Translator


class Status(enum.IntFlag):
    """What was done to one row of a request; 0 is nothing."""

    SOURCE_CUT = 1  # more tokens or bytes than the model takes
    MAX_LENGTH_CHANGED = 2  # negative, or more than the export's longest output
    LENGTH_PENALTY_CHANGED = 4  # no number, negative, or more than MAX_LENGTH_PENALTY
    PREFIX_CUT = 8  # longer than its translation may be
    IDS_REPLACED = 16  # outside the vocabulary, or the pad id: taken for the unknown token
    NOT_TRANSLATED = 32  # the model finds nothing: its logits are no numbers, or all is banned
    LENGTHS_CHANGED = 64  # negative, or more than there are ids
    TARGET_CUT = 128  # more tokens or bytes than attention is told of


def clamped_max_lengths(
    translator: Translator, source_lengths: tf.Tensor, asked: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the most tokens of each translation, int32 `[B]`, and bool `[B]`: not as asked.

    Args:
        translator: whose bounds hold, too.
        source_lengths: int32 `[B]`, tokens of each source.
        asked: int32 `[B]`; 0: as exported.
    """
    changed = (asked < 0) | (asked > translator.max_output_tokens)
    own = translator.max_lengths(source_lengths)
    return tf.where(asked > 0, tf.minimum(own, asked), own), changed


def clamped_alpha(translator: Translator, asked: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the α of each length penalty, float32 `[B]`, and bool `[B]`: not as asked.

    What is no number is taken for the translator's own.
    """
    own = translator.config.length_penalty
    known = tf.where(tf.math.is_nan(asked), own, asked)
    alpha = tf.clip_by_value(known, 0.0, MAX_LENGTH_PENALTY)
    return alpha, alpha != asked  # of no number too: it equals nothing


def checked_source_ids(
    translator: Translator, ids: tf.Tensor, lengths: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns source ids, no wider than the longest row, their lengths, and the status.

    Args:
        translator: whose bounds and vocabulary hold.
        ids: int32 `[B, S]`; an end token is added where the last is none.
        lengths: int32 `[B]`; only the first so many ids of a row count.
    """
    tokenizer, limit = translator.tokenizer, translator.max_source_tokens
    given = tf.clip_by_value(lengths, 0, limit)
    last = tf.gather(ids, tf.maximum(given - 1, 0), axis=1, batch_dims=1)
    ends = (given > 0) & (last == tokenizer.end_id)
    used = tf.minimum(given + tf.cast(~ends, tf.int32), limit)
    ids = ids[:, : tf.reduce_max(tf.concat([used, [1]], axis=0))]
    places = tf.range(tf.shape(ids)[1])
    is_last = places == tf.expand_dims(used - 1, 1)
    counted = (places < tf.expand_dims(used, 1)) & ~is_last
    known = (ids >= 0) & (ids < tokenizer.source_vocab_size) & (ids != tokenizer.pad_id)
    status = status_of(
        {
            Status.SOURCE_CUT: ~ends & (given == limit),
            Status.IDS_REPLACED: tf.reduce_any(counted & ~known, axis=1),
            Status.LENGTHS_CHANGED: given != lengths,
        }
    )
    ids = tf.where(known, ids, tokenizer.unknown_id)
    ids = tf.where(is_last, tokenizer.end_id, tf.where(counted, ids, tokenizer.pad_id))
    return ids, used, status


def is_nothing(result: SearchResult) -> tf.Tensor:
    """Returns bool `[B]`, True where no translation was found."""
    return result.scores[:, 0] <= NEG_INF / 2


def status_of(flags: dict[Status, tf.Tensor]) -> tf.Tensor:
    """Returns int32 `[B]` of conditions bool `[B]`."""
    return tf.add_n([tf.where(condition, int(flag), 0) for flag, condition in flags.items()])
