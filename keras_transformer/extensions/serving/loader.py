"""Loads a model that a server has, by an address such as `localhost:8501`."""

from __future__ import annotations

from pathlib import Path

from keras_transformer.inference.engine import Engine
from keras_transformer.plugins import Loader


def _find(model: str) -> str | None:
    if ":" not in model or Path(model).exists():
        return None
    from keras_transformer.extensions.serving.client import is_address  # needs a package

    return model if is_address(model) else None


def _open(address: str) -> Engine:
    from keras_transformer.extensions.serving.client import ServerEngine

    return ServerEngine(address)


LOADER = Loader("a server", _find, _open, needs_tensorflow=False)
