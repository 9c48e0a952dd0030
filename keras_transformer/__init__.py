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
    "layers": "layers",
    "losses": "models.losses",
    "metrics": "models.metrics",
    "preset": "presets",
    "schedules": "training.schedules",
}

# Names that are modules themselves, as in `keras_transformer.losses.LabelSmoothedCrossEntropy`.
_NAMESPACES = ("layers", "losses", "metrics", "schedules")
_SUBPACKAGES = (
    *("data", "decoding", "evaluation", "export", "inference", "models", "paper", "runs"),
    *("serving", "text", "training", "visualization"),
)

# Modules with Keras classes, which `keras.models.load_model` finds once they are imported.
_KERAS_MODULES = (
    "models.losses",
    "models.metrics",
    "models.transformer",  # and all layers
    "paper.baselines.architectures",
    "training.schedules",
)

__all__ = [*_MODULES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    return module if name in _NAMESPACES else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_SUBPACKAGES, "__version__"})


if "keras" in sys.modules:
    for _module in _KERAS_MODULES:
        importlib.import_module(f"{__name__}.{_module}")
