"""Loads a model that a server has, by an address such as `localhost:8501`."""

from __future__ import annotations

from pathlib import Path

from keras_transformer.inference.loading import LoadedModel, Loader


def _accepts(model: str) -> bool:
    if ":" not in model or Path(model).exists():
        return False
    from keras_transformer.extensions.serving.client import is_address  # needs a package

    return is_address(model)


def _open(model: str) -> LoadedModel:
    from keras_transformer.extensions.serving.client import connect_model

    return connect_model(model)


LOADER = Loader("a server", _accepts, _open, needs_tensorflow=False)
