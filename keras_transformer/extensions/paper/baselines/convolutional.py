"""A convolutional encoder-decoder in the style of ConvS2S (Gehring et al., 2017).

Layers of gated linear convolutions are residual and scaled by √0.5: a window of k tokens gives a
value and a gate. Positions are learned. Every layer of the decoder has dot-product attention. Its
keys are the encoder's output, and its values are the output plus the embedding. Unlike the
original, weights are not normalized (Salimans and Kingma, 2016), because Keras lacks such a layer.
Teacher-forced training is one pass over all positions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import keras
from keras import ops

from keras_transformer.config import RunConfig
from keras_transformer.config.schema import PositiveInt, setting
from keras_transformer.extensions.paper.baselines.baseline import Baseline, BaselineConfig
from keras_transformer.layers import Dropout
from keras_transformer.layers.masks import padding_mask
from keras_transformer.layers.state import DecodeState
from keras_transformer.models.encoder_decoder import Memory

HALF = 0.5**0.5  # keeps the variance of a sum of two


@dataclasses.dataclass(frozen=True)
class ConvolutionalConfig(BaselineConfig):
    """Sizes of the model."""

    num_encoder_layers: PositiveInt = setting(8, "layers of the encoder")
    num_decoder_layers: PositiveInt = setting(8, "layers of the decoder")
    hidden: PositiveInt = setting(256, "width of the layers")
    kernel_size: PositiveInt = setting(3, "tokens of a window")
    max_positions: PositiveInt = setting(512, "learned positions on each side")

    def num_parameters(self) -> int:
        d, h = self.d_model, self.hidden
        to_hidden, from_hidden = d * h + h, h * d + d
        convolution = self.kernel_size * h * 2 * h + 2 * h
        encoder = to_hidden + self.num_encoder_layers * convolution + from_hidden
        decoder_layer = convolution + from_hidden + to_hidden
        decoder = to_hidden + self.num_decoder_layers * decoder_layer + from_hidden
        positions = 2 * self.max_positions * d
        return self._embedding_parameters() + positions + encoder + decoder

    def multiplications(self, source: Any, target: Any) -> int:
        """Returns the multiplications of a forward pass over pairs of these lengths."""
        d, h, s, t = self.d_model, self.hidden, int(source.sum()), int(target.sum())
        convolution = self.kernel_size * h * 2 * h
        encoder = s * (2 * d * h + self.num_encoder_layers * convolution)
        layer = t * (convolution + 2 * d * h) + int((source * target).sum()) * 2 * d
        decoder = t * 2 * d * h + self.num_decoder_layers * layer
        return encoder + decoder + t * d * self.target_vocab_size


@dataclasses.dataclass(frozen=True)
class ConvolutionalRun(RunConfig):
    """The three configurations of a convolutional run."""

    architecture: ClassVar[str] = "convolutional"

    model: ConvolutionalConfig = dataclasses.field(default=ConvolutionalConfig())


def _linear_map(units: int, name: str, policy: Any) -> keras.layers.Layer:
    """Returns a linear map that keeps the variance of its input."""
    initializer = keras.initializers.VarianceScaling(1.0, "fan_in", "untruncated_normal")
    return keras.layers.Dense(units, kernel_initializer=initializer, name=name, dtype=policy)


class GatedConvolution(keras.layers.Layer):
    """A convolution `[B, T, d]` → `[B, T, filters]`, half of whose outputs gate the other half.

    `variance` is that of the outputs before the gate, for inputs of variance 1. With 4 it is 1
    after the gate; dropout of the input needs less (section 3.2, appendix A.3).
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int,
        padding: str = "same",
        variance: float = 4.0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.convolution = keras.layers.Conv1D(
            2 * filters,
            kernel_size,
            padding=padding,
            kernel_initializer=keras.initializers.VarianceScaling(
                variance, "fan_in", "untruncated_normal"
            ),
            name="convolution",
            dtype=self.dtype_policy,
        )

    def build(self, input_shape: Any) -> None:
        self.convolution.build(input_shape)

    def call(self, inputs: Any) -> Any:
        return ops.glu(self.convolution(inputs), axis=-1)


