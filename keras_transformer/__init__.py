"""The Transformer of "Attention Is All You Need" in Keras, from parallel text to a server."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from typing import Any

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
    "convert": "api.conversion",
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
_NAMESPACES = ("layers", "losses", "metrics", "schedules")
_SUBPACKAGES = (
    *("api", "data", "decoding", "evaluation", "export", "extensions", "inference", "models"),
    *("runs", "text", "training"),
)

_WITHOUT_KERAS = frozenset(
    "Config DecodingConfig InputError ModelConfig PreparedData Tokenizer TrainingConfig preset "
    "data text".split()
)

# Modules with Keras classes, which `keras.models.load_model` finds once they are imported. The
# baselines of the paper are registered by their own package.
_KERAS_MODULES = (
    "models.losses",
    "models.metrics",
    "models.transformer",  # and all layers
    "training.schedules",
)

__all__ = [*_MODULES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in __dir__():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _WITHOUT_KERAS:
        importlib.import_module("keras")  # first, so that all classes are registered
    if name in _SUBPACKAGES:
        return importlib.import_module(f"{__name__}.{name}")
    module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    return module if name in _NAMESPACES else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_SUBPACKAGES, "__version__"})


def _register_keras_classes() -> None:
    for module in _KERAS_MODULES:
        importlib.import_module(f"{__name__}.{module}")


# Modules that register classes when they are imported.
_REGISTERING = tuple(f"{__name__}.{name}" for name in ("layers", "models", "training.schedules"))


class _WithKeras(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Registers all Keras classes of this package as soon as Keras is imported.

    `keras.models.load_model` then finds them, and commands that need no Keras start fast. The
    modules that register classes import Keras first, because the registration imports them.
    """

    _loader: Any

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name in _REGISTERING:
            importlib.import_module("keras")  # which imports the module, too
            module = sys.modules.get(name)
            return module and importlib.machinery.ModuleSpec(name, _Imported(module))
        if name != "keras":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (each.find_spec(name, path, target) for each in others)), None)
        if spec is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        sys.meta_path.remove(self)
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _register_keras_classes()


class _Imported(importlib.abc.Loader):
    """Returns a module that was imported while Python was looking for it."""

    def __init__(self, module: Any):
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: Any) -> Any:
        return self._module

    def exec_module(self, module: Any) -> None:
        module.__spec__ = self._spec


if "keras" in sys.modules:
    _register_keras_classes()
else:
    sys.meta_path.insert(0, _WithKeras())
