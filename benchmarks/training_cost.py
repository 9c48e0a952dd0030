#!/usr/bin/env python3
r"""How the time of a training step grows with length, width, depth and batch.

Example:
    benchmarks/training_cost.py --preset=small --batch_tokens=2048 --plot=training_cost.svg

Varies one of these at a time, the others as in the preset: tokens of a sentence
at constant tokens of a batch, d_model, encoder and decoder layers, and target
tokens of a batch. Sentences are random ids, as long on both sides, without
padding.

Prints one JSON object: for each point the median and the least seconds of a
step, and what its matrix products are on paper, FLOP and bytes (operands and
results once each, and Adam's); for each sweep the slope in log-log of all points
and of the last two, of seconds and of FLOP; and where attention's n² begins: at
constant tokens of a batch a step takes a + b·n seconds, of which b·n is
attention's, so that it is a tenth of the step at n = a / 9b.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import command
import keras
import matplotlib.style
import numpy as np
import tensorflow as tf
from absl import flags, logging
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator
from steppers.cost import training_bytes, training_flop
from steppers.keras_stepper import make_step, sizes_of
from steppers.protocol import CoreUse

from keras_transformer.config import Config
from keras_transformer.presets import preset
from keras_transformer.training.devices import Platform, choose_platform

FLAGS = flags.FLAGS
flags.DEFINE_string("preset", "small", "sizes of the model")
flags.DEFINE_integer("vocab_size", 8000, "joint vocabulary")
flags.DEFINE_integer("batch_tokens", 2048, "target tokens of a batch, where they do not vary")
flags.DEFINE_integer("length", 16, "tokens of a sentence, where they do not vary")
flags.DEFINE_string("precision", "auto", "float32|bfloat16, or auto for what is fastest here")
flags.DEFINE_integer("threads", 2, "threads")
flags.DEFINE_float("seconds", 2.0, "a point is measured for so long, and for 3 steps at least")
flags.DEFINE_string("plot", None, "SVG file to draw")

SWEEPS: dict[str, tuple[int, ...]] = {
    "length": (16, 32, 64, 128, 256, 512, 1024),
    "d_model": (64, 128, 256, 512, 1024),
    "layers": (1, 2, 4, 8),
    "batch_tokens": (512, 1024, 2048, 4096, 8192, 16384),
}
TITLES = {
    "length": "tokens of a sentence, at {batch_tokens:,} tokens a batch",
    "d_model": "d_model",
    "layers": "layers of encoder and decoder, each",
    "batch_tokens": "target tokens of a batch",
}
_MIN_STEPS = 3

Step = Callable[[Any], dict[str, tf.Tensor]]


@dataclasses.dataclass(frozen=True)
class Point:
    """A step, measured, and on paper."""

    value: int  # of what varies
    seconds: float  # median
    least_seconds: float
    other_cores: float  # that others kept busy meanwhile
    gflop: float
    gigabytes: float


def configure(name: str, value: int) -> tuple[Config, int, int]:
    """Returns the configuration, rows and tokens of a row where `name` has this value."""
    varied = {"length": FLAGS.length, "batch_tokens": FLAGS.batch_tokens, name: value}
    settings: dict[str, Any] = {
        "model.source_vocab_size": FLAGS.vocab_size,
        "model.target_vocab_size": FLAGS.vocab_size,
        "training.mixed_precision": FLAGS.precision,
        "training.jit_compile": "false",
    }
    if name == "layers":
        settings |= {"model.num_encoder_layers": value, "model.num_decoder_layers": value}
    elif name == "d_model":
        settings["model.d_model"] = value
    rows = max(varied["batch_tokens"] // varied["length"], 1)
    return preset(FLAGS.preset).updated(settings), rows, varied["length"]


class Steps:
    """Makes the step of a configuration, and keeps the last: sweeps share the preset's."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self._last: tuple[Config, Step] | None = None

    def __call__(self, config: Config) -> Step:
        if self._last is None or self._last[0] != config:
            self._last = None  # its memory first
            ids = tf.TensorSpec([None, None], tf.int32)
            spec = ({"source_ids": ids, "target_ids": ids}, ids)
            self._last = (config, make_step(config, self.platform, spec))
        return self._last[1]


def measure(name: str, value: int, steps: Steps) -> Point:
    """Takes a few steps of one configuration."""
    config, rows, length = configure(name, value)
    step = steps(config)
    ids = np.random.default_rng(1).integers(4, FLAGS.vocab_size, (3, rows, length), np.int32)
    source, target, labels = (tf.constant(each) for each in ids)
    batch = ({"source_ids": source, "target_ids": target}, labels)
    for _ in range(2):  # the first traces, or meets a new shape
        float(step(batch)["loss"])
    seconds: list[float] = []
    core_use = CoreUse()
    while len(seconds) < _MIN_STEPS or sum(seconds) < FLAGS.seconds:
        start = time.perf_counter()
        float(step(batch)["loss"])
        seconds.append(time.perf_counter() - start)
    sizes, lengths = sizes_of(config.model), np.full(rows, length)
    width = 4 if steps.platform.precision == "float32" else 2
    parameters = config.model.num_parameters()
    point = Point(
        value,
        statistics.median(seconds),
        min(seconds),
        round(core_use.read()[1], 2),
        training_flop(sizes, lengths, lengths) / 1e9,
        training_bytes(sizes, lengths, lengths, width, parameters) / 1e9,
    )
    print(
        f"{name} {value}: {1000 * point.seconds:.0f} ms, {point.other_cores:.2f} cores busy "
        "with others",
        file=sys.stderr, flush=True,
    )  # fmt: skip
    return point


