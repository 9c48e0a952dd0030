"""The Transformer of "Attention Is All You Need" in Keras, from parallel text to a server."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Loaded when first asked for: TensorFlow takes seconds, and flags need none of it.
_HOMES = {
    "Config": "keras_transformer.config",
    "DecodingConfig": "keras_transformer.config",
    "ModelConfig": "keras_transformer.config",
    "TrainingConfig": "keras_transformer.config",
    "preset": "keras_transformer.config",
    "InputError": "keras_transformer.errors",
    "Transformer": "keras_transformer.model",
    "Trainer": "keras_transformer.training.trainer",
    "Tokenizer": "keras_transformer.text.tokenizer",
    "Translator": "keras_transformer.translator",
    "RunDirectory": "keras_transformer.run_directory",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
