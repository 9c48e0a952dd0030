#!/usr/bin/env python3
r"""How the time and the memory of decoding grow with position, batch, beam, source and vocabulary.

Example:
    benchmarks/decoding_cost.py --preset=small --plot=benchmarks/results/decoding_cost.svg

Varies one of these at a time, the others as the flags say, on a random model whose outputs
have exactly as many tokens as are asked for. A call of N steps is timed beside one of a
single step, in turns; the difference, by N - 1, is the time of a step, which gives every
sentence of the batch a token. The sweep over positions takes the differences of
outputs of growing length, so that it says what a step costs there. Memory is
what the tensors of a call take at most, beyond the weights.

Prints one JSON object: for each point the milliseconds of a step, median over rounds (least
and most), those of the call of a single step, which encodes the sources, and megabytes; for each
sweep the slopes in log-log of all points and of the last two; and what an output of 10
tokens costs in a cache that grows, for an output that might be as long as the source and
--extra_tokens, against a cache of 16 positions made at once.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
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
from decoders import machine
from decoders.comparison import say, spread
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator
from steppers.protocol import CoreUse

from keras_transformer import decoding
from keras_transformer.config import DecodingConfig
from keras_transformer.decoding import SearchConfig, SearchInputs, SpecialIds
from keras_transformer.decoding.cached_decoder import CachedDecoder
from keras_transformer.models.transformer import Transformer
from keras_transformer.presets import preset

FLAGS = flags.FLAGS
flags.DEFINE_string("preset", "small", "sizes of the model")
flags.DEFINE_enum("precision", "float32", ["float32", "bfloat16"], "of weights and products")
flags.DEFINE_integer("batch", 32, "sentences of a batch, where they do not vary")
flags.DEFINE_integer("beam", 4, "hypotheses of a sentence, where they do not vary")
flags.DEFINE_integer("source", 16, "tokens of a source, where they do not vary")
flags.DEFINE_integer("vocabulary", 8000, "tokens of the vocabulary, where they do not vary")
flags.DEFINE_integer("steps", 30, "tokens of an output, where they do not vary", lower_bound=2)
flags.DEFINE_integer("extra_tokens", 50, "longest output beyond its source", lower_bound=1)
flags.DEFINE_integer("threads", 2, "threads")
flags.DEFINE_integer("rounds", 5, "times that each point is measured", lower_bound=1)
flags.DEFINE_integer("points", 7, "values of each sweep, from the least on", lower_bound=3)
flags.DEFINE_string("plot", None, "SVG file to draw")

SWEEPS: dict[str, tuple[int, ...]] = {
    "position": (1, 10, 30, 60, 120, 240),  # where the outputs that are compared end
    "batch": (1, 2, 4, 8, 16, 32, 64),
    "beam": (1, 2, 4, 8, 16),
    "source": (8, 16, 32, 64, 128, 256),
    "vocabulary": (1000, 2000, 4000, 8000, 16000, 32000, 64000),
}
TITLES = {
    "position": "position in the output",
    "batch": "sentences of a batch",
    "beam": "beam",
    "source": "tokens of a source",
    "vocabulary": "vocabulary",
}
_IDS = SpecialIds(start=2, end=3, pad=0)
_FIRST_WORD = 4
_LENGTH_PENALTY = 0.6
_OUTPUT, _CACHE = 10, 16  # tokens of a short output, and of the cache that it is compared with

Search = Callable[[int], None]


@dataclasses.dataclass(frozen=True)
class Point:
    """Decoding, measured."""

    value: float  # of what varies
    step_ms: dict[str, float]  # of a step: median, least and most over rounds
    first_ms: float  # of a call of one step: the encoder and the first token
    peak_mb: float  # of a call
    other_cores: float  # that others kept busy meanwhile


class Searches:
    """Searches with a model of one vocabulary; keeps the last model, for sweeps share it."""

    def __init__(self) -> None:
        self._vocabulary = 0
        self._transformer: Any = None
        self._functions: dict[tuple[int, int | None], Any] = {}  # by beam and cache

    def __call__(self, point: dict[str, int], cache: int | None = None) -> Search:
        """Returns a function that decodes as many tokens as it is told.

        Args:
            point: `batch`, `beam`, `source` and `vocabulary`.
            cache: its positions, made at once; None for a cache that grows.
        """
        self._use(point["vocabulary"])
        shape = [point["batch"], point["source"]]
        function = self._function(point["beam"], cache, shape if cache else [None, None])
        ids = np.random.default_rng(1).integers(_FIRST_WORD, point["vocabulary"], shape, np.int32)
        source_ids = tf.constant(ids)

        def search(steps: int) -> None:
            longest = max(steps, point["source"] + FLAGS.extra_tokens)
            result = function(source_ids, tf.fill([point["batch"]], steps), tf.constant(longest))
            if not (result.lengths.numpy() == steps).all():
                raise RuntimeError(f"there are outputs of other than {steps} tokens")

        return search

    def _use(self, vocabulary: int) -> None:
        if vocabulary == self._vocabulary:
            return
        self._transformer, self._functions = None, {}  # its memory first
        config = preset(FLAGS.preset).replace(
            model__source_vocab_size=vocabulary, model__target_vocab_size=vocabulary
        )
        keras.utils.set_random_seed(1)
        self._transformer = Transformer(config.model, dtype=FLAGS.precision)
        self._transformer.build()
        self._vocabulary = vocabulary

    def _function(self, beam: int, cache: int | None, shape: Sequence[int | None]) -> Any:
        if (beam, cache) not in self._functions:
            transformer = self._transformer
            # No output ends before its maximum.
            config = DecodingConfig(
                beam_size=beam, length_penalty=_LENGTH_PENALTY, min_length=2**30
            )

            def search(
                source_ids: tf.Tensor, max_lengths: tf.Tensor, longest: tf.Tensor
            ) -> decoding.SearchResult:
                memory = transformer.project_memory(transformer.encode(source_ids))
                decoder = CachedDecoder([transformer], [memory], beam, cache)
                inputs = SearchInputs(
                    max_lengths, source_mask=decoder.source_mask, length_limit=cache or longest
                )
                return decoding.search(decoder, inputs, SearchConfig(config), _IDS)

            # A cache of a fixed length has to have a fixed shape in all.
            signature = [tf.TensorSpec(each, tf.int32) for each in (shape, shape[:1], [])]
            self._functions[beam, cache] = tf.function(
                search, input_signature=signature, autograph=False
            )
        return self._functions[beam, cache]


def point_of(name: str, value: int) -> dict[str, int]:
    """Returns what all are where `name` has this value."""
    names = ("batch", "beam", "source", "vocabulary")
    return {**{each: getattr(FLAGS, each) for each in names}, name: value}


def measure(search: Search, lengths: Sequence[int]) -> tuple[list[list[float]], float]:
    """Decodes outputs of these lengths in turns.

    Returns:
        Seconds of each length by round, and the cores that others kept busy.
    """
    for steps in lengths:  # the first call traces; each meets new shapes
        search(steps)
    core_use, rounds = CoreUse(), []
    for _ in range(FLAGS.rounds):
        seconds = []
        for steps in lengths:
            start = time.perf_counter()
            search(steps)
            seconds.append(time.perf_counter() - start)
        rounds.append(seconds)
    return rounds, round(core_use.read()[1], 2)


def sweep(name: str, values: Sequence[int], searches: Searches) -> list[Point]:
    """Measures a point for each value."""
    if name == "position":
        points = _positions(searches(point_of("batch", FLAGS.batch)), values)
    else:
        points = []
        for value in values:
            search = searches(point_of(name, value))
            rounds, others = measure(search, (1, FLAGS.steps))
            steps_ms = [1000 * (last - first) / (FLAGS.steps - 1) for first, last in rounds]
            first_ms = statistics.median(1000 * first for first, _ in rounds)
            peak = peak_mb(lambda search=search: search(FLAGS.steps))  # type: ignore[misc]
            points.append(
                Point(value, spread(steps_ms, 3), round(first_ms, 3), round(peak, 1), others)
            )
            _say_point(name, points[-1])
    return points


def _positions(search: Search, ends: Sequence[int]) -> list[Point]:
    """Measures steps between the ends of outputs; memory is that of the longer output."""
    rounds, others = measure(search, ends)
    first_ms = round(statistics.median(1000 * seconds[0] for seconds in rounds), 3)
    points = []
    for place, (begin, end) in enumerate(zip(ends, ends[1:], strict=False)):
        steps_ms = [
            1000 * (seconds[place + 1] - seconds[place]) / (end - begin) for seconds in rounds
        ]
        peak = round(peak_mb(lambda end=end: search(end)), 1)  # type: ignore[misc]
        points.append(Point((begin + end) / 2, spread(steps_ms, 3), first_ms, peak, others))
        _say_point("position", points[-1])
    return points


def _say_point(name: str, point: Point) -> None:
    say(
        f"{name} {point.value:g}: {point.step_ms['median']:.2f} ms a step, {point.peak_mb:.0f} MB, "
        f"{point.other_cores:.2f} cores busy with others"
    )


def peak_mb(call: Callable[[], None]) -> float:
    """Returns the most memory that the tensors of a call take at once."""
    # By the allocator's own account: it keeps what it once had, so the process tells nothing.
    tf.config.experimental.reset_memory_stats("CPU:0")
    before = tf.config.experimental.get_memory_info("CPU:0")["current"]
    call()
    return float(tf.config.experimental.get_memory_info("CPU:0")["peak"] - before) / 2**20


def short_output(searches: Searches) -> dict[str, Any]:
    """Returns what a short output costs in a cache that grows, against one of a fixed length."""
    point = point_of("batch", FLAGS.batch)
    growing, fixed = searches(point), searches(point, _CACHE)
    seconds: dict[str, list[float]] = {"growing": [], "fixed": []}
    for number in range(2 * FLAGS.rounds + 1):
        for name, search in (("growing", growing), ("fixed", fixed)):
            start = time.perf_counter()
            search(_OUTPUT)
            if number:  # the first one traces
                seconds[name].append(time.perf_counter() - start)
    ratios = [a / b for a, b in zip(seconds["growing"], seconds["fixed"], strict=True)]
    milliseconds = {
        f"{name}_ms": spread([1000 * each for each in values], 2)
        for name, values in seconds.items()
    }
    say(f"{_OUTPUT} tokens: {statistics.median(ratios):.3f} times a cache of {_CACHE}")
    return {"tokens": _OUTPUT, "cache": _CACHE, **milliseconds, "ratio": spread(ratios, 3)}


def slopes(points: Sequence[Point]) -> dict[str, dict[str, float]]:
    """Exponents of the power laws through all points and the last two, by least squares."""
    x = np.log([point.value for point in points])
    result = {}
    for name, values in {
        "step_ms": [point.step_ms["median"] for point in points],
        "peak_mb": [point.peak_mb for point in points],
    }.items():
        # A difference in the noise may be nothing.
        y = np.log(np.maximum(values, 1e-3))
        last, all_ = (float(np.polyfit(x[-n:], y[-n:], 1)[0]) for n in (2, len(points)))
        result[name] = {"all": round(all_, 3), "last": round(last, 3)}
    return result


def draw(results: dict[str, list[Point]], file: str) -> None:
    """Draws time above and memory below, a column for each sweep, logarithmic both ways."""
    style = {"svg.fonttype": "none", "svg.hashsalt": "decoding_cost", "font.size": 9}
    with matplotlib.style.context(["default", style]):
        figure = Figure(figsize=(2.4 * len(results), 5), layout="constrained")
        panels = figure.subplots(2, len(results), sharex="col", sharey="row")
        for column, (name, points) in zip(panels.T, results.items(), strict=True):
            x = [point.value for point in points]
            for axes, quantity, values in zip(
                column,
                ("step_ms", "peak_mb"),
                ([p.step_ms["median"] for p in points], [p.peak_mb for p in points]),
                strict=True,
            ):
                _draw_panel(axes, x, values, slopes(points)[quantity])
            column[1].set_xlabel(TITLES[name])
        panels[0, 0].set_ylabel("milliseconds of a step")
        panels[1, 0].set_ylabel("megabytes of a call")
        figure.savefig(file, format="svg", metadata={"Date": None})


def _draw_panel(
    axes: Axes, x: Sequence[float], values: Sequence[float], slope: dict[str, float]
) -> None:
    axes.set(xscale="log", yscale="log")
    axes.plot(x, values, "o-", color="tab:blue", markersize=4, linewidth=1.3)
    axes.set_title(
        f"slope {slope['all']:.2f}, at the end {slope['last']:.2f}",
        fontsize=9, color="tab:blue", loc="left",
    )  # fmt: skip
    axes.xaxis.set_major_locator(FixedLocator(list(x)))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(_short))
    axes.spines[["top", "right"]].set_visible(False)


def _short(value: float, _: int) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def main() -> None:
    """Prints the measurements."""
    logging.set_verbosity(logging.WARNING)  # the libraries'
    tf.config.threading.set_intra_op_parallelism_threads(FLAGS.threads)
    tf.config.threading.set_inter_op_parallelism_threads(FLAGS.threads)
    searches = Searches()
    results: dict[str, list[Point]] = {}
    short = short_output(searches)
    for name, values in SWEEPS.items():  # that of the vocabulary, whose models differ, is last
        results[name] = sweep(name, values[: FLAGS.points], searches)
    if FLAGS.plot:
        draw(results, FLAGS.plot)
    names = ("preset", "precision", "batch", "beam", "source", "vocabulary", "steps", "threads")
    result = {
        "machine": machine.describe(),
        "versions": {"tensorflow": tf.__version__, "keras": keras.__version__},
        "settings": {name: getattr(FLAGS, name) for name in (*names, "extra_tokens", "rounds")},
        "sweeps": {
            name: {
                "points": [dataclasses.asdict(point) for point in points],
                "slopes": slopes(points),
            }
            for name, points in results.items()
        },
        "short_output": short,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    command.run(main)
