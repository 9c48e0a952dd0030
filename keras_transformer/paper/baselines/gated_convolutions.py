"""The layers of ConvS2S (Gehring et al., 2017; its sections are named)."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_transformer.layers import Dropout

HALF = 0.5**0.5  # keeps the variance of a sum of two


def linear_map(units: int, name: str, policy: Any) -> keras.layers.Layer:
    """Returns a linear map that keeps the variance of what it is given."""
    initializer = keras.initializers.VarianceScaling(1.0, "fan_in", "untruncated_normal")
    return keras.layers.Dense(units, kernel_initializer=initializer, name=name, dtype=policy)


@keras.saving.register_keras_serializable(package="keras_transformer")
class GatedConvolution(keras.layers.Layer):
    """A convolution, half of whose outputs are gates of the other half (section 3.2).

    Args:
        filters: width of the output.
        kernel_size: tokens of a window, k.
        padding: "same", or "valid" for an output of k - 1 positions less.
        variance: of outputs before the gate, where inputs have 1; 4 leaves 1 behind the gate,
            and dropout of the input less (appendix A.3).

    Call arguments:
        inputs: `[B, T, d]`.

    Returns:
        `[B, T, filters]`, or `[B, T - k + 1, filters]`.
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int,
        padding: str = "same",
        variance: float = 4.0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.filters = filters
        self.kernel_size = kernel_size
        self.padding = padding
        self.variance = variance
        self.convolution = keras.layers.Conv1D(
            2 * filters,
            kernel_size,
            padding=padding,
            kernel_initializer=keras.initializers.VarianceScaling(
                variance, "fan_in", "untruncated_normal"
            ),
            name="convolution",
            dtype=self.dtype_policy,
        )

    def build(self, input_shape: Any) -> None:
        self.convolution.build(input_shape)

    def call(self, inputs: Any) -> Any:
        return ops.glu(self.convolution(inputs), axis=-1)

    def compute_output_shape(self, input_shape: Any) -> Any:
        shape = self.convolution.compute_output_shape(input_shape)
        return (*shape[:-1], self.filters)

    def get_config(self) -> dict[str, Any]:
        names = ("filters", "kernel_size", "padding", "variance")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


@keras.saving.register_keras_serializable(package="keras_transformer")
class ConvolutionalDecoderLayer(keras.layers.Layer):
    """A gated convolution over the past, then attention to the memory (section 3.3).

    Args:
        filters: width of the layer.
        kernel_size: tokens of a window, k.
        d_model: width of embeddings and memory.
        dropout: of the convolution's input.

    Call arguments:
        inputs: `[B, N, T, filters]`; N are alternatives of each other.
        past: `[B, N, k - 1, filters]`, what the convolution was given before; zeros at the start.
        target: `[B, N, T, d_model]`, the embedded tokens.
        keys, values: of the memory, `[B, S, d_model]`.
        scale: of the values' mean, `[B]`.
        memory_mask: bool `[B, S]`, True for real source tokens.
        training: whether dropout is on.

    Returns:
        `[B, N, T, filters]`, the past after these inputs, and the attention `[B, N * T, S]`.
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int,
        d_model: int,
        dropout: float = 0.0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.filters = filters
        self.kernel_size = kernel_size
        self.d_model = d_model
        self.dropout = dropout
        policy = self.dtype_policy
        self.input_dropout = Dropout(dropout, name="input_dropout", dtype=policy)
        variance = 4.0 * (1.0 - dropout)
        # The past is put before the inputs, so that a step is what a whole target is.
        self.convolution = GatedConvolution(
            filters, kernel_size, "valid", variance, name="convolution", dtype=policy
        )
        self.query = linear_map(d_model, "query", policy)
        self.attention = keras.layers.Attention(name="attention", dtype=policy)
        self.context = linear_map(filters, "context", policy)

    def build(self, inputs_shape: Any) -> None:
        filters = inputs_shape[-1]
        self.input_dropout.build(inputs_shape)
        self.convolution.build((None, None, filters))
        self.query.build((None, None, None, filters))
        self.attention.build([(None, None, self.d_model)] * 3)
        self.context.build((None, None, None, self.d_model))

    def call(
        self,
        inputs: Any,
        past: Any,
        target: Any,
        keys: Any,
        values: Any,
        scale: Any,
        memory_mask: Any,
        training: bool | None = None,
    ) -> Any:
        dropped = self.input_dropout(inputs, training=training)
        window = ops.concatenate([past, dropped], axis=2)
        leading = ops.shape(inputs)[:3]
        rows = ops.reshape(window, (-1, ops.shape(window)[2], window.shape[-1]))
        x = ops.reshape(self.convolution(rows), (*leading, inputs.shape[-1]))
        query = (self.query(x) + target) * HALF
        context, weights = self.attention(
            [ops.reshape(query, (leading[0], -1, self.d_model)), values, keys],
            mask=[None, memory_mask],
            return_attention_scores=True,
        )
        # A mean of m values has a variance of 1 / m.
        context = context * ops.reshape(ops.cast(scale, context.dtype), (-1, 1, 1))
        x = (x + self.context(ops.reshape(context, ops.shape(target)))) * HALF
        past = window[:, :, ops.shape(inputs)[2] :]
        return (x + inputs) * HALF, past, weights

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        names = ("filters", "kernel_size", "d_model", "dropout")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
