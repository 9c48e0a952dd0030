#!/usr/bin/env python3
r"""Puts a load on bin/serve.py, with batching and without, and tries what may go wrong under one.

Examples:
    benchmarks/serve.py --export=build/export --source=newstest2013.en,test_2016_flickr.en
    benchmarks/serve.py --export=build/export --source=newstest2013.en --clients=none \
        --soak_minutes=20 --switches=20 --overload

The server is a process of its own; this one is all of the clients, on the same cores. A
request is one sentence, and a client sends the next as soon as it is answered. Sentences
are taken from all --source files alike, in a random order.

For each number of --clients two servers take turns, one with `--max_batch_size=1`. Then:

* --soak_minutes: the most clients ask for so long. Memory is `flat` where the straight line
  through the samples of the second half rises or falls by less than 1 % of their mean;
* --switches: a copy of the version is published as the next, and the old one removed, so
  often. Every answer has to be that of its sentence alone; another text of the same score
  (to 1e-4) is one, too;
* --overload: ten times as many requests at once as the queue takes rows, again and again.
  What is not answered by 200 has to be by 429. Requests one by one, before and at once
  after each burst, tell how the server recovers.

Prints one JSON object: requests per second and latencies (milliseconds), medians over the
rounds where there are any (least and most); rows of a batch, as the server counts them; cores
that the server, the clients and others keep busy; memory; and the ratio of requests per
second with batching over without. `quiet` says whether others left the cores alone. The exit
code is 1 where a request was lost or answered wrongly, or memory is not flat.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import command
from absl import flags
from decoders import machine
from decoders.comparison import quiet, say, spread
from load import scenarios
from load.clients import Clients
from load.process import ServerProcess

from keras_transformer.data.corpora.reading import read_text
from keras_transformer.errors import InputError

FLAGS = flags.FLAGS
flags.DEFINE_string("export", None, "directory of versions, as build/export", required=True)
flags.DEFINE_list("source", None, "files of sentences, one a line", required=True)
command.define_numbers(
    "clients", [1, 4, 16, 64], "clients at once; none: no comparison", or_none=True
)
flags.DEFINE_float("seconds", 15, "of a turn", lower_bound=1)
flags.DEFINE_float("warm_up", 5, "seconds before a turn, which do not count", lower_bound=0)
flags.DEFINE_integer("rounds", 2, "rounds, in each of which both take a turn", lower_bound=1)
flags.DEFINE_float("soak_minutes", 0, "of constant load", lower_bound=0)
flags.DEFINE_integer("switches", 0, "changes of the version under load", lower_bound=0)
flags.DEFINE_bool("overload", False, "whether to send more than the server takes")
flags.DEFINE_integer("max_queue", 64, "rows that wait, under --overload", lower_bound=1)
flags.DEFINE_list("server_flags", [], "of bin/serve.py, as batch_timeout_ms=5")
flags.DEFINE_float("limit_s", 60, "seconds after which a request is lost", lower_bound=1)
flags.DEFINE_integer("seed", 0, "decides the order of the sentences")

_KNOWN = 200  # sentences whose translations are compared
_CLIENTS = 64  # of the soak and the switches
_BURSTS = 3
_BURST = 10  # requests at once, for each row of the queue


@contextlib.contextmanager
def served(**settings: object) -> Iterator[tuple[ServerProcess, Path]]:
    """Gives a server of a copy of the export, and the copy."""
    given = dict(flag.split("=", 1) for flag in FLAGS.server_flags)
    with tempfile.TemporaryDirectory() as folder:
        versions = [path for path in Path(FLAGS.export).glob("*") if path.name.isdecimal()]
        if not versions:
            raise InputError(f"--export={FLAGS.export} has no version; expected a number in it")
        newest = max(versions, key=lambda path: int(path.name))
        base_path = Path(folder) / "model"
        shutil.copytree(newest, base_path / "1")
        server = ServerProcess(base_path, Path(folder) / "log", **{**given, **settings})
        say(f"{settings or given or 'as it is'}: ready in {server.ready_seconds:.1f} s")
        try:
            yield server, base_path
        finally:
            server.close()


def asking(server: ServerProcess, sentences: Sequence[str]) -> Clients:
    """Returns clients of a server."""
    return Clients(server.port, server.model, sentences, FLAGS.limit_s, FLAGS.seed)


def compare(sentences: Sequence[str]) -> dict[str, Any]:
    """Measures with batching and without, in turns, and returns what is printed of it."""
    result: dict[str, Any] = {}
    with served() as (batching, _), served(max_batch_size=1) as (alone, _):
        ways = {"batching": batching, "batch of 1": alone}
        for count in map(int, FLAGS.clients):
            turns: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
            for number in range(FLAGS.rounds):
                for name in list(ways)[:: 1 - 2 * (number % 2)]:
                    clients = asking(ways[name], sentences)
                    turn = asyncio.run(
                        scenarios.steady_load(
                            ways[name], clients, count, FLAGS.warm_up, FLAGS.seconds
                        )
                    )
                    turns[name].append(turn)
                    say(
                        f"{count} clients, {name}: {turn['requests_per_second']:.1f} requests/s, "
                        f"{turn['other_cores']:.2f} cores busy with others"
                    )
            pairs = zip(turns["batching"], turns["batch of 1"], strict=True)
            rates = [
                one["requests_per_second"] / max(two["requests_per_second"], 1e-9)
                for one, two in pairs
            ]
            result[f"{count} clients"] = {
                **{name: _report(many) for name, many in turns.items()},
                "batching over batch of 1": spread(rates, 2),
                "quiet": quiet(turns),
            }
    return result


def _report(turns: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns what is printed of a way's turns."""
    latency = [turn["latency_ms"] for turn in turns]
    return {
        "requests_per_second": spread([turn["requests_per_second"] for turn in turns], 2),
        "latency_ms": {
            name: round(statistics.median(each[name] for each in latency), 1)
            for name in ("p50", "p95", "p99")
        },
        **{
            name: spread([turn[name] for turn in turns], 2)
            for name in ("rows_per_batch", "server_cores", "client_cores", "other_cores")
            if None not in [turn[name] for turn in turns]
        },
        "memory_mb": turns[-1]["memory_mb"],
        "peak_memory_mb": turns[-1]["peak_memory_mb"],
        "problems": [turn["problems"] for turn in turns if turn["problems"]],
    }


