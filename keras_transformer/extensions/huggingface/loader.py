"""Loads models of the Hugging Face Hub, `hf://USER/NAME`."""

from __future__ import annotations

from keras_transformer.extensions.huggingface import hub
from keras_transformer.inference.loading import Loader


class HubLoader(Loader):
    """Addresses on the Hub. What was downloaded is a model of another loader."""

    def resolve(self, model: str) -> str:
        return hub.resolve(model)

    def accepts(self, model: str) -> bool:
        return False


LOADER = HubLoader()
