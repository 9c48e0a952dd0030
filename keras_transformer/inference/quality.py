"""The quality of translations, from 0 to 1, and the problems that a translation may have.

The quality is the chrF (from 0 to 1) that a translation has on average, given the mean
log-probability of its tokens, times the share that it keeps for what is probably wrong with it. The
probabilities of `FAULTS` are logistic functions of `features`, which need no other model.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.decoding import SearchResult
from keras_transformer.inference import Status
from keras_transformer.text.tokenizer import Tokenizer

FAULTS = ("wrong", "cut", "repeat", "noise")  # a column of the weights for each
# The share of the quality that a text keeps without faults, and with each of them. Without shares,
# a repeated word would lower the quality as much as the translation of another sentence.
_KEPT = 1.0, 0.0, 0.3, 0.3, 0.3
_LOOP_TOKENS, _LOOPS = 4, 3  # a loop is 4 tokens that a translation has at least 3 times
# Of a copy: the fewest tokens, the least share of pairs that its source has, too, and the least
# share of tokens that begin a word in lower case, or have no case. Lists of names and numbers have
# few of these, and are correctly the same in both languages.
_MIN_COPIED, _COPIED, _LOWER = 5, 0.8, 0.15


class QualityModel(NamedTuple):
    """The numbers that `export.quality.fit` learns, which become constants of a graph.

    F is the number of features. The first column of the weights is for the logarithm of chrF, and
    the others are for faults.

    Attributes:
        weights: float32 `[F, 1 + faults]`.
        biases: float32 `[1 + faults]`.
        scripts: int32 `[V]`, 1 for target tokens in scripts of the references, -1 for those in
            other scripts, 2 and -2 for those that begin a word in lower case or have no case, and 0
            for tokens without letters.
        copies: int32 `[source V]`, the target id with the same text as a source id, or -1.
    """

    weights: np.ndarray
    biases: np.ndarray
    scripts: np.ndarray
    copies: np.ndarray


def assess(
    model: QualityModel, tokenizer: Tokenizer, result: SearchResult, source_ids: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the quality, float32 `[B, K]`, and the problems as bits of `Status`, int32 `[B, K]`.

    The result has token log-probabilities and an alignment. The source ids are int32 `[B, S]`. A
    translation without tokens has the quality 0 and no problem.
    """
    is_token = tf.sequence_mask(result.lengths, tf.shape(result.ids)[2])
    values = features(result, source_ids, tokenizer)
    # --> [B, K, 1 + faults]
    scores = tf.reduce_sum(tf.expand_dims(values, -1) * model.weights, axis=2) + model.biases
    level = tf.exp(tf.minimum(scores[:, :, 0], 0.0))
    probabilities = tf.nn.softmax(tf.pad(-scores[:, :, 1:], [[0, 0], [0, 0], [1, 0]]))
    quality = level * tf.reduce_sum(probabilities * _KEPT, axis=2)
    source = tf.expand_dims(source_ids, 1)
    in_source = source != tokenizer.pad_id
    repeats = _occurrences(result.ids, is_token, _LOOP_TOKENS)
    is_loop = (repeats >= _LOOPS) & (repeats > _occurrences(source, in_source, _LOOP_TOKENS))
    is_text = is_token & (result.ids != tokenizer.end_id)
    same = tf.expand_dims(result.ids, 3) == tf.expand_dims(tf.gather(model.copies, source), 2)
    copied = tf.reduce_any(_ngrams(same & tf.expand_dims(is_text, 3), 2), axis=3)
    length = _count(is_text)
    scripts = tf.where(is_token, tf.gather(model.scripts, result.ids), 0)
    is_lower = (scripts == 2) | (scripts == -2)
    is_copy = (length >= _MIN_COPIED) & (_count(is_lower) >= _LOWER * length)
    is_copy &= _count(copied) >= _COPIED * (length - 1.0)
    problems = {
        Status.LOOP: is_loop,
        Status.COPY: is_copy,
        Status.PART_MISSING: scores[:, :, FAULTS.index("cut") + 1] < 0.0,
        Status.OTHER_SCRIPT: tf.reduce_sum(tf.clip_by_value(scripts, -1, 1), axis=2) < 0,
    }
    bits = tf.add_n([tf.where(found, int(flag), 0) for flag, found in problems.items()])
    return tf.where(result.lengths > 0, quality, 0.0), tf.where(result.lengths > 0, bits, 0)


