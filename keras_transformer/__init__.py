"""The Transformer of "Attention Is All You Need" in Keras, from parallel text to a server."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what type checkers and editors see of `_MODULES`
    from keras_transformer import decoding as decoding
    from keras_transformer import layers as layers
    from keras_transformer.api.training import Run as Run
    from keras_transformer.api.training import prepare as prepare
    from keras_transformer.api.training import train as train
    from keras_transformer.api.translator import Translator as Translator
    from keras_transformer.api.translator import convert as convert
    from keras_transformer.api.translator import load as load
    from keras_transformer.config import Config as Config
    from keras_transformer.config import DecodingConfig as DecodingConfig
    from keras_transformer.config import ModelConfig as ModelConfig
    from keras_transformer.config import TrainingConfig as TrainingConfig
    from keras_transformer.data.prepare import PreparedData as PreparedData
    from keras_transformer.errors import InputError as InputError
    from keras_transformer.inference.generation import generate as generate
    from keras_transformer.models import losses as losses
    from keras_transformer.models import metrics as metrics
    from keras_transformer.models.transformer import Transformer as Transformer
    from keras_transformer.presets import preset as preset
    from keras_transformer.text.tokenizer import Tokenizer as Tokenizer
    from keras_transformer.training import schedules as schedules

__version__ = "0.1.0"

# Imported on first use, because TensorFlow takes seconds to load and `--help` does not need it.
_MODULES = {
    "Config": "config",
    "DecodingConfig": "config",
    "InputError": "errors",
    "ModelConfig": "config",
    "PreparedData": "data.prepare",
    "Run": "api.training",
    "Tokenizer": "text.tokenizer",
    "TrainingConfig": "config",
    "Transformer": "models.transformer",
    "Translator": "api.translator",
    "convert": "api.translator",
    "decoding": "decoding",
    "generate": "inference.generation",
    "layers": "layers",
    "load": "api.translator",
    "losses": "models.losses",
    "metrics": "models.metrics",
    "prepare": "api.training",
    "preset": "presets",
    "schedules": "training.schedules",
    "train": "api.training",
}

# Names that are modules themselves, as in `keras_transformer.losses.LabelSmoothedCrossEntropy`.
_NAMESPACES = ("decoding", "layers", "losses", "metrics", "schedules")
_KERAS_NAMES = ("Transformer", "layers", "losses", "metrics", "schedules")

__all__ = [*_MODULES]  # noqa: PLE0604


if not TYPE_CHECKING:  # so that a type checker finds names that do not exist

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from keras_transformer.tf_import import first_import

        with first_import():
            # One of these registers all Keras classes, for `keras.saving.load_model`.
            for keras_name in _KERAS_NAMES if name in _KERAS_NAMES else ():
                importlib.import_module(f"{__name__}.{_MODULES[keras_name]}")
            module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
        return module if name in _NAMESPACES else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})
