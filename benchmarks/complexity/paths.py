"""Finds which positions of a layer's output depend on which positions of its input.

The maximum path length (paper, section 4) is the largest number of layers between an input and an
output position, over all pairs of positions that a network of such layers connects.
"""

from __future__ import annotations

from collections.abc import Iterable

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

Dependencies = npt.NDArray[np.bool_]  # [output, input]

_ROWS = 64  # outputs of one gradient computation


def dependencies(layer: keras.Layer, length: int, width: int) -> Dependencies:
    """Returns bool `[length, length]`: whether each output depends on each input.

    A dependency is a derivative at random inputs that is not zero.

    Args:
        layer: from `[B, length, width]` to the same shape.
        length: number of positions, n.
        width: d.
    """
    random = np.random.default_rng(1)
    rows = []
    for first in range(0, length, _ROWS):
        outputs = np.arange(first, min(first + _ROWS, length))
        shape = (len(outputs), length, width)
        inputs = tf.constant(random.normal(size=shape), tf.float32)
        weights = np.zeros(shape, np.float32)  # another position for each sentence
        weights[range(len(outputs)), outputs] = random.normal(size=(len(outputs), width))
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            total = tf.reduce_sum(layer(inputs) * weights)
        rows.append(np.any(tape.gradient(total, inputs).numpy() != 0, axis=-1))
    return np.concatenate(rows)


def identical_layers(direct: Dependencies) -> int:
    """Returns the number of identical layers after which no more positions become connected.

    Args:
        direct: the dependencies through one layer.
    """
    layers, reached = 1, direct
    while not np.array_equal(further := _joined(direct, reached), reached):
        layers, reached = layers + 1, further
    return layers


def stacked_layers(layers: Iterable[Dependencies], wanted: Dependencies) -> int:
    """Returns the number of layers, in their order, that connect all wanted positions.

    Raises:
        ValueError: if all layers together do not.
    """
    reached: Dependencies | None = None
    for count, direct in enumerate(layers, 1):
        reached = direct if reached is None else _joined(direct, reached)
        if (reached >= wanted).all():
            return count
    raise ValueError("the layers do not connect all wanted positions")


def _joined(second: Dependencies, first: Dependencies) -> Dependencies:
    """Returns the dependencies through two layers."""
    return (second.astype(np.float32) @ first.astype(np.float32)) > 0
