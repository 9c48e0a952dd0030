"""Self-attention: of all to all, or of each position to those around it (paper, section 3.2.2)."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.attention import (
    KeyValue,
    MultiHeadAttention,
    is_step,
    split_heads,
)
from keras_transformer.layers.blocks import Blocks
from keras_transformer.layers.linear import shape_for_reshape
from keras_transformer.layers.masks import position_mask


@keras.saving.register_keras_serializable(package="keras_transformer")
class SelfAttention(MultiHeadAttention):
    """Multi-head attention of a sequence to itself (paper, section 3.2.2), with one fused kernel.

    With a window a whole sequence takes O(r·n·d) time and memory (section 4, table 1), not
    O(n²·d): it is cut into blocks of about r positions, of 64 where r is less, each of which is
    compared with what lies around it. Where what is given or asked for has n² numbers itself, a
    mask of T rows or the weights, the window is but a mask; so it is in a cache, where the queries
    are few. The results are the same, except those of a query that may see nothing: its weights
    are equal, over its block and what lies around it, or where there is a mask over all keys.

    Args:
        num_heads: number of heads, h.
        key_dim: size of a head's queries and keys, d_k.
        value_dim: size of a head's values, d_v; `key_dim` by default.
        dropout: dropout of the attention weights.
        use_bias: add biases to the projections (the paper has none).
        causal: no position sees a later one (section 3.2.3).
        window: r of restricted self-attention (section 4), None for no limit: positions at a
            distance of at most r // 2 are seen.

    Call arguments:
        query: `[B, T, d_model]`.
        attention_mask: bool, broadcastable to `[B, T, T]` (with a cache: `[B, T, L]`); padding
            is `[B, 1, T]`.
        cache: keys and values of all places, from `init_cache`. The layer adds those of
            the query and attends to all that the mask allows. The T queries are
            alternatives (beams) at one position, so the mask says whose history is
            whose; by default all that has been written is allowed, which is right for T = 1.
        position: int scalar, of the queries: their keys and values are written to the places
            `position` * T to `position` * T + T - 1. Without it they are appended, and
            the cache grows.
        return_attention_scores: also return the weights.
        training: whether dropout is on.

    Returns:
        The output `[B, T, d_model]`; with a cache a tuple of it and the new
        cache; with `return_attention_scores` the weights, float32 `[B, H, T, T]`
        (`[B, H, T, L]` with a cache of L positions), come last.

    Raises:
        ValueError: for a number of heads, a width or a window below 1.
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = False,
        causal: bool = False,
        window: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(num_heads, key_dim, value_dim, dropout, use_bias, **kwargs)
        if window is not None and window < 1:
            raise ValueError(f"window is {window}; expected at least 1, or None")
        self.causal = causal
        self.window = window

    def build(self, query_shape: Any) -> None:
        d_model, keys = query_shape[-1], self.num_heads * self.key_dim
        values = self.num_heads * self.value_dim
        self._add_projection("qkv", d_model, keys, keys, values)
        self._add_projection("output", values, d_model)
        self.weights_dropout.build((None, self.num_heads, None, None))

    def init_cache(self, batch_size: Any, length: Any) -> KeyValue:
        """Returns an empty cache for `batch_size` sentences, of `length` places (steps × T)."""
        shape = (batch_size, self.num_heads, length)
        return {
            "key": ops.zeros((*shape, self.key_dim), self.compute_dtype),
            "value": ops.zeros((*shape, self.value_dim), self.compute_dtype),
        }

    def call(
        self,
        query: Any,
        attention_mask: Any = None,
        cache: KeyValue | None = None,
        position: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Any:
        if cache is None and not return_attention_scores and _has_one_row(attention_mask):
            blocks = self._blocks(ops.shape(query)[1])
            if blocks is not None:
                return self._attend_in_blocks(query, blocks, attention_mask, training)
        few, leading = is_step(query, cache), shape_for_reshape(query)[:-1]
        dims = self.key_dim, self.key_dim, self.value_dim
        query_heads, key, value = self._project_to_heads("qkv", query, leading, *dims, few=few)
        key_value = {"key": key, "value": value}
        if cache is not None:
            key_value = {name: _add(cache[name], key_value[name], position) for name in cache}
        if cache is None or attention_mask is None or self.window is not None:
            is_cached = cache is not None
            attention_mask = self._allowed(
                query, key_value["key"], position, is_cached, attention_mask
            )
        heads, weights = self._attend(query_heads, key_value, attention_mask, training)
        outputs = [self._merge_and_project(heads, leading, few)]
        if cache is not None:
            outputs.append(key_value)
        if return_attention_scores:
            outputs.append(weights)
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    def _blocks(self, length: Any) -> Blocks | None:
        """The blocks of a sequence that is restricted and known to need more than one."""
        # On JAX a length is an int, but where shapes alone are computed, of a functional model.
        if self.window is None or not (isinstance(length, int) or ops.is_tensor(length)):
            return None
        blocks = Blocks.of_window(length, self.window, self.causal)
        return None if blocks.is_one else blocks

    def _attend_in_blocks(
        self, query: Any, blocks: Blocks, attention_mask: Any, training: bool | None
    ) -> Any:
        """What the mask would give, from the keys around each block alone.

        To what follows a block is a sentence of its own: no tensor has more than four dimensions.
        """
        batch, length = ops.shape(query)[:2]
        rows = self._project("qkv", blocks.fill(query))  # --> [batch, place, dims of all heads]
        keys = self.num_heads * self.key_dim
        query_rows, key_rows, value_rows = ops.split(rows, [keys, 2 * keys], axis=-1)
        seen = batch * blocks.count, blocks.seen
        key_value = {
            "key": split_heads(blocks.with_neighbours(key_rows), seen, self.key_dim),
            "value": split_heads(blocks.with_neighbours(value_rows), seen, self.value_dim),
        }
        query_heads = split_heads(query_rows, (batch * blocks.count, blocks.size), self.key_dim)
        # What lies before the first place and behind the last is no more than padding.
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
        allowed = ops.logical_and(near, ops.swapaxes(real, 1, 2) > 0)  # --> [block, b, seen]
        heads, _ = self._attend(query_heads, key_value, allowed, training)
        output = self._merge_and_project(heads, (batch, blocks.count * blocks.size))
        return output[:, :length]

    def _allowed(
        self, query: Any, key: Any, position: Any, is_cached: bool, attention_mask: Any
    ) -> Any:
        """What positions, causality, the window and `attention_mask` allow together."""
        length, places = ops.shape(query)[1], ops.arange(ops.shape(key)[2])
        query_positions, key_positions = ops.arange(length), places
        if is_cached:
            key_positions = places // length
            last = key_positions[-1] if position is None else position
            query_positions = ops.reshape(last, (1,))
        allowed = position_mask(
            query_positions,
            key_positions,
            # What lies behind `position` in a cache has not been written yet.
            causal=self.causal or position is not None,
            window=self.window,
        )
        if allowed is None:
            return attention_mask
        allowed = ops.expand_dims(allowed, 0)  # --> [1, T, S]
        return allowed if attention_mask is None else ops.logical_and(allowed, attention_mask)

    def compute_output_shape(self, query_shape: Any) -> Any:
        return tuple(query_shape)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "causal": self.causal, "window": self.window}


def _add(cached: Any, new: Any, position: Any) -> Any:
    """Adds `new` `[B, H, T, D]` to `cached` `[B, H, L, D]`: at the end, or at `position` * T.

    At the end by a copy: TensorFlow on a CPU copies the whole to write into it, too, and what
    is not there yet need not be attended to.
    """
    if position is None:
        return ops.concatenate([cached, new], axis=2)
    return ops.slice_update(cached, (0, 0, position * new.shape[2], 0), new)


def _has_one_row(attention_mask: Any) -> bool:
    """Whether the mask, if there is one, is known to be the same for all queries, as padding is."""
    if attention_mask is None:
        return True
    return len(attention_mask.shape) > 1 and attention_mask.shape[-2] == 1
