"""Scaled dot-product attention, self-attention and cross-attention (paper, sections 3.2 and 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.layers import fast_paths
from keras_transformer.layers.base import call_with_implicit_masks, shows_arguments
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.masks import Blocks, both, position_mask
from keras_transformer.layers.projections import LinearLayer

# One layer's keys `[B, H, L, d_k]` and values `[B, H, L, d_v]`.
KeyValue = dict[str, Any]


def scaled_dot_product_attention(
    query: Any, key: Any, value: Any, attention_mask: Any = None, dropout: Any = None
) -> tuple[Any, Any]:
    """Computes softmax(QKᵀ / √d_k) V (paper, equation 1), with the softmax in float32.

    Args:
        query: `[..., T, d_k]`.
        key: `[..., S, d_k]`.
        value: `[..., S, d_v]`.
        attention_mask: bool, broadcastable to `[..., T, S]`; True may be attended to.
        dropout: function applied to the weights before they are multiplied with the values.

    Returns:
        The output `[..., T, d_v]` in the dtype of the values, and the weights
        `[..., T, S]` in float32, before dropout.

    Example:
    >>> query, memory = keras.ops.ones((1, 2, 4)), keras.ops.ones((1, 3, 4))
    >>> output, weights = scaled_dot_product_attention(query, memory, memory)
    >>> tuple(output.shape), tuple(weights.shape)
    ((1, 2, 4), (1, 2, 3))
    """
    query = ops.multiply(query, key.shape[-1] ** -0.5)
    weights = attention_weights(ops.matmul(query, ops.swapaxes(key, -1, -2)), attention_mask)
    dropped = ops.cast(weights, value.dtype)
    return ops.matmul(dropped if dropout is None else dropout(dropped), value), weights


def attention_weights(scores: Any, attention_mask: Any) -> Any:
    """Returns the softmax of the scores `[..., T, S]` that a mask allows, in float32."""
    scores = ops.cast(scores, "float32")
    if attention_mask is not None:
        # The bias is finite, so that a row without any allowed key gets equal weights, not NaN.
        # On a CPU an addition broadcasts over heads much faster than `where`.
        scores = scores + (ops.cast(attention_mask, "float32") - 1.0) * 1e9
    return ops.softmax(scores, axis=-1)


def split_widths(inputs: Any, widths: Sequence[int]) -> list[Any]:
    """Splits the last axis into parts with the given widths.

    `ops.split` with a list of ends is not used: it computes the widths in the graph, and LiteRT
    then reads uninitialized memory.
    """
    if len(set(widths)) == 1:
        parts: list[Any] = ops.split(inputs, len(widths), axis=-1)
        return parts
    ends = np.cumsum(widths).tolist()
    return [inputs[..., end - width : end] for end, width in zip(ends, widths, strict=True)]


def split_heads(rows: Any, shape: tuple[Any, ...], num_heads: int) -> Any:
    """Splits rows `[B * T, H * dim]` into heads `[B, H, T, dim]`."""
    # --> [B, T, H, dim] --> [B, H, T, dim]
    heads = ops.reshape(rows, (*shape, num_heads, rows.shape[-1] // num_heads))
    return fast_paths.swap_heads(heads)


def combine_masks(attention_mask: Any, padding_mask: Any) -> Any:
    """Returns where both masks are True, broadcastable to `[B, T, S]`, or None without masks.

    Args:
        attention_mask: bool `[B, S]` or broadcastable to `[B, T, S]`, or None.
        padding_mask: bool `[B, S]`, or None.
    """
    if attention_mask is not None:
        if len(attention_mask.shape) not in (2, 3):
            raise ValueError(
                f"attention_mask has the shape {tuple(attention_mask.shape)}. It must be [batch, "
                "keys] or [batch, queries, keys]."
            )
        if len(attention_mask.shape) == 2:
            attention_mask = ops.expand_dims(attention_mask, 1)
    if padding_mask is None:
        return attention_mask
    if len(padding_mask.shape) != 2:
        raise ValueError(
            f"The mask has the shape {tuple(padding_mask.shape)}. It must be [batch, positions], "
            "True for real positions."
        )
    # --> [B, 1, S], the same for all queries
    return both(attention_mask, ops.expand_dims(padding_mask, 1))


class MultiHeadAttention(LinearLayer):
    """Computes Concat(head_1, ..., head_h) W^O (paper, section 3.2.2).

    The base of `SelfAttention` and `CrossAttention`. They implement `attend`, which always
    returns the output and the weights. Their `call` returns the output, or with
    `return_attention_scores` both.
    """

    __call__ = call_with_implicit_masks

    @shows_arguments(LinearLayer.__init__)
    def __init__(
        self,
        num_heads: int,
        key_dim: int | None = None,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = False,
        *args: Any,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        sizes = {"num_heads": num_heads, "key_dim": key_dim, "value_dim": value_dim}
        for name, size in sizes.items():
            if size is not None and size < 1:
                raise ValueError(f"{name} is {size}, but it must be at least 1.")
        self.num_heads = num_heads
        self.key_dim: Any = key_dim  # None until the layer is built
        self.value_dim: Any = value_dim
        self.dropout = dropout
        self.use_bias = use_bias
        self.weights_dropout = Dropout(dropout, name="weights_dropout", dtype=self.dtype_policy)

    def _build_heads(self, d_model: int) -> tuple[int, int]:
        """Sets the default sizes, and returns the widths of all queries and of all values."""
        if self.key_dim is None:
            if d_model % self.num_heads:
                raise ValueError(
                    f"The width of the input is {d_model}, which is not a multiple of num_heads "
                    f"({self.num_heads}). Set key_dim."
                )
            self.key_dim = d_model // self.num_heads
        if self.value_dim is None:
            self.value_dim = self.key_dim
        self.weights_dropout.build((None, self.num_heads, None, None))
        return self.num_heads * self.key_dim, self.num_heads * self.value_dim

    def init_cache(self, batch_size: Any, length: Any, queries: int = 1) -> KeyValue:
        """Returns an empty cache for `batch_size` sentences, `length` steps, and T = `queries`."""
        shape = (batch_size, self.num_heads, length * queries)
        return {
            "key": ops.zeros((*shape, self.key_dim), self.compute_dtype),
            "value": ops.zeros((*shape, self.value_dim), self.compute_dtype),
        }

    def _project_to_heads(self, name: str, inputs: Any, *dims: int) -> list[Any]:
        """Projects `[B, T, d]` to heads `[B, H, T, dim]`, one tensor for each of `dims`."""
        rows = self._project(name, ops.reshape(inputs, (-1, inputs.shape[-1])), self.use_bias)
        shape = fast_paths.shape_for_reshape(inputs)[:-1]
        if len(set(dims)) == 1:  # all parts are transposed at once
            heads = split_heads(rows, shape, len(dims) * self.num_heads)
            return [heads] if len(dims) == 1 else ops.split(heads, len(dims), axis=1)
        parts = split_widths(rows, [self.num_heads * dim for dim in dims])
        return [split_heads(part, shape, self.num_heads) for part in parts]

    def _attend_heads(
        self,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any,
        training: bool | None,
        attend: Any = scaled_dot_product_attention,
    ) -> tuple[Any, Any]:
        """Attends from heads `[B, H, T, d_k]`: the output `[B, T, d_model]`, and the weights."""
        if attention_mask is not None:
            attention_mask = ops.expand_dims(attention_mask, -3)  # the same for all heads

        def drop(weights: Any) -> Any:
            return self.weights_dropout(weights, training=training)

        heads, weights = attend(query, key, value, attention_mask, drop)
        heads = fast_paths.swap_heads(heads)  # --> [B, T, H, d_v]
        shape, width = fast_paths.shape_for_reshape(heads)[:2], heads.shape[2] * heads.shape[3]
        rows = self._project("output", ops.reshape(heads, (-1, width)), self.use_bias)
        return ops.reshape(rows, (*shape, rows.shape[-1])), weights


@keras.saving.register_keras_serializable(package="keras_transformer")
class CrossAttention(MultiHeadAttention):
    """Multi-head attention from one sequence to another (paper, section 3.2.3).

    Queries have one kernel; keys and values share another.

    Args:
        num_heads, key_dim and others: as in `SelfAttention`.

    Call arguments:
        query: `[B, T, d_model]`.
        value: `[B, S, d_memory]`, projected to keys and values.
        attention_mask: bool `[B, S]` for padding, or broadcastable to `[B, T, S]`; True may be
            attended to.
        value_mask: bool `[B, S]`, False for padding; the Keras mask of `value` by default.
        mask: bool `[B, T]`, the Keras mask of `query`, which the output keeps.
        return_attention_scores: also return the attention weights.
        training: whether dropout is on.

    Returns:
        The output `[B, T, d_model]`; with `return_attention_scores` a tuple of the output and
        the weights, float32 `[B, H, T, S]`.

    Example:
    >>> layer = CrossAttention(num_heads=2, key_dim=4)
    >>> target, memory = keras.ops.ones((1, 3, 8)), keras.ops.ones((1, 5, 8))
    >>> tuple(layer(target, memory).shape)
    (1, 3, 8)
    """

    def build(self, query_shape: Any, value_shape: Any = None) -> None:
        d_model, memory_width = query_shape[-1], (value_shape or query_shape)[-1]
        keys, values = self._build_heads(d_model)
        self._add_projection("query", d_model, keys, use_bias=self.use_bias)
        self._add_projection("key_value", memory_width, keys, values, use_bias=self.use_bias)
        self._add_projection("output", values, d_model, use_bias=self.use_bias)

    def project(self, value: Any) -> KeyValue:
        """Returns the keys `[B, H, S, d_k]` and values `[B, H, S, d_v]` of `value`."""
        if not self.built:
            raise ValueError(
                f"{self.name} is not built, because its decoder layer was built without a memory. "
                "Use a new layer."
            )
        value = ops.cast(value, self.compute_dtype)
        key, value = self._project_to_heads("key_value", value, self.key_dim, self.value_dim)
        return {"key": key, "value": value}

    def attend(
        self,
        query: Any,
        value: Any,
        attention_mask: Any = None,
        training: bool | None = None,
    ) -> tuple[Any, Any]:
        """Attends to `value`, or to the result of `project`; returns the output and the weights."""
        memory: KeyValue = value if isinstance(value, dict) else self.project(value)
        [heads] = self._project_to_heads("query", query, self.key_dim)
        return self._attend_heads(heads, memory["key"], memory["value"], attention_mask, training)

    def call(
        self,
        query: Any,
        value: Any,
        attention_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        *,
        value_mask: Any = None,
        mask: Any = None,
    ) -> Any:
        attention_mask = combine_masks(attention_mask, value_mask)
        result = self.attend(query, value, attention_mask, training)
        return result if return_attention_scores else result[0]

    def compute_output_shape(self, query_shape: Any, value_shape: Any = None) -> Any:
        return tuple(query_shape)


@keras.saving.register_keras_serializable(package="keras_transformer")
class SelfAttention(MultiHeadAttention):
    """Multi-head attention of a sequence to itself (paper, section 3.2.3).

    Queries, keys and values share one fused kernel.

    With a window (restricted self-attention, section 4 and Table 1) a whole sequence takes
    O(r·n·d) time and memory instead of O(n²·d): it is cut into blocks of at least 64 positions,
    and each block is compared only with its neighbourhood. In four cases the window is an
    ordinary mask: in a cache, with a mask of T rows, if the weights are returned, and if the
    attribute `window_in_blocks` is False. The results are equal, except for a query whose mask
    allows no key: it gets equal weights, over its neighbourhood or over all keys.

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

    @shows_arguments(MultiHeadAttention.__init__)
    def __init__(self, *args: Any, causal: bool = False, window: int | None = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if window is not None and window < 1:
            raise ValueError(f"window is {window}. It must be at least 1, or None.")
        self.causal = causal
        self.window = window
        self.layer_index: int | None = None  # index in a `DecodeState`; a stack sets it
        # False for a runtime that plans its memory by static shapes: the number and the size of
        # blocks depend on the length, so the runtime would make a new plan in every call.
        self.window_in_blocks = True

    def build(self, input_shape: Any) -> None:
        d_model = input_shape[-1]
        keys, values = self._build_heads(d_model)
        self._add_projection("qkv", d_model, keys, keys, values, use_bias=self.use_bias)
        self._add_projection("output", values, d_model, use_bias=self.use_bias)

    def attend(
        self,
        query: Any,
        attention_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        state: Any = None,
    ) -> tuple[Any, Any]:
        """Attends to the whole sequence, or in a decode step to the entries of its layer.

        Args:
            query: `[B, T, d_model]`.
            attention_mask: bool, broadcastable to `[B, T, T]`. The mask of a `state` replaces it.
            return_attention_scores: compute the weights even where blocks would avoid them.
            training: whether dropout is on.
            state: the `DecodeState` of the decoder, to which this step is written.

        Returns:
            The output, and the weights `[B, H, T, T or L]`, None if computed in blocks.
        """
        if state is None and not return_attention_scores and _has_one_row(attention_mask):
            window = self.window if self.window_in_blocks else None
            blocks = Blocks.of_window(ops.shape(query)[1], window, self.causal)
            if blocks is not None:
                return self._attend_in_blocks(query, blocks, attention_mask, training), None
        dims = self.key_dim, self.key_dim, self.value_dim
        heads, key, value = self._project_to_heads("qkv", query, *dims)
        if state is not None:
            key, value = state.write(state.index(self), key, value)
            mask = state.mask(self.window)
            return self._attend_heads(heads, key, value, mask, training, state.attend)
        if self.causal or self.window is not None:
            positions = ops.arange(ops.shape(key)[2])
            allowed = position_mask(positions, positions, self.causal, self.window)
            attention_mask = both(ops.expand_dims(allowed, 0), attention_mask)
        return self._attend_heads(heads, key, value, attention_mask, training)

    def call(
        self,
        query: Any,
        attention_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        *,
        mask: Any = None,
    ) -> Any:
        attention_mask = combine_masks(attention_mask, mask)
        result = self.attend(query, attention_mask, return_attention_scores, training)
        return result if return_attention_scores else result[0]

    def _attend_in_blocks(
        self, query: Any, blocks: Blocks, attention_mask: Any, training: bool | None
    ) -> Any:
        """Computes restricted attention from each block to its neighbourhood.

        Blocks become rows of the batch, so that attention needs no other form for them.
        """
        batch, length = ops.shape(query)[:2]
        # --> [batch, position, all heads]
        projected = self._project("qkv", blocks.fill(query), self.use_bias)
        keys, values = self.num_heads * self.key_dim, self.num_heads * self.value_dim
        query_rows, key_rows, value_rows = split_widths(projected, [keys, keys, values])
        # --> [batch * block, head, size, key_dim]
        query_heads = split_heads(query_rows, (-1, blocks.size), self.num_heads)
        seen = -1, blocks.seen
        key = split_heads(blocks.with_neighbours(key_rows), seen, self.num_heads)
        value = split_heads(blocks.with_neighbours(value_rows), seen, self.num_heads)
        # Entries before the first and after the last position count as padding.
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
        output, _ = self._attend_heads(query_heads, key, value, allowed, training)
        output = ops.reshape(output, (batch, blocks.count * blocks.size, output.shape[-1]))
        return output[:, :length]


def _has_one_row(attention_mask: Any) -> bool:
    """True without a mask, or if the mask is the same for all queries, as padding is."""
    if attention_mask is None:
        return True
    return len(attention_mask.shape) > 1 and attention_mask.shape[-2] == 1
