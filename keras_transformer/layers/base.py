"""Methods that Keras requires of every layer."""

from __future__ import annotations

import inspect
from typing import Any

import keras


class BaseLayer(keras.layers.Layer):
    """A layer whose constructor arguments are attributes with the same names.

    Example:
    >>> class Scale(BaseLayer):
    ...     def __init__(self, factor: float = 1.0, **kwargs):
    ...         super().__init__(**kwargs)
    ...         self.factor = factor
    >>> Scale(2.0).get_config()["factor"]
    2.0
    """

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        # Traces `call`: dtype and number of outputs can differ from those of the first input.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        _, *parameters = inspect.signature(type(self).__init__).parameters.values()
        names = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
