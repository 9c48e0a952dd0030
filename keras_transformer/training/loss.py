"""The label-smoothed cross entropy and its gradients, without full logits (paper, section 5.4).

With V classes and smoothing ε the target distribution is 1 - ε on the label
plus ε / V on every class. Since logits are linear in the features, all that is
needed of them is the softmax and the label's logit; what the smoothing adds to
the loss and to its gradients comes from the kernel's rows and their sum. So one
fused cross entropy over a slice of rows at a time is all that ever has V columns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

# Rows whose logits exist at once: 512 rows of 8,000 float32 logits are 16 MB, which stay in
# the last-level cache of a CPU between the product, the softmax and the two products back.
SLICE_ROWS = 512


class LossSums(NamedTuple):
    """Float32 scalars, summed over the real tokens of a batch."""

    loss: Any  # label-smoothed cross entropy, nats
    log_likelihood: Any  # of the true labels, without smoothing, nats
    tokens: Any  # number of real tokens


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


class _Slices:
    """Features and labels in slices of `SLICE_ROWS` rows, the last one filled with padding."""

    def __init__(self, features: tf.Tensor, labels: tf.Tensor, pad_id: int):
        self.rows, width = tf.shape(labels)[0], features.shape[-1]
        self.count = -(-self.rows // SLICE_ROWS)
        missing = self.count * SLICE_ROWS - self.rows
        padded = tf.pad(features, [[0, missing], [0, 0]])
        self.features = tf.reshape(padded, [self.count, SLICE_ROWS, width])
        padded = tf.pad(labels, [[0, missing]], constant_values=pad_id)
        self.labels = tf.reshape(padded, [self.count, SLICE_ROWS])

    def join(self, sliced: tf.Tensor) -> tf.Tensor:
        """`[count, SLICE_ROWS, d]` to `[N, d]`."""
        return tf.reshape(sliced, [-1, sliced.shape[-1]])[: self.rows]


def loss_and_gradients(
    features: tf.Tensor,
    labels: tf.Tensor,
    kernel: tf.Tensor,
    *,
    label_smoothing: float,
    pad_id: int,
    scale: tf.Tensor | float = 1.0,
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
    """
    low_kernel = tf.cast(kernel, features.dtype)
    slices = _Slices(features, labels, pad_id)

    def one_slice(i: Any, loss: Any, likelihood: Any, by_feature: Any, by_kernel: Any) -> Any:
        x, y = slices.features[i], slices.labels[i]
        real = real_tokens(y, pad_id)
        logits = tf.cast(tf.matmul(x, low_kernel, transpose_b=True), tf.float32)
        # `difference` is softmax - onehot: the gradient by the logits, but for the smoothing.
        cross_entropy, difference = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(
            features=logits, labels=y
        )
        difference = tf.cast(difference, features.dtype)
        scaled = tf.cast(tf.cast(x, tf.float32) * (real * scale)[:, None], features.dtype)
        by_kernel_here = tf.matmul(difference, scaled, transpose_a=True)
        by_feature_here = tf.matmul(difference, low_kernel)
        smoothed = cross_entropy + label_smoothing * _label_minus_mean_logit(x, y, kernel)
        return (
            i + 1,
            loss + tf.reduce_sum(smoothed * real),
            likelihood - tf.reduce_sum(cross_entropy * real),
            tf.tensor_scatter_nd_update(by_feature, [[i]], [by_feature_here]),
            by_kernel + tf.cast(by_kernel_here, tf.float32),
        )

    zero = tf.constant(0.0)
    state = (0, zero, zero, tf.zeros_like(slices.features), tf.zeros_like(kernel))
    _, loss, likelihood, by_feature, by_kernel = tf.while_loop(
        lambda i, *_: i < slices.count, one_slice, state, parallel_iterations=1
    )
    # The smoothing: ε onehot - ε / V, times the kernel and times the features.
    real = real_tokens(labels, pad_id)
    row_scale = (real * scale)[:, None]
    classes = tf.shape(kernel)[0]
    per_class = label_smoothing / tf.cast(classes, tf.float32)
    by_feature = tf.cast(slices.join(by_feature), tf.float32)
    by_feature += label_smoothing * tf.gather(kernel, labels)
    by_feature -= per_class * tf.reduce_sum(kernel, axis=0)
    scaled = tf.cast(features, tf.float32) * row_scale
    by_kernel += label_smoothing * tf.math.unsorted_segment_sum(scaled, labels, classes)
    by_kernel -= per_class * tf.reduce_sum(scaled, axis=0)
    return (
        LossSums(loss, likelihood, tf.reduce_sum(real)),
        LossGradients(tf.cast(by_feature * row_scale, features.dtype), by_kernel),
    )


def _label_minus_mean_logit(x: tf.Tensor, y: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """Each row's label logit minus its mean logit, times ε the loss that smoothing adds."""
    direction = tf.gather(kernel, y) - tf.reduce_mean(kernel, axis=0)
    return tf.reduce_sum(tf.cast(x, tf.float32) * direction, axis=-1)


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
    slices = _Slices(features, labels, pad_id)

    def one_slice(i: Any, *sums: Any) -> Any:
        x, y = slices.features[i], slices.labels[i]
        real = real_tokens(y, pad_id)
        logits = tf.cast(tf.matmul(x, low_kernel, transpose_b=True), tf.float32)
        cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
        smoothed = cross_entropy + label_smoothing * _label_minus_mean_logit(x, y, kernel)
        correct = tf.cast(tf.equal(tf.argmax(logits, -1, tf.int32), y), tf.float32)
        parts = (smoothed, -cross_entropy, tf.ones_like(real), correct)
        added = [
            total + tf.reduce_sum(part * real) for total, part in zip(sums, parts, strict=True)
        ]
        return (i + 1, *added)

    state = (0, *[tf.constant(0.0)] * len(EvaluationSums._fields))
    _, *sums = tf.while_loop(
        lambda i, *_: i < slices.count, one_slice, state, parallel_iterations=1
    )
    return EvaluationSums(*sums)
