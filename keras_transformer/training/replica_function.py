"""Functions that are traced once for all replicas.

Under MirroredStrategy, `tf.function` traces a function again for each replica, one after the other.
So 8 GPUs would wait 8 times as long. XLA finds a program on disk by the name of its function, so
each replica would also compile its own program.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import keras
import tensorflow as tf


def replica_function(
    function: Callable[..., Any],
    variables: Callable[[], Iterable[keras.Variable]],
    jit_compile: bool | None = None,
) -> Callable[..., Any]:
    """Returns a `tf.function` that is traced in the first replica, and runs in all of them.

    If it reads a variable that is not one of `variables`, it is traced in every replica.

    Args:
        function: a function of nested tensors. What it computes must not depend on the replica,
            except by its arguments and by the values of variables.
        variables: returns the variables that the function uses.
        jit_compile: compile the function with XLA.

    Example:
    >>> strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    >>> with strategy.scope():
    ...     weight = keras.Variable(2.0)
    >>> double = replica_function(lambda x: x * weight.value, lambda: [weight])
    >>> float(strategy.run(double, args=(tf.constant(3.0),)))
    6.0
    """
    traced = tf.function(function, jit_compile=jit_compile, autograph=False)
    if tf.distribute.get_strategy().num_replicas_in_sync == 1:
        return traced
    return _TracedOnce(traced, variables)


class _TracedOnce:
    """Calls one trace of a function in all replicas, each with its own copies of the variables."""

    def __init__(self, function: Any, variables: Callable[[], Iterable[keras.Variable]]):
        self._function = function
        self._variables = variables
        self._traces: dict[tuple[tf.TensorSpec, ...], Any] = {}

    def __call__(self, *arguments: Any) -> Any:
        tensors = map(tf.convert_to_tensor, tf.nest.flatten(arguments))
        key = tuple(tf.TensorSpec(each.shape, each.dtype) for each in tensors)
        if key not in self._traces:
            self._traces[key] = self._trace(arguments)
        return (self._traces[key] or self._function)(*arguments)

    def _trace(self, arguments: tuple[Any, ...]) -> Any:
        """Returns the trace for arguments of this kind, or None if replicas cannot share it."""
        trace = self._function.get_concrete_function(*arguments)
        # In a replica, a handle belongs to its own copy of the variable.
        own = {id(_handle(variable)): variable for variable in self._variables()}
        captures: list[Any] = []
        for tensor in trace.captured_inputs:
            if id(tensor) in own:
                captures.append(functools.partial(_handle, own[id(tensor)]))
            elif tensor.dtype == tf.resource or tf.is_symbolic_tensor(tensor):
                return None  # a variable of one replica, or a tensor of the calling graph
            else:
                captures.append(tensor)
        trace.set_external_captures(captures)
        return trace


def _handle(variable: keras.Variable) -> tf.Tensor:
    return variable.value.handle
