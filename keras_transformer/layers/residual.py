"""Residual sublayers with layer norm, and stacks of such layers (paper, sections 3.1 and 5.4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import keras

from keras_transformer.layers.attention import CrossAttention, LayerOutput
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.layer_norm import LayerNorm
from keras_transformer.layers.self_attention import SelfAttention


class ResidualLayer(keras.layers.Layer):
    """The base of encoder and decoder layers: residual sublayers, each with a layer norm.

    Args:
        num_heads: number of attention heads, h.
        key_dim: size of a head's queries and keys, d_k.
        d_ff: width of the feed-forward network's inner layer.
        value_dim: size of a head's values, d_v; `key_dim` by default.
        norm_position: "post" for LayerNorm(x + Dropout(Sublayer(x))), as in the
            paper, or "pre" for x + Dropout(Sublayer(LayerNorm(x))).
        layer_norm_epsilon: ε of the layer norms.
        activation: activation of the feed-forward network.
        attention_bias: add biases to the attention projections.
        attention_window: r of restricted self-attention, None for no limit.
        attention_dropout: dropout of the attention weights.
        relu_dropout: dropout of the inner layer of the feed-forward network.
        residual_dropout: dropout of the output of each sublayer (section 5.4).

    Attributes:
        self_attention_layer: class of the self-attention layer.
        cross_attention_layer: class of the cross-attention layer.

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

    def _add_self_attention(self, causal: bool) -> None:
        self._add_sublayer(
            self.self_attention_layer(
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
        )

    def _add_cross_attention(self) -> None:
        self._add_sublayer(
            self.cross_attention_layer(
                self.num_heads,
                self.key_dim,
                self.value_dim,
                dropout=self.attention_dropout,
                use_bias=self.attention_bias,
                name="cross_attention",
                dtype=self.dtype_policy,
            )
        )

    def _add_feed_forward(self) -> None:
        self._add_sublayer(
            FeedForward(
                self.d_ff,
                self.activation,
                dropout=self.relu_dropout,
                name="feed_forward",
                dtype=self.dtype_policy,
            )
        )

    def _add_sublayer(self, sublayer: keras.layers.Layer) -> None:
        """Adds a sublayer under its name, with its dropout and layer norm."""
        name, policy = sublayer.name, self.dtype_policy
        dropout = Dropout(self.residual_dropout, name=f"{name}_dropout", dtype=policy)
        norm = LayerNorm(self.layer_norm_epsilon, name=f"{name}_norm", dtype=policy)
        for layer in (sublayer, dropout, norm):
            setattr(self, layer.name, layer)

    def _residual(
        self,
        name: str,
        inputs: Any,
        sublayer: Callable[[Any], LayerOutput],
        training: bool | None,
    ) -> LayerOutput:
        """Applies the named sublayer, its dropout and its layer norm to `inputs`.

        Args:
            name: name of the sublayer.
            inputs: x, `[B, T, d_model]`.
            sublayer: calls the sublayer.
            training: whether dropout is on.

        Returns:
            The result of the sublayer, with the residual sum as its output.
        """
        dropout, norm = getattr(self, f"{name}_dropout"), getattr(self, f"{name}_norm")
        if self.norm_position == "pre":
            result = sublayer(norm(inputs, training=training))
            return result._replace(output=inputs + dropout(result.output, training=training))
        result = sublayer(inputs)
        output = inputs + dropout(result.output, training=training)
        return result._replace(output=norm(output, training=training))

    def _feed_forward(self, inputs: Any, training: bool | None) -> Any:
        """Applies the feed-forward sublayer (section 3.3)."""
        return self._residual(
            "feed_forward",
            inputs,
            lambda x: LayerOutput(self.feed_forward(x, training=training)),
            training,
        ).output

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        # Traced, because the output depends on `return_attention_scores`.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        names = (
            "num_heads key_dim d_ff value_dim norm_position layer_norm_epsilon activation "
            "attention_bias attention_window attention_dropout relu_dropout residual_dropout"
        )
        return {**super().get_config(), **{name: getattr(self, name) for name in names.split()}}


class ResidualStack(keras.layers.Layer):
    """A stack of identical layers, with a final layer norm if they are pre-norm.

    Args:
        layers: the layers, first to last; `ResidualLayer`s with the same `norm_position`.

    Raises:
        ValueError: for an empty list.
    """

    def __init__(self, layers: list[ResidualLayer], **kwargs: Any):
        super().__init__(**kwargs)
        if not layers:
            raise ValueError("layers is empty; expected at least one layer")
        self.layers = list(layers)
        self.norm = None
        last = self.layers[-1]
        if last.norm_position == "pre":
            self.norm = LayerNorm(last.layer_norm_epsilon, name="norm", dtype=last.dtype_policy)

    def _build_stack(self, inputs_shape: Any, *shapes: Any) -> None:
        for layer in self.layers:
            layer.build(inputs_shape, *shapes)
        if self.norm is not None:
            self.norm.build(inputs_shape)

    def _final_norm(self, inputs: Any, training: bool | None) -> Any:
        return inputs if self.norm is None else self.norm(inputs, training=training)

    def compute_output_shape(self, inputs_shape: Any, memory_shape: Any = None) -> Any:
        return tuple(inputs_shape)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        # Traced, because the output depends on `return_attention_scores`.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        layers = [keras.saving.serialize_keras_object(layer) for layer in self.layers]
        for layer in layers:
            layer.pop("build_config", None)  # the stack builds its layers
        return {**super().get_config(), "layers": layers}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        deserialize = keras.saving.deserialize_keras_object
        return cls(**{**config, "layers": [deserialize(layer) for layer in config["layers"]]})
