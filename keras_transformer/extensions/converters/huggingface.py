"""Models of the class MarianMT of Hugging Face transformers.

A directory contains `config.json`, `model.safetensors`, `vocab.json` (with separate vocabularies
also `target_vocab.json`), `source.spm` and `target.spm`, and perhaps `generation_config.json`,
which sets the search. Large models are split into several files of weights.

transformers computes a few things in another way than Marian, which trained most of these models:
the sinusoids, the epsilon of the layer norms, and the logit of the pad token. `_is_from_marian`
chooses between the two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_transformer.config import Config, ModelConfig
from keras_transformer.errors import InputError, needs_extra
from keras_transformer.extensions.converters import ConvertOptions
from keras_transformer.extensions.converters.converted import (
    ConvertedModel,
    SourceWeights,
    WeightTable,
    make_model,
)
from keras_transformer.extensions.converters.files import read_json
from keras_transformer.extensions.converters.generation import read_search
from keras_transformer.extensions.converters.pieces import (
    PieceOrder,
    order_pieces,
    read_sentencepiece,
    same_pieces,
)
from keras_transformer.layers.positions import SinusoidalPositions
from keras_transformer.models.transformer import EXCLUDED_TOKEN_BIAS
from keras_transformer.runs.checkpoints import Arrays, reading

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"  # of a model in several files

# Our path → the names of transformers. Both are below the layer, such as `encoder/layer_0` and
# `model.encoder.layers.0`. Each name has a `weight` and a `bias`.
_SELF_ATTENTION = {
    "self_attention/qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention/output": ("self_attn.out_proj",),
    "self_attention_norm/": ("self_attn_layer_norm",),
}
_CROSS_ATTENTION = {
    "cross_attention/query": ("encoder_attn.q_proj",),
    "cross_attention/key_value": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross_attention/output": ("encoder_attn.out_proj",),
    "cross_attention_norm/": ("encoder_attn_layer_norm",),
}
_FEED_FORWARD = {
    "feed_forward/inner": ("fc1",),
    "feed_forward/outer": ("fc2",),
    "feed_forward_norm/": ("final_layer_norm",),
}
_LAYERS = {
    "encoder": {**_SELF_ATTENTION, **_FEED_FORWARD},
    "decoder": {**_SELF_ATTENTION, **_CROSS_ATTENTION, **_FEED_FORWARD},
}

# Tied weights are stored under one of these names.
_SHARED = "model.shared.weight"
_SOURCE = "model.encoder.embed_tokens.weight"
_TARGET = "model.decoder.embed_tokens.weight"
_OUTPUT = "lm_head.weight"
_BIAS = "final_logits_bias"
# Sinusoids, which are computed here. A file may contain them.
_POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")

_ACTIVATIONS = {"relu": "relu", "swish": "silu", "silu": "silu", "gelu": "gelu"}
# A field of config.json in exports of this package.
POSITIONS_FIELD = "positions"
# The paper's frequencies, 10000^(-2i/d), or Marian's, 10000^(-i/(d/2 - 1)).
_FREQUENCIES = {"marian": "tensor2tensor", "huggingface": "paper"}
_POSITION_TOLERANCE = 0.02  # for tables in bfloat16


def read(path: Path, options: ConvertOptions) -> ConvertedModel:
    """Reads a MarianMT model."""
    if not path.is_dir():
        raise InputError(f"{path} is not a directory. Give the directory with config.json.")
    marian_mt = read_json(path / "config.json")
    _check_supported(marian_mt, path)
    with reading(path / "config.json", "a configuration of MarianMT"):
        settings = _settings(marian_mt, options)
    source = SourceWeights(_read_safetensors(path), str(path / _WEIGHTS))
    order = _order_pieces(path, marian_mt)
    search = read_search(path, marian_mt, order.vocabulary.unknown_id)
    config = Config().updated({**settings, **search})
    table = _table(config.model)
    weights = {**source.read(table, transpose=True), **_embeddings(source, config.model, order)}
    if _is_from_marian(marian_mt, options):
        # Marian has no pad token, but the file has a bias of 0 for it.
        weights["output_projection/bias"][order.vocabulary.pad_id] = EXCLUDED_TOKEN_BIAS
    for name in _POSITIONS:
        if name in source:
            _check_positions(source.take(name), config.model.d_model, f"{source.place}: {name}")
    source.check_all_used()
    return make_model(*_without_zero_biases(config, weights), order.vocabulary)


# Files.


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    with needs_extra("huggingface", "reading models of Hugging Face"):
        import safetensors.numpy
    arrays: dict[str, np.ndarray] = {}
    for name in _weight_files(path):
        file = path / name
        if not file.is_file():
            raise InputError(
                f"{file} does not exist. If there is a pytorch_model.bin, load it with "
                f"transformers and save it with save_pretrained, which writes {_WEIGHTS}."
            )
        with reading(file, "weights"):
            arrays.update(safetensors.numpy.load_file(file))
    return arrays


def _weight_files(path: Path) -> list[str]:
    """Returns the names of the files of weights."""
    if (path / _WEIGHTS).is_file() or not (path / _INDEX).is_file():
        return [_WEIGHTS]
    index = read_json(path / _INDEX)
    with reading(path / _INDEX, "an index of weights"):
        names = sorted(set(index["weight_map"].values()))
        if not names or any(Path(name).name != name for name in names):
            raise ValueError(f"weight_map has the files {names}")
    return names


# The configuration.


def _check_supported(config: Mapping[str, Any], path: Path) -> None:
    """Raises an `InputError` for a model that this package cannot express."""
    if config.get("model_type") != "marian":
        raise InputError(
            f"{path} has the model_type {config.get('model_type')!r}. Only marian can be converted."
        )
    if config.get("quantization_config") is not None:
        raise InputError(
            f"{path} has a quantization_config. Only models with float weights can be converted. "
            "Give the original model."
        )
    positions = config.get(POSITIONS_FIELD, "marian")
    if positions not in [*_FREQUENCIES]:
        raise InputError(
            f"{path} has the {POSITIONS_FIELD} {positions!r}. Only {' and '.join(_FREQUENCIES)} "
            "can be converted."
        )
    activation = config.get("activation_function")
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise InputError(
            f"{path} has the activation_function {activation!r}. Only {', '.join(_ACTIVATIONS)} "
            "can be converted."
        )
    for name, supported in {
        "normalize_before": False,
        "normalize_embedding": False,
        "add_final_layer_norm": False,
        "static_position_embeddings": True,
    }.items():
        if config.get(name, supported) is not supported:
            raise InputError(
                f"{path} has {name} {config[name]!r}, which transformers ignores for MarianMT. "
                f"Only models with {supported} can be converted."
            )


def _is_from_marian(config: Mapping[str, Any], options: ConvertOptions) -> bool:
    """Returns True if a model computes what Marian computes.

    This is the default, except for exports of this package, which compute what transformers does.
    """
    by_default = options.positions is None and POSITIONS_FIELD not in config
    return options.positions == "marian" or by_default


def _settings(config: Mapping[str, Any], options: ConvertOptions) -> dict[str, Any]:
    """Returns the settings of the model, named like `model.d_model`."""
    positions = options.positions or config.get(POSITIONS_FIELD, "marian")
    tying = "none"
    if config.get("tie_word_embeddings", True):
        tying = "all" if config.get("share_encoder_decoder_embeddings", True) else "target"
    heads, decoder_heads = (
        int(config[f"{stack}_attention_heads"]) for stack in ("encoder", "decoder")
    )
    d_ff, decoder_d_ff = (int(config[f"{stack}_ffn_dim"]) for stack in ("encoder", "decoder"))
    return {
        "model.d_model": int(config["d_model"]),
        "model.num_encoder_layers": int(config["encoder_layers"]),
        "model.num_decoder_layers": int(config["decoder_layers"]),
        "model.num_heads": heads,
        "model.decoder_num_heads": None if decoder_heads == heads else decoder_heads,
        "model.d_ff": d_ff,
        "model.decoder_d_ff": None if decoder_d_ff == d_ff else decoder_d_ff,
        "model.activation": _ACTIVATIONS[config["activation_function"]],
        "model.scale_embeddings": bool(config.get("scale_embedding", False)),
        "model.layer_norm_epsilon": 1e-6 if _is_from_marian(config, options) else 1e-5,
        "model.tie_embeddings": tying,
        "model.attention_bias": True,
        "model.output_bias": True,
        "model.sinusoid_layout": "halves",
        "model.sinusoid_frequencies": _FREQUENCIES[positions],
    }


# Weights.


def _check_positions(table: np.ndarray, d_model: int, name: str) -> None:
    """Raises an `InputError` if a table of positions `[T, d_model]` contains no sinusoids.

    transformers uses the table of a file, but the converted model computes its sinusoids.
    """
    for frequencies in _FREQUENCIES.values():
        layer = SinusoidalPositions(d_model, layout="halves", frequencies=frequencies)
        computed = keras.ops.convert_to_numpy(layer(keras.ops.arange(len(table))))
        if table.shape == computed.shape and np.allclose(
            table, computed, rtol=0, atol=_POSITION_TOLERANCE
        ):
            return
    raise InputError(
        f"{name} contains other positions than the sinusoids of Marian or transformers. Models "
        "with learned positions cannot be converted."
    )


def _table(model: ModelConfig) -> WeightTable:
    """Returns the table of all weights except the embeddings and the output layer."""
    table = {}
    for stack, layer in _LAYERS.items():
        for i in range(getattr(model, f"num_{stack}_layers")):
            for path, names in layer.items():
                is_norm = path.endswith("/")
                parts = ("gamma", "beta") if is_norm else ("_kernel", "_bias")
                for part, suffix in zip(parts, ("weight", "bias"), strict=True):
                    table[f"{stack}/layer_{i}/{path}{part}"] = tuple(
                        f"model.{stack}.layers.{i}.{name}.{suffix}" for name in names
                    )
    return table


def _embeddings(source: SourceWeights, model: ModelConfig, order: PieceOrder) -> Arrays:
    """Returns the embeddings and the output layer with the rows of the new vocabulary."""
    if model.tie_embeddings == "all":
        matrix = source.take_one_of(_SHARED, _TARGET, _SOURCE, _OUTPUT)
        arrays = {"embedding/embeddings": order.source_embeddings(matrix)}
    else:
        source.ignore(_SHARED)  # a file of an untied model may contain it, but no layer uses it
        matrix = source.take_one_of(
            _TARGET, *([_OUTPUT] if model.tie_embeddings == "target" else [])
        )
        arrays = {
            "source_embedding/embeddings": order.source_embeddings(source.take(_SOURCE)),
            "target_embedding/embeddings": order.target_embeddings(matrix),
        }
    if model.tie_embeddings == "none":
        kernel = source.take(_OUTPUT)  # [V, d_model]
        arrays["output_projection/kernel"] = order.target_embeddings(kernel).T
    arrays["output_projection/bias"] = order.output_bias(source.take(_BIAS))
    return arrays


def _without_zero_biases(config: Config, weights: Arrays) -> tuple[Config, Arrays]:
    """Leaves out biases that are all zero, as in exports of models without biases."""
    for field, end in (
        ("model__attention_bias", re.compile(r"attention/\w+_bias$")),
        ("model__output_bias", re.compile(r"^output_projection/bias$")),
    ):
        biases = [path for path in weights if end.search(path)]
        if not any(np.any(weights[path]) for path in biases):
            config = config.replace(**{field: False})
            weights = {path: each for path, each in weights.items() if path not in biases}
    return config, weights


# The vocabulary.


def _order_pieces(path: Path, config: Mapping[str, Any]) -> PieceOrder:
    """Returns the vocabulary with the ids of MarianTokenizer."""
    source_model, target_model = (
        read_sentencepiece(path / name) for name in ("source.spm", "target.spm")
    )
    source = target = _ids(path / "vocab.json", config)
    if (path / "target_vocab.json").is_file():
        target = _ids(path / "target_vocab.json", config)
    start = config.get("decoder_start_token_id")
    if type(start) is not int or start not in range(len(target)):  # True is an int, too
        raise InputError(
            f"{path / 'config.json'} has the decoder_start_token_id {start!r}, but the vocabulary "
            f"has {len(target):,} entries. Give the id of the token that begins a translation."
        )
    source_size = config.get("vocab_size", len(source))
    target_size = config.get("decoder_vocab_size") or source_size
    for name, size, ids in (
        ("vocab_size", source_size, source),
        ("decoder_vocab_size", target_size, target),
    ):
        if size != 1 + max(ids.values()):
            raise InputError(
                f"{path / 'config.json'} has {name} {size!r}, but the vocabulary has ids up to "
                f"{max(ids.values()):,}. Give the vocabulary of this model."
            )
    order = same_pieces(source_model, target_model, source, target, start)
    return order or order_pieces(
        source_model, target_model, source, target, pad_piece="<pad>", start_row=start
    )


def _ids(file: Path, config: Mapping[str, Any]) -> dict[str, int]:
    with reading(file, "a vocabulary"):
        ids = {str(piece): int(i) for piece, i in read_json(file).items()}
        if min(ids.values()) < 0:
            raise ValueError("it has negative ids")
    for piece, name in (("</s>", "eos_token_id"), ("<pad>", "pad_token_id")):
        if ids.get(piece) != config.get(name):
            raise InputError(
                f"{file} gives {piece} the id {ids.get(piece)}, but config.json has {name} "
                f"{config.get(name)}. Give the vocabulary of this model."
            )
    return ids
