"""The length penalty and the coverage penalty, which turn a log-probability into a score.

    score = log P / ((5 + length) / 6) ** alpha + coverage penalty

Both are from GNMT (Wu et al., 2016, arXiv:1609.08144, equation 14). The paper uses the length
penalty (section 6.1).
"""

from __future__ import annotations

import tensorflow as tf


def length_penalty(length: tf.Tensor, alpha: float | tf.Tensor) -> tf.Tensor:
    """Returns `((5 + length) / 6) ** alpha`, float32, in the broadcast shape of both arguments.

    Args:
        length: number of tokens, including the end token.
        alpha: exponent; 0 turns the penalty off.

    Example:
        >>> length_penalty(tf.constant([1, 7]), 1.0).numpy().tolist()
        [1.0, 2.0]
    """
    return tf.pow((5.0 + tf.cast(length, tf.float32)) / 6.0, alpha)


def coverage_penalty(coverage: tf.Tensor, source_mask: tf.Tensor, beta: float) -> tf.Tensor:
    """Returns `beta` times the sum over source tokens of log(min(coverage, 1)): at most 0.

    Args:
        coverage: float32 `[batch, beam, source]`, the attention that each source token got,
            summed over the target tokens.
        source_mask: bool `[batch, source]`, True for real tokens.
        beta: weight.

    Returns:
        float32 `[batch, beam]`.

    Example:
        >>> coverage_penalty(tf.constant([[[1.0, 0.5, 0.1]]]), [[True, True, False]], 1.0).numpy()
        array([[-0.6931472]], dtype=float32)
    """
    covered = tf.math.log(tf.clip_by_value(coverage, 1e-9, 1.0))  # finite for unseen tokens
    # --> [batch, 1, source]
    is_token = tf.expand_dims(source_mask, 1)
    # --> [batch, beam]
    return beta * tf.reduce_sum(tf.where(is_token, covered, 0.0), axis=-1)
