#!/usr/bin/env python3
r"""Times training steps with XLA and without, in turn, beside the machine's matrix products.

Example:
    benchmarks/train_step.py --preset=tiny --vocab_size=4000 --batch_tokens=1024

Prints one JSON object: for each way the target tokens per second (median and
range over rounds), what compiling a batch shape took, the model's FLOP per
second (products of real positions, backward twice the forward), and their share
of the best float32 product measured in the same run.
"""

import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

from keras_transformer.config import Config
from keras_transformer.model import Transformer
from keras_transformer.presets import preset
from keras_transformer.training.trainer import Trainer

FLAGS = flags.FLAGS
flags.DEFINE_string("preset", "tiny", "named configuration")
flags.DEFINE_integer("vocab_size", 4000, "joint vocabulary")
flags.DEFINE_integer("batch_tokens", 1024, "target tokens of a batch; sources are as long")
flags.DEFINE_integer("length", 16, "tokens of a sentence")
flags.DEFINE_integer("rounds", 5, "rounds, in each of which every way takes its turn")
flags.DEFINE_integer("steps", 5, "steps of a turn")


def flop_per_step(config: Config, rows: int, length: int) -> float:
    """Floating-point operations of a step's matrix products, for S = T = `length`."""
    m = config.model
    heads_qk, heads_v = m.num_heads * (m.key_dim or 0), m.num_heads * (m.value_dim or 0)
    attention = m.d_model * (2 * heads_qk + heads_v) + heads_v * m.d_model
    attention += length * (heads_qk + heads_v)  # scores and weighted values, a position
    feed_forward = 2 * m.d_model * m.d_ff
    encoder = m.num_encoder_layers * (attention + feed_forward)
    decoder = m.num_decoder_layers * (2 * attention + feed_forward)
    multiplications = rows * length * (encoder + decoder + m.d_model * m.target_vocab_size)
    return 3 * 2.0 * multiplications


def product_ceiling() -> float:
    """The best float32 product of a few shapes, in FLOP per second."""
    best = 0.0
    for m, k, n in ((1024, 1024, 1024), (2048, 512, 2048), (4096, 256, 1024)):
        a, b = tf.random.normal((m, k)), tf.random.normal((k, n))
        product = tf.function(lambda a, b: tf.reduce_sum(tf.matmul(a, b)[:1]))
        product(a, b)
        for _ in range(10):
            start = time.perf_counter()
            product(a, b).numpy()
            best = max(best, 2.0 * m * k * n / (time.perf_counter() - start))
    return best


def make_step(config: Config, jit_compile: bool, rows: int) -> tuple[Callable[[], Any], float]:
    """Returns a function that takes one step, and the seconds that the first one took."""
    length, vocab = FLAGS.length, FLAGS.vocab_size
    ids = np.random.default_rng(1).integers(4, vocab, (3, rows, length), dtype=np.int32)
    batch = ({"source_ids": ids[0], "target_ids": ids[1]}, ids[2])
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        keras.utils.set_random_seed(1)
        trainer = Trainer(Transformer(config.model), config.training, jit_compile)
    iterator = iter(
        strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(batch).repeat())
    )
    function = trainer.make_train_function()

    def step() -> float:
        return float(function(iterator)["loss"])

    start = time.perf_counter()
    step()
    first = time.perf_counter() - start
    step()
    return step, first


def main(argv: list[str]) -> None:
    """Prints the measurements."""
    del argv
    config = preset(FLAGS.preset).updated(
        {
            "model.source_vocab_size": FLAGS.vocab_size,
            "model.target_vocab_size": FLAGS.vocab_size,
        }
    )
    rows = FLAGS.batch_tokens // FLAGS.length // 8 * 8
    tokens = rows * FLAGS.length
    made = {name: make_step(config, name == "xla", rows) for name in ("graph", "xla")}
    rates: dict[str, list[float]] = {name: [] for name in made}
    ceiling = product_ceiling()
    for _ in range(FLAGS.rounds):
        for name, (step, _) in made.items():
            start = time.perf_counter()
            for _ in range(FLAGS.steps):
                step()
            rates[name].append(FLAGS.steps * tokens / (time.perf_counter() - start))
        ceiling = max(ceiling, product_ceiling())
    flop = flop_per_step(config, rows, FLAGS.length)
    result: dict[str, Any] = {
        "preset": FLAGS.preset,
        "vocab_size": FLAGS.vocab_size,
        "batch": [rows, FLAGS.length, FLAGS.length],
        "gflop_per_step": round(flop / 1e9, 2),
        "product_ceiling_gflop_per_second": round(ceiling / 1e9, 1),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "cores": os.cpu_count(),
    }
    for name, (_, first) in made.items():
        median = statistics.median(rates[name])
        result[name] = {
            "first_step_seconds": round(first, 1),
            "tokens_per_second": [round(f(rates[name])) for f in (min, statistics.median, max)],
            "gflop_per_second": round(median * flop / tokens / 1e9, 1),
            "share_of_ceiling": round(median * flop / tokens / ceiling, 3),
        }
    pairs = zip(rates["xla"], rates["graph"], strict=True)
    result["xla_over_graph"] = round(statistics.median(x / g for x, g in pairs), 2)
    print(json.dumps(result))


if __name__ == "__main__":
    app.run(main)
