"""The decoder (paper, section 3.1, right half of figure 1)."""

from __future__ import annotations

from typing import Any

import keras

from keras_transformer.layers.attention import (
    BlockCache,
    KeyValue,
    LayerOutput,
    combine_masks,
)
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

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.self_attention = self._new_self_attention(causal=True)
        self.self_attention_dropout = self._new_dropout("self_attention_dropout")
        self.self_attention_norm = self._new_norm("self_attention_norm")
        self.cross_attention = self._new_cross_attention()
        self.cross_attention_dropout = self._new_dropout("cross_attention_dropout")
        self.cross_attention_norm = self._new_norm("cross_attention_norm")
        self.feed_forward = self._new_feed_forward()
        self.feed_forward_dropout = self._new_dropout("feed_forward_dropout")
        self.feed_forward_norm = self._new_norm("feed_forward_norm")

    def build(self, inputs_shape: Any, memory_shape: Any = None) -> None:
        if memory_shape is None:
            # Keras does not see layers that are never built, which it refuses to quantize.
            unused = self.cross_attention, self.cross_attention_dropout, self.cross_attention_norm
            for layer in unused:
                self._tracker.untrack(layer)
        else:  # first, so that a seed gives the same initial weights as in earlier versions
            self.cross_attention.build(inputs_shape, memory_shape)
        self._build_sublayers(inputs_shape)

    def project_memory(self, memory: Any) -> KeyValue:
        """Returns the keys and values of `memory` `[B, S, d_model]`.

        Raises:
            ValueError: if the layer was built without a memory.
        """
        if not self.cross_attention.built:
            raise ValueError(
                f"{self.name} was built without a memory, so it has no cross-attention. Use a new "
                "layer."
            )
        return self.cross_attention.project(memory)

    def decode(
        self,
        inputs: Any,
        memory: KeyValue | None,
        memory_mask: Any = None,
        cache: KeyValue | BlockCache | None = None,
        position: Any = None,
        attention_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> LayerOutput:
        """Decodes a whole target, or one position of it with a cache.

        Args:
            inputs: `[B, T, d_model]`. With a cache, alternatives (beams) at one position.
            memory: the memory's keys and values, from `cross_attention.project`; None for no
                cross-attention.
            memory_mask: bool `[B, S]`, True for real source tokens.
            cache, position, attention_mask: see `SelfAttention.attend`.
            return_attention_scores: compute all weights, even where blocks would avoid it.
            training: whether dropout is on.

        Returns:
            The output, the extended cache (None without one), and a dict of the weights `self`
            `[B, H, T, T or L]` (None if self-attention ran in blocks) and `cross` `[B, H, T, S]`.
        """
        normed = self._pre_norm(self.self_attention_norm, inputs, training)
        attended = self.self_attention.attend(
            normed, attention_mask, cache, position, return_attention_scores, training
        )
        x = inputs + self.self_attention_dropout(attended.output, training=training)
        x = self._post_norm(self.self_attention_norm, x, training)
        weights = {"self": attended.weights}

        if memory is not None:
            normed = self._pre_norm(self.cross_attention_norm, x, training)
            mask = combine_masks(None, memory_mask)
            crossed = self.cross_attention.attend(normed, memory, mask, training)
            x = x + self.cross_attention_dropout(crossed.output, training=training)
            x = self._post_norm(self.cross_attention_norm, x, training)
            weights["cross"] = crossed.weights

        normed = self._pre_norm(self.feed_forward_norm, x, training)
        output = self.feed_forward(normed, training=training)
        x = x + self.feed_forward_dropout(output, training=training)
        x = self._post_norm(self.feed_forward_norm, x, training)
        return LayerOutput(x, attended.cache, weights)

    def call(
        self,
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
            None if memory is None else self.project_memory(memory),
            memory_mask,
            attention_mask=combine_masks(None, mask),
            return_attention_scores=return_attention_scores,
            training=training,
        )
        return (result.output, result.weights) if return_attention_scores else result.output

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

    def build(self, inputs_shape: Any, memory_shape: Any = None) -> None:
        self._build_stack(inputs_shape, memory_shape)

    def init_cache(self, batch_size: Any, length: Any) -> list[KeyValue]:
        """Returns empty caches for `batch_size` sentences with `length` places (steps × T)."""
        return [layer.self_attention.init_cache(batch_size, length) for layer in self.layers]

    def project_memory(self, memory: Any) -> list[KeyValue]:
        """Returns the keys and values of `memory` `[B, S, d_model]` for each layer."""
        return [layer.project_memory(memory) for layer in self.layers]

    def decode(
        self,
        inputs: Any,
        memory: list[KeyValue] | None,
        memory_mask: Any = None,
        cache: list[KeyValue | BlockCache] | None = None,
        position: Any = None,
        attention_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> LayerOutput:
        """Decodes a whole target, or one position of it with a cache.

        Args:
            inputs: `[B, T, d_model]`. With a cache, alternatives (beams) at one position.
            memory: from `project_memory`; None for no cross-attention.
            memory_mask: bool `[B, S]`, True for real source tokens.
            cache: from `init_cache` or from the step before, or a `BlockCache` for each layer.
            position, attention_mask: see `SelfAttention.attend`.
            return_attention_scores: compute all weights, even where blocks would avoid it.
            training: whether dropout is on.

        Returns:
            The output, the extended caches (None without one), and a list of the weights of each
            layer, dicts of `self` and `cross` as in `DecoderLayer.decode`.
        """
        x, caches, weights = inputs, [], []
        for i, layer in enumerate(self.layers):
            result = layer.decode(
                x,
                None if memory is None else memory[i],
                memory_mask,
                None if cache is None else cache[i],
                position,
                attention_mask,
                return_attention_scores,
                training,
            )
            x = result.output
            caches.append(result.cache)
            weights.append(result.weights)
        x = self._final_norm(x, training)
        return LayerOutput(x, None if cache is None else caches, weights)

    def call(
        self,
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
            None if memory is None else self.project_memory(memory),
            memory_mask,
            attention_mask=combine_masks(None, mask),
            return_attention_scores=return_attention_scores,
            training=training,
        )
        return (result.output, result.weights) if return_attention_scores else result.output

    def compute_output_shape(self, inputs_shape: Any, memory_shape: Any = None) -> Any:
        return tuple(inputs_shape)
