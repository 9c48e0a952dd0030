"""Functions of several replicas: how often they are traced, and whose variables they use."""

import dataclasses

import keras
import pytest
import tensorflow as tf

from keras_transformer.training import trainer as trainer_module
from keras_transformer.training import update as update_module
from keras_transformer.training.devices import replica_function
from tests.training.tiny_model import TRAINING, batches, make_trainer


class Counted:
    """x -> weight * x + shift, which counts its traces."""

    def __init__(self, weight, shift):
        self.weight, self.shift, self.traces = weight, shift, 0

    def __call__(self, x):
        self.traces += 1
        return {"y": self.weight.value * x["x"] + self.shift.value}


@pytest.fixture
def strategy(two_cpus):
    return tf.distribute.MirroredStrategy(two_cpus)


def variable(strategy, *values):
    """Returns a variable with one value for each replica."""
    with strategy.scope():
        result = keras.Variable(0.0)
    for own, value in zip(strategy.experimental_local_results(result.value), values, strict=True):
        own.assign(value)
    return result


def values_of(strategy, function, x):
    """Returns y in each replica."""
    y = strategy.run(function, args=({"x": tf.constant(x)},))["y"]
    return [each.numpy().tolist() for each in strategy.experimental_local_results(y)]


@pytest.mark.parametrize("jit_compile", [None, True])
def test_one_trace_uses_the_variables_of_each_replica(strategy, jit_compile):
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


def test_a_variable_that_was_not_given_makes_every_replica_trace(strategy):
    counted = Counted(variable(strategy, 2.0, 3.0), variable(strategy, 0.5, 0.25))
    with strategy.scope():
        function = replica_function(counted, lambda: [counted.weight])
    assert values_of(strategy, function, 10.0) == [20.5, 30.25]
    assert counted.traces == 2


# The training step.


@pytest.fixture
def as_on_gpus(monkeypatch):
    """XLA also compiles the norm and the update."""
    monkeypatch.setattr(trainer_module, "uses_gpus", lambda _: True)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_two_replicas_trace_the_training_step_once(two_cpus, as_on_gpus, jit_compile):
    parts = {
        "differentiate": (trainer_module.Trainer, "_loss_and_gradients"),
        "update": (update_module.Update, "_apply"),
        "norm": (update_module, "_global_norm"),
    }
    training = dataclasses.replace(TRAINING, ema_decay=0.9, clip_norm=1.0, freeze="encoder/*")
    counts = dict.fromkeys(parts, 0)

    def counting(part, original):
        def counted(*arguments):
            counts[part] += 1
            return original(*arguments)

        return counted

    with pytest.MonkeyPatch.context() as patch:
        for part, (owner, name) in parts.items():
            patch.setattr(owner, name, counting(part, getattr(owner, name)))
        trainer = make_trainer(
            training=training, policy="mixed_float16", devices=two_cpus, jit_compile=jit_compile
        )
        graph = tf.function(trainer.take_step, autograph=False)
        graph.get_concrete_function(distributed(trainer))
    assert counts["differentiate"] == 1
    # Without XLA, they are parts of the step of each replica.
    assert counts["update"] == counts["norm"] == (1 if jit_compile else 2)


def distributed(trainer):
    """Returns a batch of both replicas."""
    data = tf.data.Dataset.from_tensors(batches(1)[0])
    return next(iter(trainer.distribute_strategy.experimental_distribute_dataset(data)))
