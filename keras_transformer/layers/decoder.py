"""The decoder (paper, section 3.1, right half of figure 1)."""

from __future__ import annotations

from typing import Any

import keras

from keras_transformer.layers.attention import CrossAttention, KeyValue
from keras_transformer.layers.block import BlockLayer, Stack


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderLayer(BlockLayer):
    """Causal self-attention, attention to the memory, then a feed-forward network.

    Each of the three has Add & Norm.

    Args:
        num_heads, d_ff and others: see `Block`.

    Call arguments:
        inputs: `[B, T, d_model]`.
        memory: the encoder's output `[B, S, d_model]`. Without it there is no cross-attention, as
            in a language model.
        memory_mask: bool `[B, S]`, True for real source tokens; the Keras mask of the memory by
            default.
        return_attention_scores: also return the attention weights.
        training: whether dropout is on.
        mask: bool `[B, T]`, True for real target tokens; the Keras mask of the inputs by default.

    Returns:
        `[B, T, d_model]`; with `return_attention_scores` a tuple of it and a dict of the weights
        `self` `[B, H, T, T]` and `cross` `[B, H, T, S]`.

    Example:
    >>> layer = DecoderLayer(num_heads=2, d_ff=16)
    >>> tuple(layer(keras.ops.ones((1, 3, 8)), keras.ops.ones((1, 5, 8))).shape)
    (1, 3, 8)
    """

    def _add_sublayers(self) -> None:
        self._add_self_attention(causal=True)
        self.cross_attention = self._new_attention(CrossAttention, "cross_attention")
        self.cross_attention_dropout = self._new_dropout("cross_attention_dropout")
        self.cross_attention_norm = self._new_norm("cross_attention_norm")
        self._add_feed_forward()

    def build(self, inputs_shape: Any, memory_shape: Any = None) -> None:
        if memory_shape is None:
            # Layers that are never built do not belong to the layer. No public method removes them.
            unused = self.cross_attention, self.cross_attention_dropout, self.cross_attention_norm
            for layer in unused:
                self._tracker.untrack(layer)
        else:  # first, so that a seed gives the same initial weights as in earlier versions
            self.cross_attention.build(inputs_shape, memory_shape)
        super().build(inputs_shape)

    def call(
        self: Any,
        inputs: Any,
        memory: Any = None,
        memory_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        *,
        mask: Any = None,
    ) -> Any:
        result = self.transform(
            inputs, memory, memory_mask, mask, return_attention_scores, training
        )
        return result if return_attention_scores else result[0]

    def compute_output_shape(self, inputs_shape: Any, memory_shape: Any = None) -> Any:
        return tuple(inputs_shape)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Decoder(Stack):
    """A stack of `DecoderLayer`s, with an optional layer norm at the end.

    Args:
        num_layers: number of layers, N.
        num_heads, d_ff and others: see `Block`.
        final_norm: normalize the output of the last layer; by default only if pre-norm.

    Call arguments:
        inputs: `[B, T, d_model]`, embedded tokens.
        memory: the encoder's output `[B, S, d_model]`. Without it there is no cross-attention, as
            in a language model.
        memory_mask: bool `[B, S]`, True for real source tokens; the Keras mask of the memory by
            default.
        return_attention_scores: also return the attention weights.
        training: whether dropout is on.
        mask: bool `[B, T]`, True for real target tokens; the Keras mask of the inputs by default.

    Returns:
        `[B, T, d_model]`; with `return_attention_scores` a tuple of it and a list of the weights
        of each layer, dicts of `self` `[B, H, T, T]` and `cross` `[B, H, T, S]`.

    Example:
    >>> decoder = Decoder(num_layers=2, num_heads=2, d_ff=16)
    >>> tuple(decoder(keras.ops.ones((1, 3, 8)), keras.ops.ones((1, 5, 8))).shape)
    (1, 3, 8)
    """

    layer_class = DecoderLayer
    # A stack has the same arguments as its layers.
    call = DecoderLayer.call
    compute_output_shape = DecoderLayer.compute_output_shape

    def build(self, inputs_shape: Any, memory_shape: Any = None) -> None:
        for layer in self.layers:
            layer.build(inputs_shape, memory_shape)
        super().build(inputs_shape)

    def init_cache(self, batch_size: Any, length: Any) -> list[KeyValue]:
        """Returns empty layers of a `DecodeState`, with `length` entries (steps × T)."""
        return [layer.self_attention.init_cache(batch_size, length) for layer in self.layers]

    def project_memory(self, memory: Any) -> list[KeyValue]:
        """Returns the keys and values of `memory` `[B, S, d_model]` for each layer."""
        return [layer.cross_attention.project(memory) for layer in self.layers]
