"""The label-smoothed cross entropy and its gradients, without full logits (paper, section 5.4).

With V classes and smoothing ε, the target distribution is 1 - ε on the label plus ε / V on every
class. The gradient of the logits is softmax - (1 - ε) onehot - ε / V. The last term is the same for
all classes, so its part of the loss and of the gradients follows from the sum of the kernel over
classes. Only the softmax has V columns, and it is computed for a slice of rows at a time.

Converted models have classes that are never predicted: their bias is `EXCLUDED_TOKEN_BIAS`. The
smoothing leaves them out. V then counts only the other classes.
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
    log_likelihood: Any  # true labels, in nats, without smoothing
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


class OutputProjection:
    """The map from features to logits, with tied weights or without, and the loss of its logits."""

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

    def loss_and_gradients(
        self, features: tf.Tensor, labels: tf.Tensor, scale: tf.Tensor | float | None = 1.0
    ) -> tuple[LossSums, tf.Tensor | None, dict[str, tf.Tensor]]:
        """Returns the sums, and the gradients of the features and of the weights by path.

        Features are `[B, T, d_model]` in the compute dtype, and labels int32 `[B, T]`. Gradients
        are multiplied by `scale` (1 / tokens of the global batch). An evaluation has the scale
        None: it counts correct tokens, and has no gradients.
        """
        rows, labels = tf.reshape(features, [-1, features.shape[-1]]), tf.reshape(labels, [-1])
        kernel = tf.convert_to_tensor(self._kernel.value)
        if self._transposed:
            kernel = tf.transpose(kernel)  # --> [V, d_model]
        if self._bias is not None:  # the bias is one more column, and its feature is 1
            rows = tf.concat([rows, tf.ones_like(rows[:, :1])], axis=1)
            kernel = tf.concat([kernel, self._bias.value[:, None]], axis=1)
        real = real_tokens(labels, self._pad_id)
        scaled = None  # [N, d]
        if scale is not None:
            row_scale = (real * scale)[:, None]
            scaled = tf.cast(rows, tf.float32) * row_scale
        slice_rows = SLICE_ROWS
        if self._on_gpus:
            slice_rows = gpu_slice_rows(tf.shape(rows)[0], kernel.shape[0])
        label_logits, likelihoods, *others = _softmax_terms(
            rows, labels, kernel, scaled, 1.0 - self._label_smoothing, self._pad_id, slice_rows
        )

        # The smoothing term: ε (logit of the label - mean logit), and its gradients.
        if self._bias is None:
            kernel_mean = tf.reduce_mean(kernel, axis=0)
            per_class = self._label_smoothing / tf.cast(tf.shape(kernel)[0], tf.float32)
        else:
            included = tf.cast(tf.logical_not(is_excluded(self._bias.value)), tf.float32)
            uniform = included / tf.reduce_sum(included)
            kernel_mean = tf.linalg.matvec(kernel, uniform, transpose_a=True)
            per_class = self._label_smoothing * uniform[:, None]
        mean_logits = tf.linalg.matvec(tf.cast(rows, tf.float32), kernel_mean)
        losses = self._label_smoothing * (label_logits - mean_logits) - likelihoods
        loss, likelihood, tokens = (tf.reduce_sum(x * real) for x in (losses, likelihoods, real))
        zero = tf.constant(0.0)
        sums = LossSums(loss, likelihood, tokens, zero, zero)
        if scaled is None:
            [correct] = others
            return sums._replace(correct=tf.reduce_sum(correct * real)), None, {}
        by_rows, by_kernel = others
        by_rows = tf.cast(by_rows, tf.float32) - self._label_smoothing * kernel_mean
        by_rows = tf.cast(by_rows * row_scale, rows.dtype)
        by_kernel = by_kernel - per_class * tf.reduce_sum(scaled, axis=0)
        by_path = {}
        if self._bias is not None:
            by_path[self._bias_path] = by_kernel[:, -1]
            by_rows, by_kernel = by_rows[:, :-1], by_kernel[:, :-1]
        by_path[self._kernel_path] = tf.transpose(by_kernel) if self._transposed else by_kernel
        return sums, tf.reshape(by_rows, tf.shape(features)), by_path


def _softmax_terms(
    rows: tf.Tensor,
    labels: tf.Tensor,
    kernel: tf.Tensor,
    scaled: tf.Tensor | None,
    label_weight: float,
    pad_id: int,
    slice_rows: int | tf.Tensor,
) -> list[Any]:
    """Computes the terms that need a softmax, for `slice_rows` rows of `[N, d]` at a time.

    `scaled` are the float32 rows times the factor of their gradients, or None in an evaluation.
    Returns for the labels `[N]` the logits and the log-likelihoods, and the gradients of the rows
    `[N, d]` and of the kernel `[V, d]`; in an evaluation instead of gradients 1 for labels with the
    highest logit and 0 for others, `[N]`.
    """
    low_kernel = tf.cast(kernel, rows.dtype)
    num_rows = tf.shape(labels)[0]
    # At least one slice, because XLA cannot compile a loop over none. A replica has no rows if the
    # batch has fewer rows than replicas.
    count = tf.maximum(-(-num_rows // slice_rows), 1)

    def sliced(values: tf.Tensor, fill: int = 0) -> tf.Tensor:
        """Reshapes `[N, ...]` to `[count, slice_rows, ...]`."""
        shape = values.shape[1:]
        filler = [[0, count * slice_rows - num_rows], *[[0, 0]] * len(shape)]
        padded = tf.pad(values, filler, constant_values=fill)
        return tf.reshape(padded, [-1, slice_rows, *shape])

    def rows_of(dtype: Any, *shape: int) -> tf.TensorArray:
        size = slice_rows if isinstance(slice_rows, int) else None
        return tf.TensorArray(dtype, count, element_shape=[size, *shape])

    def joined(slices: tf.TensorArray) -> tf.Tensor:
        stacked = slices.stack()
        return tf.reshape(stacked, [-1, *stacked.shape[2:]])[:num_rows]

    x_slices, y_slices = sliced(rows), sliced(labels, pad_id)
    start: list[Any] = [rows_of(tf.float32), rows_of(tf.float32)]
    if scaled is None:
        start.append(rows_of(tf.float32))
    else:
        scaled_slices = sliced(tf.cast(scaled, rows.dtype))
        start += [rows_of(rows.dtype, rows.shape[-1]), tf.zeros_like(kernel)]

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
        if scaled is None:
            hits = tf.cast(tf.equal(tf.argmax(logits, -1, tf.int32), y), tf.float32)
            return i + 1, label_logits, likelihoods, others[0].write(i, hits)
        by_rows, by_kernel = others
        with tf.control_dependencies([likelihood]):  # the softmax can then change in place
            by_logit = tf.tensor_scatter_nd_sub(
                softmax, positions, tf.fill(tf.shape(y), label_weight)
            )
        by_logit = tf.cast(by_logit, rows.dtype)
        by_rows = by_rows.write(i, tf.matmul(by_logit, low_kernel))
        more = tf.matmul(by_logit, scaled_slices[i], transpose_a=True)
        return i + 1, label_logits, likelihoods, by_rows, by_kernel + tf.cast(more, tf.float32)

    _, *results = tf.while_loop(
        lambda i, *_: i < count, one_slice, (0, *start), parallel_iterations=1
    )
    return [*map(joined, results[:3]), *results[3:]]


def gpu_slice_rows(num_rows: Any, num_classes: int) -> tf.Tensor:
    """Returns the rows of a slice on a GPU: few slices of equal size."""
    most = max(_GPU_SLICE_LOGITS // num_classes, 8)
    num_slices = tf.maximum(-(-num_rows // most), 1)
    rows = -(-num_rows // num_slices)
    return tf.maximum(-(-rows // 8) * 8, 8)  # tensor cores multiply 8 rows at a time
