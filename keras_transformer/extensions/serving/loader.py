"""Loads a model that a server has."""

from __future__ import annotations

from pathlib import Path

from keras_transformer.errors import InputError
from keras_transformer.inference.loading import LoadedModel, Loader, LoadOptions


class ServerLoader(Loader):
    """Addresses such as `localhost:8501`."""

    needs_tensorflow = False

    def accepts(self, model: str) -> bool:
        if ":" not in model or Path(model).exists():
            return False
        from keras_transformer.extensions.serving.client import is_address  # needs a package

        return is_address(model)

    def open(self, model: str, options: LoadOptions) -> LoadedModel:
        if options != LoadOptions():
            raise InputError(f"{model} is a server, whose options are fixed. Load it without any.")
        from keras_transformer.extensions.serving.client import connect_model

        return connect_model(model)


LOADER = ServerLoader()
