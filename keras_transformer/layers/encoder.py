"""The encoder (paper, section 3.1, left half of figure 1)."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.residual import ResidualLayer, ResidualStack


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderLayer(ResidualLayer):
    """Self-attention, then a feed-forward network, each residual and normalized.

    Args: those of `ResidualLayer`.

    Call arguments:
        inputs: `[B, S, d_model]`.
        padding_mask: bool `[B, S]`, True for real tokens.
        return_attention_scores: also return the attention weights.
        training: whether dropout is on.

    Returns:
        `[B, S, d_model]`; with `return_attention_scores` a tuple of it and the
        weights `[B, H, S, S]`.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.self_attention = self._make_self_attention(causal=False)
        self.self_attention_dropout = self._make_dropout("self_attention_dropout")
        self.self_attention_norm = self._make_norm("self_attention_norm")
        self.feed_forward = self._make_feed_forward()
        self.feed_forward_dropout = self._make_dropout("feed_forward_dropout")
        self.feed_forward_norm = self._make_norm("feed_forward_norm")

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

    def call(
        self,
        inputs: Any,
        padding_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Any:
        mask = None if padding_mask is None else ops.expand_dims(padding_mask, 1)
        weights = None

        def attend(x: Any) -> Any:
            nonlocal weights
            output = self.self_attention(
                x,
                attention_mask=mask,
                return_attention_scores=return_attention_scores,
                training=training,
            )
            if return_attention_scores:
                output, weights = output
            return output

        x = self._residual(
            inputs, attend, self.self_attention_norm, self.self_attention_dropout, training
        )
        x = self._residual(
            x,
            lambda x: self.feed_forward(x, training=training),
            self.feed_forward_norm,
            self.feed_forward_dropout,
            training,
        )
        return (x, weights) if return_attention_scores else x

    def compute_output_shape(self, inputs_shape: Any) -> Any:
        return tuple(inputs_shape)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        return keras.Operation.compute_output_spec(self, *args, **kwargs)


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
        it and a list of `[B, H, S, S]`, one a layer.
    """

    def build(self, inputs_shape: Any) -> None:
        for layer in self.layers:
            layer.build(inputs_shape)
        if self.norm is not None:
            self.norm.build(inputs_shape)

    def call(
        self,
        inputs: Any,
        padding_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Any:
        x, all_weights = inputs, []
        for layer in self.layers:
            x = layer(
                x,
                padding_mask=padding_mask,
                return_attention_scores=return_attention_scores,
                training=training,
            )
            if return_attention_scores:
                x, weights = x
                all_weights.append(weights)
        if self.norm is not None:
            x = self.norm(x, training=training)
        return (x, all_weights) if return_attention_scores else x

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        return keras.Operation.compute_output_spec(self, *args, **kwargs)
