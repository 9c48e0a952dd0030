"""The hook by which a model with another task than translation adds signatures to a SavedModel."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from keras_transformer.export.saved_model.model_card import TaskCard
from keras_transformer.inference.translator import Translator


@dataclasses.dataclass(frozen=True)
class ExtraSignatures:
    """The signatures of a task, and what the export has to know about them.

    Attributes:
        functions: `tf.function`s with an input signature, by name.
        compared: the name of the string input `[B]` of each function whose output `scores` is
            compared with the run's before the export is published.
        card: the texts of the model card.
        owner: keeps the variables of the functions alive.
    """

    functions: Mapping[str, Callable[..., Any]]
    compared: Mapping[str, str]
    card: TaskCard
    owner: Any = None


# Returns the extra signatures of a translator, or None if its model only translates.
ExtraSignaturesFn = Callable[[Translator], ExtraSignatures | None]
