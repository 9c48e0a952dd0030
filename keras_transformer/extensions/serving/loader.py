"""Loads a model that a server has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from keras_transformer.inference.loading import LoadedModel, Loader


class ServerLoader(Loader):
    """Addresses such as `localhost:8501`."""

    kind = "a server"
    needs_tensorflow = False

    def accepts(self, model: str) -> bool:
        if ":" not in model or Path(model).exists():
            return False
        from keras_transformer.extensions.serving.client import is_address  # needs a package

        return is_address(model)

    def open(self, model: str, **options: Any) -> LoadedModel:
        from keras_transformer.extensions.serving.client import connect_model

        return connect_model(model)


LOADER = ServerLoader()
