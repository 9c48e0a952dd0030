"""Scaled dot-product, multi-head and cross-attention (paper, section 3.2)."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.linear import linear, shape_for_reshape
from keras_transformer.layers.masks import mask_to_bias

# One layer's keys `[B, H, L, d_k]` and values `[B, H, L, d_v]`.
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
    scores = ops.matmul(query, ops.swapaxes(key, -1, -2))
    return attend_by_scores(scores, value, attention_mask, dropout)


def attend_by_scores(
    scores: Any, value: Any, attention_mask: Any = None, dropout: Any = None
) -> tuple[Any, Any]:
    """softmax(scores) V; other arguments and results as `scaled_dot_product_attention`'s.

    Args:
        scores: `[..., T, S]`, how well each key fits each query.
    """
    scores = ops.cast(scores, "float32")
    if attention_mask is not None:
        scores = scores + mask_to_bias(attention_mask)
    weights = ops.softmax(scores, axis=-1)
    dropped = ops.cast(weights, value.dtype)
    if dropout is not None:
        dropped = dropout(dropped)
    return ops.matmul(dropped, value), weights


def is_step(query: Any, cache: Any) -> bool:
    """Whether this is a step of a search that TensorFlow itself runs, in batches of any size.

    It has as many positions as hypotheses, a known number; whole targets have any. Where all is
    known there is a compiler, XLA or LiteRT's, which finds ways of its own.
    """
    return cache is not None and query.shape[0] is None and query.shape[1] is not None


def _swap(heads: Any, few: bool) -> Any:
    """Swaps the axes 1 and 2 of `[B, T, H, D]`.

    Of `few` vectors, as in a step of the search, one by one: oneDNN's transposition, which
    TensorFlow takes on a CPU, costs 30 µs before it has moved one.
    """
    if not few:
        return ops.transpose(heads, (0, 2, 1, 3))
    _, length, width, dim = heads.shape
    order = np.arange(length * width).reshape(length, width).T.ravel()
    if 1 not in (length, width):
        heads = ops.take(ops.reshape(heads, (-1, length * width, dim)), order, axis=1)
    return ops.reshape(heads, (-1, width, length, dim))


def split_heads(rows: Any, leading: tuple[Any, ...], dim: int, few: bool = False) -> Any:
    """Splits `[B * T, H * dim]` into `[B, H, T, dim]`."""
    return _swap(ops.reshape(rows, (*leading, rows.shape[-1] // dim, dim)), few)


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


class MultiHeadAttention(keras.layers.Layer):
    """What self- and cross-attention share: sizes, heads, the output projection.

    Raises:
        ValueError: for a number of heads or a width below 1.
    """

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

    def _project(self, name: str, inputs: Any, leading: tuple[Any, ...] | None = None) -> Any:
        bias = getattr(self, f"{name}_bias") if self.use_bias else None
        return linear(inputs, getattr(self, f"{name}_kernel"), bias, leading)

    def _project_to_heads(
        self, name: str, inputs: Any, leading: tuple[Any, ...], *dims: int, few: bool = False
    ) -> list[Any]:
        """Projects `[B, T, d]` to the heads of the first dim, of the second, ...: `[B, H, T, dim]`.

        `leading` is B and T, as a reshape takes them.
        """
        rows = self._project(name, ops.reshape(inputs, (-1, inputs.shape[-1])))
        if len(dims) == 1:
            return [split_heads(rows, leading, dims[0], few)]
        alike = len(set(dims)) == 1
        if alike and few:  # all heads are moved at once
            return ops.split(split_heads(rows, leading, dims[0], few), len(dims), axis=1)
        # A number where it can be: of ends Keras computes the widths at every call.
        ends = [self.num_heads * sum(dims[: i + 1]) for i in range(len(dims) - 1)]
        parts = ops.split(rows, len(dims) if alike else ends, axis=-1)
        return [split_heads(part, leading, dim, few) for part, dim in zip(parts, dims, strict=True)]

    def _merge_and_project(self, heads: Any, leading: tuple[Any, ...], few: bool = False) -> Any:
        """Projects `[B, H, T, d_v]` to the output `[B, T, d_model]`."""
        merged = _swap(heads, few)  # --> [batch, length, heads, value_dim]
        rows = ops.reshape(merged, (-1, self.num_heads * self.value_dim))
        return self._project("output", rows, leading)

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
class CrossAttention(MultiHeadAttention):
    """Multi-head attention of one sequence to another (paper, section 3.2.3).

    Args:
        num_heads, key_dim, value_dim, dropout, use_bias: as in `SelfAttention`.

    Call arguments:
        query: `[B, T, d_model]`.
        value: `[B, S, d_memory]`, from which keys and values are projected;
            not needed with a cache.
        attention_mask: bool, broadcastable to `[B, T, S]`.
        cache: what `project(value)` returned, where it is used many times.
        return_attention_scores: also return the weights.
        training: whether dropout is on.

    Returns:
        The output `[B, T, d_model]`; with `return_attention_scores` a tuple of
        it and the weights `[B, H, T, S]`.
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
        value = ops.cast(value, self.compute_dtype)
        leading = shape_for_reshape(value)[:-1]
        dims = self.key_dim, self.value_dim
        keys, values = self._project_to_heads("key_value", value, leading, *dims)
        return {"key": keys, "value": values}

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
        few, leading = is_step(query, cache), shape_for_reshape(query)[:-1]
        [query_heads] = self._project_to_heads("query", query, leading, self.key_dim, few=few)
        heads, weights = self._attend(query_heads, key_value, attention_mask, training)
        output = self._merge_and_project(heads, leading, few)
        return (output, weights) if return_attention_scores else output

    def compute_output_shape(self, query_shape: Any, value_shape: Any = None) -> Any:
        return tuple(query_shape)
