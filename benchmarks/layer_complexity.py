#!/usr/bin/env python3
r"""The paper's table 1, measured: layers of equal width from the same Keras, over n and d.

Example:
    benchmarks/layer_complexity.py --table --plot=benchmarks/results/layer_complexity.svg

Self-attention, restricted self-attention (r = --window), LSTM, GRU, convolution (k = --kernel),
a stack of dilated convolutions (1, k, k², ..., as many as let the last position see the first)
and separable convolution take --batch random sequences. At each point, forward and forward
with backward, they take turns, in another order in each round; so does a layer that has the
projections of attention alone, which the paper's O( ) leaves out, to be taken off. All points
are visited --visits times, one after the other, and of each the quickest visit counts: what slows a
shared machine comes and goes in minutes.

Memory is the most that is resident in a process of its own during a pass, beyond what was there
before: results and what is kept for the backward pass, not weights and inputs. What the backward
pass of a loop takes depends on chance (it works on several steps at once): the median counts.

Sequential operations and FLOP are counted in the forward graph (complexity/graph.py says what
counts); the maximum path length is computed from gradients (complexity/paths.py), at d = 8.

Prints the tables in Markdown, if asked to, and last one JSON object: points, exponents (slopes
in log-log of all points, of the last three and of the last two), path lengths, and what the paper
says.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Sequence
from pathlib import Path

# Every process of its own would say that there is no GPU.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # a GPU has other memory, and other kernels for LSTM

import command
import keras
import tensorflow as tf
from absl import app, flags, logging
from complexity import drawing
from complexity.comparison import Effort, compare, steps
from complexity.layers import KINDS, Sizes
from complexity.results import Point, Results
from complexity.tables import tables
from decoders import machine
from tqdm import tqdm

FLAGS = flags.FLAGS
_LENGTHS = [64, 128, 256, 512, 1024, 2048, 4096]
command.define_numbers("lengths", _LENGTHS, "n, at --width")
command.define_numbers("widths", [64, 128, 256, 512], "d, at --length; multiples of --head_dim")
flags.DEFINE_integer("length", 1024, "n where d varies", lower_bound=2)
flags.DEFINE_integer("width", 128, "d where n varies", lower_bound=1)
command.define_numbers("path_lengths", [32, 64, 128, 256, 512], "n of the path lengths")
flags.DEFINE_integer("window", 64, "r of restricted self-attention", lower_bound=2)
flags.DEFINE_integer("kernel", 3, "k of convolutions", lower_bound=2)
flags.DEFINE_integer("head_dim", 64, "width of a head: d_k and d_v", lower_bound=1)
flags.DEFINE_integer("batch", 1, "sequences", lower_bound=1)
flags.DEFINE_integer("threads", 2, "threads", lower_bound=1)
flags.DEFINE_integer("rounds", 5, "times that each point is timed", lower_bound=1)
flags.DEFINE_integer("visits", 2, "of each point, of which the quickest counts", lower_bound=1)
flags.DEFINE_float("seconds", 0.05, "a layer's turn is so long, and a call at least")
flags.DEFINE_integer("processes", 3, "whose memory is taken at each point", lower_bound=1)
flags.DEFINE_bool("table", False, "print tables in Markdown before the JSON")
flags.DEFINE_string("plot", None, "SVG file to draw")

_BAR = "{desc}: {percentage:.0f}%, {remaining} left"
_PATH_WIDTH = 8  # d of the path lengths, which depend on n alone


def sizes_of(n: int, d: int, head_dim: int) -> Sizes:
    """Sizes, the rest of which are as the flags say."""
    return Sizes(n, d, FLAGS.window, FLAGS.kernel, head_dim)


def path_lengths() -> dict[str, dict[int, int]]:
    """Returns the maximum path length of each kind of layer by n."""
    all_sizes = [sizes_of(n, _PATH_WIDTH, _PATH_WIDTH) for n in numbers(FLAGS.path_lengths)]
    bar = tqdm(KINDS.items(), desc="path lengths", bar_format=_BAR)
    return {name: {sizes.n: kind.path_length(sizes) for sizes in all_sizes} for name, kind in bar}


def numbers(texts: Sequence[str]) -> list[int]:
    """The numbers of a flag, from the least on."""
    return sorted({int(text) for text in texts})


def check_flags() -> None:
    """Refuses at once what would fail later."""
    for width in (FLAGS.width, *numbers(FLAGS.widths)):
        if width % FLAGS.head_dim:
            raise app.UsageError(f"width {width} is no multiple of --head_dim={FLAGS.head_dim}")
    if FLAGS.plot and not Path(FLAGS.plot).parent.is_dir():
        raise app.UsageError(f"--plot={FLAGS.plot} is in no directory that is there")


def _milliseconds(points: Sequence[Point]) -> float:
    """How long all layers took in a visit, one call of each pass."""
    return sum(each["median"] for point in points for each in point.milliseconds.values())


def main() -> None:
    """Prints the measurements."""
    check_flags()
    logging.set_verbosity(logging.WARNING)  # the libraries'
    tf.config.threading.set_intra_op_parallelism_threads(FLAGS.threads)
    tf.config.threading.set_inter_op_parallelism_threads(FLAGS.threads)
    names = ("batch", "threads", "rounds", "seconds", "processes")
    effort = Effort(**{name: getattr(FLAGS, name) for name in names})
    pairs = {(n, FLAGS.width) for n in numbers(FLAGS.lengths)}
    pairs |= {(FLAGS.length, d) for d in numbers(FLAGS.widths)}
    keras.utils.set_random_seed(1)
    paths, points = path_lengths(), list[Point]()
    # What a step takes is roughly a constant and something for each number of the input.
    weights = {(n, d): 2**17 + n * d for n, d in pairs}
    total = FLAGS.visits * steps(effort) * sum(weights.values())
    visits: dict[tuple[int, int], list[list[Point]]] = {pair: [] for pair in sorted(pairs)}
    with tqdm(total=total, desc="layers", bar_format=_BAR) as bar:
        for _ in range(FLAGS.visits):
            for (n, d), found in visits.items():
                sizes = sizes_of(n, d, FLAGS.head_dim)
                found.append(compare(sizes, effort, functools.partial(bar.update, weights[n, d])))
    for found in visits.values():
        points += min(found, key=_milliseconds)
    results = Results(sizes_of(FLAGS.length, FLAGS.width, FLAGS.head_dim), points, paths)
    if FLAGS.plot:
        drawing.draw(results, FLAGS.plot)
    if FLAGS.table:
        print(tables(results), end="\n\n")
    settings = {
        "machine": machine.describe(),
        "versions": {"tensorflow": tf.__version__, "keras": keras.__version__},
        "settings": {name: getattr(FLAGS, name) for name in (*names, "visits")},
    }
    print(json.dumps({**settings, **results.as_json()}))


if __name__ == "__main__":
    command.run(main)
