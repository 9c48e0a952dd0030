"""What was measured and counted of layers, and the exponents that fit it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from complexity.layers import KINDS, PROJECTIONS, Sizes, is_attention
from complexity.measuring import PASSES

Spread = dict[str, float]  # median, least and most


@dataclasses.dataclass(frozen=True)
class Point:
    """A layer of some sizes.

    Args:
        kind: name of the kind of layer.
        n: positions.
        d: width.
        milliseconds: of each pass.
        attending_ms: of each pass less that of the projections in the same round; of attention.
        over_self_attention: of each pass, its time over self-attention's in the same round.
        mb: most memory of each pass.
        flop: of the forward pass, its products by kind of op.
        sequential_operations: of the forward pass.
        other_cores: that others kept busy while it was timed.
    """

    kind: str
    n: int
    d: int
    milliseconds: dict[str, Spread]
    attending_ms: dict[str, Spread] | None
    over_self_attention: dict[str, Spread]
    mb: dict[str, Spread]
    flop: dict[str, int]
    sequential_operations: int
    other_cores: float


@dataclasses.dataclass(frozen=True)
class Results:
    """All of a run.

    Args:
        sizes: what holds where nothing else is said.
        points: those of all sweeps, in the order of their sizes.
        paths: maximum path lengths by kind of layer and n.
    """

    sizes: Sizes
    points: Sequence[Point]
    paths: dict[str, dict[int, int]]

    def sweep(self, kind: str, variable: str) -> list[Point]:
        """The points of a kind where `variable`, n or d, varies and the other stays."""
        [fixed] = {"n", "d"} - {variable}
        wanted = getattr(self.sizes, fixed)
        return [p for p in self.points if p.kind == kind and getattr(p, fixed) == wanted]

    def exponents(self, kind: str, variable: str) -> dict[str, Any]:
        """The exponents of n or d that fit each quantity of a kind."""
        points = self.sweep(kind, variable)
        x = [getattr(point, variable) for point in points]
        return {
            name: exponents(x, [quantity(point) for point in points])
            for name, quantity in quantities(kind).items()
        }

    def as_json(self) -> dict[str, Any]:
        """All of it, with the exponents."""
        return {
            "sizes": dataclasses.asdict(self.sizes),
            "points": [dataclasses.asdict(point) for point in self.points],
            "exponents": {
                kind: {variable: self.exponents(kind, variable) for variable in ("n", "d")}
                for kind in (*KINDS, PROJECTIONS)
            },
            "maximum_path_lengths": self.paths,
            "growth_of_paths": {
                kind: growth(KINDS[kind].path, lengths, self.sizes.kernel)
                for kind, lengths in self.paths.items()
            },
            "paper": {
                name: {
                    "complexity": kind.complexity, "exponents": kind.exponents,
                    "sequential operations": kind.sequential, "maximum path length": kind.path,
                    "source": kind.source,
                }
                for name, kind in KINDS.items()
            },
        }  # fmt: skip


def quantities(kind: str) -> dict[str, Callable[[Point], float]]:
    """What is fitted of the points of a kind, by name."""
    found: dict[str, Callable[[Point], float]] = {
        "flop": lambda point: sum(point.flop.values()),
        "sequential operations": lambda point: point.sequential_operations,
    }
    for each in PASSES:
        found[f"time, {each}"] = _median("milliseconds", each)
        found[f"memory, {each}"] = _median("mb", each)
    if is_attention(kind):
        found["flop of attending"] = lambda point: point.flop["BatchMatMulV2"]
        for each in PASSES:
            found[f"time of attending, {each}"] = _median("attending_ms", each)
    return found


def _median(field: str, each: str) -> Callable[[Point], float]:
    return lambda point: float(getattr(point, field)[each]["median"])


def exponents(x: Sequence[float], y: Sequence[float]) -> dict[str, float | None]:
    """Slopes of log y over log x, of all points and of the last three and two.

    By least squares; None where a value is not positive, as a difference may be in the noise.
    """
    found: dict[str, float | None] = {}
    for name, count in (("all", len(x)), ("last three", 3), ("last two", 2)):
        some_x, some_y = x[-count:], y[-count:]
        is_fit = 1 < len(some_x) == count and min(some_y) > 0
        slope = np.polyfit(np.log(some_x), np.log(some_y), 1)[0] if is_fit else None
        found[name] = None if slope is None else round(float(slope), 3)
    return found


def growth(order: str, lengths: dict[int, int], kernel: int) -> dict[str, float | None]:
    """How what is counted grows with n.

    Args:
        order: the paper's O( ).
        lengths: what was counted, by n.
        kernel: k.

    Returns:
        `exponents`; or where the order is a logarithm `per log_k(n)`, the slope over it.
    """
    n, counted = list(lengths), list(lengths.values())
    if "log" not in order or len(n) < 2:
        return exponents(n, counted)
    slope = np.polyfit(np.log(n) / np.log(kernel), counted, 1)[0]
    return {"per log_k(n)": round(float(slope), 3)}
