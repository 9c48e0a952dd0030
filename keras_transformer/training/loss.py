"""The label-smoothed cross entropy and its gradients, without full logits (paper, section 5.4).

With V classes and smoothing ε the target distribution is 1 - ε on the label
plus ε / V on every class, so the gradient by the logits is
softmax - (1 - ε) onehot - ε / V. The last term is the same for all classes: what
it adds to the loss and to the gradients comes from the kernel's sum over classes.
So the softmax of a slice of rows at a time is all that ever has V columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

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
    auxiliary: Any = 0.0  # the auxiliary loss, before its weight; 0 without one


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


class AuxiliaryLoss(Protocol):
    """A loss that training adds to the cross entropy, on the features or the attention.

    Attributes:
        name: the metric that the loss per target token is logged as, which ends with "_loss".
    """

    name: str

    def __call__(
        self,
        inputs: Mapping[str, tf.Tensor],
        features: tf.Tensor,
        attention: Sequence[Mapping[str, Any]],
    ) -> tf.Tensor:
        """Returns the loss of some sentences, float32 scalar, summed over their target tokens.

        Args:
            inputs: `source_ids` int32 `[B, S]` and `target_ids` int32 `[B, T]`.
            features: the output of the decoder, `[B, T, d_model]`.
            attention: for each layer of the decoder the attention weights `self`
                `[B, H, T, T]` and `cross` `[B, H, T, S]`.
        """
        ...


def real_tokens(labels: tf.Tensor, pad_id: int) -> tf.Tensor:
    """Returns 1 for real tokens and 0 for padding, float32, in the shape of `labels`."""
    return tf.cast(tf.not_equal(labels, pad_id), tf.float32)


def reference_loss(
    logits: tf.Tensor, labels: tf.Tensor, label_smoothing: float, pad_id: int
) -> tf.Tensor:
    """Returns the summed label-smoothed cross entropy of full logits (paper, section 5.4).

    This is the definition of the loss. Training computes it by `loss_and_gradients`, which
    needs less memory; the tests compare the two.

    Args:
        logits: `[N, V]`.
        labels: int32 `[N]`.
        label_smoothing: ε.
        pad_id: the label of padding, which has no loss.

    >>> float(reference_loss(tf.zeros([2, 4]), tf.constant([3, 0]), 0.1, pad_id=0))
    1.3862943649291992
    """
    classes = tf.shape(logits)[1]
    true = tf.one_hot(labels, classes, dtype=logits.dtype)
    target = (1.0 - label_smoothing) * true + label_smoothing / tf.cast(classes, logits.dtype)
    losses = -tf.reduce_sum(target * tf.nn.log_softmax(logits), axis=-1)
    return tf.reduce_sum(tf.where(labels != pad_id, losses, 0.0))


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
        pad_id: the label of padding, which has no loss.
        scale: factor of the gradients (1 / tokens of the global batch).
    """
    low_kernel = tf.cast(kernel, features.dtype)
    real = real_tokens(labels, pad_id)
    row_scale = (real * scale)[:, None]
    scaled = tf.cast(features, tf.float32) * row_scale
    x_slices, y_slices = _sliced(features), _sliced(labels, pad_id)
    scaled_slices = _sliced(tf.cast(scaled, features.dtype))
    count = tf.shape(y_slices)[0]

    def one_slice(
        i: Any, label_logits: Any, likelihoods: Any, by_features: Any, by_kernel: Any
    ) -> Any:
        x = x_slices[i]
        places = tf.stack([tf.range(SLICE_ROWS), y_slices[i]], axis=1)
        logits = tf.cast(tf.matmul(x, low_kernel, transpose_b=True), tf.float32)
        softmax = tf.nn.softmax(logits)
        likelihood = _label_log(softmax, places)
        with tf.control_dependencies([likelihood]):  # then it is changed in place
            by_logit = tf.tensor_scatter_nd_sub(
                softmax, places, tf.fill([SLICE_ROWS], 1.0 - label_smoothing)
            )
        by_logit = tf.cast(by_logit, features.dtype)
        more = tf.matmul(by_logit, scaled_slices[i], transpose_a=True)
        return (
            i + 1,
            label_logits.write(i, tf.gather_nd(logits, places)),
            likelihoods.write(i, likelihood),
            by_features.write(i, tf.matmul(by_logit, low_kernel)),
            by_kernel + tf.cast(more, tf.float32),
        )

    def rows_of(dtype: Any, *shape: int) -> tf.TensorArray:
        return tf.TensorArray(dtype, count, element_shape=[SLICE_ROWS, *shape])

    start = (
        rows_of(tf.float32), rows_of(tf.float32), rows_of(features.dtype, features.shape[-1])
    )  # fmt: skip
    _, *sliced, by_kernel = tf.while_loop(
        lambda i, *_: i < count,
        one_slice,
        (0, *start, tf.zeros_like(kernel)),
        parallel_iterations=1,
    )
    label_logits, likelihoods, by_features = (_joined(rows, tf.shape(labels)[0]) for rows in sliced)
    # What the smoothing adds: ε (the label's logit - the mean logit), and its gradients.
    kernel_mean = tf.reduce_mean(kernel, axis=0)
    mean_logits = tf.linalg.matvec(tf.cast(features, tf.float32), kernel_mean)
    losses = label_smoothing * (label_logits - mean_logits) - likelihoods
    by_feature = tf.cast(by_features, tf.float32) - label_smoothing * kernel_mean
    per_class = label_smoothing / tf.cast(tf.shape(kernel)[0], tf.float32)
    by_kernel -= per_class * tf.reduce_sum(scaled, axis=0)
    return (
        LossSums(*(tf.reduce_sum(rows * real) for rows in (losses, likelihoods, real))),
        LossGradients(tf.cast(by_feature * row_scale, features.dtype), by_kernel),
    )


def _sliced(rows: tf.Tensor, fill: Any = 0) -> tf.Tensor:
    """`[N, ...]` to `[count, SLICE_ROWS, ...]`, the last slice filled with `fill`."""
    shape = rows.shape[1:]
    paddings = [[0, -tf.shape(rows)[0] % SLICE_ROWS], *[[0, 0]] * len(shape)]
    padded = tf.pad(rows, paddings, constant_values=fill)
    return tf.reshape(padded, [-1, SLICE_ROWS, *shape])


def _joined(slices: tf.TensorArray, count: tf.Tensor) -> tf.Tensor:
    """Slices of `SLICE_ROWS` rows to their first `count` rows in one tensor."""
    rows = slices.stack()
    return tf.reshape(rows, [-1, *rows.shape[2:]])[:count]


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
