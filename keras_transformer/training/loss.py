"""The label-smoothed cross entropy and its gradients, without full logits (paper, section 5.4).

With V classes and smoothing ε, the target distribution is 1 - ε on the label plus ε / V on every
class. The gradient of the logits is softmax - (1 - ε) onehot - ε / V. The last term is the same for
all classes, so its part of the loss and of the gradients follows from the sum of the kernel over
classes. Only the softmax has V columns, and it is computed for a slice of rows at a time.

Converted models have classes that are never predicted: their bias is `EXCLUDED_TOKEN_BIAS`. They
have no part in the smoothing. V then counts only the other classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

# Number of rows whose logits exist at the same time. 512 rows of 8,000 float32 logits are 16 MB.
# They stay in the last-level cache of a CPU between the products.
SLICE_ROWS = 512
# A GPU waits for the end of each slice, so its slices are as large as memory allows: 1 GiB of
# float32 logits.
_GPU_SLICE_LOGITS = 2**28


class LossSums(NamedTuple):
    """Float32 scalars, summed over the real tokens of a batch.

    Attributes:
        loss: label-smoothed cross entropy in nats.
        log_likelihood: log-likelihood of the true labels in nats, without smoothing.
        tokens: number of real tokens.
        auxiliary: auxiliary loss before its weight; 0 without one.

    Example:
    >>> sums = LossSums(loss=6.0, log_likelihood=-5.0, tokens=2.0)
    >>> sums.loss / sums.tokens
    3.0
    """

    loss: Any
    log_likelihood: Any
    tokens: Any
    auxiliary: Any = 0.0


class EvaluationSums(NamedTuple):
    """Float32 scalars, summed over the real tokens of a batch.

    Attributes:
        loss: label-smoothed cross entropy in nats.
        log_likelihood: log-likelihood of the true labels in nats, without smoothing.
        tokens: number of real tokens.
        correct: number of tokens whose label has the highest logit.

    Example:
    >>> sums = EvaluationSums(loss=6.0, log_likelihood=-5.0, tokens=2.0, correct=1.0)
    >>> sums.correct / sums.tokens
    0.5
    """

    loss: Any
    log_likelihood: Any
    tokens: Any
    correct: Any


class LossGradients(NamedTuple):
    """Scaled gradients of `LossSums.loss`.

    Attributes:
        features: `[N, d]` in the dtype of the features.
        kernel: float32 `[V, d]`.

    Example:
    >>> features, kernel = LossGradients(tf.zeros([2, 3]), tf.zeros([4, 3]))
    >>> features.shape
    TensorShape([2, 3])
    """

    features: tf.Tensor
    kernel: tf.Tensor


class AuxiliaryLoss(Protocol):
    """A loss that training adds to the cross entropy, on the features or the attention.

    Example:
    >>> def small_features(inputs, features, attention):
    ...     return 0.01 * tf.reduce_sum(features**2)
    >>> round(float(small_features({}, tf.ones([1, 2, 3]), [])), 3)
    0.06
    """

    def __call__(
        self,
        inputs: Mapping[str, tf.Tensor],
        features: tf.Tensor,
        attention: Sequence[Mapping[str, Any]],
    ) -> tf.Tensor:
        """Returns the loss, a float32 scalar, summed over the target tokens.

        Args:
            inputs: `source_ids` int32 `[B, S]` and `target_ids` int32 `[B, T]`.
            features: the output of the decoder, `[B, T, d_model]`.
            attention: for each layer of the decoder the attention weights `self`
                `[B, H, T, T]` and `cross` `[B, H, T, S]`.
        """
        ...


def real_tokens(labels: tf.Tensor, pad_id: int) -> tf.Tensor:
    """Returns 1 for real tokens and 0 for padding, float32, in the shape of `labels`.

    Example:
    >>> real_tokens(tf.constant([3, 0]), pad_id=0).numpy().tolist()
    [1.0, 0.0]
    """
    # A GPU compares int32 on the host, and int64 on the device.
    is_real = tf.not_equal(tf.cast(labels, tf.int64), pad_id)
    return tf.cast(is_real, tf.float32)


def reference_loss(
    logits: tf.Tensor,
    labels: tf.Tensor,
    label_smoothing: float,
    pad_id: int,
    excluded: tf.Tensor | None = None,
) -> tf.Tensor:
    """Returns the summed label-smoothed cross entropy of full logits (paper, section 5.4).

    This is the definition of the loss. Training uses `loss_and_gradients`, which needs less memory.
    Tests compare the two.

    Args:
        logits: `[N, V]`.
        labels: int32 `[N]`.
        label_smoothing: ε.
        pad_id: label of padding, which does not count.
        excluded: bool `[V]`, the classes without a part in the smoothing; None for none.

    Example:
    >>> loss = reference_loss(tf.zeros([2, 4]), tf.constant([3, 0]), 0.1, pad_id=0)
    >>> round(float(loss), 4)
    1.3863
    """
    if excluded is None:
        excluded = tf.zeros_like(logits[0], tf.bool)
    true = tf.one_hot(labels, tf.shape(logits)[1], dtype=logits.dtype)
    target = (1.0 - label_smoothing) * true + label_smoothing * _uniform(excluded, logits.dtype)
    losses = -tf.reduce_sum(target * tf.nn.log_softmax(logits), axis=-1)
    return tf.reduce_sum(tf.where(labels != pad_id, losses, 0.0))


def loss_and_gradients(
    features: tf.Tensor,
    labels: tf.Tensor,
    kernel: tf.Tensor,
    *,
    label_smoothing: float,
    pad_id: int,
    excluded: tf.Tensor | None = None,
    scale: tf.Tensor | float = 1.0,
    slice_rows: int | tf.Tensor | None = None,
) -> tuple[LossSums, LossGradients]:
    """Computes the loss of logits = features kernelᵀ and its gradients in one pass.

    Args:
        features: `[N, d]` in the compute dtype. An output map with a bias has a
            constant 1 as its last feature.
        labels: int32 `[N]`.
        kernel: float32 `[V, d]`.
        label_smoothing: ε.
        pad_id: label of padding, which does not count.
        excluded: bool `[V]`, the classes without a part in the smoothing; None for none.
        scale: factor of the gradients (1 / tokens of the global batch).
        slice_rows: rows whose logits exist at the same time; by default a number that suits CPUs.

    Example:
    >>> sums, gradients = loss_and_gradients(
    ...     tf.ones([2, 3]), tf.constant([3, 0]), tf.zeros([4, 3]), label_smoothing=0.1, pad_id=0
    ... )
    >>> round(float(sums.loss), 4), float(sums.tokens), gradients.kernel.shape
    (1.3863, 1.0, TensorShape([4, 3]))
    """
    slice_rows = SLICE_ROWS if slice_rows is None else slice_rows
    low_kernel = tf.cast(kernel, features.dtype)
    real = real_tokens(labels, pad_id)
    row_scale = (real * scale)[:, None]
    scaled = tf.cast(features, tf.float32) * row_scale
    filler = _filler_rows(labels, slice_rows)
    x_slices = _sliced(features, slice_rows, filler)
    y_slices = _sliced(labels, slice_rows, filler, pad_id)
    scaled_slices = _sliced(tf.cast(scaled, features.dtype), slice_rows, filler)
    count = tf.shape(y_slices)[0]

    def one_slice(
        i: Any, label_logits: Any, likelihoods: Any, by_features: Any, by_kernel: Any
    ) -> Any:
        x = x_slices[i]
        places = _places(y_slices[i])
        logits = tf.cast(tf.matmul(x, low_kernel, transpose_b=True), tf.float32)
        softmax = tf.nn.softmax(logits)
        likelihood = _label_log(softmax, places)
        with tf.control_dependencies([likelihood]):  # then it is changed in place
            by_logit = tf.tensor_scatter_nd_sub(
                softmax, places, tf.fill(tf.shape(places)[:1], 1.0 - label_smoothing)
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
        rows = slice_rows if isinstance(slice_rows, int) else None
        return tf.TensorArray(dtype, count, element_shape=[rows, *shape])

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
    # The smoothing term: ε (logit of the label - mean logit), and its gradients.
    if excluded is None:
        kernel_mean = tf.reduce_mean(kernel, axis=0)
        per_class = label_smoothing / tf.cast(tf.shape(kernel)[0], tf.float32)
    else:
        uniform = _uniform(excluded)
        kernel_mean = tf.linalg.matvec(kernel, uniform, transpose_a=True)
        per_class = label_smoothing * uniform[:, None]
    mean_logits = tf.linalg.matvec(tf.cast(features, tf.float32), kernel_mean)
    losses = label_smoothing * (label_logits - mean_logits) - likelihoods
    by_feature = tf.cast(by_features, tf.float32) - label_smoothing * kernel_mean
    by_kernel -= per_class * tf.reduce_sum(scaled, axis=0)
    return (
        LossSums(*(tf.reduce_sum(rows * real) for rows in (losses, likelihoods, real))),
        LossGradients(tf.cast(by_feature * row_scale, features.dtype), by_kernel),
    )


def gpu_slice_rows(num_rows: Any, num_classes: int) -> tf.Tensor:
    """Returns the rows of a slice on a GPU: few slices of equal size.

    Args:
        num_rows: rows of the batch.
        num_classes: V.

    Example:
    >>> int(gpu_slice_rows(25_000, 16_000)), int(gpu_slice_rows(1_000, 16_000))
    (12504, 1000)
    """
    most = max(_GPU_SLICE_LOGITS // num_classes, 8)
    num_slices = tf.maximum(-(-num_rows // most), 1)
    rows = -(-num_rows // num_slices)
    return tf.maximum(-(-rows // 8) * 8, 8)  # tensor cores multiply 8 rows at a time


def _uniform(excluded: tf.Tensor, dtype: Any = tf.float32) -> tf.Tensor:
    """Returns the even distribution over the classes that are not excluded, `[V]`."""
    included = tf.cast(tf.logical_not(excluded), dtype)
    return included / tf.reduce_sum(included)


def _filler_rows(rows: tf.Tensor, slice_rows: Any) -> tf.Tensor:
    """Returns how many rows complete the last slice of `[N, ...]`.

    There is at least one slice, because XLA cannot compile a loop over none. A replica has no rows
    if the batch has fewer rows than replicas.
    """
    count = tf.shape(rows)[0]
    return tf.maximum(-(-count // slice_rows), 1) * slice_rows - count


def _sliced(rows: tf.Tensor, slice_rows: Any, filler: tf.Tensor, fill: Any = 0) -> tf.Tensor:
    """Reshapes `[N, ...]` to `[count, slice_rows, ...]`, with `filler` more rows of `fill`."""
    shape = rows.shape[1:]
    padded = tf.pad(rows, [[0, filler], *[[0, 0]] * len(shape)], constant_values=fill)
    return tf.reshape(padded, [-1, slice_rows, *shape])


def _places(labels: tf.Tensor) -> tf.Tensor:
    """Returns the indices of the labels in a matrix `[slice_rows, V]`."""
    return tf.stack([tf.range(tf.shape(labels)[0]), labels], axis=1)


def _joined(slices: tf.TensorArray, count: tf.Tensor) -> tf.Tensor:
    """Concatenates slices, and returns the first `count` rows."""
    rows = slices.stack()
    return tf.reshape(rows, [-1, *rows.shape[2:]])[:count]


def _label_log(softmax: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Returns log(softmax) at `places`; -87, the smallest value of float32, if the softmax is 0."""
    return tf.math.log(tf.maximum(tf.gather_nd(softmax, places), np.finfo(np.float32).tiny))


