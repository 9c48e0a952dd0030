"""Exponential moving averages of the weights, which are what a run validates and exports."""

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
        decay: how much of an average stays at each update; 0 keeps no averages.
        add_weight: adds a variable to a Keras model, as `keras.Model.add_weight`.
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

    def update(self, num_updates: tf.Tensor) -> None:
        """Moves each average towards its weight; in the first steps faster, to forget the start.

        It is called in the scope of the strategy of the weights.

        Args:
            num_updates: int scalar, how often the weights have moved, this time included.
        """
        updates = tf.cast(num_updates, tf.float32)
        rate = 1.0 - tf.minimum(self._decay, (1.0 + updates) / (10.0 + updates))

        def update_one(average: Any, weight: tf.Tensor) -> None:
            average.assign_sub((average - weight) * rate)

        strategy = tf.distribute.get_strategy()
        for path, average in self.by_path.items():
            strategy.extended.update(
                average.value, update_one, args=(self._weights[path].value,), group=False
            )

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Exchanges weights and averages, and back again at the end of the block."""

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
