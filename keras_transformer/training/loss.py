"""The label-smoothed cross entropy and its gradients, without full logits (paper, section 5.4).

With V classes and smoothing ε the target distribution is 1 - ε on the label
plus ε / V on every class, so the gradient by the logits is
softmax - (1 - ε) onehot - ε / V. The last term is the same for all classes: what
it adds to the loss and to the gradients comes from the kernel's sum over classes.
So the softmax of a slice of rows at a time is all that ever has V columns.

R-Drop (Liang et al., 2021) adds how far the distributions P and Q of two passes over
the same tokens are apart: α/4 (KL(P ‖ Q) + KL(Q ‖ P)) a token beside the mean of their
cross entropies, which is half of the authors' sum. With z the difference of the logits,
which is log P - log Q but for a constant, and E_P its mean under P, that is
α/4 (E_P z - E_Q z), and its gradient by P's logits α/4 (P (z - E_P z) + P - Q).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

# Rows whose logits exist at once: 512 rows of 8,000 float32 logits are 16 MB, which stay in
# the last-level cache of a CPU between the product, the softmax and the two products back.
SLICE_ROWS = 512


class LossSums(NamedTuple):
    """Float32 scalars, summed over the real tokens of a batch."""

    loss: Any  # label-smoothed cross entropy, nats
    log_likelihood: Any  # of the true labels, without smoothing, nats
    tokens: Any  # number of real tokens
    alignment: Any = 0.0  # cross-entropy of a guided alignment, nats


class EvaluationSums(NamedTuple):
    """Float32 scalars, summed over the real tokens of a batch."""

    loss: Any  # label-smoothed cross entropy, nats
    log_likelihood: Any  # of the true labels, without smoothing, nats
    tokens: Any  # number of real tokens
    correct: Any  # number of those whose label has the highest logit


class LossGradients(NamedTuple):
    """Scaled gradients of `LossSums.loss`."""

    features: tf.Tensor  # [N, d] in the features' dtype
    kernel: tf.Tensor  # float32 [V, d]


def real_tokens(labels: tf.Tensor, pad_id: int) -> tf.Tensor:
    """Returns 1 for real tokens and 0 for padding, float32, in the shape of `labels`."""
    return tf.cast(tf.not_equal(labels, pad_id), tf.float32)


def _sliced(rows: tf.Tensor, fill: Any = 0, passes: int = 1) -> tf.Tensor:
    """`[passes * N, ...]` to `[count, SLICE_ROWS, ...]`, the last slice filled with `fill`.

    A slice has the same rows of each pass, one pass after the other.
    """
    height, shape = SLICE_ROWS // passes, rows.shape[1:]
    by_pass = tf.reshape(rows, [passes, -1, *shape])
    missing = -tf.shape(by_pass)[1] % height
    paddings = [[0, 0], [0, missing], *[[0, 0]] * len(shape)]
    padded = tf.pad(by_pass, paddings, constant_values=fill)
    slices = tf.reshape(padded, [passes, -1, height, *shape])
    return tf.concat(tf.unstack(slices), axis=1)


def loss_and_gradients(
    features: tf.Tensor,
    labels: tf.Tensor,
    kernel: tf.Tensor,
    *,
    label_smoothing: float,
    pad_id: int,
    scale: tf.Tensor | float = 1.0,
    r_drop: float = 0.0,
) -> tuple[LossSums, LossGradients]:
    """The loss of logits = features kernelᵀ, and its gradients, in one pass.

    Args:
        features: `[N, d]` in the compute dtype. An output map with a bias has a
            constant 1 as its last feature.
        labels: int32 `[N]`.
        kernel: float32 `[V, d]`.
        label_smoothing: ε.
        pad_id: label that weighs nothing.
        scale: factor of the gradients (1 / tokens of the global batch).
        r_drop: R-Drop's α. If it is not 0, the rows are those of one pass and then those
            of another over the same tokens; the sums are of tokens then, not of rows.
    """
    passes = 2 if r_drop else 1
    scale = scale / float(passes)  # each of two passes counts half
    low_kernel = tf.cast(kernel, features.dtype)
    real = real_tokens(labels, pad_id)
    row_scale = (real * scale)[:, None]
    scaled = tf.cast(features, tf.float32) * row_scale
    x_slices, y_slices = _sliced(features, 0, passes), _sliced(labels, pad_id, passes)
    scaled_slices = _sliced(tf.cast(scaled, features.dtype), 0, passes)
    count = tf.shape(y_slices)[0]

    def one_slice(
        i: Any,
        label_logits: Any,
        likelihoods: Any,
        distances: Any,
        by_features: Any,
        by_kernel: Any,
    ) -> Any:
        x = x_slices[i]
        places = tf.stack([tf.range(SLICE_ROWS), y_slices[i]], axis=1)
        logits = tf.cast(tf.matmul(x, low_kernel, transpose_b=True), tf.float32)
        softmax = tf.nn.softmax(logits)
        likelihood = _label_log(softmax, places)
        distance, by_logit = tf.zeros_like(likelihood), softmax
        if r_drop:
            distance, by_logit = _drawn_together(logits, softmax, r_drop)
        with tf.control_dependencies([likelihood]):  # then it is changed in place
            by_logit = tf.tensor_scatter_nd_sub(
                by_logit, places, tf.fill([SLICE_ROWS], 1.0 - label_smoothing)
            )
        by_logit = tf.cast(by_logit, features.dtype)
        more = tf.matmul(by_logit, scaled_slices[i], transpose_a=True)
        return (
            i + 1,
            label_logits.write(i, tf.gather_nd(logits, places)),
            likelihoods.write(i, likelihood),
            distances.write(i, distance),
            by_features.write(i, tf.matmul(by_logit, low_kernel)),
            by_kernel + tf.cast(more, tf.float32),
        )

    def rows_of(dtype: Any, *shape: int) -> tf.TensorArray:
        return tf.TensorArray(dtype, count, element_shape=[SLICE_ROWS, *shape])

    floats, width = tf.float32, features.shape[-1]
    start = (*(rows_of(floats) for _ in range(3)), rows_of(features.dtype, width))
    _, *sliced, by_kernel = tf.while_loop(
        lambda i, *_: i < count,
        one_slice,
        (0, *start, tf.zeros_like(kernel)),
        parallel_iterations=1,
    )
    label_logits, likelihoods, distances, by_features = (
        _joined(rows, tf.shape(labels)[0], passes) for rows in sliced
    )
    # What the smoothing adds: ε (the label's logit - the mean logit), and its gradients.
    kernel_mean = tf.reduce_mean(kernel, axis=0)
    mean_logits = tf.linalg.matvec(tf.cast(features, tf.float32), kernel_mean)
    losses = label_smoothing * (label_logits - mean_logits) - likelihoods
    losses += 0.25 * r_drop * distances
    by_feature = tf.cast(by_features, tf.float32) - label_smoothing * kernel_mean
    per_class = label_smoothing / tf.cast(tf.shape(kernel)[0], tf.float32)
    by_kernel -= per_class * tf.reduce_sum(scaled, axis=0)
    sums = (tf.reduce_sum(rows * real) / float(passes) for rows in (losses, likelihoods, real))
    return (
        LossSums(*sums),
        LossGradients(tf.cast(by_feature * row_scale, features.dtype), by_kernel),
    )


def _drawn_together(
    logits: tf.Tensor, softmax: tf.Tensor, r_drop: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """How far apart two passes are, and the softmax with R-Drop's part of the gradient.

    That is α/2 (P (z - E_P z) + P - Q): a row's loss has half the weight of a token's.

    Args:
        logits, softmax: float32 `[2 N, V]`, N rows of one pass and N of the other.
        r_drop: α.

    Returns:
        KL(P ‖ Q) + KL(Q ‖ P), float32 `[2 N]`, and float32 `[2 N, V]`.
    """
    (first, second), (p, q) = tf.split(logits, 2), tf.split(softmax, 2)
    factor = 0.5 * r_drop
    z = factor * (first - second)
    # Products of a row with a row: no array of V columns is written for them.
    under_p, under_q = (tf.linalg.matmul(z[:, None], each[:, :, None])[:, 0] for each in (p, q))
    distance = (under_p - under_q)[:, 0] / factor
    by_first = p * (z + (1.0 + factor - under_p)) - factor * q
    by_second = q * ((1.0 + factor + under_q) - z) - factor * p
    return tf.tile(distance, [2]), tf.concat([by_first, by_second], axis=0)


def _joined(slices: tf.TensorArray, count: tf.Tensor, passes: int) -> tf.Tensor:
    """Slices of `SLICE_ROWS` rows to `count` rows in one tensor, one pass after the other."""
    by_pass = tf.split(slices.stack(), passes, axis=1)
    shape = by_pass[0].shape[2:]
    return tf.concat(
        [tf.reshape(rows, [-1, *shape])[: count // passes] for rows in by_pass], axis=0
    )


def _label_log(softmax: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """The logarithm of the softmax at `places`, -87 (the smallest float32's) where that is 0."""
    return tf.math.log(tf.maximum(tf.gather_nd(softmax, places), np.finfo(np.float32).tiny))


def evaluation_sums(
    features: tf.Tensor,
    labels: tf.Tensor,
    kernel: tf.Tensor,
    *,
    label_smoothing: float,
    pad_id: int,
) -> EvaluationSums:
    """The loss without gradients, and how many labels the model puts first.

    Args: as for `loss_and_gradients`.
    """
    low_kernel = tf.cast(kernel, features.dtype)
    x_slices, y_slices = _sliced(features), _sliced(labels, pad_id)

    def one_slice(i: Any, *sums: Any) -> Any:
        y = y_slices[i]
        real = real_tokens(y, pad_id)
        logits = tf.cast(tf.matmul(x_slices[i], low_kernel, transpose_b=True), tf.float32)
        places = tf.stack([tf.range(SLICE_ROWS), y], axis=1)
        likelihood = _label_log(tf.nn.softmax(logits), places)
        above_mean = tf.gather_nd(logits, places) - tf.reduce_mean(logits, axis=-1)
        parts = (
            label_smoothing * above_mean - likelihood,
            likelihood,
            tf.ones_like(real),
            tf.cast(tf.equal(tf.argmax(logits, -1, tf.int32), y), tf.float32),
        )
        added = [
            total + tf.reduce_sum(part * real) for total, part in zip(sums, parts, strict=True)
        ]
        return (i + 1, *added)

    state = (0, *[tf.constant(0.0)] * len(EvaluationSums._fields))
    _, *sums = tf.while_loop(
        lambda i, *_: i < tf.shape(y_slices)[0], one_slice, state, parallel_iterations=1
    )
    return EvaluationSums(*sums)