def slope(points: Sequence[Point], quantity: str) -> float:
    """Exponent of the power law through the points, by least squares of logarithms."""
    x = np.log([point.value for point in points])
    y = np.log([getattr(point, quantity) for point in points])
    return round(float(np.polyfit(x, y, 1)[0]), 3)


def slopes(points: Sequence[Point]) -> dict[str, dict[str, float]]:
    """Slopes of all points and of the last two, in seconds and in FLOP."""
    return {
        quantity: {"all": slope(points, quantity), "last": slope(points[-2:], quantity)}
        for quantity in ("seconds", "gflop")
    }


def attention_begins(points: Sequence[Point]) -> float | None:
    """The length at which attention takes a tenth of a step, by the fit a + b·n; None if b <= 0.

    Relative errors count alike, so that the short sentences decide a.
    """
    seconds = np.array([point.seconds for point in points])
    columns = np.array([[1.0, point.value] for point in points])
    (a, b), *_ = np.linalg.lstsq(columns / seconds[:, None], np.ones(len(points)), rcond=None)
    return float(a / (9 * b)) if b > 0 else None


def draw(results: dict[str, list[Point]], file: str) -> None:
    """Draws a panel for each sweep, logarithmic both ways: measured, and what the FLOP say."""
    style = {"svg.fonttype": "none", "svg.hashsalt": "training_cost", "font.size": 9}
    with matplotlib.style.context(["default", style]):
        figure = Figure(figsize=(8, 6), layout="constrained")
        panels = figure.subplots(2, 2)
        for axes, (name, points) in zip(panels.flat, results.items(), strict=True):
            _draw_panel(axes, name, points)
        figure.supylabel("milliseconds of a step")
        figure.savefig(file, format="svg", metadata={"Date": None})


def _draw_panel(axes: Axes, name: str, points: Sequence[Point]) -> None:
    x = np.array([point.value for point in points])
    ms = np.array([1000 * point.seconds for point in points])
    flop = np.array([point.gflop for point in points])
    # As if the largest step's FLOP per second held for all.
    expected = flop * ms[-1] / flop[-1]
    axes.set(xscale="log", yscale="log", title=TITLES[name].format(batch_tokens=FLAGS.batch_tokens))
    axes.plot(x, expected, color="0.65", linewidth=1)
    axes.plot(x, ms, "o-", color="tab:blue", markersize=4, linewidth=1.3)
    axes.annotate(
        "by its FLOP", (x[0], expected[0]), xytext=(2, -4), textcoords="offset points",
        color="0.5", va="top",
    )  # fmt: skip
    of_time = slopes(points)["seconds"]
    axes.annotate(
        f"slope {of_time['all']:.2f}, at the end {of_time['last']:.2f}",
        (0.04, 0.93), xycoords="axes fraction", color="tab:blue", va="top",
    )  # fmt: skip
    begins = attention_begins(points) if name == "length" else None
    if begins is not None and x[0] <= begins <= x[-1]:
        axes.axvline(begins, ymax=0.74, color="tab:red", linewidth=0.9, linestyle=":")
        axes.annotate(
            f"attention takes a tenth from n = {begins:.0f} on", (0.04, 0.84),
            xycoords="axes fraction", color="tab:red", va="top",
        )  # fmt: skip
    low, high = min(ms.min(), expected.min()), max(ms.max(), expected.max())
    axes.set_ylim(low / 1.5, high * 2.2)
    axes.xaxis.set_major_locator(FixedLocator(x.tolist()))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    """Prints the measurements."""
    logging.set_verbosity(logging.WARNING)  # the libraries'
    tf.config.threading.set_intra_op_parallelism_threads(FLAGS.threads)
    tf.config.threading.set_inter_op_parallelism_threads(FLAGS.threads)
    config, _, _ = configure("length", FLAGS.length)
    steps = Steps(choose_platform(config.training, 1, "cpu"))
    # The two that share one model first.
    order = sorted(SWEEPS, key=lambda name: name in ("d_model", "layers"))
    measured = {name: [measure(name, value, steps) for value in SWEEPS[name]] for name in order}
    results = {name: measured[name] for name in SWEEPS}
    if FLAGS.plot:
        draw(results, FLAGS.plot)
    result = {
        "preset": FLAGS.preset,
        "vocab_size": FLAGS.vocab_size,
        "batch_tokens": FLAGS.batch_tokens,
        "length": FLAGS.length,
        "precision": steps.platform.precision,
        "threads": FLAGS.threads,
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "cores": os.cpu_count(),
        "sweeps": {
            name: {
                "points": [dataclasses.asdict(point) for point in points],
                "slopes": slopes(points),
            }
            for name, points in results.items()
        },
        "attention_takes_a_tenth_from": attention_begins(results["length"]),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    command.run(main)
