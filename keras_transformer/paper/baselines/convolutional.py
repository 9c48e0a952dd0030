"""A convolutional encoder-decoder in the style of ConvS2S (Gehring et al., 2017).

Layers of gated linear convolutions (a window of k tokens gives a value and a gate), each
residual and scaled by √0.5; learned positions; and in every layer of the decoder attention by
dot products, whose keys are the encoder's output and whose values are that plus the embedding.
Weights are not normalized, as they are there (Salimans and Kingma, 2016): Keras has no
such layer. Nothing is recurrent, so teacher-forced training is one pass over all positions.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import keras
from keras import ops

from keras_transformer.config import PositiveInt, RunConfig, require
from keras_transformer.layers.masks import padding_mask
from keras_transformer.models.encoder_decoder import Decoded, Memory, register_architecture
from keras_transformer.paper.baselines.baseline import Baseline, BaselineConfig
from keras_transformer.paper.baselines.gated_convolutions import (
    HALF,
    ConvolutionalDecoderLayer,
    GatedConvolution,
    linear_map,
)


@dataclasses.dataclass(frozen=True)
class ConvolutionalConfig(BaselineConfig):
    """Sizes of the model.

    `hidden` is the width of the layers, `kernel_size` the tokens of a window (an odd number), and
    `max_positions` the number of learned positions on each side.
    """

    num_encoder_layers: PositiveInt = 8
    num_decoder_layers: PositiveInt = 8
    hidden: PositiveInt = 256
    kernel_size: PositiveInt = 3
    max_positions: PositiveInt = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.kernel_size % 2 == 1,
            f"model.kernel_size is {self.kernel_size}; expected an odd number, as many tokens on "
            "either side",
        )

    def num_parameters(self) -> int:
        d, h = self.d_model, self.hidden
        to_hidden, from_hidden = d * h + h, h * d + d
        convolution = self.kernel_size * h * 2 * h + 2 * h
        encoder = to_hidden + self.num_encoder_layers * convolution + from_hidden
        decoder_layer = convolution + from_hidden + to_hidden
        decoder = to_hidden + self.num_decoder_layers * decoder_layer + from_hidden
        positions = 2 * self.max_positions * d
        return self._embedding_parameters() + positions + encoder + decoder


@dataclasses.dataclass(frozen=True)
class ConvolutionalRun(RunConfig):
    """The three configurations of a convolutional run."""

    architecture: ClassVar[str] = "convolutional"

    model: ConvolutionalConfig = dataclasses.field(default_factory=ConvolutionalConfig)


@register_architecture
@keras.saving.register_keras_serializable(package="keras_transformer")
class Convolutional(Baseline):
    """A convolutional encoder-decoder with the sizes of a `ConvolutionalConfig`.

    Args:
        config: the sizes of the model, or a dict of them.

    Call arguments: see `EncoderDecoder`.
    """

    run_config: ClassVar[type[RunConfig]] = ConvolutionalRun
    embedding_stddev: ClassVar[float] = 0.1  # section 4.2
    config: ConvolutionalConfig

    def __init__(self, config: ConvolutionalConfig | dict[str, Any], **kwargs: Any):
        super().__init__(config, **kwargs)
        c, policy = self.config, self.dtype_policy
        self.source_positions = self._make_positions("source_positions")
        self.target_positions = self._make_positions("target_positions")
        self.encoder_input = linear_map(c.hidden, "encoder_input", policy)
        self.encoder_dropouts = [
            self.make_dropout(f"encoder_dropout_{i}") for i in range(c.num_encoder_layers)
        ]
        variance = 4.0 * (1.0 - c.dropout)
        self.encoder_layers = [
            GatedConvolution(
                c.hidden, c.kernel_size, variance=variance, name=f"encoder_layer_{i}", dtype=policy
            )
            for i in range(c.num_encoder_layers)
        ]
        self.encoder_output = linear_map(c.d_model, "encoder_output", policy)
        self.decoder_input = linear_map(c.hidden, "decoder_input", policy)
        self.decoder_layers = [
            ConvolutionalDecoderLayer(
                c.hidden, c.kernel_size, c.d_model, c.dropout, name=f"decoder_layer_{i}",
                dtype=policy,
            )
            for i in range(c.num_decoder_layers)
        ]  # fmt: skip
        self.decoder_output = linear_map(c.d_model, "decoder_output", policy)

    @property
    def max_positions(self) -> int | None:
        return self.config.max_positions

    def _make_positions(self, name: str) -> keras.layers.Layer:
        return keras.layers.Embedding(
            self.config.max_positions,
            self.config.d_model,
            embeddings_initializer=keras.initializers.RandomNormal(stddev=self.embedding_stddev),
            name=name,
            dtype=self.dtype_policy,
        )

    def build_layers(self) -> None:
        embedded = (None, None, self.config.d_model)
        hidden = (None, None, self.config.hidden)
        for positions in (self.source_positions, self.target_positions):
            positions.build((None,))
        for layer in (self.encoder_input, self.decoder_input):
            layer.build(embedded)
        for layer in (
            *self.encoder_dropouts, *self.encoder_layers, self.encoder_output, self.decoder_output
        ):  # fmt: skip
            layer.build(hidden)
        for layer in self.decoder_layers:
            layer.build((None, *hidden))

    def encode(self, source_ids: Any, training: bool | None = None) -> Memory:
        mask = padding_mask(source_ids, self.config.pad_id)
        positions = ops.arange(ops.shape(source_ids)[1])
        embedded = self.source_embedding(source_ids) + self._positions("source", positions)
        embedded = self.source_dropout(embedded, training=training)
        # Padding after a sentence is zero, like the padding before it.
        real = ops.cast(ops.expand_dims(mask, -1), self.compute_dtype)
        x = self.encoder_input(embedded)
        for dropout, layer in zip(self.encoder_dropouts, self.encoder_layers, strict=True):
            x = x * real
            x = (layer(dropout(x, training=training)) + x) * HALF
        keys = self.encoder_output(x)
        # Scales the gradients, which come back from every decoder layer (section 3.5).
        share = 1.0 / len(self.decoder_layers)
        keys = keys * share + ops.stop_gradient(keys * (1.0 - share))
        values = (keys + embedded) * HALF
        # --> [batch, source, 2, d_model]
        return Memory(ops.stack([keys, values], axis=2), mask)

    def project_memory(self, memory: Memory) -> Memory:
        real = ops.cast(memory.mask, "float32")
        cache = {
            "keys": memory.states[:, :, 0],
            "values": memory.states[:, :, 1],
            "scale": ops.sqrt(ops.sum(real, axis=-1)),
        }
        return memory._replace(cache=cache)

    def init_cache(self, batch_size: Any, length: Any, beams: int = 1) -> Any:
        c = self.config
        shape = (batch_size, beams, c.kernel_size - 1, c.hidden)
        return [ops.zeros(shape, self.compute_dtype) for _ in self.decoder_layers]

    def decode(
        self,
        target_ids: Any,
        memory: Memory,
        cache: Any = None,
        position: Any = 0,
        attention_mask: Any = None,
        grow: bool = False,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Decoded:
        memory = self.project_memory(memory) if memory.cache is None else memory
        is_cached = cache is not None
        if is_cached:
            positions = ops.reshape(position, (1,))
        else:
            positions = ops.arange(ops.shape(target_ids)[1])
            cache = self.init_cache(ops.shape(target_ids)[0], 0)
        # --> [batch, alternatives, target]: one position, or one alternative
        axis = 2 if is_cached else 1
        target_ids = ops.expand_dims(target_ids, axis)
        embedded = self.target_embedding(target_ids) + self._positions("target", positions)
        embedded = self.target_dropout(embedded, training=training)
        x, pasts, attention = self.decoder_input(embedded), [], []
        for layer, past in zip(self.decoder_layers, cache, strict=True):
            x, past, weights = layer(
                x, past, embedded, **memory.cache, memory_mask=memory.mask, training=training
            )
            pasts.append(past)
            attention.append({"cross": ops.expand_dims(weights, 1)})
        features = self.output_dropout(self.decoder_output(x), training=training)
        return Decoded(ops.squeeze(features, axis), pasts if is_cached else None, attention)

    def _positions(self, side: str, positions: Any) -> Any:
        layer = self.source_positions if side == "source" else self.target_positions
        return layer(ops.minimum(positions, self.config.max_positions - 1))
