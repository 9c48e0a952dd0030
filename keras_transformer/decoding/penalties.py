"""What makes a score of a log-probability: the length and coverage penalties of GNMT.

Wu et al. 2016 (arXiv:1609.08144), equation 14, of which the paper (section 6.1) takes the
length penalty: `score = log P / ((5 + length) / 6) ** alpha + coverage penalty`.
"""

from __future__ import annotations

import tensorflow as tf


def length_penalty(length: tf.Tensor, alpha: float | tf.Tensor) -> tf.Tensor:
    """Returns `((5 + length) / 6) ** alpha` as float32, in the shape that both broadcast to.

    The length counts the end token.
    """
    return tf.pow((5.0 + tf.cast(length, tf.float32)) / 6.0, alpha)


def coverage_penalty(coverage: tf.Tensor, source_mask: tf.Tensor, beta: float) -> tf.Tensor:
    """Returns `beta` times the sum over source tokens of log(min(coverage, 1)): 0 at most.

    Args:
        coverage: float32 `[batch, beam, source]`, the attention that each source token got,
            summed over the target tokens.
        source_mask: bool `[batch, source]`, True for real tokens.
        beta: weight.

    Returns:
        float32 `[batch, beam]`.
    """
    covered = tf.math.log(tf.clip_by_value(coverage, 1e-9, 1.0))  # a token unseen is finite
    counted = tf.where(tf.expand_dims(source_mask, 1), covered, 0.0)
    return beta * tf.reduce_sum(counted, axis=-1)
