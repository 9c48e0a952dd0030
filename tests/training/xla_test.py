"""Programs of XLA: one trace for all replicas, and names that are found on disk again."""

import os
import subprocess
import sys

import keras
import pytest
import tensorflow as tf

from keras_transformer.training.devices import mirrored_strategy, replica_function
from tests.conftest import ROOT


class TraceCounter:
    """x -> weight * x + shift, which counts its traces. Replicas have different variables."""

    def __init__(self, strategy):
        self.traces = 0
        with strategy.scope():
            self.weight, self.shift = keras.Variable(0.0), keras.Variable(0.0)
        for variable, values in ((self.weight, (2.0, 3.0)), (self.shift, (0.5, 0.25))):
            copies = strategy.experimental_local_results(variable.value)
            for copy, value in zip(copies, values, strict=True):
                copy.assign(value)

    def __call__(self, x):
        self.traces += 1
        return {"y": self.weight.value * x["x"] + self.shift.value}


@pytest.mark.parametrize("jit_compile", [None, True])
def test_one_trace_uses_the_variables_of_each_replica(two_cpus, jit_compile):
    strategy = mirrored_strategy(two_cpus)
    counted = TraceCounter(strategy)

    def results(function, x):
        y = strategy.run(function, args=({"x": tf.constant(x)},))["y"]
        return [value.numpy().tolist() for value in strategy.experimental_local_results(y)]

    with strategy.scope():
        function = replica_function(
            counted, lambda: [counted.shift, counted.weight], jit_compile=jit_compile
        )
    assert results(function, 10.0) == [20.5, 30.25]
    with strategy.scope():  # a later change
        counted.weight.assign(7.0)
    assert results(function, 1.0) == [7.5, 7.25]
    assert counted.traces == 1
    assert results(function, [1.0, 0.0]) == [[7.5, 0.5], [7.25, 0.25]]
    assert counted.traces == 2  # another shape
    with strategy.scope():  # a variable that is not given: every replica traces
        function = replica_function(counted, lambda: [counted.weight], jit_compile=jit_compile)
    assert results(function, 10.0) == [70.5, 70.25]
    assert counted.traces == 4


# Real trainers in new processes.

START = """
import dataclasses
import re
import sys
from pathlib import Path
import tensorflow as tf
from keras_transformer.training import trainer as trainer_module
from keras_transformer.training.devices import use_logical_cpus
from tests.training.tiny_model import TRAINING, batches, make_trainer, train

replicas = int(sys.argv[2])
use_logical_cpus(replicas)
trainer_module.uses_gpus = lambda strategy: True

def make(training=TRAINING):
    devices = [f"CPU:{i}" for i in range(replicas)]
    return make_trainer(training=training, devices=devices, jit_compile=True)
"""
COMPILED = """
def compiled():
    names = " ".join(file.name for file in Path(sys.argv[1]).iterdir())
    parts = ("forward_and_backward", "_apply")
    return [len(set(re.findall(rf"module_\\d+\\S*_{part}", names))) for part in parts]

trainer = make(dataclasses.replace(TRAINING, num_microbatches=2))
train(trainer, batches(1))
print(*compiled())
train(trainer, batches(4))
print(*compiled())
"""
CACHED = """
for number in range(int(sys.argv[1])):  # functions of other code
    tf.function(lambda x: x + number)(tf.constant(1.0))
train(make(), batches(1))
"""


def run(script, *arguments, **variables):
    """Runs a script in a new process, and returns the lines that it prints."""
    environment = {
        **os.environ, **variables, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.long
def test_every_shape_is_compiled_once_per_replica_and_the_update_once(tmp_path):
    flags = f"--xla_dump_to={tmp_path} --xla_backend_optimization_level=0"
    assert run(START + COMPILED, tmp_path, "2", XLA_FLAGS=flags) == ["2 2", "4 2"]


@pytest.mark.long
@pytest.mark.parametrize("replicas", [1, 2])
def test_all_processes_and_replicas_have_the_same_programs_in_the_cache(tmp_path, replicas):
    flags = f"--tf_xla_persistent_cache_directory={tmp_path}"
    for functions in range(2):
        run(START + CACHED, str(functions), str(replicas), TF_XLA_FLAGS=flags)
        # Forward and backward pass, norm and update.
        assert len(list(tmp_path.iterdir())) == 3
