"""Position-wise feed-forward network (paper, section 3.3)."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_transformer.layers import fast_paths
from keras_transformer.layers.base import shows_arguments
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.projections import LinearLayer


@keras.saving.register_keras_serializable(package="keras_transformer")
class FeedForward(LinearLayer):
    """Computes FFN(x) = max(0, x W₁ + b₁) W₂ + b₂ at every position (paper, equation 2).

    Args:
        d_ff: width of the inner layer.
        activation: name of a Keras activation; the paper uses "relu".
        dropout: dropout of the inner layer ("ReLU dropout"; the paper has none).
        kernel_initializer: initializer of both kernels.
        bias_initializer: initializer of both biases.
        kernel_regularizer: a loss that depends on the kernels.
        bias_regularizer: a loss that depends on the biases.

    Call arguments:
        inputs: `[..., d_model]`.
        training: whether dropout is on.

    Returns:
        `[..., d_model]`.

    Example:
    >>> tuple(FeedForward(d_ff=16)(keras.ops.ones((1, 3, 4))).shape)
    (1, 3, 4)
    """

    @shows_arguments(LinearLayer.__init__)
    def __init__(
        self, d_ff: int, activation: str = "relu", dropout: float = 0.0, *args: Any, **kwargs: Any
    ):
        super().__init__(*args, **kwargs)
        if d_ff < 1:
            raise ValueError(f"d_ff is {d_ff}, but it must be at least 1.")
        self.d_ff = d_ff
        self.activation = activation
        self.dropout = dropout
        self.inner_dropout = Dropout(dropout, name="inner_dropout", dtype=self.dtype_policy)
        self._activate = keras.activations.get(activation)

    def build(self, input_shape: Any) -> None:
        self._add_projection("inner", input_shape[-1], self.d_ff)
        self._add_projection("outer", self.d_ff, input_shape[-1])
        self.inner_dropout.build((*input_shape[:-1], self.d_ff))

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        rows = ops.reshape(inputs, (-1, inputs.shape[-1]))  # one reshape serves both products
        inner = self._activate(self._project("inner", rows))
        rows = self._project("outer", self.inner_dropout(inner, training=training))
        return ops.reshape(rows, fast_paths.shape_for_reshape(inputs))
