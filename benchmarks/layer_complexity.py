#!/usr/bin/env python3
r"""Measures the layers of the paper's table 1 over the sequence length n and the width d.

Example:
    benchmarks/layer_complexity.py

The layers are self-attention, restricted self-attention (r = --window), LSTM, GRU, convolution
(k = --kernel), a stack of dilated convolutions (1, k, k², ..., until the last position sees the
first) and separable convolution. At each point all layers take turns: one turn repeats the forward
and backward pass of --batch random sequences for --seconds.

The maximum path length is computed at d = 8, from the positions whose gradient is not zero.

Prints one JSON object: the milliseconds of each point,
the exponents of n and of d (slopes in log-log of the last three points), and the path lengths.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # a GPU has other kernels for LSTM

import command
import numpy as np
import numpy.typing as npt
from absl import flags
from command import info
from measuring import Turn, describe_machine, is_quiet, spread, take_turns
from resources import CoreUse

from keras_transformer.errors import InputError

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

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
flags.DEFINE_integer("rounds", 5, "rounds; every layer has a turn in each", lower_bound=1)
flags.DEFINE_float("seconds", 0.05, "minimum duration of a turn")

_PATH_WIDTH = 8  # d of the path lengths, which depend only on n
_ROWS = 64  # output positions of one gradient computation

LAYERS = (
    *("self-attention", "restricted self-attention", "LSTM", "GRU"),
    *("convolution", "dilated convolutions", "separable convolution"),
)

Dependencies = npt.NDArray[np.bool_]  # [output, input]


def make_layers(name: str, length: int, width: int) -> list[keras.Layer]:
    """Returns the layers of a row of the table, each from `[B, n, d]` to the same shape.

    Args:
        name: one of `LAYERS`.
        length: n; it decides the number of dilated convolutions.
        width: d.
    """
    import keras  # slow to import

    from keras_transformer.layers import SelfAttention

    head_dim = min(FLAGS.head_dim, width)
    heads, kernel = width // head_dim, FLAGS.kernel
    match name:
        case "self-attention":
            return [SelfAttention(heads, head_dim)]
        case "restricted self-attention":
            return [SelfAttention(heads, head_dim, window=FLAGS.window)]
        case "LSTM":
            return [keras.layers.LSTM(width, return_sequences=True)]
        case "GRU":
            return [keras.layers.GRU(width, return_sequences=True)]
        case "convolution":
            return [keras.layers.Conv1D(width, kernel, padding="same")]
        case "separable convolution":
            return [keras.layers.SeparableConv1D(width, kernel, padding="same")]
    rates = [1]  # causal, as in ByteNet, which the paper cites
    while kernel * rates[-1] < length:
        rates.append(kernel * rates[-1])
    return [keras.layers.Conv1D(width, kernel, padding="causal", dilation_rate=r) for r in rates]


def make_pass(layers: Sequence[keras.Layer], shape: Sequence[int]) -> Callable[[], Any]:
    """Returns a function without arguments that runs a forward and a backward pass.

    Args:
        layers: the layers, one after the other.
        shape: shape `[B, n, d]` of the inputs.
    """
    import keras
    import tensorflow as tf

    random = np.random.default_rng(1)
    inputs, gradient = (tf.constant(random.normal(size=shape), tf.float32) for _ in range(2))
    model = keras.Sequential(layers)
    model.build(shape)

    @tf.function(autograph=False)
    def both(inputs: tf.Tensor, gradient: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = model(inputs)
        weights = [variable.value for variable in model.trainable_weights]
        return list(tape.gradient(outputs, [inputs, *weights], output_gradients=gradient))

    def run() -> None:
        both(inputs, gradient)[0].numpy()

    run()  # traces the function
    return run


def measure_point(length: int, width: int) -> tuple[dict[str, dict[str, float]], bool]:
    """Returns the milliseconds of each layer, and whether the machine was quiet."""

    def turn(run: Callable[[], Any]) -> Turn:
        calls, core_use, started = 0, CoreUse(), time.perf_counter()
        while not calls or time.perf_counter() - started < FLAGS.seconds:
            run()
            calls += 1
        per_second = calls / (time.perf_counter() - started)
        return {"per_second": per_second, "other_cores": core_use.read()[1]}

    shape = (FLAGS.batch, length, width)
    passes = {name: make_pass(make_layers(name, length, width), shape) for name in LAYERS}
    calls = {name: lambda _, run=run: turn(run) for name, run in passes.items()}
    turns = take_turns(calls, FLAGS.rounds, "passes/s")
    milliseconds = {
        name: spread([1000 / turn["per_second"] for turn in many], 4)
        for name, many in turns.items()
    }
    return milliseconds, is_quiet(turns)


def dependencies(layer: keras.Layer, length: int, width: int) -> Dependencies:
    """Returns bool `[length, length]`: whether each output depends on each input.

    An output depends on an input if the derivative at random inputs is not zero.

    Args:
        layer: from `[B, length, width]` to the same shape.
        length: number of positions, n.
        width: d.
    """
    import tensorflow as tf

    random = np.random.default_rng(1)
    rows = []
    for first in range(0, length, _ROWS):
        outputs = np.arange(first, min(first + _ROWS, length))
        shape = (len(outputs), length, width)
        inputs = tf.constant(random.normal(size=shape), tf.float32)
        weights = np.zeros(shape, np.float32)  # each sequence of the batch selects one position
        weights[range(len(outputs)), outputs] = random.normal(size=(len(outputs), width))
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            total = tf.reduce_sum(layer(inputs) * weights)
        rows.append(np.any(tape.gradient(total, inputs).numpy() != 0, axis=-1))
    return np.concatenate(rows)


def path_length(name: str, length: int) -> int:
    """Returns the maximum path length of a row of the table (paper, section 4).

    It is the largest number of layers between an input and an output position, over all pairs of
    positions that a network of such layers connects.

    Args:
        name: one of `LAYERS`.
        length: number of positions, n.
    """
    if name in ("LSTM", "GRU"):
        return length  # the first input reaches the last output by n uses of the cell
    layers = make_layers(name, length, _PATH_WIDTH)
    if len(layers) > 1:
        return len(layers)  # each pair is connected only by the whole stack
    direct = reached = dependencies(layers[0], length, _PATH_WIDTH)
    count = 1
    while not np.array_equal(
        further := (direct.astype(np.float32) @ reached.astype(np.float32)) > 0, reached
    ):
        count, reached = count + 1, further
    return count


def exponent(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Returns the slope of log y over log x at the last three points; None for fewer points.

    Example:
        >>> exponent([1, 2, 4, 8], [7, 4, 16, 64])
        2.0
    """
    if len(x) < 3:
        return None
    return round(float(np.polyfit(np.log(x[-3:]), np.log(y[-3:]), 1)[0]), 2)


