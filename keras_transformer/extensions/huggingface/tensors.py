"""Names and layouts of the tensors of MarianMT, the model of Hugging Face for Marian's models.

MarianMT is the Transformer of the paper with fixed choices: post-norm, biases everywhere, sinusoids
with all sines first, and an epsilon of 1e-5. `to_marian` moves a model to these choices where this
does not change its function, and `to_tensors` renames its weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from keras_transformer.config import ModelConfig
from keras_transformer.errors import InputError
from keras_transformer.extensions.converters.source import fairseq_table
from keras_transformer.models.transformer import Transformer
from keras_transformer.runs.checkpoints import Arrays

EPSILON = 1e-5  # MarianMT uses it in all layer norms
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "swish"}

# The only values of these fields that MarianMT can express.
_FIXED: Mapping[str, Any] = {
    "norm_position": "post",
    "positions": "sinusoidal",
    "attention_window": None,
    "decoder_self_attention": "attention",
    "embedding_norm": False,
    "final_norm": False,
    "first_position": 0,
    "forced_language": False,
}
# Weights whose last axis has the width of the model, by the ends of their paths. It is the first
# axis of all others, except of these biases, which have no such axis.
_BY_COLUMN = ("embeddings", "output_kernel", "outer_kernel")
_OTHER_WIDTH = ("qkv_bias", "query_bias", "key_value_bias", "inner_bias", "output_projection/bias")


def check_expressible(config: ModelConfig) -> None:
    """Raises an error if MarianMT cannot express a model."""
    width = config.d_model / config.num_heads
    values = {**config.as_dict(), "final_norm": config.has_final_norm}
    values |= {"key_dim": config.key_dim, "value_dim": config.value_dim}
    for name, supported in {**_FIXED, "key_dim": width, "value_dim": width}.items():
        value = values[name]
        if value != supported:
            raise InputError(
                f"model.{name} is {value}, but MarianMT supports only "
                f"{supported} here. Export the model in another format, such as ctranslate2."
            )


def to_marian(config: ModelConfig, weights: Arrays) -> tuple[ModelConfig, Arrays]:
    """Returns the configuration and the weights of the same model in MarianMT's form.

    If sines and cosines alternate, the features of the whole model are reordered, so that all
    sines come first. This only changes the order of sums. The epsilon of the layer norms changes to
    `EPSILON`, which changes the outputs slightly.
    """
    features = np.arange(config.d_model)
    if config.other_toolkits.sinusoid_layout == "interleaved":
        features = np.concatenate([features[::2], features[1::2]])
    reordered = {}
    for path, array in weights.items():
        axis = 1 if path.endswith(_BY_COLUMN) else 0
        has_width = not path.endswith(_OTHER_WIDTH)
        reordered[path] = np.take(array, features, axis) if has_width else array
    changed = config.replace(sinusoid_layout="halves", layer_norm_epsilon=EPSILON)
    return changed, reordered


def has_usual_positions(config: ModelConfig) -> bool:
    """Returns True if MarianMT computes the positions of a model itself.

    Otherwise, they are tensors of the file. `transformers` reads them, but does not save them.
    """
    return config.other_toolkits.sinusoid_frequencies == "paper"


def to_tensors(transformer: Transformer, num_positions: int) -> dict[str, np.ndarray]:
    """Returns MarianMT's tensors by name, float32."""
    config = transformer.config
    weights = {path: weight.numpy() for path, weight in transformer.weights_by_path().items()}
    source = weights[f"{transformer.source_embedding.name}/embeddings"]
    target = weights[f"{transformer.target_embedding.name}/embeddings"]
    if config.tie_embeddings == "all":
        tensors = {"model.shared.weight": target}
    else:
        tensors = {
            "model.encoder.embed_tokens.weight": source,
            "model.decoder.embed_tokens.weight": target,
        }
    if config.tie_embeddings == "none":
        tensors["lm_head.weight"] = weights["output_projection/kernel"].T
    bias = np.zeros(config.target_vocab_size, np.float32)
    tensors["final_logits_bias"] = weights.get("output_projection/bias", bias)[None]
    if not has_usual_positions(config):
        indices = keras.ops.arange(num_positions)
        for stack, positions in (
            ("encoder", transformer.source_positions),
            ("decoder", transformer.target_positions),
        ):
            table = keras.ops.convert_to_numpy(positions(indices))
            tensors[f"model.{stack}.embed_positions.weight"] = table
    for path, names in fairseq_table(config, "model.").items():
        if path in weights:
            array = weights[path].T  # --> [outputs, inputs], or [outputs]
        else:  # a missing bias; the kernel before it has the outputs
            array = np.zeros(len(array), np.float32)
        tensors |= dict(zip(names, np.split(array, len(names)), strict=True))
    return {name: np.ascontiguousarray(tensor, np.float32) for name, tensor in tensors.items()}
