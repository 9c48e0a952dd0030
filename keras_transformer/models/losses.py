"""Losses for `compile`.

Training runs compute the same loss with less memory, in `training.loss`.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.base import integer_ids, sum_over_replicas
from keras_transformer.layers.masks import padding_mask
from keras_transformer.models.transformer import is_excluded

__all__ = ["LabelSmoothedCrossEntropy"]


@keras.saving.register_keras_serializable(package="keras_transformer")
class LabelSmoothedCrossEntropy(keras.losses.Loss):
    """Label-smoothed cross entropy in nats per real token (paper, section 5.4).

    A label has the probability 1 - ε, and ε is spread evenly over all classes (Szegedy et al.,
    2015, arXiv:1512.00567). A logit below -5,000 excludes its class, as in converted models: the
    class gets no share of ε. Padding and excluded labels do not count: the mean is over the other
    tokens of the batch. Under a `tf.distribute` strategy, it is the mean over the global batch.

    Args:
        label_smoothing: ε, 0.1 in the paper.
        pad_id: label of padding.
        name: name of the loss.

    Call arguments:
        y_true: labels, any integer dtype `[B, T]`.
        y_pred: logits `[B, T, V]`.
        sample_weight: `[B]` or `[B, T]`, factors of the loss of each token.

    Example:
    >>> loss = LabelSmoothedCrossEntropy(label_smoothing=0.0)
    >>> labels, logits = keras.ops.array([[1, 0]]), keras.ops.zeros((1, 2, 4))
    >>> round(float(loss(labels, logits)), 4)  # log 4: all classes are equally likely
    1.3863
    """

    def __init__(
        self,
        label_smoothing: float = 0.1,
        pad_id: int = 0,
        name: str = "label_smoothed_cross_entropy",
        **kwargs: Any,
    ):
        super().__init__(name=name, **kwargs)
        if not 0 <= label_smoothing < 1:
            raise ValueError(
                f"label_smoothing is {label_smoothing}, but it must be at least 0 and less than 1."
            )
        self.label_smoothing = label_smoothing
        self.pad_id = pad_id

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        # Keras would divide by all positions of this replica, and rescale by a mask of the logits.
        y_true = integer_ids(y_true)
        label_logits = ops.take_along_axis(y_pred, ops.expand_dims(y_true, -1), axis=-1)
        predictable = ops.logical_not(is_excluded(ops.squeeze(label_logits, -1)))
        is_real = ops.logical_and(padding_mask(y_true, self.pad_id), predictable)
        is_real = ops.cast(is_real, "float32")
        weights = token_weights(is_real, sample_weight)
        losses = self.call(y_true, y_pred) * weights
        if self.reduction in (None, "none"):
            return ops.cast(losses, self.dtype)
        total = ops.sum(losses)
        if self.reduction != "sum":
            counted = weights if self.reduction == "mean_with_sample_weight" else is_real
            count = sum_over_replicas(ops.sum(counted))
            total = total / ops.where(count > 0, count, ops.ones_like(count))
        return ops.cast(total, self.dtype)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Returns the loss of each position, float32 `[B, T]`."""
        log_probs = ops.log_softmax(ops.cast(y_pred, "float32"), axis=-1)
        labels = ops.expand_dims(ops.cast(y_true, "int32"), -1)
        likelihood = ops.squeeze(ops.take_along_axis(log_probs, labels, axis=-1), -1)
        included = ops.cast(ops.logical_not(is_excluded(y_pred)), "float32")
        uniform = ops.sum(log_probs * included, axis=-1) / ops.sum(included, axis=-1)
        return -(1.0 - self.label_smoothing) * likelihood - self.label_smoothing * uniform

    def get_config(self) -> dict[str, Any]:
        own = {"label_smoothing": self.label_smoothing, "pad_id": self.pad_id}
        return {**super().get_config(), **own}


def token_weights(is_real: Any, sample_weight: Any) -> Any:
    """Returns the weight of each token, float32 `[B, T]`.

    Args:
        is_real: float32 `[B, T]`, 0 for padding and 1 for other tokens.
        sample_weight: `[B]`, `[B, T]`, or None.
    """
    if sample_weight is None:
        return is_real
    weights = ops.cast(sample_weight, "float32")
    if weights.ndim == 1:
        weights = ops.expand_dims(weights, 1)
    elif weights.ndim != 2:
        # If `fit` gets both shapes, one after the other, Keras traces weights of an unknown rank.
        # A batch without rows, which a replica can have, would fail here.
        weights = ops.reshape(weights, (ops.shape(is_real)[0], -1))
    return is_real * weights
