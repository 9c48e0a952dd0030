"""Layers of the same sizes, beside each other."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable

from decoders.comparison import spread
from steppers.protocol import CoreUse

from complexity import measuring, memory
from complexity.graph import Graph
from complexity.layers import MAKERS, PROJECTIONS, Sizes, is_attention
from complexity.results import Point, Spread

_BASE = "self-attention"

Times = dict[str, dict[str, list[float]]]  # milliseconds by kind and pass, round by round


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much is done for a point.

    Args:
        batch: sequences that a layer takes at once.
        threads: threads of TensorFlow.
        rounds: in each of which every layer is timed.
        seconds: for which a layer is called in its turn, once at least.
        processes: whose memory is taken, one after the other.
    """

    batch: int
    threads: int
    rounds: int
    seconds: float
    processes: int


def compare(sizes: Sizes, effort: Effort, done: Callable[[], None]) -> list[Point]:
    """Measures a point of every kind of layer.

    Args:
        sizes: of all of them.
        effort: how much is done.
        done: called `steps(effort)` times meanwhile.
    """
    shape = (effort.batch, sizes.n, sizes.d)
    traced = {name: measuring.trace(make(sizes), shape) for name, make in MAKERS.items()}
    core_use = CoreUse()
    times = _take_turns(traced, effort, done)
    others = round(core_use.read()[1], 2)
    points = []
    for name, passes in traced.items():
        graph = Graph(passes.forward)
        mb = [
            memory.peaks_mb(name, sizes, effort.batch, effort.threads)
            for _ in range(effort.processes)
        ]
        done()
        own = times[name]
        points.append(
            Point(
                name,
                sizes.n,
                sizes.d,
                {each: spread(own[each], 4) for each in own},
                _paired(operator.sub, own, times[PROJECTIONS]) if is_attention(name) else None,
                _paired(operator.truediv, own, times[_BASE]),
                {each: spread([peaks[each] for peaks in mb], 2) for each in own},
                graph.flop(),
                graph.sequential_operations(),
                others,
            )
        )
    return points


def steps(effort: Effort) -> int:
    """How often `compare` says that it has come further."""
    return effort.rounds + len(MAKERS)


def _take_turns(
    traced: dict[str, measuring.Passes], effort: Effort, done: Callable[[], None]
) -> Times:
    """Times all passes of all layers, in another order in each round."""
    turns = [(name, each, call) for name in traced for each, call in traced[name].calls().items()]
    times: Times = {name: {each: [] for each in measuring.PASSES} for name in traced}
    for _, _, call in turns:  # the first call prepares
        call()
    for number in range(effort.rounds):
        first = number % len(turns)
        for name, each, call in [*turns[first:], *turns[:first]]:
            times[name][each].append(1000 * measuring.seconds(call, effort.seconds))
        done()
    return times


def _paired(
    join: Callable[[float, float], float],
    own: dict[str, list[float]],
    others: dict[str, list[float]],
) -> dict[str, Spread]:
    """What `join` makes of two layers' times of the same round."""
    return {each: spread(list(map(join, own[each], others[each])), 4) for each in own}
