"""Scaled dot-product attention, self-attention and cross-attention (paper, sections 3.2 and 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer.layers import fast_paths
from keras_transformer.layers.base import MaskedLayer, new_initializer, shows_arguments
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.masks import Blocks, position_mask
from keras_transformer.layers.projections import ProjectingLayer

# One layer's keys `[B, H, L, d_k]` and values `[B, H, L, d_v]`.
KeyValue = dict[str, Any]


class BlockCache(NamedTuple):
    """The cache of a layer or of all layers, of which a decode step writes only the last part."""

    recent: Any
    past: Any
    place: Any


class LayerOutput(NamedTuple):
    """The result of `attend` of the attention layers, and of `decode` of the decoder."""

    output: Any
    cache: Any = None
    weights: Any = None


def scaled_dot_product_attention(
    query: Any, key: Any, value: Any, attention_mask: Any = None, dropout: Any = None
) -> tuple[Any, Any]:
    """Computes softmax(QKᵀ / √d_k) V (paper, equation 1), with the softmax in float32.

    Args:
        query: `[..., T, d_k]`.
        key: `[..., S, d_k]`, or a list of two such tensors, the second with a constant size. They
            are used like their concatenation, but without copying them.
        value: `[..., S, d_v]`, or a list like `key`.
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
    keys = key if isinstance(key, list) else [key]
    values = value if isinstance(value, list) else [value]
    query = ops.multiply(query, keys[0].shape[-1] ** -0.5)
    parts = [ops.matmul(query, ops.swapaxes(each, -1, -2)) for each in keys]
    scores = parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=-1)
    scores = ops.cast(scores, "float32")
    if attention_mask is not None:
        # The bias is finite, so that a row without any allowed key gets equal weights, not NaN.
        # On a CPU an addition broadcasts over heads much faster than `where`.
        scores = scores + (ops.cast(attention_mask, "float32") - 1.0) * 1e9
    weights = ops.softmax(scores, axis=-1)
    dropped = ops.cast(weights, values[0].dtype)
    if dropout is not None:
        dropped = dropout(dropped)
    if len(values) == 1:
        return ops.matmul(dropped, values[0]), weights
    # Counted from the end, where the size is constant, so that LiteRT knows all shapes of a step.
    size = values[1].shape[-2]
    first, second = dropped[..., :-size], dropped[..., -size:]
    return ops.matmul(first, values[0]) + ops.matmul(second, values[1]), weights


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