def features(result: SearchResult, source_ids: tf.Tensor, tokenizer: Tokenizer) -> tf.Tensor:
    """Returns the features of translations, float32 `[B, K, F]`.

    They are the mean, the standard deviation and the minimum of the log-probabilities, that of the
    last token, the share of source tokens that a token is aligned to, the logarithm of the ratio of
    lengths, the share of tokens at the end of a repeated pair, and the share of unknown tokens.
    """
    ids, lengths, width = result.ids, result.lengths, tf.shape(result.ids)[2]
    is_token = tf.sequence_mask(lengths, width)
    log_probs = tf.where(is_token, result.token_log_probs, 0.0)
    is_last = tf.range(width) == tf.expand_dims(lengths - 1, -1)
    in_source = tf.expand_dims(source_ids != tokenizer.pad_id, 1)  # --> [B, 1, S]
    in_text = in_source & tf.expand_dims(source_ids != tokenizer.end_id, 1)
    alignment = tf.expand_dims(tf.where(is_token, result.alignment, -1), 3)
    is_covered = tf.reduce_any(alignment == tf.range(tf.shape(source_ids)[1]), axis=2) & in_text
    length = tf.maximum(_count(is_token), 1.0)
    source_length = tf.maximum(_count(in_source), 1.0)
    is_unknown = is_token & (ids == tokenizer.unknown_id)
    is_unknown_source = in_source & tf.expand_dims(source_ids == tokenizer.unknown_id, 1)
    mean = tf.reduce_sum(log_probs, axis=2) / length
    deviations = tf.where(is_token, log_probs - tf.expand_dims(mean, 2), 0.0)
    values = (
        mean,
        tf.sqrt(tf.reduce_sum(deviations * deviations, axis=2) / length),
        -tf.reduce_max(-log_probs, axis=2),
        tf.reduce_sum(tf.where(is_last, log_probs, 0.0), axis=2),
        _count(is_covered) / tf.maximum(_count(in_text), 1.0),
        tf.math.log(length / source_length),
        _count(tf.reduce_any(_repeats(ids, is_token, 2), axis=3)) / length,
        _count(is_unknown) / length + _count(is_unknown_source) / source_length,
    )
    return tf.stack(values, axis=2)


def _count(mask: tf.Tensor) -> tf.Tensor:
    """Returns the number of True values in the last dimension, float32."""
    return tf.reduce_sum(tf.cast(mask, tf.float32), axis=-1)


def _ngrams(same: tf.Tensor, tokens: int) -> tf.Tensor:
    """Returns where n-grams end at two positions, for equal tokens bool `[B, K, L, M]`."""
    rows, columns = tf.shape(same)[2], tf.shape(same)[3]
    longer = same
    for back in range(1, tokens):
        before = tf.pad(same, [[0, 0], [0, 0], [back, 0], [back, 0]])
        longer &= before[:, :, :rows, :columns]
    return longer


def _repeats(ids: tf.Tensor, is_token: tf.Tensor, tokens: int) -> tf.Tensor:
    """Returns where the n-gram at a position is that at an earlier one, bool `[B, K, L, L]`."""
    positions = tf.range(tf.shape(ids)[2])
    same = tf.expand_dims(ids, 3) == tf.expand_dims(ids, 2)
    is_earlier = tf.expand_dims(positions, 1) > positions
    return _ngrams(same & is_earlier & tf.expand_dims(is_token, 3), tokens)


def _occurrences(ids: tf.Tensor, is_token: tf.Tensor, tokens: int) -> tf.Tensor:
    """Returns how often each row has its most frequent n-gram, float32 `[B, K]`."""
    return tf.reduce_max(_count(_repeats(ids, is_token, tokens)), axis=2) + 1.0
