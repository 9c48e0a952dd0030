"""Self-attention, over all positions or over a window of them (paper, sections 3.2.3 and 4)."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.attention import (
    BlockCache,
    KeyValue,
    LayerOutput,
    MultiHeadAttention,
    combine_masks,
    split_heads,
    split_widths,
)
from keras_transformer.layers.blocks import Blocks
from keras_transformer.layers.masks import position_mask


@keras.saving.register_keras_serializable(package="keras_transformer")
class SelfAttention(MultiHeadAttention):
    """Multi-head attention of a sequence to itself (paper, section 3.2.3).

    Queries, keys and values share one fused kernel.

    With a window (restricted self-attention, section 4 and Table 1) a whole sequence takes
    O(r·n·d) time and memory instead of O(n²·d): it is cut into blocks of at least 64 positions,
    and each block is compared only with its neighbourhood. In four cases the window is an
    ordinary mask: in a cache, with a mask of T rows, if the weights are returned, and in a
    LiteRT model. The results are equal, except for a query whose mask allows no key: it gets
    equal weights, over its neighbourhood or over all keys.

    Args:
        num_heads: number of heads, h.
        key_dim: size of a head's queries and keys, d_k; `d_model / num_heads` by default.
        value_dim: size of a head's values, d_v; `key_dim` by default.
        dropout: dropout of the attention weights.
        use_bias: add biases to the projections (the paper has none).
        causal: forbid attention to later positions.
        window: r, which allows positions at a distance of at most r // 2; None for no limit.
        kernel_initializer: initializer of each projection.
        bias_initializer: initializer of the biases.
        kernel_regularizer: a loss that depends on the kernels.
        bias_regularizer: a loss that depends on the biases.

    Call arguments:
        query: `[B, T, d_model]`.
        attention_mask: bool `[B, T]` for padding, or broadcastable to `[B, T, T]`; True may be
            attended to.
        mask: bool `[B, T]`, False for padding; the Keras mask of `query` by default.
        return_attention_scores: also return the attention weights.
        training: whether dropout is on.

    Returns:
        The output `[B, T, d_model]`; with `return_attention_scores` a tuple of the output and
        the weights, float32 `[B, H, T, T]`.

    Raises:
        ValueError: for a number of heads, a width or a window below 1.

    Example:
    >>> layer = SelfAttention(num_heads=2, key_dim=4, causal=True)
    >>> output, weights = layer(keras.ops.ones((1, 3, 8)), return_attention_scores=True)
    >>> tuple(output.shape), tuple(weights.shape)
    ((1, 3, 8), (1, 2, 3, 3))
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int | None = None,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = False,
        causal: bool = False,
        window: int | None = None,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        **kwargs: Any,
    ):
        super().__init__(
            num_heads,
            key_dim,
            value_dim,
            dropout,
            use_bias,
            kernel_initializer,
            bias_initializer,
            kernel_regularizer,
            bias_regularizer,
            **kwargs,
        )
        if window is not None and window < 1:
            raise ValueError(f"window is {window}. It must be at least 1, or None.")
        self.causal = causal
        self.window = window

    def build(self, query_shape: Any) -> None:
        self._set_head_sizes(query_shape[-1])
        d_model, keys = query_shape[-1], self.num_heads * self.key_dim
        values = self.num_heads * self.value_dim
        self._add_projection("qkv", d_model, keys, keys, values)
        self._add_projection("output", values, d_model)
        self.weights_dropout.build((None, self.num_heads, None, None))

    def init_cache(self, batch_size: Any, length: Any) -> KeyValue:
        """Returns an empty cache for `batch_size` sentences with `length` places (steps × T)."""
        shape = (batch_size, self.num_heads, length)
        return {
            "key": ops.zeros((*shape, self.key_dim), self.compute_dtype),
            "value": ops.zeros((*shape, self.value_dim), self.compute_dtype),
        }

    def attend(
        self,
        query: Any,
        attention_mask: Any = None,
        cache: KeyValue | BlockCache | None = None,
        position: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> LayerOutput:
        """Attends to the whole sequence, or with a cache from one position to all before it.

        Args:
            query: `[B, T, d_model]`. With a cache, the T queries are alternatives (beams) at
                one position.
            attention_mask: bool, broadcastable to `[B, T, T]`. With a cache of L places it is
                `[B, T, L]`, True for the places in the history of a query. Without a mask, all
                written places are allowed, which is correct for T = 1.
            cache: keys and values from `init_cache` or from the step before. The places of a
                `BlockCache` are those of `past` and then those of `recent`.
            position: int scalar, position of the queries. Keys and values are written to the
                places `position` * T to `position` * T + T - 1. If None, they are appended. A
                `BlockCache` has a `place` instead.
            return_attention_scores: compute the weights even where blocks would avoid them.
            training: whether dropout is on.

        Returns:
            The output, the extended cache (None without one; `recent` of a `BlockCache`), and the
            weights `[B, H, T, T or L]` (None if the sequence was cut into blocks).
        """
        if cache is None and not return_attention_scores and _has_one_row(attention_mask):
            blocks = self._blocks(ops.shape(query)[1])
            if blocks is not None:
                return LayerOutput(self._attend_in_blocks(query, blocks, attention_mask, training))
        recent: Any = cache
        past: Any = None
        if isinstance(cache, BlockCache):
            recent, past, position = cache
        dims = self.key_dim, self.key_dim, self.value_dim
        query_heads, key, value = self._project_to_heads("qkv", query, *dims)
        key_value: dict[str, Any] = {"key": key, "value": value}
        if recent is not None:
            recent = {name: _write(recent[name], key_value[name], position) for name in recent}
            key_value = recent
        if recent is None or attention_mask is None or self.window is not None:
            places, length = ops.arange(ops.shape(key_value["key"])[2]), ops.shape(query)[1]
            if past is not None:
                num_past = ops.shape(past["key"])[2]
                # Not one range: LiteRT would know a sum of two sizes only when it runs.
                places = ops.concatenate([ops.arange(num_past), num_past + places], axis=0)
                position = num_past // length + position
            allowed = self._allowed(length, places, recent is not None, position)
            attention_mask = _logical_and(allowed, attention_mask)
        if past is not None:
            key_value = {name: [past[name], key_value[name]] for name in past}
        output, weights = self._attend_heads(query_heads, key_value, attention_mask, training)
        return LayerOutput(output, recent, weights)

    def call(
        self,
        query: Any,
        attention_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        *,
        mask: Any = None,
    ) -> Any:
        result = self.attend(
            query,
            combine_masks(attention_mask, mask, query.shape[0]),
            return_attention_scores=return_attention_scores,
            training=training,
        )
        return (result.output, result.weights) if return_attention_scores else result.output

    def _allowed(self, length: Any, places: Any, is_cached: bool, position: Any) -> Any:
        """Returns what causality and the window allow, bool `[1, T, S]`, or None for everything."""
        query_positions = key_positions = places
        if is_cached:
            key_positions = places // length  # each step has written T places
            last = key_positions[-1] if position is None else position
            query_positions = ops.reshape(last, (1,))
        allowed = position_mask(
            query_positions,
            key_positions,
            # In a cache of fixed size, places after `position` have not been written yet.
            causal=self.causal or position is not None,
            window=self.window,
        )
        return None if allowed is None else ops.expand_dims(allowed, 0)

    def _blocks(self, length: Any) -> Blocks | None:
        """Returns the blocks of a restricted sequence, or None if one block is enough."""
        if self.window is None or not Blocks.are_enabled():
            return None
        # A symbolic length is neither an int nor a tensor: JAX, when only shapes are computed.
        if not (isinstance(length, int) or ops.is_tensor(length)):
            return None
        blocks = Blocks.of_window(length, self.window, self.causal)
        return None if blocks.is_one else blocks

    def _attend_in_blocks(
        self, query: Any, blocks: Blocks, attention_mask: Any, training: bool | None
    ) -> Any:
        """Computes restricted attention from each block to its neighbourhood.

        Blocks become rows of the batch, so that attention needs no other form for them.
        """
        batch, length = ops.shape(query)[:2]
        projected = self._project("qkv", blocks.fill(query))  # --> [batch, place, all heads]
        keys, values = self.num_heads * self.key_dim, self.num_heads * self.value_dim
        query_rows, key_rows, value_rows = split_widths(projected, [keys, keys, values])
        # --> [batch * block, head, size, key_dim]
        query_heads = split_heads(query_rows, (-1, blocks.size), self.num_heads)
        seen = -1, blocks.seen
        key_value = {
            "key": split_heads(blocks.with_neighbours(key_rows), seen, self.num_heads),
            "value": split_heads(blocks.with_neighbours(value_rows), seen, self.num_heads),
        }
        # Places before the first and after the last position count as padding.
        real = ops.ones((batch, 1, length), "float32")
        if attention_mask is not None:
            real = real * ops.cast(attention_mask, "float32")
        real = blocks.with_neighbours(blocks.fill(ops.reshape(real, (batch, length, 1))))
        near = position_mask(
            ops.arange(blocks.size) + blocks.before,
            ops.arange(blocks.seen),
            self.causal,
            self.window,
        )
        # --> [batch * block, size, seen]
        allowed = ops.logical_and(near, ops.swapaxes(real, 1, 2) > 0)
        # --> [batch * block, size, d_model]
        output, _ = self._attend_heads(query_heads, key_value, allowed, training)
        output = ops.reshape(output, (batch, blocks.count * blocks.size, output.shape[-1]))
        return output[:, :length]

    def compute_output_shape(self, query_shape: Any) -> Any:
        return tuple(query_shape)


def _write(cached: Any, new: Any, position: Any) -> Any:
    """Writes `new` `[B, H, T, D]` into `cached` `[B, H, L, D]` at `position` * T, or appends it.

    Appending is faster with TensorFlow's CPU kernels: an update also copies the whole cache, and
    attention would include places that are not written yet.
    """
    if position is None:
        return ops.concatenate([cached, new], axis=2)
    return ops.slice_update(cached, (0, 0, position * new.shape[2], 0), new)


def _logical_and(mask: Any, other: Any) -> Any:
    if mask is None or other is None:
        return other if mask is None else mask
    return ops.logical_and(mask, other)


def _has_one_row(attention_mask: Any) -> bool:
    """True without a mask, or if the mask is the same for all queries, as padding is."""
    if attention_mask is None:
        return True
    return len(attention_mask.shape) > 1 and attention_mask.shape[-2] == 1
