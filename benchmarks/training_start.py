#!/usr/bin/env python3
r"""Times the start of a training run that uses XLA.

Examples:
    benchmarks/training_start.py --data_dir=build/data --preset=base --batch_tokens=25000 \
        --batch_shapes=4 --steps=100
    TF_XLA_FLAGS=--tf_xla_persistent_cache_directory=cache benchmarks/training_start.py \
        --data_dir=build/data --batch_shapes=1 --replicas=4

Trains a new run for --steps steps in a temporary directory. On a machine without a GPU, the CPU
trains as a GPU would: the graphs and the order of the compilations are the same, but not the speed.
With --replicas, it trains as several GPUs would.

Prints one JSON object. All times are in seconds: `first_step`, from the start, before TensorFlow is
loaded, to the end of the first step; `median_step`, of the last quarter; `compilation`, the time of
the later steps beyond this median, in which the other shapes are compiled; `steps_per_second` of
all steps, from the start; and the number of batch shapes with the share of padding.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import command
from absl import flags
from measuring import describe_machine

FLAGS = flags.FLAGS
flags.DEFINE_enum("preset", "tiny", ["tiny", "small", "base", "big"], "sizes of the model")
flags.DEFINE_string("data_dir", None, "prepared data", required=True)
flags.DEFINE_integer("batch_tokens", 4096, "target positions of a batch", lower_bound=1)
flags.DEFINE_integer("batch_shapes", 16, "largest number of batch shapes", lower_bound=1)
flags.DEFINE_integer("steps", 200, "training steps", lower_bound=8)
flags.DEFINE_integer("replicas", 1, "parts of a CPU, which train like GPUs", lower_bound=1)


def measure(run_dir: Path) -> dict[str, Any]:
    """Trains a run, and returns the times of its steps."""
    begun = time.monotonic()
    from keras_transformer.tf_import import load_tensorflow  # loads TensorFlow

    load_tensorflow()
    import keras
    import tensorflow as tf

    from keras_transformer.runs.run_directory import RunDirectory
    from keras_transformer.training import trainer
    from keras_transformer.training.data import TrainingData
    from keras_transformer.training.devices import use_logical_cpus
    from keras_transformer.training.training_run import train

    ends: list[float] = []

    class StepTimes(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            float(logs["loss"])  # waits for the device
            ends.append(time.monotonic() - begun)

    settings = {
        "training.batch_tokens": FLAGS.batch_tokens,
        "training.batch_shapes": FLAGS.batch_shapes,
        "training.max_steps": FLAGS.steps,
        "training.checkpoint_steps": FLAGS.steps,
        "training.jit_compile": "true",
    }
    with contextlib.ExitStack() as stack:
        if not tf.config.list_physical_devices("GPU"):
            use_logical_cpus(FLAGS.replicas)
            stack.enter_context(mock.patch.object(trainer, "uses_gpus", lambda _: True))
        train(FLAGS.data_dir, run_dir, FLAGS.preset, settings, callbacks=[StepTimes()])
    batches, _ = TrainingData.open(FLAGS.data_dir).batches(RunDirectory(run_dir).config.training)
    steps = [end - begin for begin, end in itertools.pairwise(ends)]
    median = statistics.median(steps[-len(ends) // 4 :])
    times = {
        "first_step": ends[0],
        "median_step": median,
        "compilation": sum(max(0.0, step - median) for step in steps),
        "steps_per_second": len(ends) / ends[-1],
    }
    return {
        **{name: round(value, 3) for name, value in times.items()},
        "batch_shapes": len(batches.shapes),
        "padding_share": round(batches.padding_share, 4),
    }


def main() -> int:
    """Prints the measurements."""
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Path(folder) / "run")
    names = "preset batch_tokens batch_shapes steps replicas"
    settings = {name: getattr(FLAGS, name) for name in names.split()}
    print(json.dumps({"machine": describe_machine("gpu"), "settings": settings, **result}))
    return 0


if __name__ == "__main__":
    command.run(main)
