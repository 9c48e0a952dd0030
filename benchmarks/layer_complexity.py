#!/usr/bin/env python3
r"""Measures the layers of the paper's table 1, made from the same Keras, over n and d.

Example:
    benchmarks/layer_complexity.py --table

The layers are self-attention, restricted self-attention (r = --window), LSTM, GRU, convolution
(k = --kernel), a stack of dilated convolutions (1, k, k², ..., until the last position sees the
first) and separable convolution. They take --batch random sequences. At each point, the forward
pass and the forward and backward passes of all layers take turns. A layer that has only the
projections of attention takes part, because the paper's O( ) does not count the projections.

Memory is the largest resident memory of a new process during a pass, beyond the memory before:
results and the values kept for the backward pass, but not weights and inputs. The backward pass
of a loop works on several steps at once, so its memory depends on chance; the median counts.

Sequential operations and FLOP are counted in the forward graph (see complexity/graph.py). The
maximum path length is computed from gradients (see complexity/paths.py), at d = 8.

Prints tables in Markdown with --table, and last one JSON object: the points, the exponents
(slopes in log-log of all points and of the last three), and the path lengths.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

# Every process would report that there is no GPU.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # a GPU has its own memory and kernels for LSTM

import command
import keras
import tensorflow as tf
from absl import flags, logging
from command import say
from complexity.layers import KINDS, Sizes
from complexity.measuring import compare
from complexity.results import Results, tables
from measuring import describe_machine

from keras_transformer.errors import InputError

FLAGS = flags.FLAGS
command.define_numbers("lengths", [64, 128, 256, 512, 1024, 2048, 4096], "n, at --width")
command.define_numbers("widths", [64, 128, 256, 512], "d, at --length; multiples of --head_dim")
flags.DEFINE_integer("length", 1024, "n where d varies", lower_bound=2)
flags.DEFINE_integer("width", 128, "d where n varies", lower_bound=1)
command.define_numbers("path_lengths", [32, 64, 128, 256, 512], "n of the path lengths")
flags.DEFINE_integer("window", 64, "r of restricted self-attention", lower_bound=2)
flags.DEFINE_integer("kernel", 3, "k of convolutions", lower_bound=2)
flags.DEFINE_integer("head_dim", 64, "width of a head: d_k and d_v", lower_bound=1)
flags.DEFINE_integer("batch", 1, "sequences", lower_bound=1)
flags.DEFINE_integer("threads", 2, "threads", lower_bound=1)
flags.DEFINE_integer("rounds", 5, "rounds; every layer is timed in each", lower_bound=1)
flags.DEFINE_float("seconds", 0.05, "the least time of a layer's turn")
flags.DEFINE_integer("processes", 3, "processes that measure the memory of a point", lower_bound=1)
flags.DEFINE_bool("table", False, "print tables in Markdown before the JSON")

_PATH_WIDTH = 8  # d of the path lengths, which depend only on n


def sizes_of(n: int, d: int, head_dim: int) -> Sizes:
    """Returns sizes whose other fields are those of the flags."""
    return Sizes(n, d, FLAGS.window, FLAGS.kernel, head_dim)


def path_lengths() -> dict[str, dict[int, int]]:
    """Returns the maximum path length of each kind of layer by n."""
    all_sizes = [sizes_of(n, _PATH_WIDTH, _PATH_WIDTH) for n in numbers(FLAGS.path_lengths)]
    return {
        name: {sizes.n: kind.path_length(sizes) for sizes in all_sizes}
        for name, kind in KINDS.items()
    }


def numbers(texts: Sequence[str]) -> list[int]:
    """Returns the numbers of a flag in ascending order."""
    return sorted({int(text) for text in texts})


def main() -> None:
    """Prints the measurements."""
    for width in (FLAGS.width, *numbers(FLAGS.widths)):
        if width % FLAGS.head_dim:
            raise InputError(f"Width {width} is not a multiple of --head_dim={FLAGS.head_dim}.")
    logging.set_verbosity(logging.WARNING)  # of the libraries
    tf.config.threading.set_intra_op_parallelism_threads(FLAGS.threads)
    tf.config.threading.set_inter_op_parallelism_threads(FLAGS.threads)
    keras.utils.set_random_seed(1)
    say("Computing path lengths.")
    paths = path_lengths()
    pairs = {(n, FLAGS.width) for n in numbers(FLAGS.lengths)}
    pairs |= {(FLAGS.length, d) for d in numbers(FLAGS.widths)}
    effort = {
        name: getattr(FLAGS, name)
        for name in ("batch", "rounds", "seconds", "threads", "processes")
    }
    points = []
    for number, (n, d) in enumerate(sorted(pairs), 1):
        say(f"Point {number} of {len(pairs)}: n = {n:,}, d = {d:,}.")
        points += compare(sizes_of(n, d, FLAGS.head_dim), **effort)
    results = Results(sizes_of(FLAGS.length, FLAGS.width, FLAGS.head_dim), points, paths)
    if FLAGS.table:
        print(tables(results), end="\n\n")
    head = {
        "machine": describe_machine(),
        "versions": {"tensorflow": tf.__version__, "keras": keras.__version__},
        "settings": effort,
    }
    print(json.dumps({**head, **results.as_json()}))


if __name__ == "__main__":
    command.run(main)
