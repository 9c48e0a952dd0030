"""The encoder (paper, section 3.1, left half of figure 1)."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.residual import ResidualLayer, ResidualStack


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderLayer(ResidualLayer):
    """Self-attention, then a feed-forward network, each with Add & Norm.

    Args:
        num_heads: number of attention heads, h.
        key_dim: size of a head's queries and keys, d_k.
        d_ff: width of the feed-forward network's inner layer.
        value_dim: size of a head's values, d_v; `key_dim` by default.
        norm_position: "post" for LayerNorm(x + Dropout(Sublayer(x))), as in the paper, or "pre"
            for x + Dropout(Sublayer(LayerNorm(x))).
        layer_norm_epsilon: ε of the layer norms.
        activation: activation of the feed-forward network.
        attention_bias: add biases to the attention projections.
        attention_window: r of restricted self-attention (section 4), None for no limit.
        attention_dropout: dropout of the attention weights.
        activation_dropout: dropout of the inner layer of the feed-forward network.
        residual_dropout: dropout of the output of each sublayer (section 5.4).

    Call arguments:
        inputs: `[B, S, d_model]`.
        padding_mask: bool `[B, S]`, True for real tokens.
        return_attention_scores: also return the attention weights.
        training: whether dropout is on.

    Returns:
        `[B, S, d_model]`; with `return_attention_scores` a tuple of it and the weights
        `[B, H, S, S]`.

    Raises:
        ValueError: for another `norm_position`, or a size below 1.

    Example:
    >>> layer = EncoderLayer(num_heads=2, key_dim=4, d_ff=16)
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
        padding_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Any:
        # --> [B, 1, S], the same for all queries
        mask = None if padding_mask is None else ops.expand_dims(padding_mask, 1)
        attended = self.self_attention.forward(
            self._pre_norm("self_attention", inputs),
            mask,
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
    """A stack of `EncoderLayer`s.

    Args:
        layers: the layers, first to last.

    Call arguments:
        inputs: `[B, S, d_model]`, embedded tokens.
        padding_mask: bool `[B, S]`, True for real tokens.
        return_attention_scores: also return the attention weights.
        training: whether dropout is on.

    Returns:
        The memory `[B, S, d_model]`; with `return_attention_scores` a tuple of it and a list of
        the weights of each layer, `[B, H, S, S]`.

    Example:
    >>> encoder = Encoder([EncoderLayer(num_heads=2, key_dim=4, d_ff=16) for _ in range(2)])
    >>> tuple(encoder(keras.ops.ones((1, 3, 8))).shape)
    (1, 3, 8)
    """

    def build(self, inputs_shape: Any) -> None:
        self._build_stack(inputs_shape)

    def call(
        self,
        inputs: Any,
        padding_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Any:
        x, weights = inputs, []
        for layer in self.layers:
            x = layer(
                x, padding_mask, return_attention_scores=return_attention_scores, training=training
            )
            if return_attention_scores:
                x, layer_weights = x
                weights.append(layer_weights)
        x = self._final_norm(x, training)
        return (x, weights) if return_attention_scores else x

    def compute_output_shape(self, inputs_shape: Any) -> Any:
        return tuple(inputs_shape)
