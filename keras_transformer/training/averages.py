"""Exponential moving averages of the weights. A run validates and exports the averages."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf


class WeightAverages:
    """The exponential moving average of every weight.

    Args:
        weights: the weights by their paths.
        decay: fraction of the old average that an update keeps. 0 disables averages.
        add_weight: adds a variable to a Keras model, as `keras.Model.add_weight`.

    Example:
    >>> weight = keras.Variable(1.0)
    >>> averages = WeightAverages({"w": weight}, 0.9, keras.layers.Layer().add_weight)
    >>> _ = weight.assign(2.0)
    >>> averages.update(tf.constant(1))
    >>> with averages.in_place():
    ...     print(round(float(weight), 3))
    1.818
    """

    def __init__(
        self,
        weights: Mapping[str, keras.Variable],
        decay: float,
        add_weight: Callable[..., keras.Variable],
    ):
        self._weights = weights
        self._decay = decay
        self.by_path: dict[str, keras.Variable] = {}
        for path, weight in weights.items() if decay else ():
            self.by_path[path] = add_weight(
                shape=weight.shape, dtype=weight.dtype, trainable=False, autocast=False,
                name="average_of_" + path.replace("/", "_"), initializer="zeros",
            )  # fmt: skip
            self.by_path[path].assign(weight.value)

    @property
    def variables(self) -> list[keras.Variable]:
        """The weights and their averages."""
        return [*self._weights.values(), *self.by_path.values()]

    def update(self, num_updates: tf.Tensor) -> None:
        """Moves each average towards its weight.

        The first updates use a smaller decay, so that averages forget their initial values. Call it
        in the scope of the strategy of the weights.

        Args:
            num_updates: int scalar, number of updates of the weights, including this one.
        """
        rate = self._rate(num_updates)

        def update_one(average: Any, weight: tf.Tensor) -> None:
            average.assign_sub((average - weight) * rate)

        strategy = tf.distribute.get_strategy()
        for path, average in self.by_path.items():
            strategy.extended.update(
                average.value, update_one, args=(self._weights[path].value,), group=False
            )

    def updated(
        self, num_updates: tf.Tensor, weights: Mapping[str, tf.Tensor]
    ) -> list[tuple[keras.Variable, tf.Tensor]]:
        """Returns the variable and the new value of each average, without assigning it.

        Args:
            num_updates: int scalar, number of updates of the weights, including this one.
            weights: new values of weights by path; other weights have not changed.
        """
        rate = self._rate(num_updates)
        return [
            (
                average,
                average.value
                - (average.value - weights.get(path, self._weights[path].value)) * rate,
            )
            for path, average in self.by_path.items()
        ]

    def _rate(self, num_updates: tf.Tensor) -> tf.Tensor:
        """Returns the fraction of the distance to its weight that an average moves."""
        updates = tf.cast(num_updates, tf.float32)
        return 1.0 - tf.minimum(self._decay, (1.0 + updates) / (10.0 + updates))

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Exchanges weights and averages inside the block."""

        def exchange() -> None:
            for path, average in self.by_path.items():
                weight = tf.identity(self._weights[path].value)
                self._weights[path].assign(average.value)
                average.assign(weight)

        exchange()
        try:
            yield
        finally:
            exchange()
