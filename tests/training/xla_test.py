"""Counts the programs that XLA compiles."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import re
import sys
from pathlib import Path

from keras_transformer.training import step
from keras_transformer.training.devices import use_logical_cpus
from tests.training.tiny_model import batches, make_batch, make_trainer, train


def compiled():
    names = " ".join(file.name for file in Path(sys.argv[1]).iterdir())
    parts = ("loss_and_gradients", "compiled_step")
    return [len(set(re.findall(rf"module_\\d+\\S*_{part}", names))) for part in parts]


use_logical_cpus(2)
step.uses_gpus = lambda strategy: True
trainer = make_trainer(devices=("CPU:0", "CPU:1"), jit_compile=True)
# One shape twice, then a second one, then both again.
first, second = batches(2)
for data in ([first, make_batch([7, 1, 1, 0], [8, 3, 2, 1], 5)], [second], batches(4)):
    train(trainer, data)
    print(*compiled())
"""


def test_each_replica_compiles_every_batch_shape_once_and_one_update(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "XLA_FLAGS": f"--xla_dump_to={tmp_path} --xla_backend_optimization_level=0",
        "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path],
        env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

    assert done.stdout.splitlines() == ["2 2", "4 2", "4 2"]


CACHED = """
import sys

import tensorflow as tf

from keras_transformer.training import step
from tests.training.tiny_model import batches, make_trainer, train

for number in range(int(sys.argv[1])):  # functions of other code
    tf.function(lambda x: x + number)(tf.constant(1.0))
step.uses_gpus = lambda strategy: True
train(make_trainer(jit_compile=True), batches(1))
"""


def test_another_process_finds_all_programs_in_the_cache(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "TF_XLA_FLAGS": f"--tf_xla_persistent_cache_directory={tmp_path}",
        "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1",
    }  # fmt: skip
    for functions in range(2):
        done = subprocess.run(
            [sys.executable, "-c", CACHED, str(functions)],
            env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        # Forward and backward pass, norm and update.
        assert len(list(tmp_path.iterdir())) == 3
