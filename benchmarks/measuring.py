"""Takes turns between the settings that are compared, and summarizes the turns.

A turn is a dictionary. `per_second` is the rate that is compared, `cores` the number of cores that
the turn kept busy, and `other_cores` the number that other processes kept busy.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from command import info

from keras_transformer.extensions.paper.experiment import code_commit
from keras_transformer.runs.machine import available_cores, cpu_name
from keras_transformer.tf_import import describe_cards

Turn = dict[str, Any]
Turns = dict[str, list[Turn]]  # by name, in the order of the rounds

_PAUSE_S = 0.3  # OpenMP's threads go on spinning for this long after their work
_INSTRUCTIONS = [
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx_vnni",
    "avx512_bf16",
    "amx_int8",
    "amx_bf16",
]
_QUIET_CORES = 0.15  # more cores than this in other processes make a turn unreliable


def take_turns(
    calls: Mapping[str, Callable[[int], Turn]], rounds: int, unit: str = "per second"
) -> Turns:
    """Calls everything once in each round, in a rotating order, and returns the turns.

    Ctrl-C ends the rounds. Then the last round is not complete.

    Args:
        calls: a function for each name, which is called with the number of the round.
        rounds: number of rounds.
        unit: unit of `per_second`, for the status lines.
    """
    turns: Turns = {name: [] for name in calls}
    names = list(calls)
    try:
        for number in range(rounds):
            info(f"Round {number + 1} of {rounds}.")
            first = number % len(names)
            for name in [*names[first:], *names[:first]]:
                time.sleep(_PAUSE_S)
                turn = calls[name](number)
                turns[name].append(turn)
                others = turn.get("other_cores", 0.0)
                busy = (
                    f" (other processes used {others:.2f} cores)" if others > _QUIET_CORES else ""
                )
                info(f"{name}: {turn['per_second']:,.4g} {unit}{busy}")
    except KeyboardInterrupt:
        info("Interrupted. The results are partial.")
    return turns


def spread(values: Iterable[float], digits: int) -> dict[str, float]:
    """Returns the median, the minimum and the maximum, rounded."""
    values = list(values)
    named = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: round(value, digits or None) for name, value in named.items()}


def is_quiet(turns: Turns) -> bool:
    """True if other processes used few cores; if not, do not rely on the ratios."""
    return all(turn["other_cores"] < _QUIET_CORES for many in turns.values() for turn in many)


def per_core_second(turn: Turn) -> float:
    """Returns the rate per second of CPU time, which other processes disturb less."""
    rate: float = turn["per_second"] / max(turn["cores"], 1e-9)
    return rate


def ratio(turns: Turns, one: str, other: str) -> dict[str, Any]:
    """Returns the ratio of two rates within a round: median, minimum and maximum.

    If all turns have `cores`, the member `cpu_time` is the ratio of the rates per second of CPU
    time.
    """
    # The last round may be incomplete.
    pairs = [*zip(turns[one], turns[other], strict=False)]
    result = {"of": one, "over": other}
    result |= spread([a["per_second"] / b["per_second"] for a, b in pairs], 3)
    if all("cores" in turn for pair in pairs for turn in pair):
        rates = [per_core_second(a) / per_core_second(b) for a, b in pairs]
        result["cpu_time"] = spread(rates, 3)
    return result


def fastest(turns: Turns, names: Iterable[str]) -> str | None:
    """Returns the name with the largest median rate; None if there are no names."""
    return max(
        (name for name in names if turns.get(name)),
        key=lambda name: statistics.median(turn["per_second"] for turn in turns[name]),
        default=None,
    )


def best_ratios(
    turns: Turns, own: Sequence[str], peers: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, Any]]:
    """Compares our fastest setting with the fastest setting of each peer.

    Args:
        turns: all turns.
        own: names of our settings.
        peers: names of each peer's settings.
    """
    result = {}
    best = fastest(turns, own)
    for peer, names in peers.items():
        other = fastest(turns, names)
        if best is not None and other is not None:
            result[f"best over best {peer}"] = ratio(turns, best, other)
    return result


def describe_machine(device: str = "cpu") -> dict[str, Any]:
    """Returns the CPU, its instructions, the cores, Python, the commit and the date.

    The commit ends with "+" if there are changes.

    Args:
        device: "gpu" adds the cards with their driver, versions, and the flags of XLA.
    """
    cards: dict[str, Any] = {}
    if device == "gpu":
        cards = {"cards": describe_cards(), "xla_flags": os.environ.get("XLA_FLAGS", "")}
        cards |= {name: importlib.metadata.version(name) for name in ("tensorflow", "keras")}
    return {
        **cards,
        "cpu": cpu_name(),
        "instructions": cpu_instructions(),
        "cores": available_cores(),
        "python": platform.python_version(),
        "commit": code_commit(),
        "date": datetime.date.today().isoformat(),
    }


def cpu_instructions(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Returns the instruction sets of matrix products that the CPU has; [] if they are unknown.

    Args:
        cpuinfo: the file in which Linux describes the CPUs.
    """
    text = cpuinfo.read_text() if cpuinfo.is_file() else ""
    found = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    flags = found[1].split() if found else []
    return [name for name in _INSTRUCTIONS if name in flags]
