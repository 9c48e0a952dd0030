"""Add & Norm, and stacks of layers (paper, figure 1 and sections 3.1 and 5.4)."""

from __future__ import annotations

from typing import Any, ClassVar

import keras

from keras_transformer.layers.attention import SelfAttention
from keras_transformer.layers.base import MaskedLayer
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.layer_norm import LayerNorm


class ResidualLayer(MaskedLayer):
    """The base of `EncoderLayer` and `DecoderLayer`, which document the arguments.

    The sublayers are `self_attention`, perhaps `cross_attention`, and `feed_forward`. Each has a
    dropout and a layer norm, such as `feed_forward_dropout` and `feed_forward_norm`.
    """

    def __init__(
        self,
        num_heads: int,
        d_ff: int,
        key_dim: int | None = None,
        value_dim: int | None = None,
        dropout: float = 0.0,
        norm_position: str = "post",
        layer_norm_epsilon: float = 1e-6,
        activation: str = "relu",
        attention_bias: bool = False,
        attention_window: int | None = None,
        attention_dropout: float | None = None,
        activation_dropout: float | None = None,
        residual_dropout: float | None = None,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if norm_position not in ("post", "pre"):
            raise ValueError(f"norm_position is {norm_position!r}. Choose post or pre.")
        self.num_heads = num_heads
        self.d_ff = d_ff
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.dropout = dropout
        self.norm_position = norm_position
        self.layer_norm_epsilon = layer_norm_epsilon
        self.activation = activation
        self.attention_bias = attention_bias
        self.attention_window = attention_window
        self.attention_dropout = dropout if attention_dropout is None else attention_dropout
        self.activation_dropout = dropout if activation_dropout is None else activation_dropout
        self.residual_dropout = dropout if residual_dropout is None else residual_dropout
        self.kernel_initializer = kernel_initializer
        self.bias_initializer = bias_initializer
        self.kernel_regularizer = kernel_regularizer
        self.bias_regularizer = bias_regularizer
        self._sublayer_names: tuple[str, ...] = ()
        self._add_sublayers()

    def _add_sublayers(self) -> None:
        """Adds all sublayers with `_add_sublayer`, in their order."""
        raise NotImplementedError

    def _projection_arguments(self) -> dict[str, Any]:
        """Returns the arguments that all sublayers with kernels share."""
        return {
            "kernel_initializer": self.kernel_initializer,
            "bias_initializer": self.bias_initializer,
            "kernel_regularizer": self.kernel_regularizer,
            "bias_regularizer": self.bias_regularizer,
            "dtype": self.dtype_policy,
        }

    def _add_self_attention(self, causal: bool) -> None:
        self._add_sublayer(
            SelfAttention(
                self.num_heads,
                self.key_dim,
                self.value_dim,
                dropout=self.attention_dropout,
                use_bias=self.attention_bias,
                causal=causal,
                window=self.attention_window,
                name="self_attention",
                **self._projection_arguments(),
            )
        )

    def _add_feed_forward(self) -> None:
        self._add_sublayer(
            FeedForward(
                self.d_ff,
                self.activation,
                dropout=self.activation_dropout,
                name="feed_forward",
                **self._projection_arguments(),
            )
        )

    def _add_sublayer(self, sublayer: keras.layers.Layer) -> None:
        """Adds a sublayer under its name, with its dropout and layer norm."""
        name, policy = sublayer.name, self.dtype_policy
        dropout = Dropout(self.residual_dropout, name=f"{name}_dropout", dtype=policy)
        norm = LayerNorm(self.layer_norm_epsilon, name=f"{name}_norm", dtype=policy)
        for layer in (sublayer, dropout, norm):
            setattr(self, layer.name, layer)
        self._sublayer_names += (name,)

    def _build_sublayers(self, inputs_shape: Any) -> None:
        for name in self._sublayer_names:
            for layer in (name, f"{name}_dropout", f"{name}_norm"):
                if not getattr(self, layer).built:
                    getattr(self, layer).build(inputs_shape)

    def _pre_norm(self, name: str, inputs: Any, training: bool | None) -> Any:
        """Returns the input of the named sublayer, which a pre-norm layer normalizes."""
        if self.norm_position == "post":
            return inputs
        return getattr(self, f"{name}_norm")(inputs, training=training)

    def _add_and_norm(self, name: str, inputs: Any, output: Any, training: bool | None) -> Any:
        """Adds the output of the named sublayer to `inputs`, and normalizes the sum if post-norm.

        post: LayerNorm(x + Dropout(Sublayer(x))), as in the paper.
        pre: x + Dropout(Sublayer(LayerNorm(x))).
        """
        total = inputs + getattr(self, f"{name}_dropout")(output, training=training)
        if self.norm_position == "pre":
            return total
        return getattr(self, f"{name}_norm")(total, training=training)

    def _feed_forward(self, inputs: Any, training: bool | None) -> Any:
        """Applies the feed-forward sublayer with its Add & Norm."""
        inner = self._pre_norm("feed_forward", inputs, training)
        output = self.feed_forward(inner, training=training)
        return self._add_and_norm("feed_forward", inputs, output, training)


class ResidualStack(MaskedLayer):
    """The base of `Encoder` and `Decoder`, which document the arguments.

    A stack of layers, which may end with a layer norm. Each argument except `num_layers` and
    `final_norm` is passed to all layers.
    """

    layer_class: ClassVar[type[ResidualLayer]]

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        d_ff: int,
        key_dim: int | None = None,
        value_dim: int | None = None,
        dropout: float = 0.0,
        norm_position: str = "post",
        final_norm: bool | None = None,
        layer_norm_epsilon: float = 1e-6,
        activation: str = "relu",
        attention_bias: bool = False,
        attention_window: int | None = None,
        attention_dropout: float | None = None,
        activation_dropout: float | None = None,
        residual_dropout: float | None = None,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if num_layers < 1:
            raise ValueError(f"num_layers is {num_layers}, but it must be at least 1.")
        arguments: dict[str, Any] = {
            "num_heads": num_heads,
            "d_ff": d_ff,
            "key_dim": key_dim,
            "value_dim": value_dim,
            "dropout": dropout,
            "norm_position": norm_position,
            "layer_norm_epsilon": layer_norm_epsilon,
            "activation": activation,
            "attention_bias": attention_bias,
            "attention_window": attention_window,
            "attention_dropout": attention_dropout,
            "activation_dropout": activation_dropout,
            "residual_dropout": residual_dropout,
            "kernel_regularizer": kernel_regularizer,
            "bias_regularizer": bias_regularizer,
        }
        self.num_layers = num_layers
        self.final_norm = norm_position == "pre" if final_norm is None else final_norm
        self.kernel_initializer = kernel_initializer
        self.bias_initializer = bias_initializer
        self.layers = [
            self.layer_class(
                **arguments,
                kernel_initializer=self.kernel_initializer,
                bias_initializer=self.bias_initializer,
                name=f"layer_{i}",
                dtype=self.dtype_policy,
            )
            for i in range(num_layers)
        ]
        for name in arguments:
            setattr(self, name, getattr(self.layers[0], name))
        self.norm = None
        if self.final_norm:
            self.norm = LayerNorm(layer_norm_epsilon, name="norm", dtype=self.dtype_policy)

    def _build_stack(self, inputs_shape: Any, *shapes: Any) -> None:
        for layer in self.layers:
            layer.build(inputs_shape, *shapes)
        if self.norm is not None:
            self.norm.build(inputs_shape)

    def _final_norm(self, inputs: Any, training: bool | None) -> Any:
        return inputs if self.norm is None else self.norm(inputs, training=training)