def combine_masks(attention_mask: Any, padding_mask: Any, batch: int | None = None) -> Any:
    """Returns where both masks are True, broadcastable to `[B, T, S]`, or None without masks."""
    if attention_mask is not None:
        if len(attention_mask.shape) not in (2, 3):
            raise ValueError(
                f"attention_mask has the shape {tuple(attention_mask.shape)}. It must be [batch, "
                "keys] or [batch, queries, keys]."
            )
        rows = attention_mask.shape[0]
        if batch is not None and rows is not None and rows not in (1, batch):
            raise ValueError(
                f"attention_mask has the shape {tuple(attention_mask.shape)}, but the batch has "
                f"{batch} rows. Give [batch, keys] or [batch, queries, keys]; a mask [queries, "
                "keys] of all rows as mask[None]."
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
    padding_mask = ops.expand_dims(padding_mask, 1)  # --> [B, 1, S], the same for all queries
    if attention_mask is None:
        return padding_mask
    return ops.logical_and(attention_mask, padding_mask)


class _FusedInitializer(keras.initializers.Initializer):
    """Initializes each part of a fused kernel as if the parts were separate kernels."""

    def __init__(self, initializer: Any, widths: tuple[int, ...]):
        self.initializer = initializer
        self.widths = widths

    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        parts = [
            new_initializer(self.initializer)((shape[0], width), dtype) for width in self.widths
        ]
        return ops.concatenate(parts, axis=-1)


class MultiHeadAttention(ProjectingLayer, MaskedLayer):
    """Computes Concat(head_1, ..., head_h) W^O (paper, section 3.2.2).

    The base of `SelfAttention` and `CrossAttention`. They implement `attend`, which always
    returns a `LayerOutput`. Their `call` returns the output, or with `return_attention_scores` a
    tuple of the output and the weights.
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int | None = None,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = False,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        sizes = {"num_heads": num_heads, "key_dim": key_dim, "value_dim": value_dim}
        for name, size in sizes.items():
            if size is not None and size < 1:
                raise ValueError(f"{name} is {size}, but it must be at least 1.")
        self.num_heads = num_heads
        self.key_dim: Any = key_dim  # None until the layer is built
        self.value_dim: Any = value_dim
        self.dropout = dropout
        self.use_bias = use_bias
        self.kernel_initializer = kernel_initializer
        self.bias_initializer = bias_initializer
        self.kernel_regularizer = kernel_regularizer
        self.bias_regularizer = bias_regularizer
        self.weights_dropout = Dropout(dropout, name="weights_dropout", dtype=self.dtype_policy)

    def _set_head_sizes(self, d_model: int) -> None:
        """Sets the default of `key_dim` and `value_dim`, which depends on the input."""
        if self.key_dim is None:
            if d_model % self.num_heads:
                raise ValueError(
                    f"The width of the input is {d_model}, which is not a multiple of num_heads "
                    f"({self.num_heads}). Set key_dim."
                )
            self.key_dim = d_model // self.num_heads
        if self.value_dim is None:
            self.value_dim = self.key_dim

    def _add_projection(self, name: str, inputs: int, *widths: int) -> None:
        """Adds a kernel `[inputs, sum(widths)]`, initialized as one kernel for each width."""
        initializer = _FusedInitializer(self.kernel_initializer, widths)
        shape = (inputs, sum(widths))
        self._add_matrix(f"{name}_kernel", shape, initializer, self.kernel_regularizer)
        if self.use_bias:
            bias = self.add_weight(
                shape=(sum(widths),),
                initializer=new_initializer(self.bias_initializer),
                regularizer=self.bias_regularizer,
                name=f"{name}_bias",
            )
            setattr(self, f"{name}_bias", bias)

    def _project(self, name: str, inputs: Any) -> Any:
        outputs = self._multiply(inputs, f"{name}_kernel")
        if self.use_bias:
            outputs = outputs + ops.cast(getattr(self, f"{name}_bias"), inputs.dtype)
        return outputs

    def _project_to_heads(self, name: str, inputs: Any, *dims: int) -> list[Any]:
        """Projects `[B, T, d]` to heads `[B, H, T, dim]`, one tensor for each of `dims`."""
        rows = self._project(name, ops.reshape(inputs, (-1, inputs.shape[-1])))
        shape = fast_paths.shape_for_reshape(inputs)[:-1]
        if len(set(dims)) == 1:  # one exchange of axes for all of them
            heads = split_heads(rows, shape, len(dims) * self.num_heads)
            return [heads] if len(dims) == 1 else ops.split(heads, len(dims), axis=1)
        parts = split_widths(rows, [self.num_heads * dim for dim in dims])
        return [split_heads(part, shape, self.num_heads) for part in parts]

    def _attend_heads(
        self, query: Any, key_value: KeyValue, attention_mask: Any, training: bool | None
    ) -> tuple[Any, Any]:
        """Attends from query heads `[B, H, T, d_k]`.

        `key_value` has tensors, or lists as in `scaled_dot_product_attention`.

        Returns:
            The output `[B, T, d_model]`, and the weights `[B, H, T, S]`.
        """
        if attention_mask is not None:
            attention_mask = ops.expand_dims(attention_mask, -3)  # the same for all heads
        heads, weights = scaled_dot_product_attention(
            query,
            key_value["key"],
            key_value["value"],
            attention_mask,
            lambda weights: self.weights_dropout(weights, training=training),
        )
        heads = fast_paths.swap_heads(heads)  # --> [B, T, H, d_v]
        shape, width = fast_paths.shape_for_reshape(heads)[:2], heads.shape[2] * heads.shape[3]
        rows = self._project("output", ops.reshape(heads, (-1, width)))
        return ops.reshape(rows, (*shape, rows.shape[-1])), weights


@keras.saving.register_keras_serializable(package="keras_transformer")
class CrossAttention(MultiHeadAttention):
    """Multi-head attention from one sequence to another (paper, section 3.2.3).

    Queries have one kernel; keys and values share another.

    Args:
        num_heads: number of heads, h.
        key_dim: size of a head's queries and keys, d_k; `d_model / num_heads` by default.
        value_dim: size of a head's values, d_v; `key_dim` by default.
        dropout: dropout of the attention weights.
        use_bias: add biases to the projections (the paper has none).
        kernel_initializer: initializer of each projection.
        bias_initializer: initializer of the biases.
        kernel_regularizer: a loss that depends on the kernels.
        bias_regularizer: a loss that depends on the biases.

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
        self._set_head_sizes(query_shape[-1])
        d_model, keys = query_shape[-1], self.num_heads * self.key_dim
        values = self.num_heads * self.value_dim
        self._add_projection("query", d_model, keys)
        self._add_projection("key_value", (value_shape or query_shape)[-1], keys, values)
        self._add_projection("output", values, d_model)
        self.weights_dropout.build((None, self.num_heads, None, None))

    def project(self, value: Any) -> KeyValue:
        """Returns the keys `[B, H, S, d_k]` and values `[B, H, S, d_v]` of `value`."""
        value = ops.cast(value, self.compute_dtype)
        key, value = self._project_to_heads("key_value", value, self.key_dim, self.value_dim)
        return {"key": key, "value": value}

    def attend(
        self,
        query: Any,
        key_value: KeyValue,
        attention_mask: Any = None,
        training: bool | None = None,
    ) -> LayerOutput:
        """Attends to keys and values from `project`, and returns them as the `cache`."""
        [query_heads] = self._project_to_heads("query", query, self.key_dim)
        output, weights = self._attend_heads(query_heads, key_value, attention_mask, training)
        return LayerOutput(output, key_value, weights)

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
        attention_mask = combine_masks(attention_mask, value_mask, query.shape[0])
        result = self.attend(query, self.project(value), attention_mask, training)
        return (result.output, result.weights) if return_attention_scores else result.output

    def compute_output_shape(self, query_shape: Any, value_shape: Any = None) -> Any:
        return tuple(query_shape)


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

    @shows_arguments(MultiHeadAttention.__init__)
    def __init__(self, *args: Any, causal: bool = False, window: int | None = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
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
