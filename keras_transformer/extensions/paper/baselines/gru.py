"""A recurrent encoder-decoder with additive attention (Bahdanau et al., 2015).

The encoder is a bidirectional GRU. At each step, the decoder's state s attends to all encoder
states h with score(s, h) = vᵀ tanh(W s + U h). The GRU reads the weighted mean and the previous
token. Teacher-forced training has two loops over time, one for each side. Each step processes the
whole batch. XLA compiles one program for each batch shape.
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
from keras_transformer.layers.masks import padding_mask
from keras_transformer.layers.state import DecodeState
from keras_transformer.models.encoder_decoder import Memory


@dataclasses.dataclass(frozen=True)
class GRUConfig(BaselineConfig):
    """Sizes of the model."""

    units: PositiveInt = setting(576, "width of the states in each direction")

    def num_parameters(self) -> int:
        d, u = self.d_model, self.units

        def gru(inputs: int) -> int:
            return 3 * (inputs * u + u * u + 2 * u)  # two biases for each gate, as in cuDNN

        attention = 2 * u * u + u * u + u
        first_state = u * u + u
        output = (d + 3 * u) * d + d
        decoder = attention + first_state + gru(d + 2 * u) + output
        return self._embedding_parameters() + 2 * gru(d) + decoder

    def multiplications(self, source: Any, target: Any) -> int:
        """Returns the multiplications of a forward pass over pairs of these lengths."""
        d, u, s, t = self.d_model, self.units, int(source.sum()), int(target.sum())
        encoder = s * 2 * 3 * (d * u + u * u)
        once = s * 2 * u * u + len(source) * u * u  # keys, and the first state
        # Score and weighted mean.
        attention = t * u * u + int((source * target).sum()) * (u + 2 * u)
        steps = t * 3 * ((d + 2 * u) * u + u * u)
        output = t * ((d + 3 * u) * d + d * self.target_vocab_size)
        return encoder + once + attention + steps + output


@dataclasses.dataclass(frozen=True)
class GRURun(RunConfig):
    """The three configurations of a GRU run."""

    architecture: ClassVar[str] = "gru"

    model: GRUConfig = dataclasses.field(default=GRUConfig())


class AttentionCell(keras.layers.Layer):
    """Computes one step of the decoder: attention from the previous state, then a GRU.

    As a cell of `keras.layers.RNN`, it has four states: that of the GRU, `[B, units]`, and of the
    memory, which does not change, the keys `[B, S, units]`, the values `[B, S, value_dim]` and the
    mask `[B, S]`. Its output is the new state and the context, `[B, units + value_dim]`.
    """

    def __init__(self, units: int, value_dim: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.units = units
        self.value_dim = value_dim
        policy = self.dtype_policy
        self.query = keras.layers.Dense(units, use_bias=False, name="query", dtype=policy)
        self.attention = keras.layers.AdditiveAttention(name="attention", dtype=policy)
        self.gru = keras.layers.GRUCell(units, name="gru", dtype=policy)
        self.state_size = [units, units, value_dim, 1]
        self.output_size = units + value_dim

    def build(self, input_shape: Any) -> None:
        self.query.build((None, None, self.units))
        keys = (None, None, self.units)
        self.attention.build([keys, (None, None, self.value_dim), keys])
        self.gru.build((None, input_shape[-1] + self.value_dim))

    def call(self, inputs: Any, states: Any) -> Any:
        state, keys, values, mask = states
        state, context, _ = self.step(
            ops.expand_dims(inputs, 1), ops.expand_dims(state, 1), keys, values, mask
        )
        state, context = ops.squeeze(state, 1), ops.squeeze(context, 1)
        return ops.concatenate([state, context], axis=-1), [state, keys, values, mask]

    def step(
        self, inputs: Any, state: Any, keys: Any, values: Any, mask: Any
    ) -> tuple[Any, Any, Any]:
        """Computes a step for N alternatives of each sentence, from inputs `[B, N, d]`.

        The state has the shape `[B, N, units]`, the context `[B, N, value_dim]`, and the attention
        weights `[B, N, S]`.
        """
        context, weights = self.attention(
            [self.query(state), values, keys],
            mask=[None, ops.cast(mask, "bool")],
            return_attention_scores=True,
        )
        both = ops.concatenate([inputs, context], axis=-1)
        rows, _ = self.gru(
            ops.reshape(both, (-1, both.shape[-1])), [ops.reshape(state, (-1, self.units))]
        )
        return ops.reshape(rows, ops.shape(state)), context, weights


@keras.saving.register_keras_serializable(package="keras_transformer")
class GRU(Baseline):
    """A recurrent encoder-decoder with the sizes of a `GRUConfig`."""

    run_config: ClassVar[type[RunConfig]] = GRURun
    embedding_stddev: ClassVar[float] = 0.05
    config: GRUConfig

    def __init__(self, config: GRUConfig | Mapping[str, Any], **kwargs: Any):
        super().__init__(config, **kwargs)
        d, units, policy = self.config.d_model, self.config.units, self.dtype_policy
        dense = keras.layers.Dense
        # XLA cannot compile cuDNN kernels.
        one_way = keras.layers.GRU(
            units, return_sequences=True, use_cudnn=False, name="gru", dtype=policy
        )
        encoder = keras.layers.Bidirectional(one_way, name="encoder", dtype=policy)
        self.encoder = self.add(encoder, None, None, d)
        self.memory_dropout = self.add_dropout("memory_dropout", 2 * units)
        keys = dense(units, use_bias=False, name="keys", dtype=policy)
        self.keys = self.add(keys, None, None, 2 * units)
        first_state = dense(units, activation="tanh", name="first_state", dtype=policy)
        self.first_state = self.add(first_state, None, units)
        self.cell = AttentionCell(units, 2 * units, name="cell", dtype=policy)
        decoder = keras.layers.RNN(self.cell, return_sequences=True, name="decoder", dtype=policy)
        self.decoder = self.add(decoder, None, None, d)
        output_map = dense(d, name="output_map", dtype=policy)
        self.output_map = self.add(output_map, None, None, d + 3 * units)

    def encode(self, source_ids: Any, training: bool | None = None) -> Memory:
        mask = padding_mask(source_ids, self.config.pad_id)
        embedded = self.source_dropout(self.source_embedding(source_ids), training=training)
        states = self.encoder(embedded, mask=mask, training=training)
        states = states * ops.cast(ops.expand_dims(mask, -1), states.dtype)
        return Memory(self.memory_dropout(states, training=training), mask)

    def project_memory(self, memory: Memory) -> Memory:
        # The backward direction ends at the first token.
        last = memory.states[:, 0, self.config.units :]
        cache = {
            "state": self.first_state(last),
            "keys": self.keys(memory.states),
            "values": memory.states,
        }
        return memory._replace(cache=cache)

    def init_cache(self, batch_size: Any, length: Any, queries: int = 1) -> Any:
        return [ops.zeros((batch_size, queries, self.config.units), self.compute_dtype)]

    def decode(
        self,
        target_ids: Any,
        memory: Memory,
        state: DecodeState | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> tuple[Any, list[dict[str, Any]] | None]:
        source = self.project_memory(memory).cache if memory.cache is None else memory.cache
        attended = source["keys"], source["values"], memory.mask
        embedded = self.target_dropout(self.target_embedding(target_ids), training=training)
        attention = None
        if state is None:
            outputs = self.decoder(embedded, initial_state=[source["state"], *attended])
        else:
            first_state = ops.expand_dims(source["state"], 1)
            before = ops.where(ops.equal(state.position, 0), first_state, state.layers[0])
            after, context, weights = self.cell.step(embedded, before, *attended)
            state.layers = [after]
            outputs = ops.concatenate([after, context], axis=-1)
            attention = [{"cross": ops.expand_dims(weights, 1)}]
        features = self.output_map(ops.concatenate([embedded, outputs], axis=-1))
        return self.output_dropout(features, training=training), attention
