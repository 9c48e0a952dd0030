"""The Transformer: an encoder and a decoder over tied token embeddings (paper, section 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import keras
from keras import ops

from keras_transformer.config import Config, ModelConfig, RunConfig
from keras_transformer.layers import (
    Decoder,
    DecoderLayer,
    Dropout,
    Encoder,
    EncoderLayer,
    LearnedPositions,
    SinusoidalPositions,
    TokenEmbedding,
    padding_mask,
)
from keras_transformer.layers.attention import KeyValue
from keras_transformer.models.encoder_decoder import Decoded, EncoderDecoder, Memory


@keras.saving.register_keras_serializable(package="keras_transformer")
class OutputProjection(keras.layers.Layer):
    """The pre-softmax linear map where it is not the embedding's, or where it has a bias.

    Args:
        vocab_size: V.
        use_kernel: own a kernel `[d_model, V]`.
        use_bias: own a bias `[V]`.
    """

    def __init__(self, vocab_size: int, use_kernel: bool, use_bias: bool, **kwargs: Any):
        super().__init__(**kwargs)
        self.vocab_size = vocab_size
        self.use_kernel = use_kernel
        self.use_bias = use_bias

    def build(self, input_shape: Any) -> None:
        if self.use_kernel:
            self.kernel = self.add_weight(
                shape=(input_shape[-1], self.vocab_size),
                initializer="glorot_uniform",
                name="kernel",
            )
        if self.use_bias:
            self.bias = self.add_weight(shape=(self.vocab_size,), initializer="zeros", name="bias")

    def call(self, inputs: Any) -> Any:
        """`[..., d_model]` to `[..., V]`; without a kernel `[..., V]` to `[..., V]`."""
        outputs = ops.matmul(inputs, self.kernel) if self.use_kernel else inputs
        return outputs + self.bias if self.use_bias else outputs

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (*input_shape[:-1], self.vocab_size)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "vocab_size": self.vocab_size,
            "use_kernel": self.use_kernel,
            "use_bias": self.use_bias,
        }


@keras.saving.register_keras_serializable(package="keras_transformer")
class Transformer(EncoderDecoder):
    """The encoder-decoder that a `ModelConfig` describes.

    Args:
        config: the shape of the model, or a dict of its fields.

    Call arguments: as `EncoderDecoder`'s.
    """

    run_config: ClassVar[type[RunConfig]] = Config
    encoder_layer: ClassVar[type[EncoderLayer]] = EncoderLayer
    decoder_layer: ClassVar[type[DecoderLayer]] = DecoderLayer
    config: ModelConfig

    def __init__(self, config: ModelConfig | Mapping[str, Any], **kwargs: Any):
        kwargs.setdefault("name", "transformer")
        super().__init__(**kwargs)
        self.config = c = config if isinstance(config, ModelConfig) else ModelConfig(**config)
        policy = self.dtype_policy

        self._add_embeddings()
        self.source_positions = self._make_positions("source_positions")
        self.target_positions = self._make_positions("target_positions")
        dropout = c.embedding_dropout
        self.source_dropout = Dropout(dropout, name="source_dropout", dtype=policy)
        self.target_dropout = Dropout(dropout, name="target_dropout", dtype=policy)

        arguments = {
            "num_heads": c.num_heads,
            "key_dim": c.key_dim,
            "value_dim": c.value_dim,
            "d_ff": c.d_ff,
            "norm_position": c.norm_position,
            "layer_norm_epsilon": c.layer_norm_epsilon,
            "activation": c.activation,
            "attention_bias": c.attention_bias,
            "attention_window": c.attention_window,
            "attention_dropout": c.attention_dropout,
            "relu_dropout": c.relu_dropout,
            "residual_dropout": c.residual_dropout,
            "dtype": policy,
        }
        self.encoder = Encoder(
            [
                self.encoder_layer(**arguments, name=f"layer_{i}")
                for i in range(c.num_encoder_layers)
            ],
            name="encoder",
            dtype=policy,
        )
        self.decoder = Decoder(
            [
                self.decoder_layer(**arguments, name=f"layer_{i}")
                for i in range(c.num_decoder_layers)
            ],
            name="decoder",
            dtype=policy,
        )
        self.output_projection: Any = None  # needed for a kernel or a bias of its own
        if c.tie_embeddings == "none" or c.output_bias:
            self.output_projection = OutputProjection(
                c.target_vocab_size,
                use_kernel=c.tie_embeddings == "none",
                use_bias=c.output_bias,
                name="output_projection",
                dtype=policy,
            )

    @property
    def max_positions(self) -> int | None:
        return self.config.max_positions if self.config.positions == "learned" else None

    @property
    def has_attention_at_hand(self) -> bool:
        return self.config.attention_window is None

    def _make_embedding(self, name: str, vocab_size: int) -> TokenEmbedding:
        c = self.config
        return TokenEmbedding(
            vocab_size, c.d_model, scale=c.scale_embeddings, name=name, dtype=self.dtype_policy
        )

    def _make_positions(self, name: str) -> keras.layers.Layer:
        c = self.config
        if c.positions == "learned":
            return LearnedPositions(c.d_model, c.max_positions, name=name, dtype=self.dtype_policy)
        return SinusoidalPositions(c.d_model, c.sinusoid_layout, name=name, dtype=self.dtype_policy)

    def build(self, input_shape: Any = None) -> None:
        """Makes all weights; they do not depend on the shapes of the input."""
        if getattr(self, "built", False):
            return
        ids, embedded = (None, None), (None, None, self.config.d_model)
        # One scope for all, or the layers would not know that they belong to this model.
        with keras.name_scope(self.name, caller=self):
            for layer in dict.fromkeys((self.source_embedding, self.target_embedding)):
                layer.build(ids)
            for layer in (self.source_positions, self.target_positions):
                layer.build((None,))
            for layer in (self.source_dropout, self.target_dropout, self.encoder):
                layer.build(embedded)
            self.decoder.build(embedded, embedded)
            if self.output_projection is not None:
                self.output_projection.build(embedded)
        self.built = True

    def target_features(
        self,
        target_ids: Any,
        memory: Memory,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Any:
        """`features` of int `[B, T]`, after a source that is encoded already.

        With `return_attention_scores` a tuple of them and of a list of every layer's `self`
        `[B, H, T, T]` and `cross` `[B, H, T, S]`.
        """
        embedded = self._embed_target(target_ids, training)
        return self.decoder(
            embedded,
            memory.states if memory.cache is None else None,
            memory_mask=memory.mask,
            memory_cache=memory.cache,
            return_attention_scores=return_attention_scores,
            training=training,
        )

    def logits(self, features: Any, parts: int = 1) -> Any:
        """`[..., d_model]` to `[..., target_vocab_size]` (paper, section 3.4).

        Args:
            features: the decoder's output.
            parts: as `TokenEmbedding.logits`'s, where embeddings are tied.
        """
        if self.config.tie_embeddings == "none":
            return self.output_projection(features)
        logits = self.target_embedding.logits(features, parts)
        return logits if self.output_projection is None else self.output_projection(logits)

    def output_weights(self) -> tuple[keras.Variable, keras.Variable | None]:
        projection = self.output_projection
        bias = projection.bias if self.config.output_bias else None
        untied = self.config.tie_embeddings == "none"
        return (projection.kernel if untied else self.target_embedding.embeddings), bias

    def encode(
        self, source_ids: Any, training: bool | None = None, return_attention_scores: bool = False
    ) -> Any:
        """Encodes int `[B, S]`, padded with `config.pad_id`, as a `Memory`.

        With `return_attention_scores` a tuple of it and of a list of `[B, H, S, S]`, one a layer.
        """
        embedded = self._embed_source(source_ids, training)
        mask = padding_mask(source_ids, self.config.pad_id)
        outputs = self.encoder(
            embedded,
            padding_mask=mask,
            return_attention_scores=return_attention_scores,
            training=training,
        )
        if return_attention_scores:
            return Memory(outputs[0], mask), outputs[1]
        return Memory(outputs, mask)

    def project_memory(self, memory: Memory) -> Memory:
        """Adds every layer's keys and values, for a decoder that will ask many times."""
        return memory._replace(cache=self.decoder.project_memory(memory.states))

    def init_cache(self, batch_size: Any, length: Any, beams: int = 1) -> list[KeyValue]:
        return self.decoder.init_cache(batch_size, length * beams)

    def decode(
        self,
        target_ids: Any,
        memory: Memory,
        cache: Any = None,
        position: Any = 0,
        attention_mask: Any = None,
        grow: bool = False,
        training: bool | None = None,
    ) -> Decoded:
        """Decodes a whole target, or with a cache one position of it.

        Args:
            target_ids: int `[B, T]`; with a cache T alternatives (beams) at one position.
            memory: from `encode`, projected or not.
            cache: from `init_cache`, or from the step before.
            position: int scalar; place of the first of `target_ids`, or of them all.
            attention_mask: bool `[B, T, L]`, which places of the cache each
                alternative may see, as `SelfAttention`'s.
            grow: append to the cache, in place of writing at `position`.
        """
        outputs = self.decoder(
            self._embed_target(target_ids, training, position, cache is not None),
            memory.states if memory.cache is None else None,
            memory_mask=memory.mask,
            memory_cache=memory.cache,
            cache=cache,
            position=None if grow else position,
            attention_mask=attention_mask,
            return_attention_scores=True,
            training=training,
        )
        # A tenth of a step at batch 1; but XLA, whose caches do not grow, loses more by it.
        logits = self.logits(outputs[0], parts=2 if cache is not None and grow else 1)
        return Decoded(logits, outputs[1] if cache is not None else None, outputs[-1])

    def _embed_source(self, source_ids: Any, training: bool | None) -> Any:
        if not self.built:  # or the first `encode` would make its layers' weights one by one
            self.build()
        embedded = self._add_positions(
            self.source_embedding(source_ids),
            self.source_positions(ops.arange(ops.shape(source_ids)[1])),
        )
        return self.source_dropout(embedded, training=training)

    def _embed_target(
        self, target_ids: Any, training: bool | None, position: Any = 0, same: bool = False
    ) -> Any:
        """Embeds targets from `position` on, or all at the `same` position."""
        if not self.built:
            self.build()
        positions = (
            ops.reshape(position, (1,))
            if same
            else (ops.arange(ops.shape(target_ids)[1]) + position)
        )
        embedded = self._add_positions(
            self.target_embedding(target_ids), self.target_positions(positions)
        )
        return self.target_dropout(embedded, training=training)

    def _add_positions(self, embedded: Any, positions: Any) -> Any:
        # Summed in float32 and rounded once.
        return ops.cast(embedded + positions, self.compute_dtype)
