"""The search of models of Hugging Face transformers, as their generation_config.json sets it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_transformer.errors import InputError
from keras_transformer.extensions.converters.files import read_json
from keras_transformer.runs.checkpoints import reading

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


def read_search(path: Path, config: Mapping[str, Any], unknown_id: int) -> dict[str, Any]:
    """Reads the settings of the search, from generation_config.json or an old config.json."""
    file = path / "generation_config.json"
    content = config
    if file.is_file():
        content = read_json(file)
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
