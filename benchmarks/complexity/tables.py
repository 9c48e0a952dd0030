"""The results as Markdown, the paper's O( ) beside them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from complexity.layers import KINDS, Kind, is_attention
from complexity.measuring import PASSES
from complexity.results import Results, growth


def tables(results: Results) -> str:
    """Returns the paper's table 1 with what was counted, then the exponents, then the times."""
    parts = [_table_1(results)]
    for variable, fixed in (("n", "d"), ("d", "n")):
        value = getattr(results.sizes, fixed)
        parts.append(f"Exponents of {variable}, {fixed} = {value:,}, all / last three:")
        parts.append(_exponents(results, variable))
    parts.append(f"Milliseconds, {PASSES[1]}, d = {results.sizes.d:,}:")
    parts.append(_times(results))
    return "\n\n".join(parts)


def _table_1(results: Results) -> str:
    heads = [
        *("layer", "complexity", "sequential operations", "counted", "maximum path", "computed"),
        "O( ) from",
    ]
    return _markdown(heads, (_row_of_table_1(results, kind) for kind in KINDS.values()))


def _row_of_table_1(results: Results, kind: Kind) -> list[str]:
    operations = {p.n: p.sequential_operations for p in results.sweep(kind.name, "n")}
    return [
        kind.name,
        _order(kind.complexity),
        _order(kind.sequential),
        _growth(kind.sequential, operations, results.sizes.kernel),
        _order(kind.path),
        _growth(kind.path, results.paths[kind.name], results.sizes.kernel),
        kind.source,
    ]


def _growth(order: str, counted: dict[int, int], kernel: int) -> str:
    """Both ends, and how it grew between them."""
    ends = ", ".join(f"{n:,}: {counted[n]:,}" for n in (min(counted), max(counted)))
    grown = growth(order, counted, kernel)
    if "all" in grown:
        return f"{ends}; n^{_number(grown['all'])}"
    return f"{ends}; {_number(grown['per log_k(n)'])} per log_k(n)"


def _exponents(results: Results, variable: str) -> str:
    heads = ["layer", "paper", "FLOP"]
    heads += [f"{quantity}, {each}" for quantity in ("time", "memory") for each in PASSES]
    rows = []
    for name, kind in KINDS.items():
        found = results.exponents(name, variable)
        paper = kind.exponents[variable]
        rows.append([name, paper, *_fits(found, "flop", "time, {}", "memory, {}")])
        if is_attention(name):
            fits = _fits(found, "flop of attending", "time of attending, {}")
            rows.append([f"{name}, without projections", paper, *fits, "", ""])
    return _markdown(heads, rows)


def _fits(found: dict[str, Any], flop: str, *quantities: str) -> list[str]:
    """The exponents of FLOP, and those of quantities for each pass."""
    names = [flop, *(quantity.format(each) for quantity in quantities for each in PASSES)]
    return [f"{_number(found[n]['all'])} / {_number(found[n]['last three'])}" for n in names]


def _times(results: Results) -> str:
    lengths = [point.n for point in results.sweep(next(iter(KINDS)), "n")]
    rows = []
    for name in KINDS:
        points = results.sweep(name, "n")
        rows.append([name, *(f"{p.milliseconds[PASSES[1]]['median']:,.1f}" for p in points)])
    return _markdown(["layer", *(f"n = {n:,}" for n in lengths)], rows)


def _order(expression: str) -> str:
    return f"O({expression})"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{round(value, 2) + 0.0:.2f}"  # no -0


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
