"""Compiles the training step for all batch shapes before the first step, on GPUs.

XLA compiles each batch shape, which takes up to a minute on a GPU, so several shapes are compiled
at a time. XLA keeps the programs on disk, so only the first run on a machine waits for long. On
CPUs, each shape is compiled at its first step: it would not be faster before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf

from keras_transformer.console import info, progress_bar
from keras_transformer.data.batches import Batches, Shape
from keras_transformer.runs.machine import available_cores
from keras_transformer.training.devices import make_xla_cache_names_reproducible

# A longer run compiles all shapes, a shorter one those of its steps.
_FEW_STEPS = 2_000
# More threads gain little, because each compilation already uses several cores.
_MOST_THREADS = 4


def compile_ahead(
    trainer: Any, batches: Batches, is_stopped: Callable[[], bool], is_shown: bool = True
) -> None:
    """Compiles the batch shapes of the remaining steps, if a `Trainer` uses XLA on GPUs.

    Once `is_stopped` returns True, the shapes that are not being compiled are left out.
    """
    if not trainer.xla_on_gpus:
        return
    steps = range(trainer.step, trainer.config.max_steps)
    shapes = batches.shapes if len(steps) > _FEW_STEPS else sorted(set(map(batches.shape, steps)))

    @tf.function(input_signature=[tf.TensorSpec([], tf.int32)] * 3, autograph=False)
    def function(rows: tf.Tensor, source_length: tf.Tensor, target_length: tf.Tensor) -> tf.Tensor:
        return _run_on_padding(trainer, rows, source_length, target_length)

    function.get_concrete_function()  # alone, because XLA identifies programs by their order

    def compile_shape(shape: Shape) -> None:
        rows, *lengths = shape
        if not is_stopped():
            # Several compilations at a time may need more memory than a step. Then the first step
            # of the shape compiles it.
            with contextlib.suppress(tf.errors.ResourceExhaustedError):
                function(-(-rows // trainer.num_replicas), *lengths).numpy()

    # A compilation occupies one of TensorFlow's threads per replica.
    threads = max(min(_MOST_THREADS, available_cores() // trainer.num_replicas), 1)
    if is_shown:
        info(f"Compiling {len(shapes)} batch shapes with XLA. The first run takes minutes.")
    with (
        ThreadPoolExecutor(threads) as pool,
        progress_bar(len(shapes), "batch shapes compiled", is_shown=is_shown) as bar,
    ):
        for _ in pool.map(compile_shape, shapes):
            bar.update(1)


def _run_on_padding(
    trainer: Any, rows: tf.Tensor, source_length: tf.Tensor, target_length: tf.Tensor
) -> tf.Tensor:
    """Runs the forward and backward pass on padding, which compiles it, without an update.

    The other replicas start after the first one, to find its program on disk. Returns a scalar that
    has a value as soon as all have run. The sizes are the rows of a replica and their lengths.
    """
    make_xla_cache_names_reproducible()
    pad_id, parts = trainer.transformer.config.pad_id, trainer.config.num_microbatches
    rows = (rows + parts - 1) // parts
    earlier: list[tf.Tensor] = []

    def run_replica() -> tf.Tensor:
        source, target = (tf.fill([rows, n], pad_id) for n in (source_length, target_length))
        inputs = {"source_ids": source, "target_ids": target}
        with tf.control_dependencies(earlier):
            sums, _ = trainer.differentiate(
                inputs, target, tf.zeros([2], tf.int64), tf.constant(1.0)
            )
        earlier[:] = [sums.loss]
        return sums.loss

    strategy = trainer.distribute_strategy
    return tf.add_n(strategy.experimental_local_results(strategy.run(run_replica)))
