"""Transformers with another attention: without the scale, and additive (paper, section 3.2.1).

The paper suspects that dot products of many dimensions d_k grow so large that the softmax has
hardly a gradient, scales them by 1/√d_k therefore, and says that additive attention (Bahdanau et
al., 2015) does better than dot products without the scale. These are the three, in one model.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import keras
from keras import ops

from keras_transformer.config import Config, ModelConfig, RunConfig
from keras_transformer.layers import CrossAttention, DecoderLayer, EncoderLayer, SelfAttention
from keras_transformer.layers.attention import KeyValue, attend_by_scores
from keras_transformer.models.encoder_decoder import register_architecture
from keras_transformer.models.transformer import Transformer


class _Unscaled:
    """Attention with the scores QKᵀ."""

    key_dim: int

    def _attend(
        self, query: Any, key_value: KeyValue, attention_mask: Any, training: bool | None
    ) -> tuple[Any, Any]:
        # Cancels the scale 1/√d_k.
        query = query * ops.cast(self.key_dim**0.5, query.dtype)
        return super()._attend(query, key_value, attention_mask, training)  # type: ignore[misc]


@keras.saving.register_keras_serializable(package="keras_transformer")
class UnscaledSelfAttention(_Unscaled, SelfAttention):
    """`SelfAttention` without the scale 1/√d_k."""


@keras.saving.register_keras_serializable(package="keras_transformer")
class UnscaledCrossAttention(_Unscaled, CrossAttention):
    """`CrossAttention` without the scale 1/√d_k."""


class _Additive:
    """Attention with the scores vᵀ tanh(q + k), with a separate vector v for each head."""

    num_heads: int
    key_dim: int
    weights_dropout: Any

    def _add_score_kernel(self) -> None:
        self.score_kernel = self.add_weight(  # type: ignore[attr-defined]
            shape=(self.num_heads, self.key_dim),
            # Glorot's, of a map from d_k to 1.
            initializer=keras.initializers.RandomNormal(stddev=(2 / (self.key_dim + 1)) ** 0.5),
            name="score_kernel",
        )

    def _attend(
        self, query: Any, key_value: KeyValue, attention_mask: Any, training: bool | None
    ) -> tuple[Any, Any]:
        # --> [batch, heads, target, source, key_dim]
        pairs = ops.tanh(ops.expand_dims(query, 3) + ops.expand_dims(key_value["key"], 2))
        kernel = ops.cast(self.score_kernel, query.dtype)
        scores = ops.sum(pairs * ops.reshape(kernel, (self.num_heads, 1, 1, -1)), axis=-1)
        if attention_mask is not None:
            attention_mask = ops.expand_dims(attention_mask, -3)
        return attend_by_scores(
            scores,
            key_value["value"],
            attention_mask,
            lambda weights: self.weights_dropout(weights, training=training),
        )


@keras.saving.register_keras_serializable(package="keras_transformer")
class AdditiveSelfAttention(_Additive, SelfAttention):
    """`SelfAttention` with additive scores."""

    def build(self, query_shape: Any) -> None:
        super().build(query_shape)
        self._add_score_kernel()


@keras.saving.register_keras_serializable(package="keras_transformer")
class AdditiveCrossAttention(_Additive, CrossAttention):
    """`CrossAttention` with additive scores."""

    def build(self, query_shape: Any, value_shape: Any = None) -> None:
        super().build(query_shape, value_shape)
        self._add_score_kernel()


@keras.saving.register_keras_serializable(package="keras_transformer")
class UnscaledEncoderLayer(EncoderLayer):
    """An `EncoderLayer` whose attention is not scaled."""

    self_attention_layer: ClassVar[type[SelfAttention]] = UnscaledSelfAttention


@keras.saving.register_keras_serializable(package="keras_transformer")
class UnscaledDecoderLayer(DecoderLayer):
    """A `DecoderLayer` whose attentions are not scaled."""

    self_attention_layer: ClassVar[type[SelfAttention]] = UnscaledSelfAttention
    cross_attention_layer: ClassVar[type[CrossAttention]] = UnscaledCrossAttention


@keras.saving.register_keras_serializable(package="keras_transformer")
class AdditiveEncoderLayer(EncoderLayer):
    """An `EncoderLayer` with additive attention."""

    self_attention_layer: ClassVar[type[SelfAttention]] = AdditiveSelfAttention


@keras.saving.register_keras_serializable(package="keras_transformer")
class AdditiveDecoderLayer(DecoderLayer):
    """A `DecoderLayer` with additive attentions."""

    self_attention_layer: ClassVar[type[SelfAttention]] = AdditiveSelfAttention
    cross_attention_layer: ClassVar[type[CrossAttention]] = AdditiveCrossAttention


@dataclasses.dataclass(frozen=True)
class UnscaledRun(Config):
    """The three configurations of a run without the scale."""

    architecture: ClassVar[str] = "transformer without scale"


@register_architecture
@keras.saving.register_keras_serializable(package="keras_transformer")
class UnscaledTransformer(Transformer):
    """A `Transformer` whose attentions are softmax(QKᵀ) V."""

    run_config: ClassVar[type[RunConfig]] = UnscaledRun
    encoder_layer: ClassVar[type[EncoderLayer]] = UnscaledEncoderLayer
    decoder_layer: ClassVar[type[DecoderLayer]] = UnscaledDecoderLayer


@dataclasses.dataclass(frozen=True)
class AdditiveConfig(ModelConfig):
    """Sizes of a Transformer with additive attention, which has additional parameters."""

    def num_parameters(self) -> int:
        attentions = self.num_encoder_layers + 2 * self.num_decoder_layers
        return super().num_parameters() + attentions * self.num_heads * (self.key_dim or 0)


@dataclasses.dataclass(frozen=True)
class AdditiveRun(Config):
    """The three configurations of a run with additive attention."""

    architecture: ClassVar[str] = "transformer with additive attention"

    model: AdditiveConfig = dataclasses.field(default_factory=AdditiveConfig)


@register_architecture
@keras.saving.register_keras_serializable(package="keras_transformer")
class AdditiveTransformer(Transformer):
    """A `Transformer` whose attentions are softmax(vᵀ tanh(q + k)) V.

    Queries and keys are projected as usual, so that q + k is W x + U y.
    """

    run_config: ClassVar[type[RunConfig]] = AdditiveRun
    encoder_layer: ClassVar[type[EncoderLayer]] = AdditiveEncoderLayer
    decoder_layer: ClassVar[type[DecoderLayer]] = AdditiveDecoderLayer
