"""KerasHub: the same model, made of its layers, and its samplers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import keras_hub
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from cost import Sizes
from keras import ops
from keras_hub import layers
from protocol import Started

from engines import graphs, tasks
from engines.side_by_side import Search, SideBySide, Weights

_VERSIONS = {module.__name__: module.__version__ for module in (keras_hub, keras, tf)}

# A projection of an attention layer → our fused kernel, its part, and the number of its parts.
_FUSED = {
    ("self_attention", "query"): ("qkv", 0, 3),
    ("self_attention", "key"): ("qkv", 1, 3),
    ("self_attention", "value"): ("qkv", 2, 3),
    ("cross_attention", "query"): ("query", 0, 1),
    ("cross_attention", "key"): ("key_value", 0, 2),
    ("cross_attention", "value"): ("key_value", 1, 2),
}


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
    return {**facts, "versions": _VERSIONS}, commands


class KerasHubTransformer:
    """The paper's post-norm Transformer with tied embeddings.

    Args:
        sizes: sizes of the model.
        dropout: dropout of the embeddings, the attention weights and the residuals.
    """

    def __init__(self, sizes: Sizes, dropout: float = 0.0):
        self.sizes = sizes
        stddev = sizes.d_model**-0.5
        self._embedding = layers.ReversibleEmbedding(
            sizes.target_vocab_size,
            sizes.d_model,
            embeddings_initializer=keras.initializers.RandomNormal(stddev=stddev),
        )
        self._positions = layers.SinePositionEncoding()
        self._dropout = keras.layers.Dropout(dropout)
        shape = (sizes.d_ff, sizes.num_heads, dropout)
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
        return self._dropout(embedded + self._positions(embedded, start_index=position))

    def keras_model(self, pad_id: int) -> keras.Model:
        """Returns a model that maps `source_ids` and `target_ids` to logits."""
        source_ids = keras.Input((None,), dtype="int32", name="source_ids")
        target_ids = keras.Input((None,), dtype="int32", name="target_ids")
        mask = source_ids != pad_id
        memory = self.encode(source_ids, mask)
        states = self._embed(target_ids)
        for layer in self._decoder:
            states = layer(states, memory, encoder_padding_mask=mask)
        logits = self._embedding(states, reverse=True)
        return keras.Model({"source_ids": source_ids, "target_ids": target_ids}, logits)

    def assign_weights(self, arrays: Weights) -> None:
        """Sets all weights from those of our `Transformer`."""
        self._embedding.embeddings.assign(arrays["embedding/embeddings"])
        for side, stack in (("encoder", self._encoder), ("decoder", self._decoder)):
            for i, layer in enumerate(stack):
                for weight in layer.weights:
                    name = weight.path.partition("/")[2]
                    array = same_weight(arrays, f"{side}/layer_{i}", name)
                    weight.assign(array.reshape(weight.shape))

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


def same_weight(arrays: Weights, layer: str, name: str) -> npt.NDArray[Any]:
    """Returns our weight that equals one of KerasHub's; its shape may differ.

    Args:
        arrays: our weights, by path.
        layer: path of our layer, such as "encoder/layer_0".
        name: KerasHub's name in the layer, such as "self_attention/query/kernel".
    """
    part, *projection, kind = name.split("/")
    if part.startswith("feedforward_") and not part.endswith("_norm"):
        which = "inner" if "intermediate" in part else "outer"
        return arrays[f"{layer}/feed_forward/{which}_{kind}"]
    part = part.replace("_layer", "").replace("feedforward", "feed_forward")
    if not projection:
        return arrays[f"{layer}/{part}/{kind}"]
    if projection == ["attention_output"]:
        return arrays[f"{layer}/{part}/output_{kind}"]
    fused, place, count = _FUSED[part, projection[0]]
    return np.split(arrays[f"{layer}/{part}/{fused}_{kind}"], count, axis=-1)[place]


def generate(
    model: KerasHubTransformer,
    sampler: keras_hub.samplers.Sampler,
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


class _Peer(SideBySide):
    """KerasHub's layers and samplers, next to our `Transformer`."""

    def new_model(self, weights: Weights | None) -> keras.Model:
        self._network = KerasHubTransformer(
            Sizes(**self.settings["sizes"]), self.settings["dropout"]
        )
        if weights is not None:
            self._network.assign_weights(weights)
        return self._network.keras_model(self.settings["pad_id"])

    def weights(self) -> Weights:
        raise NotImplementedError("The weights come from our model.")

    def new_search(self, beam_size: int) -> Search:
        network, special = self._network, self.settings["special_ids"]
        samplers = keras_hub.samplers
        beam = samplers.BeamSampler(num_beams=beam_size)
        sampler = samplers.GreedySampler() if beam_size == 1 else beam

        def search(source_ids: tf.Tensor) -> tf.Tensor:
            mask = source_ids != special["pad"]
            steps = self.settings["steps"]
            return generate(network, sampler, source_ids, mask, special["start"], steps)

        return graphs.of_ids(search, self.settings["compile"])


def side_by_side(settings: dict[str, Any]) -> Started:
    """Makes a model that `kerashub.py` compares with ours.

    Args:
        settings: `sizes`, `dropout`, `special_ids`, the number of `steps` of an output, and the
            settings of `SideBySide`.
    """
    facts, commands = _Peer(settings).started()
    return {**facts, "versions": _VERSIONS}, commands