def evaluation_sums(
    features: tf.Tensor,
    labels: tf.Tensor,
    kernel: tf.Tensor,
    *,
    label_smoothing: float,
    pad_id: int,
    excluded: tf.Tensor | None = None,
    slice_rows: int | tf.Tensor | None = None,
) -> EvaluationSums:
    """Computes the loss without gradients, and the number of correct predictions.

    Args:
        features: `[N, d]` in the compute dtype.
        labels: int32 `[N]`.
        kernel: float32 `[V, d]`.
        label_smoothing: ε.
        pad_id: label of padding, which does not count.
        excluded: bool `[V]`, the classes without a part in the smoothing; None for none.
        slice_rows: rows whose logits exist at the same time; by default a number that suits CPUs.

    Example:
    >>> sums = evaluation_sums(
    ...     tf.ones([1, 3]), tf.constant([3]), tf.eye(4, 3), label_smoothing=0.1, pad_id=0
    ... )
    >>> float(sums.tokens), float(sums.correct)
    (1.0, 0.0)
    """
    slice_rows = SLICE_ROWS if slice_rows is None else slice_rows
    low_kernel = tf.cast(kernel, features.dtype)
    filler = _filler_rows(labels, slice_rows)
    x_slices = _sliced(features, slice_rows, filler)
    y_slices = _sliced(labels, slice_rows, filler, pad_id)

    def one_slice(i: Any, *sums: Any) -> Any:
        y = y_slices[i]
        real = real_tokens(y, pad_id)
        logits = tf.cast(tf.matmul(x_slices[i], low_kernel, transpose_b=True), tf.float32)
        places = _places(y)
        likelihood = _label_log(tf.nn.softmax(logits), places)
        if excluded is None:
            mean = tf.reduce_mean(logits, axis=-1)
        else:
            mean = tf.linalg.matvec(logits, _uniform(excluded))
        above_mean = tf.gather_nd(logits, places) - mean
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
