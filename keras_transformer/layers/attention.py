"""Scaled dot-product and multi-head attention (paper, section 3.2)."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.masks import mask_to_bias, position_mask

# One layer's keys `[N, H, L, d_k]` and values `[N, H, L, d_v]`.
KeyValue = dict[str, Any]


def scaled_dot_product_attention(
    query: Any, key: Any, value: Any, attention_mask: Any = None, dropout: Any = None
) -> tuple[Any, Any]:
    """softmax(QKᵀ / √d_k) V (paper, equation 1); the softmax is computed in float32.

    Args:
        query: `[..., T, d_k]`.
        key: `[..., S, d_k]`.
        value: `[..., S, d_v]`.
        attention_mask: bool, broadcastable to `[..., T, S]`; True may be attended to.
        dropout: function applied to the weights before they meet the values.

    Returns:
        The output `[..., T, d_v]` in the values' dtype and the weights
        `[..., T, S]` in float32, before dropout.
    """
    query = query * ops.cast(key.shape[-1] ** -0.5, query.dtype)
    scores = ops.cast(ops.matmul(query, ops.swapaxes(key, -1, -2)), "float32")
    if attention_mask is not None:
        scores = scores + mask_to_bias(attention_mask)
    weights = ops.softmax(scores, axis=-1)
    dropped = ops.cast(weights, value.dtype)
    if dropout is not None:
        dropped = dropout(dropped)
    return ops.matmul(dropped, value), weights


class _FusedGlorot(keras.initializers.Initializer):
    """Glorot uniform by slice: a fused kernel starts as its parts would alone."""

    def __init__(self, widths: tuple[int, ...], seed: int | None = None):
        self.widths = widths
        self.seed = seed

    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        parts = [
            keras.initializers.GlorotUniform(None if self.seed is None else self.seed + i)(
                (shape[0], width), dtype
            )
            for i, width in enumerate(self.widths)
        ]
        return ops.concatenate(parts, axis=-1)


class _MultiHeadAttention(keras.layers.Layer):
    """What self- and cross-attention share: sizes, heads, the output projection."""

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        value_dim = key_dim if value_dim is None else value_dim
        sizes = {"num_heads": num_heads, "key_dim": key_dim, "value_dim": value_dim}
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name} is {size}; expected at least 1")
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.dropout = dropout
        self.use_bias = use_bias
        self.weights_dropout = Dropout(dropout, name="weights_dropout", dtype=self.dtype_policy)

    def _add_projection(self, name: str, inputs: int, *widths: int) -> None:
        kernel = self.add_weight(
            shape=(inputs, sum(widths)), initializer=_FusedGlorot(widths), name=f"{name}_kernel"
        )
        setattr(self, f"{name}_kernel", kernel)
        if self.use_bias:
            bias = self.add_weight(shape=(sum(widths),), initializer="zeros", name=f"{name}_bias")
            setattr(self, f"{name}_bias", bias)

    def _project(self, name: str, inputs: Any) -> Any:
        outputs = ops.matmul(inputs, getattr(self, f"{name}_kernel"))
        return outputs + getattr(self, f"{name}_bias") if self.use_bias else outputs

    def _split_heads(self, inputs: Any, dim: int) -> Any:
        batch, length = ops.shape(inputs)[:2]
        heads = ops.reshape(inputs, (batch, length, self.num_heads, dim))
        return ops.transpose(heads, (0, 2, 1, 3))  # --> [batch, heads, length, dim]

    def _merge_heads(self, heads: Any) -> Any:
        batch, _, length, _ = ops.shape(heads)
        merged = ops.transpose(heads, (0, 2, 1, 3))  # --> [batch, length, heads, value_dim]
        return ops.reshape(merged, (batch, length, self.num_heads * self.value_dim))

    def _attend(
        self, query: Any, key_value: KeyValue, attention_mask: Any, training: bool | None
    ) -> tuple[Any, Any]:
        if attention_mask is not None:
            attention_mask = ops.expand_dims(attention_mask, -3)  # the same for all heads
        return scaled_dot_product_attention(
            query,
            key_value["key"],
            key_value["value"],
            attention_mask,
            lambda weights: self.weights_dropout(weights, training=training),
        )

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        # Traced, since what is returned depends on `cache` and `return_attention_scores`.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
        }


@keras.saving.register_keras_serializable(package="keras_transformer")
class SelfAttention(_MultiHeadAttention):
    """Multi-head attention of a sequence to itself (paper, section 3.2.2), with one fused kernel.

    Args:
        num_heads: number of heads, h.
        key_dim: size of a head's queries and keys, d_k.
        value_dim: size of a head's values, d_v; `key_dim` by default.
        dropout: dropout of the attention weights.
        use_bias: add biases to the projections (the paper has none).
        causal: no position sees a later one (section 3.2.3).
        window: r of restricted self-attention (section 4), None for no limit.

    Call arguments:
        query: `[B, T, d_model]`.
        attention_mask: bool, broadcastable to `[B, T, T]` (with a cache: `[B, T, L]`).
        cache: keys and values of all positions, from `init_cache`. The layer
            writes the query's own at `position` and attends to them all.
        position: int scalar; the place of the query, T = 1, in the cache.
        return_attention_scores: also return the weights.
        training: whether dropout is on.

    Returns:
        The output `[B, T, d_model]`; with a cache a tuple of it and the new
        cache; with `return_attention_scores` the weights `[B, H, T, S]` come last.
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
        """Returns an empty cache for `batch_size` sequences of at most `length` tokens."""
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
        keys = self.num_heads * self.key_dim
        q, k, v = ops.split(self._project("qkv", query), (keys, 2 * keys), axis=-1)
        query_heads = self._split_heads(q, self.key_dim)
        key_value = {
            "key": self._split_heads(k, self.key_dim),
            "value": self._split_heads(v, self.value_dim),
        }
        query_positions = ops.arange(ops.shape(query)[1])
        if cache is not None:
            key_value = {name: _write(cache[name], key_value[name], position) for name in cache}
            query_positions = query_positions + position
        allowed = position_mask(
            query_positions,
            ops.arange(ops.shape(key_value["key"])[2]),
            # What lies behind `position` in a cache has not been written yet.
            causal=self.causal or cache is not None,
            window=self.window,
        )
        if allowed is not None:
            allowed = ops.expand_dims(allowed, 0)  # --> [1, T, S]
            if attention_mask is not None:
                allowed = ops.logical_and(allowed, attention_mask)
            attention_mask = allowed
        heads, weights = self._attend(query_heads, key_value, attention_mask, training)
        outputs = [self._project("output", self._merge_heads(heads))]
        if cache is not None:
            outputs.append(key_value)
        if return_attention_scores:
            outputs.append(weights)
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    def compute_output_shape(self, query_shape: Any) -> Any:
        return tuple(query_shape)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "causal": self.causal, "window": self.window}


