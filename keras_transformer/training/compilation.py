"""Compiles the training step for all batch shapes before the first step, on GPUs.

XLA compiles each batch shape, which takes up to a minute on a GPU, so several shapes are compiled
at a time. XLA keeps the programs on disk, so only the first run on a machine waits for long. On
CPUs, each shape is compiled at its first step: it would not be faster before.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

from keras_transformer.console import progress_bar, say
from keras_transformer.data.batches import Batches, Shape
from keras_transformer.training.trainer import Trainer

# A longer run compiles all shapes, a shorter one those of its steps.
_FEW_STEPS = 2_000
# More threads gain little, because each compilation already uses several cores.
_MOST_THREADS = 4


def compile_ahead(
    trainer: Trainer,
    batches: Batches,
    is_stopped: Callable[[], bool],
    is_shown: bool = True,
) -> None:
    """Compiles the batch shapes of the remaining steps, if a trainer uses XLA on GPUs.

    Args:
        is_stopped: once it returns True, the shapes that are not being compiled are left out.
        is_shown: False if another worker shows the progress.
    """
    if not trainer.xla_on_gpus:
        return
    steps = range(trainer.step, trainer.config.max_steps)
    shapes = batches.shapes if len(steps) > _FEW_STEPS else sorted(set(map(batches.shape, steps)))
    size = tf.TensorSpec([], tf.int32)
    function = tf.function(trainer.compile_shape, [size, size, size], autograph=False)
    function.get_concrete_function()  # alone, because XLA identifies programs by their order

    def compile_shape(shape: Shape) -> None:
        rows, *lengths = shape
        if not is_stopped():
            # Several compilations at a time may need more memory than a step. Then the first step
            # of the shape compiles it.
            with contextlib.suppress(tf.errors.ResourceExhaustedError):
                function(-(-rows // trainer.num_replicas), *lengths).numpy()

    # A compilation occupies one of TensorFlow's threads per replica.
    cores = len(os.sched_getaffinity(0))
    threads = max(min(_MOST_THREADS, cores // trainer.num_replicas), 1)
    if is_shown:
        say(f"Compiling {len(shapes)} batch shapes with XLA, which takes minutes in the first run.")
    with (
        ThreadPoolExecutor(threads) as pool,
        progress_bar(len(shapes), "batch shapes compiled", is_shown=is_shown) as bar,
    ):
        for _ in pool.map(compile_shape, shapes):
            bar.update(1)
