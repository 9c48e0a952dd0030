"""Turns of decoders, and what they say when they are put beside each other."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from decoders.process import Decoder

Turns = dict[str, list[dict[str, Any]]]  # by the way's name, by round

_PAUSE = 0.3  # seconds for which OpenMP's threads go on spinning when their work is done
_QUIET = 0.15  # cores that others may use in a turn


def take_rounds(decoders: Sequence[Decoder], commands: Iterable[str]) -> Turns:
    """Lets all take their turns, in another order each time; a command is a round."""
    turns: Turns = {decoder.way.name: [] for decoder in decoders}
    for number, command in enumerate(commands):
        say(f"round {number + 1}")
        first = number % len(decoders)
        for decoder in [*decoders[first:], *decoders[:first]]:
            time.sleep(_PAUSE)
            turn = decoder.ask(command)
            turns[decoder.way.name].append(turn)
            say(
                f"{decoder.way.name}: {rate(turn):,.2f} sentences/s, "
                f"{turn['other_cores']:.2f} cores busy with others"
            )
    return turns


def rate(turn: dict[str, Any]) -> float:
    """Sentences a second."""
    return float(turn["sentences"] / turn["seconds"])


def report(decoder: Decoder, turns: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns what is printed of a way."""
    facts = {key: value for key, value in decoder.facts.items() if key != "versions"}
    return {
        "sentences_per_second": spread([rate(turn) for turn in turns], 3),
        "cores": spread([turn["cores"] for turn in turns], 2),
        "other_cores": spread([turn["other_cores"] for turn in turns], 2),
        "peak_memory_mb": round(max(turn["peak_memory_mb"] for turn in turns)),
        "ready_seconds": round(decoder.ready_seconds, 2),
        **{key: round(value, 2) for key, value in facts.items()},
        "versions": decoder.facts["versions"],
    }


def ratios(decoders: Sequence[Decoder], turns: Turns) -> dict[str, Any]:
    """Returns this package's best beside the peers', each the ratio within a round."""
    ways = [decoder.way for decoder in decoders]

    def best(allowed: Callable[[Any], bool]) -> str | None:
        rates = {w.name: statistics.median(map(rate, turns[w.name])) for w in ways if allowed(w)}
        return max(rates, key=lambda name: rates[name], default=None)

    own = best(lambda way: way.is_own)
    pairs = {
        "best over best ctranslate2": (own, best(lambda way: way.engine == "ctranslate2")),
        "best graph over best ctranslate2": (
            best(lambda way: way.engine == "graph"),
            best(lambda way: way.engine == "ctranslate2"),
        ),
        "best float32 over best ctranslate2 float32": (
            best(lambda way: way.is_own and way.precision == "float32"),
            best(lambda way: way.engine == "ctranslate2" and way.precision == "float32"),
        ),
    }
    pairs |= {f"best over {way.name}": (own, way.name) for way in ways if not way.is_own}
    result = {}
    for title, (one, other) in pairs.items():
        if one is not None and other is not None:
            rounds = zip(turns[one], turns[other], strict=True)
            values = spread([rate(a) / rate(b) for a, b in rounds], 3)
            result[title] = {"ways": [one, other], **values}
    return result


def quiet(turns: Turns) -> bool:
    """Whether other processes left the cores alone; where they did not, ratios are worth little."""
    return all(turn["other_cores"] < _QUIET for many in turns.values() for turn in many)


def spread(values: Sequence[float], digits: int) -> dict[str, float]:
    """Returns median, least and most."""
    named = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: round(value, digits) for name, value in named.items()}


def say(line: str) -> None:
    """Tells of the progress."""
    print(line, file=sys.stderr, flush=True)
