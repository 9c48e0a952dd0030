"""Named configurations: the base and the big model of the paper, and small ones."""

from __future__ import annotations

import functools
from collections import ChainMap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from keras_transformer import plugins
from keras_transformer.config import Config, RunConfig
from keras_transformer.errors import require

if TYPE_CHECKING:  # it loads SentencePiece
    from keras_transformer.text.vocabulary import Vocabulary

AnyConfig = TypeVar("AnyConfig", bound=RunConfig)


def _small(layers: int, d_model: int, d_ff: int, warmup_steps: int) -> dict[str, Any]:
    return {
        "model.num_encoder_layers": layers,
        "model.num_decoder_layers": layers,
        "model.d_model": d_model,
        "model.d_ff": d_ff,
        "model.num_heads": 4,
        "training.batch_tokens": 4096,
        "training.warmup_steps": warmup_steps,
    }


_PRESETS: dict[str, tuple[str | None, Mapping[str, Any]]] = {
    "tiny": ("base", _small(layers=4, d_model=128, d_ff=256, warmup_steps=2000)),
    "small": ("base", _small(layers=3, d_model=256, d_ff=1024, warmup_steps=4000)),
    "base": (None, {}),
    "big": (
        "base",
        {
            "model.d_model": 1024,
            "model.d_ff": 4096,
            "model.num_heads": 16,
            "model.embedding_dropout": 0.3,
            "model.residual_dropout": 0.3,
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
    return dict(ChainMap(*(more for _, more in plugins.all_of("presets")), _PRESETS))


def preset(name: str) -> Config:
    """Returns the configuration with a name from `presets()`.

    Example:
    >>> preset("base").model.d_model, preset("big").model.d_model
    (512, 1024)
    """
    require(isinstance(name, str), f"{name!r:.60} is not a preset. Give a name such as 'tiny'.")
    return _preset(name)


@functools.cache
def _preset(name: str) -> Config:
    found = _PRESETS if name in _PRESETS else presets()
    require(name in found, f"There is no preset {name!r}. Choose one of {', '.join(found)}.")
    parent, changes = found[name]
    return (_preset(parent) if parent else Config()).updated(changes)


def resolve_config(
    preset: AnyConfig, settings: Mapping[str, Any], vocabulary: Vocabulary
) -> AnyConfig:
    """Returns a preset with the user's settings, and with the sizes and ids of a vocabulary.

    Vocabularies with different ids cannot share one matrix for all embeddings. The tying "all" then
    becomes "target".
    """
    names = "source_vocab_size target_vocab_size pad_id unknown_id start_id end_id".split()
    needed: dict[str, Any] = {f"model.{name}": getattr(vocabulary, name) for name in names}
    tying = settings.get("model.tie_embeddings", preset.model.tie_embeddings)
    if tying == "all" and not vocabulary.shares_ids:
        needed["model.tie_embeddings"] = "target"
    # The preset has been checked. The settings are checked together with the sizes and ids.
    config = preset.updated({**needed, **settings})
    if config.training.auxiliary_loss_weight and config.model.guided_alignment == "none":
        config = config.updated({"model.guided_alignment": "read"})
    found = config.settings()
    for name, value in needed.items():
        require(
            found[name] == value,
            f"{name} is {found[name]}, but the vocabulary of the data has {value}. Remove this "
            "setting.",
        )
    return config
