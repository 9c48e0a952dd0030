"""The decoder (paper, section 3.1, right half of figure 1)."""

from __future__ import annotations

from typing import Any

import keras

from keras_transformer.layers.attention import CrossAttention, KeyValue, combine_masks
from keras_transformer.layers.block import BlockLayer, Stack
from keras_transformer.layers.state import DecodeState


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
        self.self_attention = self._new_self_attention(causal=True)
        self.self_attention_dropout = self._new_dropout("self_attention_dropout")
        self.self_attention_norm = self._new_norm("self_attention_norm")
        self.cross_attention = self._new_attention(CrossAttention, "cross_attention")
        self.cross_attention_dropout = self._new_dropout("cross_attention_dropout")
        self.cross_attention_norm = self._new_norm("cross_attention_norm")
        self.feed_forward = self._new_feed_forward()
        self.feed_forward_dropout = self._new_dropout("feed_forward_dropout")
        self.feed_forward_norm = self._new_norm("feed_forward_norm")

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
        result = self.decode(
            inputs,
            memory,
            memory_mask,
            mask,
            return_attention_scores=return_attention_scores,
            training=training,
        )
        return result if return_attention_scores else result[0]

    def compute_output_shape(self, inputs_shape: Any, memory_shape: Any = None) -> Any:
        return tuple(inputs_shape)

    def decode(
        self,
        inputs: Any,
        memory: Any,
        memory_mask: Any = None,
        mask: Any = None,
        state: DecodeState | None = None,
        layer: int = 0,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Decodes a whole target, or one position of it with a state, as layer `layer` of it.

        Args:
            inputs: `[B, T, d_model]`. With a state, alternatives (beams) at one position.
            memory: the encoder's output `[B, S, d_model]`, or the keys and values of it that
                `cross_attention.project` returns; None for no cross-attention.
            memory_mask: bool `[B, S]`, True for real source tokens.
            mask: bool `[B, T]`, True for real target tokens; not used with a state.
            state: the state of the decoder, to which this step is written.
            layer: index of this layer in `state`.
            return_attention_scores: compute all weights, even where blocks would avoid it.
            training: whether dropout is on.

        Returns:
            The output, and a dict of the weights `self` `[B, H, T, T or L]` (None if computed in
            blocks) and `cross` `[B, H, T, S]`.
        """
        normed = self._pre_norm(self.self_attention_norm, inputs, training)
        output, self_weights = self.self_attention.attend(
            normed, combine_masks(None, mask), state, layer, return_attention_scores, training
        )
        dropout, norm = self.self_attention_dropout, self.self_attention_norm
        x = self._add_and_norm(inputs, output, dropout, norm, training)
        weights = {"self": self_weights}

        if memory is not None:
            normed = self._pre_norm(self.cross_attention_norm, x, training)
            output, weights["cross"] = self.cross_attention.attend(
                normed, memory, combine_masks(None, memory_mask), training
            )
            dropout, norm = self.cross_attention_dropout, self.cross_attention_norm
            x = self._add_and_norm(x, output, dropout, norm, training)

        normed = self._pre_norm(self.feed_forward_norm, x, training)
        output = self.feed_forward(normed, training=training)
        dropout, norm = self.feed_forward_dropout, self.feed_forward_norm
        x = self._add_and_norm(x, output, dropout, norm, training)
        return x, weights


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

    def decode(
        self,
        inputs: Any,
        memory: Any,
        memory_mask: Any = None,
        mask: Any = None,
        state: DecodeState | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> tuple[Any, list[dict[str, Any]]]:
        """Decodes a whole target, or one position of it with a state, as in `DecoderLayer.decode`.

        The memory is the encoder's output, the result of `project_memory`, or None. Returns the
        output, and the weights of each layer.
        """
        x, weights = inputs, []
        for i, layer in enumerate(self.layers):
            x, layer_weights = layer.decode(
                x,
                memory[i] if isinstance(memory, list) else memory,
                memory_mask,
                mask,
                state,
                i,
                return_attention_scores,
                training,
            )
            weights.append(layer_weights)
        return self._final_norm(x, training), weights
