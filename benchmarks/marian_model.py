"""Writes the model of a run for Marian's translator.

Marian has two implementations of the Transformer, and the default one cannot express a run:

* it computes sinusoids with other frequencies;
* its first decoder input is a zero vector instead of the embedding of a start token;
* with pre-norm, its decoder attends to states without layer norm (see docs/convert.md).

The other one (`TRANSFORMER_FLAVOR=experimental` in the environment) reads learned positions, and
normalizes these states. Therefore the sinusoids are written as learned positions. The embedding of
the start token is added to the first target position. Marian does not scale embeddings that have
learned positions, so the file contains scaled embeddings and a separate output layer. In int8 this
output layer is packed, too. With tied embeddings, Marian leaves it in float32.

Marian's layer norm has an epsilon of 1e-5. A run with 1e-6 has slightly different outputs in
Marian.

`marian convert` only packs matrices with the names of the default implementation. The experimental
one accepts these names, and needs its own names for everything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_transformer.config import ModelConfig
from keras_transformer.errors import InputError
from keras_transformer.inference.loading import load_translator
from keras_transformer.models.transformer import Transformer
from keras_transformer.runs.checkpoints import Arrays
from keras_transformer.runs.run_directory import RunDirectory

POSITIONS = 2048  # Marian ends the process at a position beyond its table

# Our matrices, and Marian's below the layer. "{}" is W for a kernel and b for a bias.
_LINEAR = {
    "self_attention/qkv": ("self_{}q", "self_{}k", "self_{}v"),
    "self_attention/output": ("self_{}o",),
    "cross_attention/query": ("context_{}q",),
    "cross_attention/key_value": ("context_{}k", "context_{}v"),
    "cross_attention/output": ("context_{}o",),
    "feed_forward/inner": ("ffn_{}1",),
    "feed_forward/outer": ("ffn_{}2",),
}
# Marian's blocks of a layer, which contain the layer norms.
_BLOCKS = {
    "encoder": {"self_attention": "selfAttentionBlock", "feed_forward": "filterBlock"},
    "decoder": {
        "self_attention": "autoRegressiveBlock",
        "cross_attention": "crossAttentionBlock",
        "feed_forward": "filterBlock",
    },
}
_STACKS = {
    "encoder": "TransformerBatchEncoder->encoder",
    "decoder": "TransformerBatchDecoder->decoder",
}
_LAYERS = {
    "encoder": "TransformerEncoderLayer",
    "decoder": "TransformerDecoderLayerWithCrossAttention",
}
_ACTIVATIONS = {"relu": "relu", "silu": "swish"}


def write_marian(run: RunDirectory, folder: Path) -> None:
    """Writes `model.npz`, `source.yml`, `target.yml` and the SentencePiece models of a run.

    The words of the vocabularies are `w` and the id of a piece, except `</s>` and `<unk>`. So
    Marian cannot misread a piece with quotes or spaces.

    Args:
        run: the run.
        folder: an existing folder.

    Raises:
        InputError: if Marian cannot express the model.
    """
    translator = load_translator(run)
    transformer = translator.transformer
    if not isinstance(transformer, Transformer):
        raise InputError(f"{run.path} has another architecture, which Marian cannot express.")
    config = transformer.config
    _check_expressible(config)
    translator.tokenizer.vocabulary.save(folder)
    sizes = {"source": config.source_vocab_size, "target": config.target_vocab_size}
    for side, size in sizes.items():
        words = [f"w{i}" for i in range(size)]
        words[config.token_ids.end_id], words[config.token_ids.unknown_id] = "</s>", "<unk>"
        lines = [f'"{word}": {i}\n' for i, word in enumerate(words)]
        (folder / f"{side}.yml").write_text("".join(lines))
    settings = "".join(f"{name}: {value}\n" for name, value in _settings(config).items())
    arrays = {
        **marian_arrays(transformer),
        "special:model.yml": np.frombuffer(f"{settings}\0".encode(), np.int8),
    }
    np.savez(folder / "model.npz", **arrays)  # type: ignore[arg-type]


def _check_expressible(config: ModelConfig) -> None:
    """Raises an `InputError` for a model that Marian cannot express."""
    head_dim = config.d_model // config.num_heads
    supported: dict[str, tuple[Any, ...]] = {
        "positions": ("sinusoidal",),
        "attention_window": (None,),
        "mask_source_end": (False,),
        "embedding_norm": (False,),
        "key_dim": (head_dim,),
        "value_dim": (head_dim,),
        "decoder_num_heads": (None, config.num_heads),
        "layer_norm_epsilon": (1e-5, 1e-6),  # Marian's, and one that is near enough
        "activation": (*_ACTIVATIONS,),
    }
    for name, values in supported.items():
        if (value := config.as_dict()[name]) not in values:
            raise InputError(
                f"model.{name} is {value}, but Marian supports only "
                f"{' and '.join(map(str, values))}. Leave marian out of --engines."
            )


def _settings(config: ModelConfig) -> dict[str, Any]:
    """Returns Marian's description of a model."""
    pre = config.norm_position == "pre"
    return {
        "type": "transformer",
        "dim-vocabs": [config.source_vocab_size, config.target_vocab_size],
        "dim-emb": config.d_model,
        "enc-depth": config.num_encoder_layers,
        "dec-depth": config.num_decoder_layers,
        "tied-embeddings": "false",
        "tied-embeddings-all": "false",
        "tied-embeddings-src": "false",
        "transformer-heads": config.num_heads,
        "transformer-dim-ffn": config.d_ff,
        "transformer-decoder-dim-ffn": config.decoder_sizes.d_ff,
        "transformer-ffn-depth": 2,
        "transformer-decoder-ffn-depth": 0,
        "transformer-ffn-activation": _ACTIVATIONS[config.activation],
        "transformer-preprocess": "n" if pre else '""',
        "transformer-postprocess": "a" if pre else "an",
        "transformer-postprocess-emb": '""',
        "transformer-postprocess-top": "n" if config.has_final_norm else '""',
        "transformer-train-position-embeddings": "true",
    }


