"""Models of Hugging Face transformers: the class MarianMT, and the search of all classes.

A directory contains `config.json`, `model.safetensors` or `pytorch_model.bin`, `vocab.json` (with
separate vocabularies also `target_vocab.json`), `source.spm` and `target.spm`, and optionally
`generation_config.json`, which sets the search, and the tokens that fine-tuning has added, in
`added_tokens.json` or `tokenizer_config.json`.

transformers computes a few things in another way than Marian, which trained most of these models:
the sinusoids, the epsilon of the layer norms, and the logit of the pad token. `_is_from_marian`
chooses between the two.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_transformer.config import Config
from keras_transformer.config.schema import Count
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

log = logging.getLogger(__name__)

# Tied weights are stored under one of these names.
SHARED = "model.shared.weight"
_EMBEDDINGS = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
OUTPUT = "lm_head.weight"
MATRICES = (SHARED, *_EMBEDDINGS, OUTPUT)
BIAS = "final_logits_bias"
_SPECIAL = {"</s>", "<unk>", "<pad>"}
ACTIVATIONS = {"relu": "relu", "swish": "silu", "silu": "silu", "gelu": "gelu"}
# Fields of config.json in exports of this package.
POSITIONS_FIELD = "positions"
EXTRA_TOKENS_FIELD = "max_extra_tokens"
# The frequencies of the paper, 10000^(-2i/d), or of Marian, 10000^(-i/(d/2 - 1)).
_FREQUENCIES = {"marian": "tensor2tensor", "huggingface": "paper"}
_POSITION_TOLERANCE = 0.02  # tables in bfloat16 are rounded
_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "quantization_config": (None,),
    POSITIONS_FIELD: tuple(_FREQUENCIES),
    "activation_function": tuple(ACTIVATIONS),
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
}
# Options without an equivalent here, and their values that change nothing.
_NEUTRAL: Mapping[str, Any] = {
    "begin_suppress_tokens": [],
    "constraints": [],
    "diversity_penalty": 0.0,
    "dola_layers": None,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "exponential_decay_length_penalty": [],
    "force_words_ids": [],
    "forced_bos_token_id": None,
    "forced_decoder_ids": [],
    "guidance_scale": 1.0,
    "max_time": None,
    "num_beam_groups": 1,
    "penalty_alpha": 0.0,
    "sequence_bias": {},
    "stop_strings": [],
    "token_healing": False,
    "watermarking_config": None,
}
_NEUTRAL_SAMPLING: Mapping[str, Any] = {
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "min_p": 0.0,
    "num_beams": 1,
    "top_h": None,
    "typical_p": 1.0,
}


def read(
    path: Path, marian_mt: Mapping[str, Any], options: ConvertOptions
) -> source.ConvertedModel:
    """Reads a MarianMT model, given the content of its config.json."""
    file = path / "config.json"
    source.check_supported(marian_mt, _SUPPORTED, file)
    with reading(file, "a configuration of MarianMT"):
        config = Config().updated(_settings(marian_mt, options))
    file, generation = read_generation(path, marian_mt)
    start = generation.get("decoder_start_token_id", marian_mt.get("decoder_start_token_id"))
    order = _order_pieces(path, marian_mt, start)
    with reading(path, "weights of MarianMT"):
        arrays = _without_padding(source.read_state(path), marian_mt, order, path)
    found = source.SourceWeights(arrays, str(path))
    never = {order.vocabulary.pad_id, order.vocabulary.start_id}
    unknown_id = order.vocabulary.unknown_id
    config = read_search(config, file, generation, marian_mt, unknown_id, never)
    weights = read_embeddings(found, config.model.tie_embeddings, order, found.take(BIAS))
    if source.flag(generation, "renormalize_logits") or _is_from_marian(marian_mt, options):
        # Marian lacks a pad token, but the file has a bias of 0 for it. Models of OPUS-MT forbid it
        # in transformers, and normalize the probabilities of the other tokens again.
        weights["output_projection/bias"][order.vocabulary.pad_id] = EXCLUDED_TOKEN_BIAS
    for stack in source.STACKS:  # sinusoids are computed here, but a file may contain them
        if (name := f"model.{stack}.embed_positions.weight") in found:
            _check_positions(found.take(name), config.model.d_model, f"{found.label}: {name}")
    weights |= found.read_rest(
        functools.partial(source.fairseq_table, prefix="model."), config.model, transpose=True
    )
    # Exports of models without biases have biases that are all zero.
    for part in ("attention", "output"):
        biases = [path for path in weights if re.search(rf"{part}(_projection)?/\w*bias$", path)]
        if not any(np.any(weights[path]) for path in biases):
            config = config.updated({f"model.{part}_bias": False})
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
    tying = "all" if source.flag(config, "share_encoder_decoder_embeddings", True) else "target"
    tying = tying if source.flag(config, "tie_word_embeddings", True) else "none"
    return {
        **source.COMMON_SETTINGS,
        **source.fairseq_sizes(config, "ffn_dim"),
        "model.d_model": source.size(config, "d_model"),
        "model.activation": ACTIVATIONS[config["activation_function"]],
        "model.scale_embeddings": source.flag(config, "scale_embedding"),
        "model.layer_norm_epsilon": 1e-6 if _is_from_marian(config, options) else 1e-5,
        "model.tie_embeddings": tying,
        "model.sinusoid_frequencies": _FREQUENCIES[positions],
    }


# Weights.


def _without_padding(
    arrays: dict[str, np.ndarray], config: Mapping[str, Any], order: PieceOrder, path: Path
) -> dict[str, np.ndarray]:
    """Returns the weights without the rows after the last token, up to a padded `vocab_size`.

    They may also be the rows of added tokens, if the files with these tokens are missing.
    """
    cut = 0
    padded = config.get("vocab_size"), config.get("decoder_vocab_size")
    for name in arrays.keys() & {*MATRICES, BIAS}:
        size = order.num_sources if name in (SHARED, _EMBEDDINGS[0]) else order.num_targets
        axis = -1 if name == BIAS else 0
        if arrays[name].shape[axis] in padded:
            arrays[name], rest = np.split(arrays[name], [size], axis)
            cut = max(cut, rest.shape[axis])
    if cut and not added_tokens(path).keys() - _SPECIAL:
        log.warning(
            "%s: the weights have %d rows after the last token of the vocabulary. They are cut as "
            "padding. If fine-tuning has added tokens, give their added_tokens.json, too.",
            *(path, cut),
        )
    return arrays


def read_embeddings(
    found: source.SourceWeights, tying: str, order: PieceOrder, bias: np.ndarray | None
) -> dict[str, np.ndarray]:
    """Returns the embeddings and the output layer."""
    names = [*_EMBEDDINGS, OUTPUT, *([SHARED] if tying == "all" else [])]
    found.ignore(SHARED)  # a file of an untied model may contain it, but no layer uses it
    return source.embeddings(found, tying, order, names, bias)


def _check_positions(table: np.ndarray, d_model: int, name: str) -> None:
    """Raises an `InputError` if a table of positions `[T, d_model]` contains no sinusoids.

    transformers uses the table of a file, but the converted model computes its sinusoids.
    """
    for frequencies in _FREQUENCIES.values():
        if table.shape[1:] != (d_model,):
            break
        layer = SinusoidalPositions(d_model, layout="halves", frequencies=frequencies)
        computed = keras.ops.convert_to_numpy(layer(keras.ops.arange(len(table))))
        if np.allclose(table, computed, rtol=0, atol=_POSITION_TOLERANCE):
            return
    raise InputError(
        f"{name} contains other positions than the sinusoids of Marian or transformers. Models "
        "with learned positions cannot be converted."
    )


# The vocabulary.


def _order_pieces(path: Path, config: Mapping[str, Any], start: Any) -> PieceOrder:
    """Returns the vocabulary with the ids of MarianTokenizer."""
    models = [read_sentencepiece(path / name) for name in ("source.spm", "target.spm")]
    added = added_tokens(path)
    source_ids = target_ids = _ids(path / "vocab.json", config, added)
    if (path / "target_vocab.json").is_file():
        target_ids = _ids(path / "target_vocab.json", config, added)
    if type(start) is not int or start not in range(len(target_ids)):  # True is an int, too
        raise InputError(
            f"{path} has the decoder_start_token_id {start!r}, but the vocabulary has "
            f"{len(target_ids):,} entries. Give the id of the token that begins a translation."
        )
    order = same_pieces(models, source_ids, target_ids, start)
    symbols = added.keys() - _SPECIAL
    return order or order_pieces(
        models, source_ids, target_ids, pad_piece="<pad>", start_row=start, symbols=symbols
    )


def added_tokens(path: Path) -> dict[str, int]:
    """Returns the ids of the tokens that fine-tuning has added to the tokenizer."""
    added = {}
    file = path / "tokenizer_config.json"
    if file.is_file():
        tokens = source.read_json(file).get("added_tokens_decoder") or {}
        with reading(file, "the configuration of a tokenizer"):
            added = {str(token["content"]): int(i) for i, token in tokens.items()}
    file = path / "added_tokens.json"
    return {**added, **source.read_ids(file)} if file.is_file() else added


def _ids(file: Path, config: Mapping[str, Any], added: Mapping[str, int]) -> dict[str, int]:
    ids = {**source.read_ids(file), **added}
    check_special_ids(ids, config, file)
    return ids


def check_special_ids(ids: Mapping[str, int], config: Mapping[str, Any], file: Path) -> None:
    """Raises an `InputError` if the vocabulary in a file has other ids than the configuration."""
    for piece, name in (("</s>", "eos_token_id"), ("<pad>", "pad_token_id")):
        if ids.get(piece) != config.get(name):
            raise InputError(
                f"{file} gives {piece} the id {ids.get(piece)}, but config.json has {name} "
                f"{config.get(name)}. Give the vocabulary of this model."
            )


# The search.


def read_generation(path: Path, config: Mapping[str, Any]) -> tuple[Path, dict[str, Any]]:
    """Returns the options of the search, and their file: an old model has only config.json."""
    file = path / "generation_config.json"
    content = source.read_json(file) if file.is_file() else config
    generation = {name: value for name, value in content.items() if value is not None}
    for name, value in generation.items():
        if name.endswith("_token_id") and isinstance(value, list) and len(value) == 1:
            generation[name] = value[0]
    return file if file.is_file() else path / "config.json", generation


def read_search(
    run: Config,
    file: Path,
    generation: Mapping[str, Any],
    config: Mapping[str, Any],
    unknown_id: int,
    never: Set[int],
) -> Config:
    """Returns `run` with the settings of the search. An option that does not exist is an error.

    `config` is the content of config.json, and the ids in `never` are never generated here.
    """
    end_id, samples = config.get("eos_token_id"), source.flag(generation, "do_sample")
    neutral = {**_NEUTRAL, "eos_token_id": end_id, "forced_eos_token_id": end_id}
    neutral |= _NEUTRAL_SAMPLING if samples else {}
    with reading(file, "a configuration of the search"):
        unsupported = [
            name for name, value in neutral.items() if generation.get(name, value) != value
        ]
        if not {*generation.get("suppress_tokens", [])} <= {*never, unknown_id}:
            unsupported.append("suppress_tokens")
        if not all({*ids} <= never for ids in generation.get("bad_words_ids", [])):
            unsupported.append("bad_words_ids")
    if unsupported:
        name = unsupported[0]
        raise InputError(
            f"{file} has {name} {generation[name]!r}, which the search of this package cannot "
            f"express. To convert the model with another search, remove {name} from the file."
        )
    settings: dict[str, Any] = {
        f"decoding.{ours}": generation.get(theirs, default)
        for ours, (theirs, default) in _SEARCH.items()
    }
    settings["decoding.length_penalty_formula"] = "power"
    if "suppress_tokens" in generation:  # exports of this package have it
        forbids = unknown_id in generation["suppress_tokens"]
        settings["decoding.unknown"] = "forbid" if forbids else "allow"
    # With the rules "never" and False, a search is at least as long.
    early = generation.get("early_stopping") in (True, "true")
    settings |= {"decoding.sample": samples, "decoding.early_stopping": early and not samples}
    if samples:
        settings["decoding.temperature"] = generation.get("temperature", 1.0)
        settings["decoding.top_k"] = generation.get("top_k", 50)
        settings["decoding.top_p"] = generation.get("top_p", 1.0)
    with reading(file, "a configuration of the search"):
        # `max_length` counts the start token. The end token may follow `min_length` tokens, which
        # include the start token, or `min_new_tokens`, which do not.
        lengths = {
            name: source.size(generation, name, Count)
            for name in ("min_length", "min_new_tokens", "max_length", "max_new_tokens")
            if name in generation
        }
        least = max(lengths.get("min_length", 0), lengths.get("min_new_tokens", -1) + 1)
        most = lengths.get("max_new_tokens", lengths.get("max_length", 0) - 1)
        if most >= 0:
            # A forced end token is the last one of the limit. The search here needs none.
            most = max(most - ("forced_eos_token_id" in generation), 1)
            settings["decoding.max_length"] = most
            # The limit does not depend on the source, except in exports of this package.
            settings["decoding.max_extra_tokens"] = config.get(EXTRA_TOKENS_FIELD, most)
        settings["decoding.min_length"] = least if most < 1 else min(least, most)
        return run.updated(settings)
