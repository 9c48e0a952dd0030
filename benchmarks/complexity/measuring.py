"""A layer's forward pass, and forward and backward together: traced and timed."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

Call = Callable[[], Any]
PASSES = ("forward", "forward and backward")


@dataclasses.dataclass(frozen=True)
class Passes:
    """A layer's passes, traced.

    Args:
        forward: a concrete function of inputs `[B, n, d]`.
        both: one of inputs and a gradient of the outputs, to the gradients of inputs and weights.
        inputs: random ones.
        gradient: random as well.
    """

    forward: Any
    both: Any
    inputs: tf.Tensor
    gradient: tf.Tensor

    def calls(self) -> dict[str, Call]:
        """The passes by name, ready to be called."""
        calls = (lambda: self.forward(self.inputs), lambda: self.both(self.inputs, self.gradient))
        return dict(zip(PASSES, calls, strict=True))


def trace(layer: keras.Layer, shape: Sequence[int], any_length: bool = False) -> Passes:
    """Traces both passes.

    Args:
        layer: from `[B, n, d]` to as much.
        shape: B, n and d.
        any_length: trace for sequences of any length.
    """
    batch, length, width = shape
    spec = tf.TensorSpec([batch, None if any_length else length, width])

    @tf.function(autograph=False)
    def forward(inputs: tf.Tensor) -> tf.Tensor:
        return layer(inputs)

    @tf.function(autograph=False)
    def both(inputs: tf.Tensor, gradient: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = layer(inputs)
        weights = [variable.value for variable in layer.trainable_weights]
        gradients = tape.gradient(outputs, [inputs, *weights], output_gradients=gradient)
        return list(gradients)

    layer.build(spec.shape)
    return Passes(
        forward.get_concrete_function(spec),
        both.get_concrete_function(spec, spec),
        random_tensor(shape),
        random_tensor(shape),
    )


def random_tensor(shape: Sequence[int]) -> tf.Tensor:
    """Returns random float32, made without TensorFlow, whose allocator would keep the memory."""
    return tf.constant(np.random.default_rng(1).standard_normal(shape, np.float32))


def seconds(call: Call, least: float) -> float:
    """Returns the median time of a call; calls for `least` seconds, once at least."""
    taken: list[float] = []
    while not taken or sum(taken) < least:
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)