def _write(cached: Any, new: Any, position: Any) -> Any:
    """Writes `new` `[N, H, 1, D]` into `cached` `[N, H, L, D]` at `position`.

    A scatter, because `slice_update` becomes an op that only XLA knows, and
    because TensorFlow scatters in place where nobody else holds the tensor.
    """
    batch, heads, length, dim = ops.shape(cached)
    rows = ops.arange(batch * heads)
    indices = ops.stack([rows, ops.ones_like(rows) * ops.cast(position, rows.dtype)], axis=-1)
    flat = ops.reshape(cached, (batch * heads, length, dim))
    flat = ops.scatter_update(flat, indices, ops.reshape(new, (batch * heads, dim)))
    return ops.reshape(flat, (batch, heads, length, dim))


@keras.saving.register_keras_serializable(package="keras_transformer")
class CrossAttention(_MultiHeadAttention):
    """Multi-head attention of one sequence to another (paper, section 3.2.3).

    Args:
        num_heads, key_dim, value_dim, dropout, use_bias: as in `SelfAttention`.

    Call arguments:
        query: `[N, T, d_model]`.
        value: `[B, S, d_memory]`, from which keys and values are projected;
            not needed with a cache.
        attention_mask: bool, broadcastable to `[B, T, S]`.
        cache: what `project(value)` returned. N may be a multiple K·B of its
            batch (K beams of each sentence, side by side): keys and values are
            not repeated, but each sentence's beams become positions of one query.
        return_attention_scores: also return the weights.
        training: whether dropout is on.

    Returns:
        The output `[N, T, d_model]`; with `return_attention_scores` a tuple of
        it and the weights `[N, H, T, S]`.
    """

    def build(self, query_shape: Any, value_shape: Any = None) -> None:
        d_model, keys = query_shape[-1], self.num_heads * self.key_dim
        values = self.num_heads * self.value_dim
        self._add_projection("query", d_model, keys)
        self._add_projection("key_value", (value_shape or query_shape)[-1], keys, values)
        self._add_projection("output", values, d_model)
        self.weights_dropout.build((None, self.num_heads, None, None))

    def project(self, value: Any) -> KeyValue:
        """Returns the keys `[B, H, S, d_k]` and values `[B, H, S, d_v]` of `value`."""
        keys = self.num_heads * self.key_dim
        value = ops.cast(value, self.compute_dtype)
        k, v = ops.split(self._project("key_value", value), (keys,), axis=-1)
        return {
            "key": self._split_heads(k, self.key_dim),
            "value": self._split_heads(v, self.value_dim),
        }

    def call(
        self,
        query: Any,
        value: Any = None,
        attention_mask: Any = None,
        cache: KeyValue | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Any:
        key_value = self.project(value) if cache is None else cache
        rows, length = ops.shape(query)[:2]
        projected = self._project("query", query)
        if cache is not None:
            batch = ops.shape(key_value["key"])[0]
            beams = rows // batch
            # --> [batch, beams * length, heads * key_dim]
            projected = ops.reshape(
                projected, (batch, beams * length, self.num_heads * self.key_dim)
            )
        heads, weights = self._attend(
            self._split_heads(projected, self.key_dim), key_value, attention_mask, training
        )
        merged = self._merge_heads(heads)
        if cache is not None:
            merged = ops.reshape(merged, (rows, length, self.num_heads * self.value_dim))
        output = self._project("output", merged)
        if not return_attention_scores:
            return output
        if cache is not None:
            source_length = ops.shape(weights)[-1]
            shape = (batch, self.num_heads, beams, length, source_length)
            weights = ops.transpose(ops.reshape(weights, shape), (0, 2, 1, 3, 4))
            weights = ops.reshape(weights, (rows, self.num_heads, length, source_length))
        return output, weights

    def compute_output_shape(self, query_shape: Any, value_shape: Any = None) -> Any:
        return tuple(query_shape)
