"""Metrics for `compile`, which ignore padding."""

from __future__ import annotations

from typing import Any, ClassVar

import keras
from keras import ops

from keras_transformer.layers.base import integer_ids
from keras_transformer.layers.masks import padding_mask
from keras_transformer.models.losses import token_weights

__all__ = ["Perplexity", "TokenAccuracy"]


class _TokenMean(keras.metrics.Mean):
    """The mean of a value over all real tokens. Subclasses compute the value."""

    default_name: ClassVar[str]

    def __init__(self, pad_id: int = 0, name: str | None = None, dtype: Any = None):
        super().__init__(name=name or self.default_name, dtype=dtype)
        self.pad_id = pad_id

    def values(self, y_true: Any, y_pred: Any) -> Any:
        """Returns a number for each position, `[B, T]`."""
        raise NotImplementedError

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds a batch.

        Args:
            y_true: labels, any integer dtype `[B, T]`.
            y_pred: logits `[B, T, V]`.
            sample_weight: `[B]` or `[B, T]`, weights of the tokens.
        """
        y_true = integer_ids(y_true)
        is_real = padding_mask(y_true, self.pad_id)
        y_true = ops.where(is_real, y_true, ops.zeros_like(y_true))  # an id of padding may be -1
        weights = token_weights(ops.cast(is_real, "float32"), sample_weight)
        super().update_state(self.values(y_true, y_pred), sample_weight=weights)

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype, "pad_id": self.pad_id}


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenAccuracy(_TokenMean):
    """The share of real tokens whose label has the largest logit.

    Args:
        pad_id: label of padding.
        name: name of the metric.
        dtype: dtype of the result.

    Example:
    >>> accuracy = TokenAccuracy()
    >>> accuracy.update_state(keras.ops.array([[2, 1, 0]]), keras.ops.array([[[0, 0, 1]] * 3]))
    >>> float(accuracy.result())
    0.5
    """

    default_name = "token_accuracy"

    def values(self, y_true: Any, y_pred: Any) -> Any:
        best = ops.argmax(y_pred, axis=-1)
        return ops.cast(ops.equal(best, ops.cast(y_true, best.dtype)), "float32")


@keras.saving.register_keras_serializable(package="keras_transformer")
class Perplexity(_TokenMean):
    """e to the power of the cross entropy per real token, without label smoothing.

    Args:
        pad_id: label of padding.
        name: name of the metric.
        dtype: dtype of the result.

    Example:
    >>> perplexity = Perplexity()
    >>> perplexity.update_state(keras.ops.array([[2, 0]]), keras.ops.zeros((1, 2, 5)))
    >>> round(float(perplexity.result()), 4)
    5.0
    """

    default_name = "perplexity"

    def values(self, y_true: Any, y_pred: Any) -> Any:
        return keras.losses.sparse_categorical_crossentropy(
            y_true, ops.cast(y_pred, "float32"), from_logits=True
        )

    def result(self) -> Any:
        return ops.exp(super().result())
