"""A model to look at: a run, an ensemble or an export, asked through an export's signatures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.export.signatures import Signatures
from keras_transformer.loading import load_model
from keras_transformer.translator import Translator
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


def open_model(model_dir: str | Path) -> VisibleModel:
    """Reads what `loading.load_model` takes.

    Raises:
        InputError: where there is nothing, a LiteRT model, or an export from before it
            could be looked into.
    """
    model = load_model(model_dir)
    owner: Any = model.owner
    if isinstance(owner, Translator):
        owner = Signatures(owner)
        functions, positions = owner.by_name(), owner.inspection.positions
    else:
        functions = dict(getattr(owner, "signatures", {}))
        positions = getattr(owner, "positions", None)
    if "attention" not in functions or positions is None:
        raise InputError(
            f"{model.place} does not show its attention, as LiteRT models and older exports; "
            "expected the run directory or a new SavedModel"
        )

    def encodings(count: int) -> Mapping[str, np.ndarray]:
        return {name: each.numpy() for name, each in positions(count=tf.constant(count)).items()}

    attention, embed = (_asking(functions[name]) for name in ("attention", "embed"))
    return VisibleModel(model.place, attention, embed, encodings, owner)


def _asking(function: Callable[..., Mapping[str, Any]]) -> Ask:
    def ask(inputs: Inputs) -> Mapping[str, Any]:
        texts = {name: tf.constant(list(column), tf.string) for name, column in inputs.items()}
        return {name: each.numpy() for name, each in function(**texts).items()}

    return ask
