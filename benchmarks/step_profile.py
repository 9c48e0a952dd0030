#!/usr/bin/env python3
r"""Shows what a training step spends its time on, operation by operation, without XLA.

Example:
    benchmarks/step_profile.py --preset=small --batch_tokens=4096

Prints one JSON object: tokens per second of steps that were not profiled, and from
TensorFlow's profiler the milliseconds a step in matrix products and in every other
part of it. Operations run beside each other, so that the parts add up to more than
the step. With PYTHONPATH at another checkout it profiles the package there.
"""

import collections
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import command
import keras
import numpy as np
import tensorflow as tf
from absl import flags
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from keras_transformer import Trainer, Transformer, preset

FLAGS = flags.FLAGS
flags.DEFINE_string("preset", "small", "named configuration")
flags.DEFINE_integer("batch_tokens", 4096, "target positions of a batch")
flags.DEFINE_integer("length", 16, "tokens of a sentence, on both sides", lower_bound=1)
flags.DEFINE_integer("vocab_size", 8000, "joint vocabulary", lower_bound=8)
flags.DEFINE_enum(
    "precision", "bfloat16", ["float32", "bfloat16", "float16"], "what products are computed in"
)
flags.DEFINE_integer("steps", 10, "steps to time, and to profile", lower_bound=1)

# What is first found in an operation's name says which part of the step it is of.
PARTS = {
    "global_norm": "global norm",
    "dropout": "dropout",
    "norm": "layer norm",
    "while/": "loss",
    "attention": "attention",
    "feed_forward": "feed-forward",
    "update": "optimizer",
    "embedding": "embedding",
}


def make_step() -> Callable[[], Any]:
    """Returns a function that trains one step on one batch of made-up sentences."""
    config = preset(FLAGS.preset).updated(
        {"model.source_vocab_size": FLAGS.vocab_size, "model.target_vocab_size": FLAGS.vocab_size}
    )
    rows = FLAGS.batch_tokens // FLAGS.length // 8 * 8
    ids = np.random.default_rng(1).integers(
        4, FLAGS.vocab_size, (3, rows, FLAGS.length), dtype=np.int32
    )
    policy = FLAGS.precision if FLAGS.precision == "float32" else f"mixed_{FLAGS.precision}"
    strategy = tf.distribute.MirroredStrategy([tf.config.list_logical_devices()[0].name])
    with strategy.scope():
        keras.utils.set_random_seed(1)
        trainer = Trainer(Transformer(config.model, dtype=policy), config.training)
    # Of unknown shape, as batches are in training.
    spec = tf.TensorSpec([None, None], tf.int32)
    batches = tf.data.Dataset.from_generator(
        lambda: iter(lambda: ({"source_ids": ids[0], "target_ids": ids[1]}, ids[2]), None),
        output_signature=({"source_ids": spec, "target_ids": spec}, spec),
    )
    iterator = iter(strategy.experimental_distribute_dataset(batches.prefetch(4)))
    function = trainer.make_train_function()

    def step() -> float:
        return float(function(iterator)["tokens"])

    return step


def milliseconds_by_part(folder: Path, steps: int) -> dict[str, float]:
    """Reads a profile: milliseconds a step by part, matrix products apart from all others."""
    [file] = folder.glob("plugins/profile/*/*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(file.read_bytes())
    parts: collections.Counter[str] = collections.Counter()
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                full_name = plane.event_metadata[event.metadata_id].name
                name, _, kind = full_name.rpartition(":")
                if not name or "::" in full_name or name.startswith("EagerLocalExecute"):
                    continue  # what runs operations, and no operation
                part = "matrix products"
                if "MatMul" not in kind:
                    named = (part for word, part in PARTS.items() if word in name)
                    part = next(named, "optimizer" if kind == "ResourceApplyAdam" else "rest")
                parts[part] += event.duration_ps / 1e9 / steps
    return {part: round(value, 1) for part, value in parts.most_common()}


def main() -> None:
    """Prints the measurements."""
    step = make_step()
    for _ in range(3):
        step()
    rates, seconds = [], []
    for _ in range(FLAGS.steps):
        start = time.perf_counter()
        tokens = step()
        seconds.append(time.perf_counter() - start)
        rates.append(tokens / seconds[-1])
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        for _ in range(FLAGS.steps):
            step()
        tf.profiler.experimental.stop()
        parts = milliseconds_by_part(Path(folder), FLAGS.steps)
    result: dict[str, Any] = {
        "preset": FLAGS.preset,
        "precision": FLAGS.precision,
        "batch_tokens": FLAGS.batch_tokens,
        "tokens_per_second": round(statistics.median(rates)),
        "step_ms": round(1000 * statistics.median(seconds), 1),
        "parts_ms": parts,
        "package": str(Path(sys.modules["keras_transformer"].__file__ or "").parent),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    command.run(main)
