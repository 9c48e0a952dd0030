"""The encoder (paper, section 3.1, left half of figure 1)."""

from __future__ import annotations

from typing import Any

import keras

from keras_transformer.layers.attention import combine_masks
from keras_transformer.layers.residual import ResidualLayer, ResidualStack


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderLayer(ResidualLayer):
    """Self-attention, then a feed-forward network, each with Add & Norm.

    Args:
        num_heads: number of attention heads, h.
        d_ff: width of the feed-forward network's inner layer.
        key_dim: size of a head's queries and keys, d_k; `d_model / num_heads` by default.
        value_dim: size of a head's values, d_v; `key_dim` by default.
        dropout: default of the three separate rates below.
        norm_position: "post" for LayerNorm(x + Dropout(Sublayer(x))), as in the paper, or "pre"
            for x + Dropout(Sublayer(LayerNorm(x))).
        layer_norm_epsilon: ε of the layer norms.
        activation: activation of the feed-forward network.
        attention_bias: add biases to the attention projections.
        attention_window: r of restricted self-attention (section 4), None for no limit.
        attention_dropout: dropout of the attention weights.
        activation_dropout: dropout of the inner layer of the feed-forward network.
        residual_dropout: dropout of the output of each sublayer (section 5.4).
        kernel_initializer: initializer of all kernels.
        bias_initializer: initializer of all biases.
        kernel_regularizer: a loss that depends on the kernels.
        bias_regularizer: a loss that depends on the biases.

    Call arguments:
        inputs: `[B, S, d_model]`.
        mask: bool `[B, S]`, True for real tokens; the Keras mask of the inputs by default.
        return_attention_scores: also return the attention weights.
        training: whether dropout is on.

    Returns:
        `[B, S, d_model]`; with `return_attention_scores` a tuple of it and the weights
        `[B, H, S, S]`.

    Raises:
        ValueError: for another `norm_position`, or a size below 1.

    Example:
    >>> layer = EncoderLayer(num_heads=2, d_ff=16)
    >>> tuple(layer(keras.ops.ones((1, 3, 8))).shape)
    (1, 3, 8)
    """

    def _add_sublayers(self) -> None:
        self._add_self_attention(causal=False)
        self._add_feed_forward()

    def build(self, inputs_shape: Any) -> None:
        self._build_sublayers(inputs_shape)

    def call(
        self,
        inputs: Any,
        *,
        mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Any:
        attended = self.self_attention.attend(
            self._pre_norm("self_attention", inputs, training),
            combine_masks(None, mask),
            return_attention_scores=return_attention_scores,
            training=training,
        )
        x = self._add_and_norm("self_attention", inputs, attended.output, training)
        x = self._feed_forward(x, training)
        return (x, attended.weights) if return_attention_scores else x

    def compute_output_shape(self, inputs_shape: Any) -> Any:
        return tuple(inputs_shape)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Encoder(ResidualStack):
    """A stack of `EncoderLayer`s, perhaps with a final layer norm.

    Args:
        num_layers: number of layers, N.
        num_heads: number of attention heads, h.
        d_ff: width of the inner layers of the feed-forward networks.
        key_dim: size of a head's queries and keys, d_k; `d_model / num_heads` by default.
        value_dim: size of a head's values, d_v; `key_dim` by default.
        dropout: default of the three separate rates below.
        norm_position: "post" or "pre", the position of the layer norms.
        final_norm: normalize the output of the last layer; by default only if pre-norm.
        layer_norm_epsilon: ε of the layer norms.
        activation: activation of the feed-forward networks.
        attention_bias: add biases to the attention projections.
        attention_window: r of restricted self-attention (section 4), None for no limit.
        attention_dropout: dropout of the attention weights.
        activation_dropout: dropout of the inner layers of the feed-forward networks.
        residual_dropout: dropout of the output of each sublayer (section 5.4).
        kernel_initializer: initializer of all kernels.
        bias_initializer: initializer of all biases.
        kernel_regularizer: a loss that depends on the kernels.
        bias_regularizer: a loss that depends on the biases.

    Call arguments:
        inputs: `[B, S, d_model]`, embedded tokens.
        mask: bool `[B, S]`, True for real tokens; the Keras mask of the inputs by default.
        return_attention_scores: also return the attention weights.
        training: whether dropout is on.

    Returns:
        The memory `[B, S, d_model]`; with `return_attention_scores` a tuple of it and a list of
        the weights of each layer, `[B, H, S, S]`.

    Example:
    >>> encoder = Encoder(num_layers=2, num_heads=2, d_ff=16)
    >>> tuple(encoder(keras.ops.ones((1, 3, 8))).shape)
    (1, 3, 8)
    """

    layer_class = EncoderLayer

    def build(self, inputs_shape: Any) -> None:
        self._build_stack(inputs_shape)

    def call(
        self,
        inputs: Any,
        *,
        mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Any:
        x, weights = inputs, []
        for layer in self.layers:
            x = layer(
                x, mask=mask, return_attention_scores=return_attention_scores, training=training
            )
            if return_attention_scores:
                x, layer_weights = x
                weights.append(layer_weights)
        x = self._final_norm(x, training)
        return (x, weights) if return_attention_scores else x

    def compute_output_shape(self, inputs_shape: Any) -> Any:
        return tuple(inputs_shape)
