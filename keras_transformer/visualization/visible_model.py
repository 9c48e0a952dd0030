"""A model to look at: a run, an ensemble or an export, asked through an export's signatures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.export.saved_model.signatures import Signatures
from keras_transformer.inference.loading import load_model
from keras_transformer.inference.translator import Translator
from keras_transformer.visualization.attention import Ask, Inputs


class VisibleModel(NamedTuple):
    """What can be asked of a model; of an ensemble its first is shown.

    Attributes:
        place: where it was read.
        attention: the signature `attention`.
        embed: the signature `embed`.
        positions: a number of positions → `source` and `target`, float32 `[positions, d_model]`,
            and `learned`, bool.
        owner: what holds the weights.
    """

    place: str
    attention: Ask
    embed: Ask
    positions: Callable[[int], Mapping[str, np.ndarray]]
    owner: Any


class Opened(NamedTuple):
    """A model read from disk, with an export's signatures."""

    place: str
    signatures: dict[str, Ask]  # by name
    owner: Any  # what holds the weights


def open_signatures(model_dir: str | Path, settings: Mapping[str, Any] | None = None) -> Opened:
    """Reads what `loading.load_model` takes, and returns the signatures that it has.

    A run has those of an export; a LiteRT model has none.

    Raises:
        InputError: where there is nothing, or for settings that do not fit.
    """
    model = load_model(model_dir, settings)
    owner: Any = model.owner
    if isinstance(owner, Translator):
        owner = Signatures(owner)
        functions = owner.by_name()
    else:
        functions = dict(getattr(owner, "signatures", {}))
    return Opened(model.place, {name: _asking(each) for name, each in functions.items()}, owner)


def open_model(model_dir: str | Path) -> VisibleModel:
    """Reads what `loading.load_model` takes.

    Raises:
        InputError: where there is nothing, a LiteRT model, or an export from before it
            could be looked into.
    """
    opened = open_signatures(model_dir)
    inspected = getattr(opened.owner, "inspection", opened.owner)  # a run's, or the export itself
    positions = getattr(inspected, "positions", None)
    if "attention" not in opened.signatures or positions is None:
        raise InputError(
            f"{opened.place} does not show its attention, as LiteRT models and older exports; "
            "expected the run directory or a new SavedModel"
        )

    def encodings(count: int) -> Mapping[str, np.ndarray]:
        return {name: each.numpy() for name, each in positions(count=tf.constant(count)).items()}

    ask = opened.signatures
    return VisibleModel(opened.place, ask["attention"], ask["embed"], encodings, opened.owner)


def _asking(function: Callable[..., Mapping[str, Any]]) -> Ask:
    def ask(inputs: Inputs) -> Mapping[str, Any]:
        columns = {name: tf.constant(list(column)) for name, column in inputs.items()}
        return {name: each.numpy() for name, each in function(**columns).items()}

    return ask
