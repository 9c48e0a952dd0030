"""The Transformer: an encoder and a decoder over token embeddings (paper, section 3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import keras
from keras import ops

from keras_transformer.config import Config, ModelConfig, RunConfig
from keras_transformer.errors import check_names, require
from keras_transformer.layers import (
    Block,
    Decoder,
    Dropout,
    Encoder,
    LayerNorm,
    LearnedPositions,
    SinusoidalPositions,
    TokenEmbedding,
    padding_mask,
)
from keras_transformer.layers.attention import KeyValue
from keras_transformer.layers.base import Product
from keras_transformer.layers.projections import ProjectingLayer
from keras_transformer.layers.state import DecodeState
from keras_transformer.models.encoder_decoder import EncoderDecoder, Memory
from keras_transformer.presets import preset

# Output bias of tokens that a model must not know, such as a start token that its own toolkit does
# not have. Their probability is then exactly 0 in the softmax, for any logit that occurs. A larger
# number would not fit into float16.
EXCLUDED_TOKEN_BIAS = -1e4


def is_excluded(scores: Any) -> Any:
    """Returns which tokens are never predicted, by their output biases or their logits."""
    return scores < EXCLUDED_TOKEN_BIAS / 2


@keras.saving.register_keras_serializable(package="keras_transformer")
class OutputProjection(ProjectingLayer):
    """The pre-softmax linear transformation if embeddings are untied, or its bias if tied."""

    def __init__(self, vocab_size: int, use_kernel: bool, use_bias: bool, **kwargs: Any):
        super().__init__(**kwargs)
        self.vocab_size = vocab_size
        self.use_kernel = use_kernel
        self.use_bias = use_bias

    def build(self, input_shape: Any) -> None:
        if self.use_kernel:
            self._add_matrix("kernel", (input_shape[-1], self.vocab_size), "glorot_uniform")
        if self.use_bias:
            self.bias = self.add_weight(shape=(self.vocab_size,), initializer="zeros", name="bias")

    def call(self, inputs: Any) -> Any:
        outputs = self._multiply(inputs, "kernel") if self.use_kernel else inputs
        return outputs + ops.cast(self.bias, outputs.dtype) if self.use_bias else outputs

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (*input_shape[:-1], self.vocab_size)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Transformer(EncoderDecoder):
    """The Transformer (paper, section 3), with the sizes and variants of a `ModelConfig`.

    All weights exist after the construction.

    Args:
        config: a `ModelConfig`, a dict of its fields, or a `Config`, whose `model` is used.

    Call arguments: see `EncoderDecoder`.

    Example:
    >>> sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 8, "num_heads": 2}
    >>> model = Transformer({**sizes, "source_vocab_size": 20, "target_vocab_size": 20})
    >>> ids = keras.ops.array([[5, 6, 3]])
    >>> tuple(model({"source_ids": ids, "target_ids": ids}).shape)
    (1, 3, 20)
    """

    run_config: ClassVar[type[RunConfig]] = Config
    config: ModelConfig

    def __init__(self, config: ModelConfig | Config | Mapping[str, Any], **kwargs: Any):
        kwargs.setdefault("name", "transformer")
        super().__init__(**kwargs)
        self.supports_masking = True
        self.config = c = _model_config(config)
        self.max_positions = c.max_positions if c.positions == "learned" else None
        self.can_return_attention = c.attention_window is None
        self.cache_per_hypothesis = c.decoder_self_attention == "ssru"
        other = c.other_toolkits
        policy = self.dtype_policy

        self._add_embeddings()
        # A forced language has no position. Of learned ones, it has the first, which is not used.
        first = other.first_position - other.forced_language
        self.source_positions = self._make_positions("source_positions", first)
        self.target_positions = self._make_positions("target_positions", other.first_position)
        self.source_norm = self._make_embedding_norm("source_norm")
        self.target_norm = self._make_embedding_norm("target_norm")
        dropout = c.embedding_dropout
        self.source_dropout = Dropout(dropout, name="source_dropout", dtype=policy)
        self.target_dropout = Dropout(dropout, name="target_dropout", dtype=policy)

        names = {field.name for field in dataclasses.fields(Block)} & c.as_dict().keys()
        shared: dict[str, Any] = {name: c.as_dict()[name] for name in names}
        shared.update(final_norm=c.has_final_norm, dtype=policy)
        self.encoder = Encoder(**{**shared, **c.encoder_sizes._asdict()}, name="encoder")
        self.decoder = Decoder(**{**shared, **c.decoder_sizes._asdict()}, name="decoder")
        self.output_projection: Any = None
        if c.tie_embeddings == "none" or other.output_bias:
            self.output_projection = OutputProjection(
                c.target_vocab_size,
                use_kernel=c.tie_embeddings == "none",
                use_bias=other.output_bias,
                name="output_projection",
                dtype=policy,
            )

        self.build()

    @classmethod
    def from_preset(cls, preset_name: str, vocab_size: int, **changes: Any) -> Transformer:
        """Returns a new model with the sizes of a preset.

        Args:
            preset_name: name of a preset, such as "tiny" or "base".
            vocab_size: number of tokens, the same for source and target.
            **changes: other fields of `ModelConfig`, and `dtype` or `name` of the model.

        Example:
        >>> model = Transformer.from_preset("tiny", vocab_size=50, num_decoder_layers=1)
        >>> model.config.d_model, len(model.decoder.layers)
        (128, 1)
        """
        options = {key: changes.pop(key) for key in ("dtype", "name") if key in changes}
        sizes = {"source_vocab_size": vocab_size, "target_vocab_size": vocab_size, **changes}
        config = preset(preset_name).updated({f"model.{key}": sizes[key] for key in sizes})
        return cls(config.model, **options)

    def encoder_model(self) -> keras.Model:
        """Returns the encoder as a functional model that shares the weights.

        Its input is int `[B, S]` with the name `source_ids`, and its output `[B, S, d_model]`, with
        a mask of the real tokens.

        Example:
        >>> model = Transformer.from_preset("tiny", vocab_size=50, num_encoder_layers=1)
        >>> tuple(model.encoder_model()(keras.ops.array([[5, 6, 3]])).shape)
        (1, 3, 128)
        """
        ids = keras.Input((None,), dtype="int32", name="source_ids")
        embedded, mask = self._embed_source(ids, training=None)
        return keras.Model(ids, self.encoder(embedded, mask=mask), name="encoder")

    def _make_embedding(self, name: str, vocab_size: int) -> TokenEmbedding:
        c = self.config
        scale, policy = c.other_toolkits.scale_embeddings, self.dtype_policy
        return TokenEmbedding(vocab_size, c.d_model, scale=scale, name=name, dtype=policy)

    def _make_positions(self, name: str, first_position: int) -> keras.layers.Layer:
        c, other = self.config, self.config.other_toolkits
        if c.positions == "learned":
            return LearnedPositions(c.max_positions, c.d_model, name=name, dtype=self.dtype_policy)
        return SinusoidalPositions(
            c.d_model,
            other.sinusoid_layout,
            other.sinusoid_frequencies,
            first_position,
            name=name,
            dtype=self.dtype_policy,
        )

    def _make_embedding_norm(self, name: str) -> LayerNorm | None:
        other = self.config.other_toolkits
        if not other.embedding_norm:
            return None
        # float32, so that the sum of embeddings and positions is not rounded before.
        return LayerNorm(other.layer_norm_epsilon, name=name, dtype="float32")

    def build(self, input_shape: Any = None) -> None:
        """Builds all weights; they do not depend on the shapes of the input."""
        if getattr(self, "built", False):
            return
        ids, embedded = (None, None), (None, None, self.config.d_model)
        # The scope puts the model's name in front of all paths.
        with keras.name_scope(self.name, caller=self):
            for layer in self.layers:
                if layer is self.decoder:
                    layer.build(embedded, embedded)
                elif layer in (self.source_positions, self.target_positions):
                    layer.build((None,))
                else:
                    layer.build(ids if isinstance(layer, TokenEmbedding) else embedded)
        self.built = True

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Returns the real tokens of the targets: losses and metrics of Keras ignore the others."""
        return padding_mask(inputs["target_ids"], self.config.pad_id)

    def logits(self, features: Any) -> Any:
        if self.config.tie_embeddings == "none":
            return self.output_projection(features)
        logits = self.target_embedding.logits(features)
        return logits if self.output_projection is None else self.output_projection(logits)

    def output_weights(self) -> tuple[keras.Variable, keras.Variable | None]:
        bias = self.output_projection.bias if self.config.other_toolkits.output_bias else None
        if self.config.tie_embeddings == "none":
            return self.output_projection.kernel, bias
        return self.target_embedding.embeddings, bias

    def output_rows(self, ids: Any) -> tuple[Any, Any]:
        kernel, bias = self.output_weights()
        if self.config.tie_embeddings == "none":
            rows = ops.transpose(ops.take(kernel, ids, axis=1))
        else:  # the kernel may be int8
            rows = self.target_embedding.rows(ids)
        biases = None if bias is None else ops.cast(ops.take(bias, ids), self.compute_dtype)
        return ops.cast(rows, self.compute_dtype), biases

    def replace_products(self, make_product: Callable[[Any], Product]) -> None:
        """Replaces the products with all matrices, for exports, as in `BaseLayer`."""
        for layer in self.layers:
            layer.replace_products(make_product)

    def encode(self, source_ids: Any, training: bool | None = None) -> Memory:
        embedded, mask = self._embed_source(source_ids, training)
        states, _ = self.encoder.transform(embedded, mask=mask, training=training)
        return Memory(states, mask)

    def encoder_attention(self, source_ids: Any) -> list[Any]:
        """Returns the attention weights of each encoder layer for int `[B, S]`, `[B, H, S, S]`."""
        embedded, mask = self._embed_source(source_ids, training=False)
        _, weights = self.encoder(embedded, mask=mask, return_attention_scores=True, training=False)
        return list(weights)

    def project_memory(self, memory: Memory) -> Memory:
        return memory._replace(cache=self.decoder.project_memory(memory.states))

    def init_cache(self, batch_size: Any, length: Any, queries: int = 1) -> list[KeyValue]:
        return self.decoder.init_cache(batch_size, length, queries)

    def decode(
        self,
        target_ids: Any,
        memory: Memory,
        state: DecodeState | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> tuple[Any, list[dict[str, Any]] | None]:
        embedded = self.target_embedding(target_ids)
        positions = embedded if state is None else ops.reshape(state.position, (1,))
        embedded = embedded + self.target_positions(positions)
        embedded = self._norm_and_drop(embedded, self.target_norm, self.target_dropout, training)
        return self.decoder.transform(
            embedded,
            memory=memory.states if memory.cache is None else memory.cache,
            memory_mask=memory.mask,
            state=state,
            return_attention_scores=return_attention_scores,
            training=training,
        )

    def _embed_source(self, source_ids: Any, training: bool | None) -> tuple[Any, Any]:
        """Embeds int `[B, S]`, and returns which tokens may be attended to, bool `[B, S]`."""
        mask = padding_mask(source_ids, self.config.pad_id)
        other = self.config.other_toolkits
        if other.mask_source_end:
            mask = ops.logical_and(mask, ops.not_equal(source_ids, self.config.token_ids.end_id))
        if other.forced_language:
            mask = ops.logical_and(mask, ops.arange(ops.shape(source_ids)[1]) > 0)
        embedded = self.source_embedding(source_ids)
        embedded = embedded + self.source_positions(embedded)
        dropout = self.source_dropout
        return self._norm_and_drop(embedded, self.source_norm, dropout, training), mask

    def _norm_and_drop(
        self, embedded: Any, norm: LayerNorm | None, dropout: Dropout, training: bool | None
    ) -> Any:
        if norm is not None:
            embedded = norm(embedded, training=training)
        # The sum of embeddings and positions is computed in float32 and rounded once.
        return dropout(ops.cast(embedded, self.compute_dtype), training=training)


def _model_config(config: Any) -> ModelConfig:
    if isinstance(config, Mapping):
        check_names(config, [*ModelConfig.declarations()], "a field of ModelConfig")
        return ModelConfig.from_dict(config)
    model: Any = config.model if isinstance(config, Config) else config
    require(
        isinstance(model, ModelConfig),
        f"The configuration is {config!r:.60}. Give a ModelConfig, a dict of its fields, or a "
        "Config. For a preset, use Transformer.from_preset(name, vocab_size).",
    )
    return model
