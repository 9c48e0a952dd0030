"""Layer normalization (Ba et al., 2016; paper, section 3.1), with its gradient in closed form."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_transformer")
class LayerNorm(keras.layers.Layer):
    """Computes γ (x - mean) / √(variance + ε) + β over the last axis, in float32.

    In training on TensorFlow the gradient is computed in closed form: automatic differentiation
    passes over the input about three times as often, and layer norm is memory-bound.

    Args:
        epsilon: ε.

    Call arguments:
        inputs: `[..., d]`.
        training: True uses the closed-form gradient; the output is the same.

    Returns:
        `[..., d]` in the compute dtype.
    """

    def __init__(self, epsilon: float = 1e-6, **kwargs: Any):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.epsilon = epsilon

    def build(self, input_shape: Any) -> None:
        shape = (input_shape[-1],)
        arguments = {"shape": shape, "dtype": "float32", "autocast": False}
        self.gamma = self.add_weight(initializer="ones", name="gamma", **arguments)
        self.beta = self.add_weight(initializer="zeros", name="beta", **arguments)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        if training and keras.backend.backend() == "tensorflow":
            # As tensors: a function with a custom gradient must not be given variables.
            gamma, beta = ops.reshape(self.gamma, (-1,)), ops.reshape(self.beta, (-1,))
            return _with_gradient(self.epsilon)(inputs, gamma, beta)
        gamma, beta = ops.convert_to_tensor(self.gamma), ops.convert_to_tensor(self.beta)
        return _normalize(inputs, gamma, beta, self.epsilon)[0]

    def compute_output_shape(self, input_shape: Any) -> Any:
        return tuple(input_shape)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "epsilon": self.epsilon}


def _normalize(inputs: Any, gamma: Any, beta: Any, epsilon: float) -> tuple[Any, Any, Any]:
    """Returns the output, (x - mean) / deviation and 1 / deviation; the gradient needs them."""
    x = ops.cast(inputs, "float32")
    centered = x - ops.mean(x, axis=-1, keepdims=True)
    variance = ops.mean(ops.square(centered), axis=-1, keepdims=True)
    inverse = ops.rsqrt(variance + epsilon)
    normal = centered * inverse
    return ops.cast(normal * gamma + beta, inputs.dtype), normal, inverse


def _with_gradient(epsilon: float) -> Any:
    @ops.custom_gradient
    def layer_norm(inputs: Any, gamma: Any, beta: Any) -> Any:
        output, normal, inverse = _normalize(inputs, gamma, beta, epsilon)

        def gradient(upstream: Any) -> tuple[Any, Any, Any]:
            with keras.name_scope("layer_norm_gradient"):  # visible in profiles
                return _gradient(inputs, gamma, normal, inverse, upstream)

        return output, gradient

    return layer_norm


def _gradient(
    inputs: Any, gamma: Any, normal: Any, inverse: Any, upstream: Any
) -> tuple[Any, Any, Any]:
    """Returns the gradients with respect to the input, γ and β."""
    upstream = ops.cast(upstream, "float32")
    rows = tuple(range(len(inputs.shape) - 1))
    by_gamma = upstream * normal
    by_normal = upstream * gamma
    mean = ops.mean(by_normal, axis=-1, keepdims=True)
    # The part along the normalized vector would change its length, which is fixed.
    along = ops.mean(by_gamma * gamma, axis=-1, keepdims=True)
    by_input = (by_normal - mean - normal * along) * inverse
    return ops.cast(by_input, inputs.dtype), ops.sum(by_gamma, axis=rows), ops.sum(upstream, rows)
