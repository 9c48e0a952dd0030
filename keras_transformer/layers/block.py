"""Hyperparameters of encoder and decoder layers, and Add & Norm (paper, sections 3.1 and 5.4)."""

from __future__ import annotations

import dataclasses
from typing import Any

from keras_transformer.layers.attention import SelfAttention
from keras_transformer.layers.base import (
    BaseLayer,
    call_with_implicit_masks,
    shows_arguments,
    sublayers,
)
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.layer_norm import LayerNorm
from keras_transformer.layers.ssru import SSRU


@dataclasses.dataclass(frozen=True)
class Block:
    """The hyperparameters of the layers of an encoder or a decoder.

    They are arguments of `Encoder`, `EncoderLayer`, `Decoder` and `DecoderLayer`.

    Args:
        num_heads: number of attention heads, h.
        d_ff: width of the feed-forward network's inner layer.
        key_dim: size of a head's queries and keys, d_k; `d_model / num_heads` by default.
        value_dim: size of a head's values, d_v; `key_dim` by default.
        dropout: default of the three separate rates below.
        norm_position: "post" for LayerNorm(x + Dropout(Sublayer(x))), as in the paper, or "pre"
            for x + Dropout(Sublayer(LayerNorm(x))).
        layer_norm_epsilon: ε of the layer norms.
        activation: activation of the feed-forward network.
        attention_bias: add biases to the attention projections.
        attention_window: r of restricted self-attention (section 4), None for no limit.
        decoder_self_attention: "attention", or "ssru" for a recurrent unit instead, see `SSRU`.
            Encoders ignore it.
        attention_dropout: dropout of the attention weights.
        activation_dropout: dropout of the inner layer of the feed-forward network.
        residual_dropout: dropout of the output of each sublayer (section 5.4).
        kernel_initializer: initializer of all kernels.
        bias_initializer: initializer of all biases.
        kernel_regularizer: a loss that depends on the kernels.
        bias_regularizer: a loss that depends on the biases.

    Example:
    >>> Block(num_heads=2, d_ff=16, dropout=0.1).norm_position
    'post'
    """

    num_heads: int
    d_ff: int
    key_dim: int | None = None
    value_dim: int | None = None
    dropout: float = 0.0
    norm_position: str = "post"
    layer_norm_epsilon: float = 1e-6
    activation: str = "relu"
    attention_bias: bool = False
    attention_window: int | None = None
    decoder_self_attention: str = "attention"
    attention_dropout: float | None = None
    activation_dropout: float | None = None
    residual_dropout: float | None = None
    kernel_initializer: Any = "glorot_uniform"
    bias_initializer: Any = "zeros"
    kernel_regularizer: Any = None
    bias_regularizer: Any = None

    def __post_init__(self) -> None:
        if self.norm_position not in ("post", "pre"):
            raise ValueError(f"norm_position is {self.norm_position!r}. Choose post or pre.")
        if self.decoder_self_attention not in ("attention", "ssru"):
            raise ValueError(
                f"decoder_self_attention is {self.decoder_self_attention!r}. Choose attention or "
                "ssru."
            )


class BlockLayer(BaseLayer):
    """The base of layers whose arguments are the fields of a `Block`."""

    __call__ = call_with_implicit_masks

    @shows_arguments(Block)
    def __init__(self, *args: Any, **kwargs: Any):
        names = [field.name for field in dataclasses.fields(Block) if field.name in kwargs]
        fields = {name: kwargs.pop(name) for name in names}
        super().__init__(**kwargs)
        self.block = Block(*args, **fields)
        self._add_sublayers()

    def _add_sublayers(self) -> None:
        """Creates the sublayers of an encoder layer or a decoder layer."""

    def _arguments(self) -> dict[str, Any]:
        return vars(self.block)

    def _add_self_attention(self, causal: bool) -> None:
        self.self_attention: Any
        if causal and self.block.decoder_self_attention == "ssru":
            kernels = self._kernel_arguments()
            self.self_attention = SSRU(*kernels, name="ssru", dtype=self.dtype_policy)
        else:
            window = self.block.attention_window
            self.self_attention = self._new_attention(
                SelfAttention, "self_attention", causal=causal, window=window
            )
        self.self_attention_dropout = self._new_dropout("self_attention_dropout")
        self.self_attention_norm = self._new_norm("self_attention_norm")

    def _new_attention(self, layer_class: type[Any], name: str, **arguments: Any) -> Any:
        return layer_class(
            self.block.num_heads,
            self.block.key_dim,
            self.block.value_dim,
            self._rate(self.block.attention_dropout),
            self.block.attention_bias,
            *self._kernel_arguments(),
            name=name,
            dtype=self.dtype_policy,
            **arguments,
        )

    def _add_feed_forward(self) -> None:
        self.feed_forward = FeedForward(
            self.block.d_ff,
            self.block.activation,
            self._rate(self.block.activation_dropout),
            *self._kernel_arguments(),
            name="feed_forward",
            dtype=self.dtype_policy,
        )
        self.feed_forward_dropout = self._new_dropout("feed_forward_dropout")
        self.feed_forward_norm = self._new_norm("feed_forward_norm")

    def _kernel_arguments(self) -> tuple[Any, ...]:
        """Returns the arguments of a `LinearLayer`."""
        block = self.block
        return (
            *(block.kernel_initializer, block.bias_initializer),
            *(block.kernel_regularizer, block.bias_regularizer),
        )

    def _new_dropout(self, name: str) -> Dropout:
        rate = self._rate(self.block.residual_dropout)
        return Dropout(rate, name=name, dtype=self.dtype_policy)

    def _new_norm(self, name: str) -> LayerNorm:
        return LayerNorm(self.block.layer_norm_epsilon, name=name, dtype=self.dtype_policy)

    def _rate(self, rate: float | None) -> float:
        return self.block.dropout if rate is None else rate

    def build(self, input_shape: Any) -> None:
        for layer in sublayers(self):
            if not layer.built:
                layer.build(input_shape)

    def _pre_norm(self, norm: LayerNorm, inputs: Any, training: bool | None) -> Any:
        return norm(inputs, training=training) if self.block.norm_position == "pre" else inputs

    def _add_and_norm(
        self, inputs: Any, output: Any, dropout: Dropout, norm: LayerNorm, training: bool | None
    ) -> Any:
        """Returns the residual connection around a sublayer, normalized if post-norm."""
        x = inputs + dropout(output, training=training)
        return norm(x, training=training) if self.block.norm_position == "post" else x
