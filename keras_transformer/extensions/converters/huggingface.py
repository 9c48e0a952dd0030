"""Models of Hugging Face transformers: the class MarianMT, and the search of all classes.

A directory contains `config.json`, `model.safetensors`, `vocab.json` (with separate vocabularies
also `target_vocab.json`), `source.spm` and `target.spm`, and optionally `generation_config.json`,
which sets the search.

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

from keras_transformer.config import Config
from keras_transformer.errors import InputError
from keras_transformer.extensions.converters import ConvertOptions, source
from keras_transformer.extensions.converters.pieces import (
    PieceOrder,
    order_pieces,
    read_sentencepiece,
    same_pieces,
)
from keras_transformer.layers.positions import SinusoidalPositions
from keras_transformer.models.transformer import EXCLUDED_TOKEN_BIAS
from keras_transformer.runs.checkpoints import reading

# Tied weights are stored under one of these names.
_SHARED = "model.shared.weight"
_EMBEDDINGS = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
_OUTPUT = "lm_head.weight"
_ACTIVATIONS = {"relu": "relu", "swish": "silu", "silu": "silu", "gelu": "gelu"}
# A field of config.json in exports of this package.
POSITIONS_FIELD = "positions"
# The paper's frequencies, 10000^(-2i/d), or Marian's, 10000^(-i/(d/2 - 1)).
_FREQUENCIES = {"marian": "tensor2tensor", "huggingface": "paper"}
_POSITION_TOLERANCE = 0.02  # for tables in bfloat16
_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "model_type": ("marian",),
    "quantization_config": (None,),
    POSITIONS_FIELD: tuple(_FREQUENCIES),
    "activation_function": tuple(_ACTIVATIONS),
    "normalize_before": (False,),
    "normalize_embedding": (False,),
    "add_final_layer_norm": (False,),
    "static_position_embeddings": (True,),
}

# Our options of the search → the name and the default of transformers.
_SEARCH: Mapping[str, tuple[str, Any]] = {
    "beam_size": ("num_beams", 1),
    "length_penalty": ("length_penalty", 1.0),
    "repetition_penalty": ("repetition_penalty", 1.0),
    "no_repeat_ngram": ("no_repeat_ngram_size", 0),
    "n_best": ("num_return_sequences", 1),
    "sample": ("do_sample", False),
}
# Options without an equivalent here, and their values that change nothing.
_NEUTRAL: Mapping[str, Any] = {
    "begin_suppress_tokens": [],
    "constraints": [],
    "diversity_penalty": 0.0,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "exponential_decay_length_penalty": [],
    "force_words_ids": [],
    "forced_bos_token_id": None,
    "guidance_scale": 1.0,
    "num_beam_groups": 1,
    "penalty_alpha": 0.0,
    "sequence_bias": {},
}
_NEUTRAL_SAMPLING: Mapping[str, Any] = {
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "min_p": 0.0,
    "num_beams": 1,
    "typical_p": 1.0,
}


def read(path: Path, options: ConvertOptions) -> source.ConvertedModel:
    """Reads a MarianMT model."""
    file = path / "config.json"
    marian_mt = source.read_json(file)
    source.check_supported({"model_type": None, **marian_mt}, _SUPPORTED, file)
    with reading(file, "a configuration of MarianMT"):
        settings = _settings(marian_mt, options)
    weights_file = path / "model.safetensors"
    if not weights_file.is_file():
        raise InputError(
            f"{weights_file} does not exist. If there is a pytorch_model.bin or a model in several "
            "files, load it with transformers and save it again as one file with save_pretrained."
        )
    found = source.SourceWeights(source.read_safetensors(weights_file), str(weights_file))
    order = _order_pieces(path, marian_mt)
    config = Config().updated(
        {**settings, **read_search(path, marian_mt, order.vocabulary.unknown_id)}
    )
    names = [*_EMBEDDINGS, _OUTPUT]
    if config.model.tie_embeddings == "all":
        names.append(_SHARED)
    found.ignore(_SHARED)  # a file of an untied model may contain it, but no layer uses it
    bias = found.take("final_logits_bias")
    weights = source.embeddings(found, config.model.tie_embeddings, order, names, bias)
    if _is_from_marian(marian_mt, options):
        # Marian lacks a pad token, but the file has a bias of 0 for it.
        weights["output_projection/bias"][order.vocabulary.pad_id] = EXCLUDED_TOKEN_BIAS
    for stack in source.STACKS:  # sinusoids are computed here, but a file may contain them
        if (name := f"model.{stack}.embed_positions.weight") in found:
            _check_positions(found.take(name), config.model.d_model, f"{found.label}: {name}")
    weights |= found.read_rest(source.fairseq_table(config.model, "model."), transpose=True)
    # Exports of models without biases have biases that are all zero.
    for part in ("attention", "output"):
        biases = [path for path in weights if re.search(rf"{part}(_projection)?/\w*bias$", path)]
        if not any(np.any(weights[path]) for path in biases):
            config = config.replace(**{f"model__{part}_bias": False})
            weights = {path: a for path, a in weights.items() if path not in biases}
    return source.make_model(config, weights, order.vocabulary)


# The configuration.


def _is_from_marian(config: Mapping[str, Any], options: ConvertOptions) -> bool:
    """Returns True if a model computes what Marian computes.

    This is the default, except for exports of this package, which compute what transformers does.
    """
    by_default = options.positions is None and POSITIONS_FIELD not in config
    return options.positions == "marian" or by_default


def _settings(config: Mapping[str, Any], options: ConvertOptions) -> dict[str, Any]:
    """Returns the settings of the model, named like `model.d_model`."""
    positions = options.positions or config.get(POSITIONS_FIELD, "marian")
    tying = "all" if config.get("share_encoder_decoder_embeddings", True) else "target"
    return {
        **source.COMMON_SETTINGS,
        **source.fairseq_sizes(config, "ffn_dim"),
        "model.d_model": config["d_model"],
        "model.activation": _ACTIVATIONS[config["activation_function"]],
        "model.scale_embeddings": bool(config.get("scale_embedding", False)),
        "model.layer_norm_epsilon": 1e-6 if _is_from_marian(config, options) else 1e-5,
        "model.tie_embeddings": tying if config.get("tie_word_embeddings", True) else "none",
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


# The vocabulary.


def _order_pieces(path: Path, config: Mapping[str, Any]) -> PieceOrder:
    """Returns the vocabulary with the ids of MarianTokenizer."""
    models = [read_sentencepiece(path / name) for name in ("source.spm", "target.spm")]
    source_ids = target_ids = _ids(path / "vocab.json", config)
    if (path / "target_vocab.json").is_file():
        target_ids = _ids(path / "target_vocab.json", config)
    start = config.get("decoder_start_token_id")
    if type(start) is not int or start not in range(len(target_ids)):  # True is an int, too
        raise InputError(
            f"{path / 'config.json'} has the decoder_start_token_id {start!r}, but the vocabulary "
            f"has {len(target_ids):,} entries. Give the id of the token that begins a translation."
        )
    order = same_pieces(models, source_ids, target_ids, start)
    return order or order_pieces(models, source_ids, target_ids, pad_piece="<pad>", start_row=start)


def _ids(file: Path, config: Mapping[str, Any]) -> dict[str, int]:
    with reading(file, "a vocabulary"):
        ids = {str(piece): int(i) for piece, i in source.read_json(file).items()}
        if min(ids.values()) < 0:
            raise ValueError("it has negative ids")
    for piece, name in (("</s>", "eos_token_id"), ("<pad>", "pad_token_id")):
        if ids.get(piece) != config.get(name):
            raise InputError(
                f"{file} gives {piece} the id {ids.get(piece)}, but config.json has {name} "
                f"{config.get(name)}. Give the vocabulary of this model."
            )
    return ids


# The search.


def read_search(path: Path, config: Mapping[str, Any], unknown_id: int) -> dict[str, Any]:
    """Reads the settings of the search, from generation_config.json or an old config.json."""
    file = path / "generation_config.json"
    content = config
    if file.is_file():
        content = source.read_json(file)
    else:
        file = path / "config.json"
    generation = {name: value for name, value in content.items() if value is not None}
    _check_search(file, generation, config, unknown_id)
    settings: dict[str, Any] = {
        f"decoding.{ours}": generation.get(theirs, default)
        for ours, (theirs, default) in _SEARCH.items()
    }
    settings["decoding.length_penalty_formula"] = "power"
    if "suppress_tokens" in generation:  # exports of this package have it
        forbids = unknown_id in generation["suppress_tokens"]
        settings["decoding.unknown"] = "forbid" if forbids else "allow"
    # "never" and False are rules that need at least as many steps.
    early = generation.get("early_stopping") is True
    settings["decoding.early_stopping"] = early and not settings["decoding.sample"]
    if settings["decoding.sample"]:
        settings["decoding.temperature"] = generation.get("temperature", 1.0)
        settings["decoding.top_k"] = generation.get("top_k", 50)
        settings["decoding.top_p"] = generation.get("top_p", 1.0)
    with reading(file, "a configuration of the search"):
        # `max_length` counts the start token. The end token may follow `min_length` tokens, which
        # include the start token, or `min_new_tokens`, which do not.
        settings["decoding.min_length"] = max(
            generation.get("min_length", 0), generation.get("min_new_tokens", -1) + 1
        )
        if "max_new_tokens" in generation:
            settings["decoding.max_length"] = generation["max_new_tokens"]
        elif "max_length" in generation:
            settings["decoding.max_length"] = max(generation["max_length"] - 1, 1)
    return settings


def _check_search(
    file: Path, generation: Mapping[str, Any], config: Mapping[str, Any], unknown_id: int
) -> None:
    """Raises an `InputError` for an option of the search that does not exist here."""
    neutral = {**_NEUTRAL, "forced_eos_token_id": config.get("eos_token_id")}
    if generation.get("do_sample"):
        neutral.update(_NEUTRAL_SAMPLING)
    with reading(file, "a configuration of the search"):
        # These are never generated here. FSMT begins with the end token, which is generated.
        excluded = {config.get("pad_token_id"), config.get("decoder_start_token_id")}
        excluded -= {config.get("eos_token_id")}
        unsupported = [
            name for name, value in neutral.items() if generation.get(name, value) != value
        ]
        if not {*generation.get("suppress_tokens", [])} <= {*excluded, unknown_id}:
            unsupported.append("suppress_tokens")
        if not all({*ids} <= excluded for ids in generation.get("bad_words_ids", [])):
            unsupported.append("bad_words_ids")
    if unsupported:
        name = unsupported[0]
        raise InputError(
            f"{file} has {name} {generation[name]!r}, which the search of this package cannot "
            f"express. To convert the model with another search, remove {name} from the file."
        )
