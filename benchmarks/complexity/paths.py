"""Finds which positions of a layer's output depend on which positions of its input.

The maximum path length (paper, section 4) is the largest number of steps between an input and an
output position, over all pairs that a network of such layers connects. A step is one layer, or in
a recurrent layer one application of its cell.
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


def cell_dependencies(cell: keras.Layer, width: int) -> tuple[bool, bool]:
    """Returns whether the output of a recurrent cell depends on its input, and on its state."""
    random = np.random.default_rng(1)
    sizes = [width, *np.atleast_1d(cell.state_size).tolist()]
    tensors = [tf.constant(random.normal(size=(1, size)), tf.float32) for size in sizes]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        output, _ = cell(tensors[0], tensors[1:])
    of_input, *of_states = tape.gradient(output, tensors)
    return bool(np.any(of_input)), any(np.any(each) for each in of_states if each is not None)


def same_layers(direct: Dependencies) -> int:
    """Returns the number of identical layers after which no more positions become connected.

    Args:
        direct: `dependencies` of one layer.

    Raises:
        ValueError: if an output does not depend on the input at its own position.
    """
    if not direct.diagonal().all():
        raise ValueError("an output does not depend on the input at its own position")
    powers = [direct]  # of 1, 2, 4, ... layers
    while not np.array_equal(further := _joined(powers[-1], powers[-1]), powers[-1]):
        powers.append(further)
    # A binary search for the largest number that falls short; the result is one more.
    layers, reached = 0, np.eye(len(direct), dtype=bool)
    for exponent in reversed(range(len(powers))):
        further = _joined(powers[exponent], reached)
        if not np.array_equal(further, powers[-1]):
            layers, reached = layers + 2**exponent, further
    return layers + 1


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
    raise ValueError("the layers do not connect what they should")


def recurrent_steps(cell: keras.Layer, length: int, width: int) -> int:
    """Returns the number of applications of a cell between the first input and the last output.

    The input enters the first state, and each state follows the one before.
    """
    of_input, of_state = cell_dependencies(cell, width)
    if not (of_input and of_state):
        raise ValueError(f"{cell.name} passes nothing on from input to state to state")
    following = np.eye(length, dtype=bool) | np.eye(length, k=-1, dtype=bool)
    return 1 + same_layers(following)


def _joined(second: Dependencies, first: Dependencies) -> Dependencies:
    """Returns the dependencies through two layers."""
    return (second.astype(np.float32) @ first.astype(np.float32)) > 0
