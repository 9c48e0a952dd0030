"""Opens a run, an ensemble or an export for visualization."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.export.saved_model.signatures import Signatures
from keras_transformer.extensions.pages.attention import Ask, Inputs
from keras_transformer.inference.loading import load_model
from keras_transformer.inference.translation_module import TranslationModule


class VisibleModel:
    """A model with the signatures of an export. For an ensemble, attention is its first model's.

    Attributes:
        place: the path of the model.
        signatures: functions from lists of inputs to arrays, by name.
    """

    def __init__(self, place: str, owner: Any, functions: Mapping[str, Any], positions: Any):
        self.place = place
        self.signatures: dict[str, Ask] = {
            name: _as_ask(function) for name, function in functions.items()
        }
        self._owner = owner  # which holds the weights
        self._positions = positions

    def attention(self, inputs: Inputs) -> Mapping[str, Any]:
        """Calls the signature `attention` with `source` and `target`."""
        return self.signatures["attention"](inputs)

    def embed(self, inputs: Inputs) -> Mapping[str, Any]:
        """Calls the signature `embed` with `text`."""
        return self.signatures["embed"](inputs)

    def positions(self, count: int) -> Mapping[str, np.ndarray]:
        """Returns `source` and `target`, float32 `[count, d_model]`, and `learned`, bool."""
        found = self._positions(count=tf.constant(count))
        return {name: each.numpy() for name, each in found.items()}


def model_name(place: str) -> str:
    """Returns a short name of a model for titles, from its path or address."""
    if "://" in place:
        return place
    paths = [Path(member) for member in place.split(",")]
    return ", ".join(
        f"{path.parent.name}/{path.name}" if path.name.isdigit() else path.name for path in paths
    )


def open_visible_model(
    model_dir: str | Path, settings: Mapping[str, Any] | None = None
) -> VisibleModel:
    """Opens a model.

    Args:
        settings: changes of the configuration of a run, such as `decoding.beam_size`.
    """
    model = load_model(model_dir, settings)
    owner: Any = model.owner
    if isinstance(owner, TranslationModule):
        owner = Signatures(owner)
        functions, positions = owner.by_name(), owner.positions
    else:
        functions = dict(getattr(owner, "signatures", {}))
        positions = getattr(owner, "positions", None)
    if "attention" not in functions or positions is None:
        raise InputError(
            f"{model.label} does not return its attention, like LiteRT models and older exports. "
            "Use the run directory, or a new SavedModel."
        )
    return VisibleModel(model.label, owner, functions, positions)


def _as_ask(function: Any) -> Ask:
    def ask(inputs: Inputs) -> Mapping[str, Any]:
        columns = {name: tf.constant(list(column)) for name, column in inputs.items()}
        return {name: each.numpy() for name, each in function(**columns).items()}

    return ask