class ConvolutionalDecoderLayer(keras.layers.Layer):
    """A gated convolution over the past, then attention to the memory (section 3.3)."""

    def __init__(
        self, filters: int, kernel_size: int, d_model: int, dropout: float = 0.0, **kwargs: Any
    ):
        super().__init__(**kwargs)
        self.d_model = d_model
        policy = self.dtype_policy
        self.input_dropout = Dropout(dropout, name="input_dropout", dtype=policy)
        variance = 4.0 * (1.0 - dropout)
        # The past comes before the inputs, so that a step gives the same result as a whole target.
        self.convolution = GatedConvolution(
            filters, kernel_size, "valid", variance, name="convolution", dtype=policy
        )
        self.query = _linear_map(d_model, "query", policy)
        self.attention = keras.layers.Attention(name="attention", dtype=policy)
        self.context = _linear_map(filters, "context", policy)

    def build(self, inputs_shape: Any) -> None:
        filters = inputs_shape[-1]
        self.input_dropout.build(inputs_shape)
        self.convolution.build((None, None, filters))
        self.query.build((None, None, None, filters))
        self.attention.build([(None, None, self.d_model)] * 3)
        self.context.build((None, None, None, self.d_model))

    def call(
        self,
        inputs: Any,
        past: Any,
        target: Any,
        keys: Any,
        values: Any,
        scale: Any,
        memory_mask: Any,
        training: bool | None = None,
    ) -> Any:
        """Returns `[B, N, T, filters]`, the next past, and the attention `[B, N * T, S]`.

        `inputs` are `[B, N, T, filters]` for N alternative targets of each sentence, and `past` are
        the last inputs of the convolution, `[B, N, k - 1, filters]`, at first zeros. `target` has
        the embedded tokens, `[B, N, T, d_model]`. Keys and values are `[B, S, d_model]`, and
        `scale` `[B]` belongs to their mean.
        """
        dropped = self.input_dropout(inputs, training=training)
        window = ops.concatenate([past, dropped], axis=2)
        leading = ops.shape(inputs)[:3]
        rows = ops.reshape(window, (-1, ops.shape(window)[2], window.shape[-1]))
        x = ops.reshape(self.convolution(rows), (*leading, inputs.shape[-1]))
        query = (self.query(x) + target) * HALF
        context, weights = self.attention(
            [ops.reshape(query, (leading[0], -1, self.d_model)), values, keys],
            mask=[None, memory_mask],
            return_attention_scores=True,
        )
        # A mean of m values has a variance of 1 / m.
        context = context * ops.reshape(ops.cast(scale, context.dtype), (-1, 1, 1))
        x = (x + self.context(ops.reshape(context, ops.shape(target)))) * HALF
        past = window[:, :, ops.shape(inputs)[2] :]
        return (x + inputs) * HALF, past, weights


@keras.saving.register_keras_serializable(package="keras_transformer")
class Convolutional(Baseline):
    """A convolutional encoder-decoder with the sizes of a `ConvolutionalConfig`."""

    run_config: ClassVar[type[RunConfig]] = ConvolutionalRun
    embedding_stddev: ClassVar[float] = 0.1  # section 4.2
    config: ConvolutionalConfig

    def __init__(self, config: ConvolutionalConfig | Mapping[str, Any], **kwargs: Any):
        super().__init__(config, **kwargs)
        c, policy = self.config, self.dtype_policy
        embedded, hidden = (None, None, c.d_model), (None, None, c.hidden)
        self.source_positions = self._add_positions("source_positions")
        self.target_positions = self._add_positions("target_positions")
        self.max_positions = c.max_positions
        self.encoder_input = self.add(_linear_map(c.hidden, "encoder_input", policy), *embedded)
        self.encoder_dropouts = [
            self.add_dropout(f"encoder_dropout_{i}", c.hidden) for i in range(c.num_encoder_layers)
        ]
        encoder_layers = [
            GatedConvolution(
                c.hidden, c.kernel_size, variance=4.0 * (1.0 - c.dropout),
                name=f"encoder_layer_{i}", dtype=policy,
            )
            for i in range(c.num_encoder_layers)
        ]  # fmt: skip
        self.encoder_layers = [self.add(layer, *hidden) for layer in encoder_layers]
        self.encoder_output = self.add(_linear_map(c.d_model, "encoder_output", policy), *hidden)
        self.decoder_input = self.add(_linear_map(c.hidden, "decoder_input", policy), *embedded)
        decoder_layers = [
            ConvolutionalDecoderLayer(
                c.hidden, c.kernel_size, c.d_model, c.dropout, name=f"decoder_layer_{i}",
                dtype=policy,
            )
            for i in range(c.num_decoder_layers)
        ]  # fmt: skip
        self.decoder_layers = [self.add(layer, None, *hidden) for layer in decoder_layers]
        self.decoder_output = self.add(_linear_map(c.d_model, "decoder_output", policy), *hidden)

    def _add_positions(self, name: str) -> keras.layers.Layer:
        positions = keras.layers.Embedding(
            self.config.max_positions,
            self.config.d_model,
            embeddings_initializer=keras.initializers.RandomNormal(stddev=self.embedding_stddev),
            name=name,
            dtype=self.dtype_policy,
        )
        return self.add(positions, None)

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

    def init_cache(self, batch_size: Any, length: Any, queries: int = 1) -> Any:
        c = self.config
        shape = (batch_size, queries, c.kernel_size - 1, c.hidden)
        return [ops.zeros(shape, self.compute_dtype) for _ in self.decoder_layers]

    def decode(
        self,
        target_ids: Any,
        memory: Memory,
        state: DecodeState | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> tuple[Any, list[dict[str, Any]] | None]:
        memory = self.project_memory(memory) if memory.cache is None else memory
        if state is not None:
            positions, cache = ops.reshape(state.position, (1,)), state.layers
        else:
            positions = ops.arange(ops.shape(target_ids)[1])
            cache = self.init_cache(ops.shape(target_ids)[0], 0)
        # --> [batch, alternatives, target]: one position, or one alternative
        axis = 1 if state is None else 2
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
        if state is not None:
            state.layers = pasts
        return ops.squeeze(features, axis), attention

    def _positions(self, side: str, positions: Any) -> Any:
        layer = self.source_positions if side == "source" else self.target_positions
        return layer(ops.minimum(positions, self.config.max_positions - 1))