def main() -> None:
    """Prints the measurements."""
    import keras
    import tensorflow as tf

    lengths, widths, path_lengths = (
        sorted({int(text) for text in getattr(FLAGS, name)})
        for name in ("lengths", "widths", "path_lengths")
    )
    for width in (FLAGS.width, *widths):
        if width % FLAGS.head_dim:
            raise InputError(f"Width {width} is not a multiple of --head_dim={FLAGS.head_dim}.")
    tf.config.threading.set_intra_op_parallelism_threads(FLAGS.threads)
    tf.config.threading.set_inter_op_parallelism_threads(FLAGS.threads)
    keras.utils.set_random_seed(1)
    info("Computing path lengths.")
    paths = {name: {n: path_length(name, n) for n in path_lengths} for name in LAYERS}
    sizes = sorted({(n, FLAGS.width) for n in lengths} | {(FLAGS.length, d) for d in widths})
    points, quiet = [], True
    for number, (n, d) in enumerate(sizes, 1):
        info(f"Point {number} of {len(sizes)}: n = {n:,}, d = {d:,}.")
        milliseconds, was_quiet = measure_point(n, d)
        points.append({"n": n, "d": d, "milliseconds": milliseconds})
        quiet = quiet and was_quiet

    def exponent_of(name: str, variable: str, fixed: str, value: int) -> float | None:
        chosen = [point for point in points if point[fixed] == value]
        medians = [point["milliseconds"][name]["median"] for point in chosen]
        return exponent([point[variable] for point in chosen], medians)

    settings = ("window", "kernel", "head_dim", "batch", "threads", "rounds", "seconds")
    result = {
        "machine": describe_machine(),
        "versions": {"tensorflow": tf.__version__, "keras": keras.__version__},
        "settings": {name: getattr(FLAGS, name) for name in settings},
        "points": points,
        "exponents": {
            name: {
                "n": exponent_of(name, "n", "d", FLAGS.width),
                "d": exponent_of(name, "d", "n", FLAGS.length),
            }
            for name in LAYERS
        },
        "maximum_path_lengths": paths,
        "quiet": quiet,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    command.run(main)
