"""What encoder and decoder layers share: arguments, and how a sublayer is wrapped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import keras

from keras_transformer.layers.attention import CrossAttention
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.layer_norm import LayerNorm
from keras_transformer.layers.self_attention import SelfAttention


class ResidualLayer(keras.layers.Layer):
    """A layer of residual sublayers, each with its layer norm (paper, sections 3.1 and 5.4).

    Args:
        num_heads: number of attention heads, h.
        key_dim: size of a head's queries and keys, d_k.
        d_ff: width of the feed-forward network's inner layer.
        value_dim: size of a head's values, d_v; `key_dim` by default.
        norm_position: "post", LayerNorm(x + Dropout(Sublayer(x))), as in the
            paper, or "pre", x + Dropout(Sublayer(LayerNorm(x))).
        layer_norm_epsilon: ε of the layer norms.
        activation: activation of the feed-forward network.
        attention_bias: add biases to the attention projections.
        attention_window: r of restricted self-attention, None for no limit.
        attention_dropout, relu_dropout, residual_dropout: dropout of the
            attention weights, of the inner feed-forward layer, and of what each
            sublayer adds.

    Attributes:
        self_attention_layer, cross_attention_layer: of what classes these are.

    Raises:
        ValueError: for another `norm_position`.
    """

    self_attention_layer: ClassVar[type[SelfAttention]] = SelfAttention
    cross_attention_layer: ClassVar[type[CrossAttention]] = CrossAttention

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        d_ff: int,
        value_dim: int | None = None,
        norm_position: str = "post",
        layer_norm_epsilon: float = 1e-6,
        activation: str = "relu",
        attention_bias: bool = False,
        attention_window: int | None = None,
        attention_dropout: float = 0.0,
        relu_dropout: float = 0.0,
        residual_dropout: float = 0.0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if norm_position not in ("post", "pre"):
            raise ValueError(f"norm_position is {norm_position!r}; expected post or pre")
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.d_ff = d_ff
        self.value_dim = key_dim if value_dim is None else value_dim
        self.norm_position = norm_position
        self.layer_norm_epsilon = layer_norm_epsilon
        self.activation = activation
        self.attention_bias = attention_bias
        self.attention_window = attention_window
        self.attention_dropout = attention_dropout
        self.relu_dropout = relu_dropout
        self.residual_dropout = residual_dropout

    def _make_self_attention(self, causal: bool) -> SelfAttention:
        return self.self_attention_layer(
            self.num_heads,
            self.key_dim,
            self.value_dim,
            dropout=self.attention_dropout,
            use_bias=self.attention_bias,
            causal=causal,
            window=self.attention_window,
            name="self_attention",
            dtype=self.dtype_policy,
        )

    def _make_cross_attention(self) -> CrossAttention:
        return self.cross_attention_layer(
            self.num_heads,
            self.key_dim,
            self.value_dim,
            dropout=self.attention_dropout,
            use_bias=self.attention_bias,
            name="cross_attention",
            dtype=self.dtype_policy,
        )

    def _make_feed_forward(self) -> FeedForward:
        return FeedForward(
            self.d_ff,
            self.activation,
            dropout=self.relu_dropout,
            name="feed_forward",
            dtype=self.dtype_policy,
        )

    def _make_norm(self, name: str) -> LayerNorm:
        return LayerNorm(self.layer_norm_epsilon, name=name, dtype=self.dtype_policy)

    def _make_dropout(self, name: str) -> Dropout:
        return Dropout(self.residual_dropout, name=name, dtype=self.dtype_policy)

    def _residual(
        self,
        inputs: Any,
        sublayer: Callable[[Any], Any],
        norm: keras.layers.Layer,
        dropout: keras.layers.Layer,
        training: bool | None,
    ) -> Any:
        if self.norm_position == "pre":
            normal = norm(inputs, training=training)
            return inputs + dropout(sublayer(normal), training=training)
        return norm(inputs + dropout(sublayer(inputs), training=training), training=training)

    def get_config(self) -> dict[str, Any]:
        names = (
            "num_heads key_dim d_ff value_dim norm_position layer_norm_epsilon activation "
            "attention_bias attention_window attention_dropout relu_dropout residual_dropout"
        )
        return {**super().get_config(), **{name: getattr(self, name) for name in names.split()}}


class ResidualStack(keras.layers.Layer):
    """Layers of one kind on top of each other, with a final norm where they are pre-norm.

    Args:
        layers: the layers, first to last; `ResidualLayer`s of one `norm_position`.

    Raises:
        ValueError: where there are none.
    """

    def __init__(self, layers: list[ResidualLayer], **kwargs: Any):
        super().__init__(**kwargs)
        if not layers:
            raise ValueError("layers is empty; expected at least one layer")
        self.layers = list(layers)
        last = self.layers[-1]
        self.norm = last._make_norm("norm") if last.norm_position == "pre" else None

    def compute_output_shape(self, inputs_shape: Any, memory_shape: Any = None) -> Any:
        return tuple(inputs_shape)

    def get_config(self) -> dict[str, Any]:
        layers = [keras.saving.serialize_keras_object(layer) for layer in self.layers]
        for layer in layers:
            layer.pop("build_config", None)  # built with the stack, or it would be built twice
        return {**super().get_config(), "layers": layers}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        deserialize = keras.saving.deserialize_keras_object
        return cls(**{**config, "layers": [deserialize(layer) for layer in config["layers"]]})
