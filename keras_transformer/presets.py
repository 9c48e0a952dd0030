"""Named configurations: the base and the big model of the paper, and small ones."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from keras_transformer import plugins
from keras_transformer.config import Config, RunConfig, require

if TYPE_CHECKING:  # it loads SentencePiece
    from keras_transformer.text.vocabulary import Vocabulary

AnyConfig = TypeVar("AnyConfig", bound=RunConfig)


def _layers(number: int) -> dict[str, Any]:
    return {"model.num_encoder_layers": number, "model.num_decoder_layers": number}


def _dropout(rate: float) -> dict[str, Any]:
    return {"model.embedding_dropout": rate, "model.residual_dropout": rate}


_PRESETS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "tiny": (
        "base",
        {
            **_layers(4),
            "model.d_model": 128,
            "model.d_ff": 256,
            "model.num_heads": 4,
            "training.batch_tokens": 4096,
            "training.warmup_steps": 2000,
        },
    ),
    "small": (
        "base",
        {
            **_layers(3),
            "model.d_model": 256,
            "model.d_ff": 1024,
            "model.num_heads": 4,
            "training.batch_tokens": 4096,
            "training.warmup_steps": 4000,
        },
    ),
    "base": (None, {}),
    "big": (
        "base",
        {
            "model.d_model": 1024,
            "model.d_ff": 4096,
            "model.num_heads": 16,
            **_dropout(0.3),
            "training.max_steps": 300_000,
            "training.keep_checkpoints": 20,
        },
    ),
}


@functools.cache
def presets() -> Mapping[str, tuple[str | None, Mapping[str, Any]]]:
    """Returns all presets by name: the preset that one changes, and its changes.

    The first ones are of the core. Installed packages add theirs by the entry point group
    `presets`, as mappings of the same form.
    """
    found: dict[str, tuple[str | None, Mapping[str, Any]]] = {**_PRESETS}
    for _, more in plugins.all_of("presets"):
        found.update(more)
    return found


@functools.cache
def preset(name: str) -> Config:
    """Returns the configuration with a name from `presets()`.

    Example:
    >>> preset("base").model.d_model, preset("big").model.d_model
    (512, 1024)
    """
    found = _PRESETS if name in _PRESETS else presets()
    require(name in found, f"There is no preset {name!r}. Choose one of {', '.join(found)}.")
    parent, changes = found[name]
    return (preset(parent) if parent else Config()).updated(changes)


def resolve_config(
    preset: AnyConfig, settings: Mapping[str, Any], vocabulary: Vocabulary
) -> AnyConfig:
    """Returns a preset with the user's settings, and with the sizes and ids of a vocabulary.

    Vocabularies with different ids cannot share one matrix for all embeddings. The tying "all" then
    becomes "target".

    Args:
        settings: the user's changes, such as `{"training.max_steps": 1000}`.
    """
    config = _with_vocabulary(preset, vocabulary).updated(settings)
    fitting = _with_vocabulary(config, vocabulary)
    for field in dataclasses.fields(config.model):
        value, needed = (getattr(each.model, field.name) for each in (config, fitting))
        require(
            value == needed,
            f"model.{field.name} is {value}, but the vocabulary of the data has {needed}. Remove "
            "this setting.",
        )
    return config


def _with_vocabulary(config: AnyConfig, vocabulary: Vocabulary) -> AnyConfig:
    names = "source_vocab_size target_vocab_size pad_id unknown_id start_id end_id".split()
    settings = {f"model.{name}": getattr(vocabulary, name) for name in names}
    if config.model.tie_embeddings == "all" and not vocabulary.shares_ids:
        settings["model.tie_embeddings"] = "target"
    return config.updated(settings)