def marian_arrays(transformer: Transformer) -> Arrays:
    """Returns the weights of a model by Marian's names, float32.

    Args:
        transformer: a built model that Marian can express.
    """
    config = transformer.config
    weights = {path: weight.numpy() for path, weight in transformer.weights_by_path().items()}
    arrays: Arrays = {}
    for path, names in _matrices(config):
        kernel = weights[f"{path}_kernel"]
        bias = weights.get(f"{path}_bias", np.zeros(kernel.shape[1], np.float32))
        for name, matrix, vector in zip(
            names, np.split(kernel, len(names), 1), np.split(bias, len(names)), strict=True
        ):
            arrays[name.format("W")], arrays[name.format("b")] = matrix, vector[None]
    for path, name in _norms(config):
        arrays[f"{name}->weight"] = weights[f"{path}/gamma"]
        arrays[f"{name}->bias"] = weights[f"{path}/beta"]

    scale = config.d_model**0.5 if config.other_toolkits.scale_embeddings else 1
    source = weights[f"{transformer.source_embedding.name}/embeddings"]
    target = weights[f"{transformer.target_embedding.name}/embeddings"]
    arrays["encoder_Wemb"], arrays["decoder_Wemb"] = scale * source, scale * target
    all_positions = keras.ops.arange(POSITIONS)
    for stack, positions in (
        ("encoder", transformer.source_positions),
        ("decoder", transformer.target_positions),
    ):
        table = np.array(keras.ops.convert_to_numpy(positions(all_positions)))
        if stack == "decoder":  # Marian's first input is zero
            table[0] += scale * target[config.token_ids.start_id]
        arrays[f"{_STACKS[stack]}->positionEmbedding->embeddings"] = table
    untied = config.tie_embeddings == "none"
    kernel = weights["output_projection/kernel"] if untied else target.T
    bias = weights.get("output_projection/bias", np.zeros(config.target_vocab_size, np.float32))
    # Not the newer decoder_ff_logit_out_Wt, because Marian does not transpose it for packing.
    arrays["decoder_ff_logit_out_W"], arrays["decoder_ff_logit_out_b"] = kernel, bias[None]
    return {name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items()}


def _layers(config: ModelConfig) -> Iterator[tuple[str, int]]:
    """Yields the stack and the index of each layer."""
    for stack in _STACKS:
        for index in range(getattr(config, f"num_{stack}_layers")):
            yield stack, index


def _matrices(config: ModelConfig) -> Iterator[tuple[str, list[str]]]:
    """Yields the path of each matrix, and the names of its parts."""
    for stack, index in _layers(config):
        for part, names in _LINEAR.items():
            if part.partition("/")[0] in _BLOCKS[stack]:
                yield (
                    f"{stack}/layer_{index}/{part}",
                    [f"{stack}_l{index + 1}_{name}" for name in names],
                )


def _norms(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """Yields the path and the name of each layer norm."""
    processor = "preprocessor" if config.norm_position == "pre" else "postprocessor"
    for stack, index in _layers(config):
        layer = f"{_STACKS[stack]}->layers->at({index})->as<marian::nn::{_LAYERS[stack]}>()"
        for part, block in _BLOCKS[stack].items():
            yield f"{stack}/layer_{index}/{part}_norm", f"{layer}->{block}->{processor}->norm"
    if config.has_final_norm:
        for stack, name in _STACKS.items():
            yield f"{stack}/norm", f"{name}->postprocessor->norm"
