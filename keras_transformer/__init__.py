"""The Transformer of "Attention Is All You Need" in Keras, from parallel text to a server."""

from __future__ import annotations

import importlib
import sys
from typing import Any

__version__ = "0.1.0"

# Imported on first use, because TensorFlow takes seconds to load and `--help` does not need it.
_MODULES = {
    "Config": "config",
    "DecodingConfig": "config",
    "InputError": "errors",
    "ModelConfig": "config",
    "RunDirectory": "runs.run_directory",
    "Tokenizer": "text.tokenizer",
    "Trainer": "training.trainer",
    "TrainingConfig": "config",
    "Transformer": "models.transformer",
    "Translator": "inference.translator",
    "preset": "presets",
}

# Modules with Keras classes, which `keras.models.load_model` finds once they are imported.
_KERAS_MODULES = (
    "models.transformer",  # and all layers
    "paper.baselines.architectures",
    "training.schedules",
)

__all__ = [*_MODULES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if "keras" in sys.modules:
    for _module in _KERAS_MODULES:
        importlib.import_module(f"{__name__}.{_module}")
