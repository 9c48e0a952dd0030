"""The encoder and the decoder: stacks of layers (paper, section 3.1, figure 1)."""

from __future__ import annotations

from typing import Any, ClassVar

import keras

from keras_transformer.layers.attention import CrossAttention, KeyValue, combine_masks
from keras_transformer.layers.base import shows_arguments
from keras_transformer.layers.block import Block, BlockLayer
from keras_transformer.layers.state import DecodeState


class Stack(BlockLayer):
    """The base of `Encoder` and `Decoder`: equal layers, with an optional layer norm at the end."""

    layer_class: ClassVar[type[Any]]

    @shows_arguments(Block)
    def __init__(self, num_layers: int, *args: Any, final_norm: bool | None = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if num_layers < 1:
            raise ValueError(f"num_layers is {num_layers}, but it must be at least 1.")
        is_pre = self.block.norm_position == "pre"
        self.num_layers = num_layers
        self.final_norm = is_pre if final_norm is None else final_norm
        self.layers = [
            self.layer_class(**vars(self.block), name=f"layer_{i}", dtype=self.dtype_policy)
            for i in range(num_layers)
        ]
        for i, layer in enumerate(self.layers):
            layer.self_attention.layer_index = i
        self.norm = self._new_norm("norm") if self.final_norm else None

    def _arguments(self) -> dict[str, Any]:
        own = {"num_layers": self.num_layers, "final_norm": self.final_norm}
        return {**own, **super()._arguments()}

    def transform(
        self, inputs: Any, *, memory: Any = None, training: bool | None = None, **arguments: Any
    ) -> tuple[Any, Any]:
        """Applies one layer after the other. Returns the output, and the weights of each layer.

        The other arguments are those of the layers' `transform`. A decoder also accepts the result
        of `project_memory` as its memory.
        """
        x, weights = inputs, []
        for i, layer in enumerate(self.layers):
            if memory is not None:
                arguments["memory"] = memory[i] if isinstance(memory, list) else memory
            x, layer_weights = layer.transform(x, training=training, **arguments)
            weights.append(layer_weights)
        return x if self.norm is None else self.norm(x, training=training), weights


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
        x, weights = self.transform(inputs, mask, return_attention_scores, training)
        return (x, weights["self"]) if return_attention_scores else x

    def transform(
        self,
        inputs: Any,
        mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Returns the output, and the weights `self` (None if computed in blocks)."""
        normed = self._pre_norm(self.self_attention_norm, inputs, training)
        output, weights = self.self_attention.attend(
            normed, combine_masks(None, mask), return_attention_scores, training
        )
        dropout, norm = self.self_attention_dropout, self.self_attention_norm
        x = self._add_and_norm(inputs, output, dropout, norm, training)

        normed = self._pre_norm(self.feed_forward_norm, x, training)
        output = self.feed_forward(normed, training=training)
        dropout, norm = self.feed_forward_dropout, self.feed_forward_norm
        return self._add_and_norm(x, output, dropout, norm, training), {"self": weights}


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


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderLayer(BlockLayer):
    """Causal self-attention, attention to the memory, then a feed-forward network.

    Each of the three has Add & Norm. A recurrent unit may replace self-attention, see `Block`.

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
        else:  # this order gives the same initial weights as earlier versions, for a seed
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
            inputs,
            memory=memory,
            memory_mask=memory_mask,
            mask=mask,
            return_attention_scores=return_attention_scores,
            training=training,
        )
        return result if return_attention_scores else result[0]

    def compute_output_shape(self, inputs_shape: Any, memory_shape: Any = None) -> Any:
        return tuple(inputs_shape)

    def transform(
        self,
        inputs: Any,
        memory: Any = None,
        memory_mask: Any = None,
        mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        state: DecodeState | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Decodes a whole target, or one position of it with a state.

        Args:
            inputs: `[B, T, d_model]`. With a state, alternatives (beams) at one position.
            memory: the encoder's output `[B, S, d_model]`, or the keys and values of it that
                `cross_attention.project` returns; None for no cross-attention.
            memory_mask: bool `[B, S]`, True for real source tokens.
            mask: bool `[B, T]`, True for real target tokens; not used with a state.
            return_attention_scores: compute all weights, even where blocks would avoid it.
            training: whether dropout is on.
            state: the state of the decoder, to which this step is written.

        Returns:
            The output, and a dict of the weights `self` `[B, H, T, T or L]` (None if computed in
            blocks) and, with a memory, `cross` `[B, H, T, S]`.
        """
        normed = self._pre_norm(self.self_attention_norm, inputs, training)
        output, self_weights = self.self_attention.attend(
            normed, combine_masks(None, mask), return_attention_scores, training, state
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
        return self._add_and_norm(x, output, dropout, norm, training), weights


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

    def init_cache(self, batch_size: Any, length: Any, queries: int = 1) -> list[KeyValue]:
        """Returns empty layers of a `DecodeState` for `length` steps of T = `queries`."""
        attentions = (layer.self_attention for layer in self.layers)
        return [attention.init_cache(batch_size, length, queries) for attention in attentions]

    def project_memory(self, memory: Any) -> list[KeyValue]:
        """Returns the keys and values of `memory` `[B, S, d_model]` for each layer."""
        return [layer.cross_attention.project(memory) for layer in self.layers]
