"""Counts the programs that XLA compiles."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import dataclasses
import re
import sys
from pathlib import Path
from types import SimpleNamespace

from keras_transformer.training import trainer as trainer_module
from keras_transformer.training.compilation import compile_ahead
from keras_transformer.training.devices import use_logical_cpus
from tests.training.tiny_model import TRAINING, batches, make_batch, make_trainer, train


def compiled():
    names = " ".join(file.name for file in Path(sys.argv[1]).iterdir())
    parts = ("loss_and_gradients", "_apply")
    return [len(set(re.findall(rf"module_\\d+\\S*_{part}", names))) for part in parts]


use_logical_cpus(2)
trainer_module.uses_gpus = lambda strategy: True
"""

AT_FIRST_STEPS = """
trainer = make_trainer(devices=("CPU:0", "CPU:1"), jit_compile=True)
# One shape twice, then a second one, then both again.
first, second = batches(2)
for data in ([first, make_batch([7, 1, 1, 0], [8, 3, 2, 1], 5)], [second], batches(4)):
    train(trainer, data)
    print(*compiled())
"""

AHEAD = """
training = dataclasses.replace(TRAINING, num_microbatches=2)
trainer = make_trainer(training=training, devices=("CPU:0", "CPU:1"), jit_compile=True)
compile_ahead(trainer, SimpleNamespace(shapes=[(4, 7, 8), (4, 5, 6)]), lambda: False)
train(trainer, batches(1))
print(*compiled())
train(trainer, batches(4))
print(*compiled())
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
def test_each_replica_compiles_every_batch_shape_once_and_one_update(tmp_path):
    flags = f"--xla_dump_to={tmp_path} --xla_backend_optimization_level=0"
    assert run(SCRIPT + AT_FIRST_STEPS, tmp_path, XLA_FLAGS=flags) == ["2 2", "4 2", "4 2"]


@pytest.mark.long
def test_steps_compile_nothing_after_the_compilation_ahead(tmp_path):
    flags = f"--xla_dump_to={tmp_path} --xla_backend_optimization_level=0"
    assert run(SCRIPT + AHEAD, tmp_path, XLA_FLAGS=flags) == ["4 2", "4 2"]


CACHED = """
import sys
from types import SimpleNamespace

import tensorflow as tf

from keras_transformer.training import trainer as trainer_module
from keras_transformer.training.compilation import compile_ahead
from keras_transformer.training.devices import use_logical_cpus
from tests.training.tiny_model import batches, make_trainer, train

replicas = int(sys.argv[2])
use_logical_cpus(replicas)
for number in range(int(sys.argv[1])):  # functions of other code
    tf.function(lambda x: x + number)(tf.constant(1.0))
trainer_module.uses_gpus = lambda strategy: True
trainer = make_trainer(devices=[f"CPU:{i}" for i in range(replicas)], jit_compile=True)
compile_ahead(trainer, SimpleNamespace(shapes=[(4, 7, 8)]), lambda: False)
train(trainer, batches(1))
"""


@pytest.mark.long
@pytest.mark.parametrize("replicas", [1, 2])
def test_all_processes_and_replicas_have_the_same_programs_in_the_cache(tmp_path, replicas):
    flags = f"--tf_xla_persistent_cache_directory={tmp_path}"
    for functions in range(2):
        run(CACHED, str(functions), str(replicas), TF_XLA_FLAGS=flags)
        # Forward and backward pass, norm and update.
        assert len(list(tmp_path.iterdir())) == 3
