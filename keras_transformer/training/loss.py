"""The label-smoothed cross entropy and its gradients, without full logits (paper, section 5.4).

With V classes and smoothing ε, the target distribution is 1 - ε on the label plus ε / V on every
class. The gradient of the logits is softmax - (1 - ε) onehot - ε / V. The last term is the same for
all classes, so its part of the loss and of the gradients follows from the sum of the kernel over
classes. Only the softmax has V columns, and it is computed for a slice of rows at a time.

Converted models have classes that are never predicted: their bias is `EXCLUDED_TOKEN_BIAS`. They
have no part in the smoothing. V then counts only the other classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.models.encoder_decoder import EncoderDecoder
from keras_transformer.models.transformer import is_excluded
from keras_transformer.training.devices import uses_gpus

# Number of rows whose logits exist at the same time. 512 rows of 8,000 float32 logits are 16 MB.
# They stay in the last-level cache of a CPU between the products.
SLICE_ROWS = 512
# A GPU waits for the end of each slice, so its slices are as large as memory allows: 1 GiB of
# float32 logits.
_GPU_SLICE_LOGITS = 2**28


class LossSums(NamedTuple):
    """Float32 scalars, summed over the real tokens of a batch."""

    loss: Any  # label-smoothed cross entropy in nats
    log_likelihood: Any  # of the true labels in nats, without smoothing
    tokens: Any
    correct: Any = 0.0  # tokens whose label has the highest logit; only in evaluation
    auxiliary: Any = 0.0  # the auxiliary loss before its weight


# A loss that training adds to the cross entropy: a float32 scalar, summed over the target tokens.
# Its arguments are the inputs `source_ids` `[B, S]` and `target_ids` `[B, T]`, the output of the
# decoder `[B, T, d_model]`, and for each of its layers the attention weights `self` `[B, H, T, T]`
# and `cross` `[B, H, T, S]`.
AuxiliaryLoss = Callable[
    [Mapping[str, tf.Tensor], tf.Tensor, Sequence[Mapping[str, Any]]], tf.Tensor
]


def real_tokens(labels: tf.Tensor, pad_id: int) -> tf.Tensor:
    """Returns 1 for real tokens and 0 for padding, float32, in the shape of `labels`."""
    # A GPU compares int32 on the host, and int64 on the device.
    is_real = tf.not_equal(tf.cast(labels, tf.int64), pad_id)
    return tf.cast(is_real, tf.float32)


def loss_and_gradients(
    features: tf.Tensor,
    labels: tf.Tensor,
    kernel: tf.Tensor,
    *,
    label_smoothing: float,
    pad_id: int,
    excluded: tf.Tensor | None = None,
    scale: tf.Tensor | float | None = 1.0,
    slice_rows: int | tf.Tensor | None = None,
) -> tuple[LossSums, tuple[tf.Tensor, ...]]:
    """Computes the loss of logits = features kernelᵀ and its gradients in one pass.

    Args:
        features: `[N, d]` in the compute dtype. An output map with a bias has a
            constant 1 as its last feature.
        labels: int32 `[N]`.
        kernel: float32 `[V, d]`.
        excluded: bool `[V]`, the classes without a part in the smoothing; None for none.
        scale: factor of the gradients (1 / tokens of the global batch). None for an evaluation: it
            counts correct tokens, and has no gradients.
        slice_rows: rows whose logits exist at the same time; by default a number that suits CPUs.

    Returns:
        The sums, and the scaled gradients of the features `[N, d]` and of the kernel `[V, d]`.
    """
    slice_rows = SLICE_ROWS if slice_rows is None else slice_rows
    low_kernel = tf.cast(kernel, features.dtype)
    num_rows = tf.shape(labels)[0]
    # At least one slice, because XLA cannot compile a loop over none. A replica has no rows if the
    # batch has fewer rows than replicas.
    count = tf.maximum(-(-num_rows // slice_rows), 1)

    def sliced(rows: tf.Tensor, fill: int = 0) -> tf.Tensor:
        """Reshapes `[N, ...]` to `[count, slice_rows, ...]`."""
        shape = rows.shape[1:]
        filler = [[0, count * slice_rows - num_rows], *[[0, 0]] * len(shape)]
        padded = tf.pad(rows, filler, constant_values=fill)
        return tf.reshape(padded, [-1, slice_rows, *shape])

    def rows_of(dtype: Any, *shape: int) -> tf.TensorArray:
        rows = slice_rows if isinstance(slice_rows, int) else None
        return tf.TensorArray(dtype, count, element_shape=[rows, *shape])

    real = real_tokens(labels, pad_id)
    x_slices, y_slices = sliced(features), sliced(labels, pad_id)
    last: Any = rows_of(tf.float32)  # of an evaluation: 1 for correct tokens
    results = [rows_of(tf.float32), rows_of(tf.float32)]
    if scale is not None:
        row_scale = (real * scale)[:, None]
        scaled = tf.cast(features, tf.float32) * row_scale
        scaled_slices = sliced(tf.cast(scaled, features.dtype))
        results.append(rows_of(features.dtype, features.shape[-1]))
        last = tf.zeros_like(kernel)

    def one_slice(i: Any, label_logits: Any, likelihoods: Any, *others: Any) -> tuple[Any, ...]:
        x, y = x_slices[i], y_slices[i]
        positions = tf.stack([tf.range(tf.shape(y)[0]), y], axis=1)
        logits = tf.cast(tf.matmul(x, low_kernel, transpose_b=True), tf.float32)
        softmax = tf.nn.softmax(logits)
        # A softmax of 0 counts as e^-87, the smallest float32.
        smallest = np.finfo(np.float32).tiny
        likelihood = tf.math.log(tf.maximum(tf.gather_nd(softmax, positions), smallest))
        label_logits = label_logits.write(i, tf.gather_nd(logits, positions))
        likelihoods = likelihoods.write(i, likelihood)
        if scale is None:
            hits = tf.cast(tf.equal(tf.argmax(logits, -1, tf.int32), y), tf.float32)
            return i + 1, label_logits, likelihoods, others[0].write(i, hits)
        by_features, by_kernel = others
        with tf.control_dependencies([likelihood]):  # then it is changed in place
            by_logit = tf.tensor_scatter_nd_sub(
                softmax, positions, tf.fill(tf.shape(y), 1.0 - label_smoothing)
            )
        by_logit = tf.cast(by_logit, features.dtype)
        by_features = by_features.write(i, tf.matmul(by_logit, low_kernel))
        more = tf.matmul(by_logit, scaled_slices[i], transpose_a=True)
        return i + 1, label_logits, likelihoods, by_features, by_kernel + tf.cast(more, tf.float32)

    _, *results, last = tf.while_loop(
        lambda i, *_: i < count, one_slice, (0, *results, last), parallel_iterations=1
    )

    def joined(slices: tf.TensorArray) -> tf.Tensor:
        rows = slices.stack()
        return tf.reshape(rows, [-1, *rows.shape[2:]])[:num_rows]

    label_logits, likelihoods = map(joined, results[:2])
    # The smoothing term: ε (logit of the label - mean logit), and its gradients.
    if excluded is None:
        kernel_mean = tf.reduce_mean(kernel, axis=0)
        per_class = label_smoothing / tf.cast(tf.shape(kernel)[0], tf.float32)
    else:
        included = tf.cast(tf.logical_not(excluded), tf.float32)
        uniform = included / tf.reduce_sum(included)
        kernel_mean = tf.linalg.matvec(kernel, uniform, transpose_a=True)
        per_class = label_smoothing * uniform[:, None]
    mean_logits = tf.linalg.matvec(tf.cast(features, tf.float32), kernel_mean)
    losses = label_smoothing * (label_logits - mean_logits) - likelihoods
    zero = tf.constant(0.0)
    loss, likelihood, tokens = (tf.reduce_sum(rows * real) for rows in (losses, likelihoods, real))
    sums = LossSums(loss, likelihood, tokens, zero, zero)
    if scale is None:
        return sums._replace(correct=tf.reduce_sum(joined(last) * real)), ()
    by_feature = tf.cast(joined(results[2]), tf.float32) - label_smoothing * kernel_mean
    by_kernel = last - per_class * tf.reduce_sum(scaled, axis=0)
    return sums, (tf.cast(by_feature * row_scale, features.dtype), by_kernel)


class OutputProjection:
    """The map from features to logits as one float32 matrix `[V, d]`, with tied weights or without.

    A bias is an additional column of the matrix, and a constant 1 is an additional feature.
    """

    def __init__(self, transformer: EncoderDecoder, label_smoothing: float):
        self._kernel, self._bias = transformer.output_weights()
        self._transposed = transformer.config.tie_embeddings == "none"
        paths = {id(weight): path for path, weight in transformer.weights_by_path().items()}
        self._kernel_path, self._bias_path = paths[id(self._kernel)], paths.get(id(self._bias), "")
        self._on_gpus = uses_gpus(tf.distribute.get_strategy())
        self._pad_id = transformer.config.pad_id
        self._label_smoothing = label_smoothing

    def predictable(self, labels: tf.Tensor) -> tf.Tensor:
        """Returns labels, with padding instead of tokens that are never predicted.

        A single such label would add 10,000 to the loss and hide all others.
        """
        if self._bias is None:
            return labels
        excluded = tf.gather(is_excluded(self._bias.value), labels)
        return tf.where(excluded, self._pad_id, labels)

    def loss(
        self, features: tf.Tensor, labels: tf.Tensor, scale: tf.Tensor | None
    ) -> tuple[LossSums, tf.Tensor | None, dict[str, tf.Tensor]]:
        """Returns sums, and the gradients of the features `[B, T, d_model]` and of weights by path.

        `scale` is as in `loss_and_gradients`. An evaluation has no gradients.
        """
        rows = tf.reshape(features, [-1, features.shape[-1]])
        labels = tf.reshape(labels, [-1])
        matrix = tf.convert_to_tensor(self._kernel.value)
        if self._transposed:
            matrix = tf.transpose(matrix)  # --> [V, d_model]
        if self._bias is not None:
            rows = tf.concat([rows, tf.ones_like(rows[:, :1])], axis=1)
            matrix = tf.concat([matrix, self._bias.value[:, None]], axis=1)
        excluded = None if self._bias is None else is_excluded(self._bias.value)
        slice_rows = gpu_slice_rows(tf.shape(rows)[0], matrix.shape[0]) if self._on_gpus else None
        sums, gradients = loss_and_gradients(
            rows, labels, matrix, label_smoothing=self._label_smoothing, pad_id=self._pad_id,
            excluded=excluded, scale=scale, slice_rows=slice_rows,
        )  # fmt: skip
        if scale is None:
            return sums, None, {}
        by_rows, by_kernel = gradients
        by_path = {}
        if self._bias is not None:
            by_path[self._bias_path] = by_kernel[:, -1]
            by_rows, by_kernel = by_rows[:, :-1], by_kernel[:, :-1]
        by_path[self._kernel_path] = tf.transpose(by_kernel) if self._transposed else by_kernel
        return sums, tf.reshape(by_rows, tf.shape(features)), by_path


def gpu_slice_rows(num_rows: Any, num_classes: int) -> tf.Tensor:
    """Returns the rows of a slice on a GPU: few slices of equal size."""
    most = max(_GPU_SLICE_LOGITS // num_classes, 8)
    num_slices = tf.maximum(-(-num_rows // most), 1)
    rows = -(-num_rows // num_slices)
    return tf.maximum(-(-rows // 8) * 8, 8)  # tensor cores multiply 8 rows at a time
