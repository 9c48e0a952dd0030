"""The compilation of all batch shapes before the first step."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import TrainingConfig
from keras_transformer.training.compilation import compile_ahead

FIRST, SECOND, THIRD = (4, 5, 6), (4, 7, 8), (8, 3, 3)
BATCHES = SimpleNamespace(
    shapes=(FIRST, SECOND, THIRD), shape=lambda step: (FIRST, SECOND)[step % 2]
)


def compiled(step=0, max_steps=100000, replicas=1, xla_on_gpus=True, error=None, is_stopped=False):
    """Returns the sizes that a trainer was told to compile."""
    sizes = []

    def compile_one(*size):
        sizes.append(tuple(map(int, size)))
        if error is not None:
            raise error
        return np.int32(0)

    trainer = SimpleNamespace(
        xla_on_gpus=xla_on_gpus, num_replicas=replicas, step=step,
        config=TrainingConfig(max_steps=max_steps),
        compile_shape=lambda *size: tf.numpy_function(compile_one, size, tf.int32),
    )  # fmt: skip
    compile_ahead(trainer, BATCHES, lambda: is_stopped)
    return sorted(sizes)


def test_all_shapes_or_those_of_a_short_run_are_compiled(capsys):
    assert compiled() == [FIRST, SECOND, THIRD]
    assert "Compiling 3 batch shapes" in capsys.readouterr().err
    assert compiled(max_steps=20) == [FIRST, SECOND]
    assert compiled(step=7, max_steps=8) == [SECOND]
    assert compiled(max_steps=1, replicas=2) == [(2, 5, 6)]


def test_nothing_is_compiled_on_cpus_or_after_a_signal():
    assert compiled(xla_on_gpus=False) == compiled(is_stopped=True) == []


def test_a_shape_that_needs_too_much_memory_is_left_for_its_first_step():
    assert compiled(max_steps=1, error=MemoryError) == [FIRST]
    with pytest.raises(tf.errors.OpError, match="OSError"):
        compiled(max_steps=1, error=OSError)
