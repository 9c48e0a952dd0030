"""Log-softmax and top-k of the scores of the next token, for rows of thousands of scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

# From this vocabulary size on, top-k only looks into the groups with the largest maxima.
_MIN_SIZE_FOR_GROUPS = 2048


def log_softmax(logits: tf.Tensor) -> tf.Tensor:
    """Returns log-probabilities `[rows, V]` of logits `[rows, V]`, both float32."""
    return logits - log_normalizer(logits)


def log_normalizer(logits: tf.Tensor) -> tf.Tensor:
    """Returns log sum exp(logits) of each row, float32 `[R, 1]`.

    LiteRT has fast kernels for these operations, but none for `tf.nn.log_softmax`.
    """
    groups = _in_groups(logits)  # the same operations as in `top_k`, which a compiler runs once
    maxima = logits if groups is None else tf.reduce_max(groups, axis=-1)
    largest = tf.reduce_max(maxima, axis=-1, keepdims=True)
    exponentials = tf.exp(logits - largest)
    return largest + tf.math.log(tf.reduce_sum(exponentials, axis=-1, keepdims=True))


def top_k(values: tf.Tensor, count: int, penalties: Any = None) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the same as `tf.math.top_k` for float32 `[rows, V]`, faster if V is large.

    The penalties, a float32 array `[V]`, are negative for a few columns, and 0 for others. They are
    added to the values. If V is less than `count`, V are returned.

    The last dimension is split into groups. The `count` best values lie in the `count` groups with
    the largest maxima, so only one pass reads all values. A group with penalties may take the place
    of another.
    """
    groups, size, num_groups = _in_groups(values), values.shape[-1], count
    if groups is not None and penalties is not None:
        padding = groups.shape[1] * groups.shape[2] - size
        penalties = np.pad(penalties, (0, padding)).reshape(groups.shape[1:])
        num_groups += int(penalties.any(axis=1).sum())
    if groups is None or groups.shape[1] < 2 * num_groups:  # groups would save nothing
        values = values if penalties is None else values + penalties.ravel()[:size]
        most = tf.shape(values)[-1] if size is None else size
        return tf.math.top_k(values, tf.minimum(count, most) if size is None else min(count, most))
    width = groups.shape[2]
    _, best = tf.math.top_k(tf.reduce_max(groups, axis=-1), num_groups)
    # --> [rows, num_groups]
    best = tf.sort(best, axis=-1)  # equal values stay in the order of their indices
    # --> [rows, num_groups, width]
    candidates = tf.gather(groups, best, batch_dims=1)
    if penalties is not None:
        candidates += tf.gather(penalties, best)
    # --> [rows, count]
    top_values, positions = tf.math.top_k(tf.reshape(candidates, [-1, num_groups * width]), count)
    group = tf.gather(best, positions // width, batch_dims=1)
    # Padding comes last, so it is selected only in a row of NaNs.
    return top_values, tf.minimum(group * width + positions % width, size - 1)


def _in_groups(values: tf.Tensor) -> tf.Tensor | None:
    """Returns float32 `[R, V]` as `[R, groups, width]`, or None if V is unknown or small."""
    size = values.shape[-1]
    if size is None or size < _MIN_SIZE_FOR_GROUPS:
        return None
    width = next((width for width in range(64, 160) if size % width == 0), 100)
    if size % width:
        values = tf.pad(values, [[0, 0], [0, -size % width]], constant_values=-float("inf"))
    # XNNPACK copies a float tensor to reshape it. LiteRT itself does not copy integers.
    bits = tf.reshape(tf.bitcast(values, tf.int32), [-1, -(-size // width), width])
    return tf.bitcast(bits, tf.float32)
