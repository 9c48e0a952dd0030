"""Times the passes of layers in turns, and measures their memory in separate processes."""

from __future__ import annotations

import ctypes
import dataclasses
import multiprocessing
import operator
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from measuring import spread
from resources import CoreUse, resident_mb

from complexity.graph import Graph
from complexity.layers import MAKERS, PROJECTIONS, Sizes, is_attention
from complexity.results import PASSES, Point, Spread

_REFERENCE = "self-attention"
_MMAP_THRESHOLD = -3  # mallopt's name of it

Times = dict[str, list[float]]  # milliseconds of each pass, by round


@dataclasses.dataclass(frozen=True)
class Passes:
    """The traced passes of a layer.

    Args:
        forward: a concrete function of inputs `[B, n, d]`.
        both: a concrete function of inputs and a gradient of the outputs, to the gradients of
            inputs and weights.
        inputs: random inputs.
        gradient: a random gradient.
    """

    forward: Any
    both: Any
    inputs: tf.Tensor
    gradient: tf.Tensor

    def calls(self) -> dict[str, Callable[[], Any]]:
        """Returns the passes by name, without arguments."""
        calls = (lambda: self.forward(self.inputs), lambda: self.both(self.inputs, self.gradient))
        return dict(zip(PASSES, calls, strict=True))


def trace(layer: keras.Layer, shape: Sequence[int], any_length: bool = False) -> Passes:
    """Traces both passes of a layer.

    Args:
        layer: from `[B, n, d]` to the same shape.
        shape: B, n and d.
        any_length: if True, the traced functions take sequences of any length.
    """
    batch, length, width = shape
    spec = tf.TensorSpec([batch, None if any_length else length, width])

    @tf.function(autograph=False)
    def forward(inputs: tf.Tensor) -> tf.Tensor:
        return layer(inputs)

    @tf.function(autograph=False)
    def both(inputs: tf.Tensor, gradient: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = layer(inputs)
        weights = [variable.value for variable in layer.trainable_weights]
        return list(tape.gradient(outputs, [inputs, *weights], output_gradients=gradient))

    layer.build(spec.shape)
    return Passes(
        forward.get_concrete_function(spec),
        both.get_concrete_function(spec, spec),
        _random(shape),
        _random(shape),
    )


def _random(shape: Sequence[int]) -> tf.Tensor:
    # Made by NumPy, because TensorFlow's allocator would keep the memory of its operations.
    return tf.constant(np.random.default_rng(1).standard_normal(shape, np.float32))


def compare(
    sizes: Sizes, batch: int, rounds: int, seconds: float, threads: int, processes: int
) -> list[Point]:
    """Measures every kind of layer at the same sizes.

    Args:
        sizes: sizes of the layers.
        batch: number of sequences.
        rounds: rounds; every pass of every layer is timed in each.
        seconds: a pass is repeated in its turn for at least this time.
        threads: threads of an operation.
        processes: processes that measure the memory of a layer.
    """
    shape = (batch, sizes.n, sizes.d)
    traced = {name: trace(make(sizes), shape) for name, make in MAKERS.items()}
    core_use = CoreUse()
    times = _take_turns(traced, rounds, seconds)
    others = round(core_use.read()[1], 2)
    points = []
    for name, passes in traced.items():
        graph, own = Graph(passes.forward), times[name]
        mb = [peaks_mb(name, sizes, batch, threads) for _ in range(processes)]
        points.append(
            Point(
                name,
                sizes.n,
                sizes.d,
                {each: spread(own[each], 4) for each in PASSES},
                _paired(operator.sub, own, times[PROJECTIONS]) if is_attention(name) else None,
                _paired(operator.truediv, own, times[_REFERENCE]),
                {each: spread([peaks[each] for peaks in mb], 2) for each in PASSES},
                graph.flop(),
                graph.sequential_operations(),
                others,
            )
        )
    return points


def _take_turns(traced: dict[str, Passes], rounds: int, seconds: float) -> dict[str, Times]:
    turns = [(name, each, call) for name in traced for each, call in traced[name].calls().items()]
    times: dict[str, Times] = {name: {each: [] for each in PASSES} for name in traced}
    for _, _, call in turns:  # the first call prepares the graph
        call()
    for number in range(rounds):
        first = number % len(turns)
        for name, each, call in [*turns[first:], *turns[:first]]:
            taken: list[float] = []
            while not taken or sum(taken) < seconds:
                begun = time.perf_counter()
                call()
                taken.append(time.perf_counter() - begun)
            times[name][each].append(1000 * statistics.median(taken))
    return times


def _paired(join: Callable[[float, float], float], own: Times, others: Times) -> dict[str, Spread]:
    """Combines the times of two layers in the same round."""
    return {each: spread(map(join, own[each], others[each]), 4) for each in PASSES}


def peaks_mb(name: str, sizes: Sizes, batch: int, threads: int) -> dict[str, float]:
    """Returns the memory that each pass adds to the resident memory of a new process.

    TensorFlow's allocator does not count tensors below 256 KB. A recurrent layer keeps thousands
    of them. The resident memory counts everything. The results of the pass count, the weights
    and the inputs do not.

    Args:
        name: name of the kind of layer.
        sizes: sizes of the layer.
        batch: number of sequences.
        threads: threads of an operation.

    Raises:
        RuntimeError: if the process ends without an answer, for example for lack of memory.
    """
    # Each process is forked from one that has imported TensorFlow and has not used it.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["keras_transformer.layers", "tensorflow"])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(sender, name, sizes, batch, threads))
    process.start()
    sender.close()
    try:
        peaks: dict[str, float] = receiver.recv()
    except EOFError:
        raise RuntimeError(f"the process that measured {name} at {sizes} has ended") from None
    finally:
        process.join()
    return peaks


def _measure(sender: Any, name: str, sizes: Sizes, batch: int, threads: int) -> None:
    os.environ["TF_ONEDNN_USE_SYSTEM_ALLOCATOR"] = "1"  # its own allocator keeps freed memory
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    # With several operations at the same time, the peak would depend on chance.
    tf.config.threading.set_inter_op_parallelism_threads(1)
    passes = trace(MAKERS[name](sizes), (batch, sizes.n, sizes.d), any_length=True)
    # A short call starts threads and loads kernels. It has more than one block of a window.
    few = _random((batch, 32 + 2 * sizes.window, sizes.d))
    for call in dataclasses.replace(passes, inputs=few, gradient=few).calls().values():
        call()
    c_library = ctypes.CDLL(None)
    c_library.mallopt(_MMAP_THRESHOLD, 2**16)  # returns freed memory to the system at once
    peaks = {}
    for each, call in passes.calls().items():
        c_library.malloc_trim(0)  # free memory could be used without being counted
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        before = resident_mb("VmRSS")
        call()
        peaks[each] = round(resident_mb("VmHWM") - before, 2)
    sender.send(peaks)
