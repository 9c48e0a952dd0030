"""The encoder (paper, section 3.1, left half of figure 1)."""

from __future__ import annotations

from typing import Any

import keras

from keras_transformer.layers.block import BlockLayer, Stack


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderLayer(BlockLayer):
    """Self-attention, then a feed-forward network, each with Add & Norm.

    Args:
        num_heads, d_ff and others: see `Block`.

    Call arguments:
        inputs: `[B, S, d_model]`.
        mask: bool `[B, S]`, True for real tokens; the Keras mask of the inputs by default.
        return_attention_scores: also return the attention weights.
        training: whether dropout is on.

    Returns:
        `[B, S, d_model]`; with `return_attention_scores` a tuple of it and the weights
        `[B, H, S, S]`.

    Example:
    >>> layer = EncoderLayer(num_heads=2, d_ff=16)
    >>> tuple(layer(keras.ops.ones((1, 3, 8))).shape)
    (1, 3, 8)
    """

    def _add_sublayers(self) -> None:
        self._add_self_attention(causal=False)
        self._add_feed_forward()

    def call(
        self,
        inputs: Any,
        *,
        mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Any:
        x, weights = self.transform(
            inputs, mask=mask, return_attention_scores=return_attention_scores, training=training
        )
        return (x, weights["self"]) if return_attention_scores else x


@keras.saving.register_keras_serializable(package="keras_transformer")
class Encoder(Stack):
    """A stack of `EncoderLayer`s, with an optional layer norm at the end.

    Args:
        num_layers: number of layers, N.
        num_heads, d_ff and others: see `Block`.
        final_norm: normalize the output of the last layer; by default only if pre-norm.

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

    def call(
        self,
        inputs: Any,
        *,
        mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Any:
        x, weights = self.transform(
            inputs, mask=mask, return_attention_scores=return_attention_scores, training=training
        )
        return (x, [layer["self"] for layer in weights]) if return_attention_scores else x
