"""KerasHub: a random model of the same shape, made of its layers, and its beam search."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import keras_hub
import tensorflow as tf
from cost import Sizes
from keras import ops
from keras_hub import layers
from protocol import Started

from engines import graphs, tasks


def decode_ids(settings: dict[str, Any]) -> Started:
    """Makes a random model that decodes ids.

    Args:
        settings: `precision`, `compile`, `beam_size`, `sizes`, `special_ids`, `seed`, the number
            of `steps`, and the settings of `tasks.decode_ids`.
    """
    keras.config.set_floatx(settings["precision"])
    keras.utils.set_random_seed(settings["seed"])
    special, compiled = settings["special_ids"], settings["compile"]
    model = KerasHubTransformer(Sizes(**settings["sizes"]))
    sampler = keras_hub.samplers.BeamSampler(num_beams=settings["beam_size"])

    def search(source_ids: tf.Tensor) -> tf.Tensor:
        mask = source_ids != special["pad"]
        return generate(model, sampler, source_ids, mask, special["start"], settings["steps"])

    function = graphs.of_ids(search, compiled)

    def decode(source_ids: tf.Tensor) -> Sequence[int]:
        rows, length = function(source_ids).numpy().shape
        return [length] * rows

    prepare, shape_of = graphs.input_of(compiled, special["pad"])
    facts, commands = tasks.decode_ids(settings, prepare, decode, shape_of)
    versions = {module.__name__: module.__version__ for module in (keras_hub, keras, tf)}
    return {**facts, "versions": versions}, commands


class KerasHubTransformer:
    """The paper's post-norm Transformer with tied embeddings."""

    def __init__(self, sizes: Sizes):
        self.sizes = sizes
        stddev = sizes.d_model**-0.5
        self._embedding = layers.ReversibleEmbedding(
            sizes.target_vocab_size,
            sizes.d_model,
            embeddings_initializer=keras.initializers.RandomNormal(stddev=stddev),
        )
        self._positions = layers.SinePositionEncoding()
        shape = (sizes.d_ff, sizes.num_heads)
        self._encoder = [layers.TransformerEncoder(*shape) for _ in range(sizes.num_encoder_layers)]
        self._decoder = [layers.TransformerDecoder(*shape) for _ in range(sizes.num_decoder_layers)]
        states = (None, None, sizes.d_model)
        self._embedding.build()
        for layer in self._encoder:
            layer.build(states)
        for layer in self._decoder:
            layer.build(states, states)

    def _embed(self, ids: tf.Tensor, position: int | tf.Tensor = 0) -> tf.Tensor:
        embedded = self._embedding(ids) * self.sizes.d_model**0.5
        return embedded + self._positions(embedded, start_index=position)

    def encode(self, source_ids: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        """Returns float `[rows, source, d_model]` of int32 and bool `[rows, source]`."""
        states = self._embed(source_ids)
        for layer in self._encoder:
            states = layer(states, padding_mask=mask)
        return states

    def empty_cache(self, rows: tf.Tensor, length: int | tf.Tensor) -> tf.Tensor:
        """Returns zeros `[rows, layers, 2, length, heads, dim]`, for keys and values."""
        heads = self.sizes.num_heads
        dim = self.sizes.d_model // heads
        return ops.zeros((rows, len(self._decoder), 2, length, heads, dim))

    def decode(
        self,
        ids: tf.Tensor,
        position: int | tf.Tensor,
        self_cache: tf.Tensor,
        memory: tf.Tensor,
        mask: tf.Tensor,
        cross_cache: tf.Tensor,
        fill_cross_cache: bool = False,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns logits float `[rows, tokens, vocabulary]` and both caches.

        Args:
            ids: int32 `[rows, tokens]`.
            position: position of the first token.
            self_cache: cache of the tokens before them.
            memory: output of the encoder, float `[rows, source, d_model]`.
            mask: bool `[rows, source]`, False at padding.
            cross_cache: cache of the memory.
            fill_cross_cache: if True, the cache of the memory is computed.
        """
        states = self._embed(ids, position)
        caches = []
        for i, layer in enumerate(self._decoder):
            states, *cache = layer(
                states,
                memory,
                encoder_padding_mask=mask,
                self_attention_cache=self_cache[:, i],
                self_attention_cache_update_index=position,
                cross_attention_cache=cross_cache[:, i],
                cross_attention_cache_update_index=0 if fill_cross_cache else None,
            )
            caches.append(cache)
        self_caches, cross_caches = zip(*caches, strict=True)
        if fill_cross_cache:
            cross_cache = ops.stack(cross_caches, axis=1)
        logits = self._embedding(states, reverse=True)
        return logits, ops.stack(self_caches, axis=1), cross_cache


def generate(
    model: KerasHubTransformer,
    sampler: keras_hub.samplers.BeamSampler,
    source_ids: tf.Tensor,
    mask: tf.Tensor,
    start_id: int,
    steps: int,
) -> tf.Tensor:
    """Decodes like `BartSeq2SeqLM.generate_step`, but without an end token.

    Args:
        model: computes the logits.
        sampler: the search.
        source_ids: int32 `[rows, source]`.
        mask: bool `[rows, source]`, False at padding.
        start_id: first token of the target.
        steps: number of tokens of every output.

    Returns:
        int32 `[rows, steps]`.
    """
    rows, source = ops.shape(source_ids)
    prompt = ops.pad(ops.full((rows, 1), start_id, dtype="int32"), [[0, 0], [0, steps]])
    memory = model.encode(source_ids, mask)
    # KerasHub's models fill the caches by a pass over the whole prompt.
    _, self_cache, cross_cache = model.decode(
        prompt,
        0,
        model.empty_cache(rows, steps + 1),
        memory,
        mask,
        model.empty_cache(rows, source),
        fill_cross_cache=True,
    )

    def next_logits(prompt: tf.Tensor, cache: Any, index: tf.Tensor) -> tuple[tf.Tensor, ...]:
        self_cache, *of_source = cache
        ids = ops.slice(prompt, [0, index - 1], [ops.shape(prompt)[0], 1])
        logits, self_cache, _ = model.decode(ids, index - 1, self_cache, *of_source)
        return ops.squeeze(logits, axis=1), None, (self_cache, *of_source)

    cache = (self_cache, memory, mask, cross_cache)
    return sampler(next_logits, prompt, cache=cache, index=1)[:, 1:]