def soak(sentences: Sequence[str]) -> dict[str, Any]:
    """Returns what comes of a long load."""
    with served() as (server, _):
        return asyncio.run(
            scenarios.soak(server, asking(server, sentences), _CLIENTS, FLAGS.soak_minutes)
        )


def switch(sentences: Sequence[str]) -> dict[str, Any]:
    """Returns what comes of changes of the version."""
    with served() as (server, base_path):
        return asyncio.run(
            scenarios.switch_versions(
                server, asking(server, sentences[:_KNOWN]), base_path, FLAGS.switches, _CLIENTS
            )
        )


def overload(sentences: Sequence[str]) -> dict[str, Any]:
    """Returns what comes of more than the server takes."""
    with served(max_queue=FLAGS.max_queue) as (server, _):
        count = _BURST * FLAGS.max_queue
        return asyncio.run(scenarios.overload(asking(server, sentences), _BURSTS, count))


def read_sentences(paths: Sequence[str]) -> list[str]:
    """Returns the sentences of all files in turn, as many of each as the shortest has."""
    kept = [[line for line in read_text(path) if line.strip()] for path in paths]
    for path, lines in zip(paths, kept, strict=True):
        if not lines:
            raise InputError(f"{path} has no sentence; expected one a line")
    return list(itertools.chain.from_iterable(zip(*kept, strict=False)))


def failures(result: dict[str, Any]) -> list[str]:
    """Returns what should not be."""
    found = [
        f"{name}, {way}: problems"
        for name, each in result.get("comparison", {}).items()
        for way, report in each.items()
        if isinstance(report, dict) and report.get("problems")
    ]
    if result.get("soak", {}).get("problems"):
        found.append("soak: problems")
    if not result.get("soak", {"flat": True})["flat"]:
        found.append("soak: memory is not flat")
    if result.get("switches", {}).get("lost_or_wrong"):
        found.append("switches: requests lost or answered wrongly")
    if result.get("overload", {}).get("problems"):
        found.append("overload: problems")
    return found


def main() -> int:
    """Prints the measurements."""
    sentences = read_sentences(FLAGS.source)
    names = ("clients", "seconds", "rounds", "server_flags", "limit_s")
    result: dict[str, Any] = {
        "machine": machine.describe(),
        "sentences": len(sentences),
        "settings": {name: getattr(FLAGS, name) for name in names},
    }
    parts = {
        "comparison": (FLAGS.clients != ["none"], compare),
        "soak": (FLAGS.soak_minutes, soak),
        "switches": (FLAGS.switches, switch),
        "overload": (FLAGS.overload, overload),
    }
    for name, (wanted, measure) in parts.items():
        if wanted:
            say(name)
            result[name] = measure(sentences)
    result["failures"] = failures(result)
    print(json.dumps(result))
    return int(bool(result["failures"]))


if __name__ == "__main__":
    command.run(main)
