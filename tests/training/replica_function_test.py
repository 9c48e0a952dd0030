"""Functions of several replicas: how often they are traced, and whose variables they use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from keras_transformer.training.replica_function import replica_function


class Counted:
    """x -> weight * x + shift, which counts its traces."""

    def __init__(self, weight: keras.Variable, shift: keras.Variable):
        self.weight, self.shift, self.traces = weight, shift, 0

    def __call__(self, x: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        self.traces += 1
        return {"y": self.weight.value * x["x"] + self.shift.value}


@pytest.fixture
def strategy(two_cpus: list[str]) -> tf.distribute.Strategy:
    return tf.distribute.MirroredStrategy(two_cpus)


def variable(strategy: tf.distribute.Strategy, *values: float) -> keras.Variable:
    """Returns a variable with one value for each replica."""
    with strategy.scope():
        result = keras.Variable(0.0)
    for own, value in zip(strategy.experimental_local_results(result.value), values, strict=True):
        own.assign(value)
    return result


def values_of(strategy: tf.distribute.Strategy, function: Callable[..., Any], x: Any) -> list[Any]:
    """Returns y in each replica."""
    y = strategy.run(function, args=({"x": tf.constant(x)},))["y"]
    return [each.numpy().tolist() for each in strategy.experimental_local_results(y)]


@pytest.mark.parametrize("jit_compile", [None, True])
def test_one_trace_uses_the_variables_of_each_replica(
    strategy: tf.distribute.Strategy, jit_compile: bool | None
) -> None:
    counted = Counted(variable(strategy, 2.0, 3.0), variable(strategy, 0.5, 0.25))
    with strategy.scope():
        function = replica_function(
            counted, lambda: [counted.shift, counted.weight], jit_compile=jit_compile
        )
    assert values_of(strategy, function, 10.0) == [20.5, 30.25]
    assert values_of(strategy, function, 1.0) == [2.5, 3.25]
    assert counted.traces == 1
    with strategy.scope():  # a later change
        counted.weight.assign(7.0)
    graph = tf.function(lambda x: strategy.run(function, args=({"x": x},))["y"])
    for x in (1.0, 2.0):
        y = strategy.experimental_local_results(graph(tf.constant(x)))
        assert [float(each) for each in y] == [7 * x + 0.5, 7 * x + 0.25]
    assert counted.traces == 1
    assert values_of(strategy, function, [1.0, 0.0]) == [[7.5, 0.5], [7.25, 0.25]]
    assert counted.traces == 2  # another shape


def test_a_variable_that_was_not_given_makes_every_replica_trace(
    strategy: tf.distribute.Strategy,
) -> None:
    counted = Counted(variable(strategy, 2.0, 3.0), variable(strategy, 0.5, 0.25))
    with strategy.scope():
        function = replica_function(counted, lambda: [counted.weight])
    assert values_of(strategy, function, 10.0) == [20.5, 30.25]
    assert counted.traces == 2


def test_all_replicas_change_their_variables(strategy: tf.distribute.Strategy) -> None:
    weight = variable(strategy, 2.0, 3.0)

    def add(x: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        value = weight.value + x["x"]
        tf.raw_ops.AssignVariableOp(resource=weight.value.handle, value=value)
        return {"y": value}

    with strategy.scope():
        function = replica_function(add, lambda: [weight])
    for expected in ([3.0, 4.0], [4.0, 5.0]):
        assert values_of(strategy, function, 1.0) == expected
        copies = strategy.experimental_local_results(weight.value)
        assert [float(each) for each in copies] == expected


def test_one_replica_needs_no_other_function_than_tensorflow() -> None:
    function = replica_function(lambda x: x + 1, list)
    assert isinstance(function, type(tf.function(lambda x: x)))
