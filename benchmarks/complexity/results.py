"""The measurements of the layers, the exponents that fit them, and their tables in Markdown."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from complexity.layers import KINDS, PROJECTIONS, Kind, Sizes, is_attention

PASSES = ("forward", "forward and backward")
Spread = dict[str, float]  # median, minimum and maximum


@dataclasses.dataclass(frozen=True)
class Point:
    """The measurements of one layer at one size.

    Args:
        kind: name of the kind of layer.
        n: number of positions.
        d: width.
        milliseconds: time of each pass.
        attending_ms: for attention, the time of each pass without the projections: the difference
            within a round.
        over_self_attention: the time of each pass divided by that of self-attention in the same
            round.
        mb: memory of each pass.
        flop: operations of the products of the forward pass, by kind of operation.
        sequential_operations: the longest chain of operations of the forward pass.
        other_cores: cores that other processes used while the layer was timed.
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
    """All measurements of a run.

    Args:
        sizes: the sizes that do not vary.
        points: the points of both sweeps.
        paths: maximum path lengths by kind of layer and n.
    """

    sizes: Sizes
    points: Sequence[Point]
    paths: dict[str, dict[int, int]]

    def sweep(self, kind: str, variable: str) -> list[Point]:
        """Returns the points of a kind of layer where only `variable`, n or d, varies."""
        [fixed] = {"n", "d"} - {variable}
        wanted = getattr(self.sizes, fixed)
        return [p for p in self.points if p.kind == kind and getattr(p, fixed) == wanted]

    def exponents(self, kind: str, variable: str) -> dict[str, dict[str, float | None]]:
        """Returns the exponents of n or d that fit each quantity of a kind of layer."""
        points = self.sweep(kind, variable)
        x = [getattr(point, variable) for point in points]
        return {
            name: exponents(x, [quantity(point) for point in points])
            for name, quantity in _quantities(kind).items()
        }

    def as_json(self) -> dict[str, Any]:
        """Returns all measurements and exponents."""
        return {
            "sizes": dataclasses.asdict(self.sizes),
            "points": [dataclasses.asdict(point) for point in self.points],
            "exponents": {
                kind: {variable: self.exponents(kind, variable) for variable in ("n", "d")}
                for kind in (*KINDS, PROJECTIONS)
            },
            "maximum_path_lengths": self.paths,
        }


def _quantities(kind: str) -> dict[str, Callable[[Point], float]]:
    found: dict[str, Callable[[Point], float]] = {"flop": lambda p: sum(p.flop.values())}
    for each in PASSES:
        found[f"time, {each}"] = lambda p, each=each: p.milliseconds[each]["median"]
        found[f"memory, {each}"] = lambda p, each=each: p.mb[each]["median"]
        if is_attention(kind):
            found["flop of attending"] = lambda p: p.flop["BatchMatMulV2"]
            found[f"time of attending, {each}"] = lambda p, each=each: p.attending_ms[each][
                "median"
            ]
    return found


def exponents(x: Sequence[float], y: Sequence[float]) -> dict[str, float | None]:
    """Returns the slopes of log y over log x by least squares: of all points, and the last three.

    A slope is None if a value is not positive, as a difference within the noise can be.

    Example:
        >>> exponents([1, 2, 4, 8], [1, 4, 16, 64])
        {'all': 2.0, 'last three': 2.0}
    """
    found: dict[str, float | None] = {}
    for name, count in (("all", len(x)), ("last three", 3)):
        some_x, some_y = x[-count:], y[-count:]
        is_fit = 1 < len(some_x) == count and min(some_y) > 0
        slope = np.polyfit(np.log(some_x), np.log(some_y), 1)[0] if is_fit else None
        found[name] = None if slope is None else round(float(slope), 3)
    return found


def growth(order: str, lengths: dict[int, int], kernel: int) -> str:
    """Describes how a count grows with n.

    Args:
        order: the paper's O( ).
        lengths: the count by n.
        kernel: k.

    Example:
        >>> growth("log_k(n)", {9: 7, 27: 9, 81: 11}, kernel=3)
        '9: 7, 81: 11; 2.00 per log_k(n)'
    """
    n, counted = list(lengths), list(lengths.values())
    ends = ", ".join(f"{each:,}: {lengths[each]:,}" for each in (min(n), max(n)))
    if "log" in order and len(n) > 1:
        slope = float(np.polyfit(np.log(n) / np.log(kernel), counted, 1)[0])
        return f"{ends}; {_number(slope)} per log_k(n)"
    return f"{ends}; n^{_number(exponents(n, counted)['all'])}"


def tables(results: Results) -> str:
    """Returns the paper's table 1 with the counts, and tables of exponents and times."""
    parts = [_table_1(results)]
    for variable, fixed in (("n", "d"), ("d", "n")):
        value = getattr(results.sizes, fixed)
        parts.append(f"Exponents of {variable}, {fixed} = {value:,}, all / last three:")
        parts.append(_exponents(results, variable))
    parts.append(f"Milliseconds, {PASSES[1]}, d = {results.sizes.d:,}:")
    parts.append(_times(results))
    return "\n\n".join(parts)


def _table_1(results: Results) -> str:
    def row(kind: Kind) -> list[str]:
        operations = {p.n: p.sequential_operations for p in results.sweep(kind.name, "n")}
        kernel = results.sizes.kernel
        return [
            kind.name,
            f"O({kind.complexity})",
            f"O({kind.sequential})",
            growth(kind.sequential, operations, kernel),
            f"O({kind.path})",
            growth(kind.path, results.paths[kind.name], kernel),
            kind.source,
        ]

    heads = ["layer", "complexity", "sequential operations", "counted", "maximum path", "computed"]
    return _markdown([*heads, "O( ) from"], map(row, KINDS.values()))


def _exponents(results: Results, variable: str) -> str:
    heads = ["layer", "paper", "FLOP"]
    heads += [f"{quantity}, {each}" for quantity in ("time", "memory") for each in PASSES]
    rows = []
    for name, kind in KINDS.items():
        found = results.exponents(name, variable)

        def fits(*names: str, found: dict[str, Any] = found) -> list[str]:
            pairs = ((found[each]["all"], found[each]["last three"]) for each in names)
            return [f"{_number(one)} / {_number(other)}" for one, other in pairs]

        times, memory = ([f"{q}, {each}" for each in PASSES] for q in ("time", "memory"))
        rows.append([name, kind.exponents[variable], *fits("flop", *times, *memory)])
        if is_attention(name):
            attending = [f"time of attending, {each}" for each in PASSES]
            found_ = fits("flop of attending", *attending)
            title = f"{name}, without projections"
            rows.append([title, kind.exponents[variable], *found_, "", ""])
    return _markdown(heads, rows)


def _times(results: Results) -> str:
    lengths = [point.n for point in results.sweep(next(iter(KINDS)), "n")]
    rows = []
    for name in KINDS:
        points = results.sweep(name, "n")
        rows.append([name, *(f"{p.milliseconds[PASSES[1]]['median']:,.1f}" for p in points)])
    return _markdown(["layer", *(f"n = {n:,}" for n in lengths)], rows)


def _number(value: float | None) -> str:
    return "?" if value is None else f"{round(value, 2) + 0.0:.2f}"  # no -0


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
