"""The encoder (paper, section 3.1, left half of figure 1)."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.attention import LayerOutput
from keras_transformer.layers.residual import ResidualLayer, ResidualStack


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderLayer(ResidualLayer):
    """Self-attention, then a feed-forward network; both are residual and normalized.

    Args: see `ResidualLayer`.

    Call arguments:
        inputs: `[B, S, d_model]`.
        padding_mask: bool `[B, S]`, True for real tokens.
        return_attention_scores: also return the attention weights.
        training: whether dropout is on.

    Returns:
        `[B, S, d_model]`; with `return_attention_scores` a tuple of it and the
        weights `[B, H, S, S]`.

    Example:
    >>> layer = EncoderLayer(num_heads=2, key_dim=4, d_ff=16)
    >>> tuple(layer(keras.ops.ones((1, 3, 8))).shape)
    (1, 3, 8)
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._add_self_attention(causal=False)
        self._add_feed_forward()

    def build(self, inputs_shape: Any) -> None:
        for layer in (
            self.self_attention,
            self.self_attention_dropout,
            self.self_attention_norm,
            self.feed_forward,
            self.feed_forward_dropout,
            self.feed_forward_norm,
        ):
            layer.build(inputs_shape)

    def forward(
        self,
        inputs: Any,
        padding_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> LayerOutput:
        """Returns the output and the weights (None if self-attention ran in blocks)."""
        # --> [B, 1, S], the same for all queries
        mask = None if padding_mask is None else ops.expand_dims(padding_mask, 1)
        attended = self._residual(
            "self_attention",
            inputs,
            lambda x: self.self_attention.forward(
                x,
                mask,
                return_attention_scores=return_attention_scores,
                training=training,
            ),
            training,
        )
        return attended._replace(output=self._feed_forward(attended.output, training))

    def call(
        self,
        inputs: Any,
        padding_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Any:
        result = self.forward(inputs, padding_mask, return_attention_scores, training)
        return (result.output, result.weights) if return_attention_scores else result.output

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
        The memory `[B, S, d_model]`; with `return_attention_scores` a tuple of
        it and a list of the weights of each layer, `[B, H, S, S]`.

    Example:
    >>> encoder = Encoder([EncoderLayer(num_heads=2, key_dim=4, d_ff=16) for _ in range(2)])
    >>> tuple(encoder(keras.ops.ones((1, 3, 8))).shape)
    (1, 3, 8)
    """

    def build(self, inputs_shape: Any) -> None:
        self._build_stack(inputs_shape)

    def forward(
        self,
        inputs: Any,
        padding_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> LayerOutput:
        """Returns the memory and a list of the weights of each layer."""
        x, weights = inputs, []
        for layer in self.layers:
            result = layer.forward(x, padding_mask, return_attention_scores, training)
            x = result.output
            weights.append(result.weights)
        return LayerOutput(self._final_norm(x, training), weights=weights)

    def call(
        self,
        inputs: Any,
        padding_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Any:
        result = self.forward(inputs, padding_mask, return_attention_scores, training)
        return (result.output, result.weights) if return_attention_scores else result.output
