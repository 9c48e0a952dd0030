"""Counts the programs that XLA compiles."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

START = """
import dataclasses
import re
import sys
from pathlib import Path
from types import SimpleNamespace
import tensorflow as tf
from keras_transformer.training import trainer as trainer_module
from keras_transformer.training.compilation import compile_ahead
from keras_transformer.training.devices import use_logical_cpus
from tests.training.tiny_model import TRAINING, batches, make_trainer, train

replicas = int(sys.argv[2])
use_logical_cpus(replicas)
trainer_module.uses_gpus = lambda strategy: True

def make(training=TRAINING):
    devices = [f"CPU:{i}" for i in range(replicas)]
    return make_trainer(training=training, devices=devices, jit_compile=True)
"""
AHEAD = """
def compiled():
    names = " ".join(file.name for file in Path(sys.argv[1]).iterdir())
    parts = ("loss_and_gradients", "_apply")
    return [len(set(re.findall(rf"module_\\d+\\S*_{part}", names))) for part in parts]

trainer = make(dataclasses.replace(TRAINING, num_microbatches=2))
compile_ahead(trainer, SimpleNamespace(shapes=[(4, 7, 8), (4, 5, 6)]), lambda: False)
train(trainer, batches(1))
print(*compiled())
train(trainer, batches(4))
print(*compiled())
"""
CACHED = """
for number in range(int(sys.argv[1])):  # functions of other code
    tf.function(lambda x: x + number)(tf.constant(1.0))
trainer = make()
compile_ahead(trainer, SimpleNamespace(shapes=[(4, 7, 8)]), lambda: False)
train(trainer, batches(1))
"""


def run(script, *arguments, **variables):
    """Runs a script in a new process, and returns the lines that it prints."""
    environment = {
        **os.environ, **variables, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.long
def test_every_shape_is_compiled_ahead_once_per_replica_and_one_update(tmp_path):
    flags = f"--xla_dump_to={tmp_path} --xla_backend_optimization_level=0"
    assert run(START + AHEAD, tmp_path, "2", XLA_FLAGS=flags) == ["4 2", "4 2"]


@pytest.mark.long
@pytest.mark.parametrize("replicas", [1, 2])
def test_all_processes_and_replicas_have_the_same_programs_in_the_cache(tmp_path, replicas):
    flags = f"--tf_xla_persistent_cache_directory={tmp_path}"
    for functions in range(2):
        run(START + CACHED, str(functions), str(replicas), TF_XLA_FLAGS=flags)
        # Forward and backward pass, norm and update.
        assert len(list(tmp_path.iterdir())) == 3
