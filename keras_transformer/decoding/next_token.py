"""Log-softmax and top-k of the scores of the next token, for rows of thousands of scores."""

from __future__ import annotations

from collections.abc import Collection

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


def top_k(
    values: tf.Tensor, count: int, excluded: Collection[int] = ()
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the best of float32 `[rows, V]` and their columns, faster than TensorFlow's top-k.

    They contain the `count` best values outside of the columns `excluded`, and as many others as
    there are such columns, or all V values if these are fewer.

    The last dimension is split into groups. The `count` best values lie in the `count` groups with
    the largest maxima, so only one pass reads all values. A group with excluded columns can take
    the place of another.
    """
    groups, size = _in_groups(values), values.shape[-1]
    width = 1 if groups is None else groups.shape[2]
    num_groups = count + len({column // width for column in excluded})
    count += len(excluded)
    if groups is None or groups.shape[1] < 2 * num_groups:  # groups would save nothing
        most = tf.shape(values)[-1] if size is None else size
        return tf.math.top_k(values, tf.minimum(count, most) if size is None else min(count, most))
    _, best = tf.math.top_k(tf.reduce_max(groups, axis=-1), num_groups)
    # --> [rows, num_groups]
    best = tf.sort(best, axis=-1)  # keeps equal values in the order of their indices
    candidates = tf.gather(groups, best, batch_dims=1)
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
