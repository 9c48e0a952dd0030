"""Which positions of a layer's output depend on which of its input, and how far signals go.

The maximum path length (paper, section 4) is how many steps a signal takes from an input to an
output, at most over all pairs of positions that a network of such layers connects at all: a
step is one layer, or within a recurrent layer one application of its cell.
"""

from __future__ import annotations

from collections.abc import Iterable

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

Dependencies = npt.NDArray[np.bool_]  # [output, input]

_ROWS = 64  # outputs that are looked at together


def dependencies(layer: keras.Layer, length: int, width: int) -> Dependencies:
    """Returns bool `[length, length]`: on which inputs each output depends.

    By gradients, at random inputs: a dependency is a derivative that is not zero.

    Args:
        layer: from `[B, length, width]` to as much.
        length: positions, n.
        width: d.
    """
    random = np.random.default_rng(1)
    rows = []
    for first in range(0, length, _ROWS):
        outputs = np.arange(first, min(first + _ROWS, length))
        shape = (len(outputs), length, width)
        inputs = tf.constant(random.normal(size=shape), tf.float32)
        weights = np.zeros(shape, np.float32)  # of each sentence another position
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
    """Returns how many layers, all alike, it takes until nothing more becomes connected.

    Args:
        direct: `dependencies` of one of them.

    Raises:
        ValueError: if an output does not depend on the input at its own position.
    """
    if not direct.diagonal().all():
        raise ValueError("an output does not depend on the input at its own position")
    powers = [direct]  # of 1, 2, 4, ... layers
    while not np.array_equal(further := _joined(powers[-1], powers[-1]), powers[-1]):
        powers.append(further)
    # Fewer than the last: the largest number that falls short, in binary, and one more.
    layers, reached = 0, np.eye(len(direct), dtype=bool)
    for exponent in reversed(range(len(powers))):
        further = _joined(powers[exponent], reached)
        if not np.array_equal(further, powers[-1]):
            layers, reached = layers + 2**exponent, further
    return layers + 1


def stacked_layers(layers: Iterable[Dependencies], wanted: Dependencies) -> int:
    """Returns how many of these layers, in their order, it takes to connect what is wanted.

    Raises:
        ValueError: if all together do not.
    """
    reached: Dependencies | None = None
    for count, direct in enumerate(layers, 1):
        reached = direct if reached is None else _joined(direct, reached)
        if (reached >= wanted).all():
            return count
    raise ValueError("the layers do not connect what they should")


def recurrent_steps(cell: keras.Layer, length: int, width: int) -> int:
    """Returns how many applications of its cell a layer's last output is away from its first input.

    The input enters the first state; from there on state follows state.
    """
    of_input, of_state = cell_dependencies(cell, width)
    if not (of_input and of_state):
        raise ValueError(f"{cell.name} passes nothing on from input to state to state")
    following = np.eye(length, dtype=bool) | np.eye(length, k=-1, dtype=bool)
    return 1 + same_layers(following)


def _joined(second: Dependencies, first: Dependencies) -> Dependencies:
    """What depends on what through two layers."""
    return (second.astype(np.float32) @ first.astype(np.float32)) > 0
