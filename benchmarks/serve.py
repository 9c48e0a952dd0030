#!/usr/bin/env python3
r"""Measures keras-transformer serve under load, with batching and without.

Example:
    benchmarks/serve.py --export=build/export --source=newstest2013.en,test_2016_flickr.en

The server runs in a separate process. This process runs all clients, on the same cores. Each
request contains one sentence. A client sends its next request after it has received an answer. The
sentences come from all --source files in equal numbers, in random order. For each number of
--clients, two servers take turns: one batches requests, the other has `--max_batch_size=1`.

Prints one JSON object with these results:
- requests per second, as the median, minimum and maximum of the rounds
- latencies in milliseconds, as medians of the rounds
- rows per batch, and per second of the server's CPU time
- cores used by the server, by the clients, and by other processes
- memory
- the ratio of requests per second with batching to requests per second without batching

The exit code is 1 if a request failed. For a long run, overload and version changes, see
`python -m tests.stress server_load`.
"""

from __future__ import annotations

import asyncio
import json
import statistics
from collections.abc import Sequence
from typing import Any

import command
from absl import flags
from clients import Clients, latencies, problems
from command import info
from measuring import Turn, describe_machine, is_quiet, ratio, spread, take_turns
from serving import ServerProcess, read_sentences, served

FLAGS = flags.FLAGS
flags.DEFINE_string("export", None, "directory of versions, such as build/export", required=True)
flags.DEFINE_list("source", None, "files with one sentence per line", required=True)
command.define_numbers(
    "clients", [1, 4, 16, 64], "numbers of concurrent clients, measured one after the other"
)
flags.DEFINE_float("seconds", 15, "measured seconds of each turn", lower_bound=1)
flags.DEFINE_float("warm_up", 5, "seconds of load before each measured turn", lower_bound=0)
flags.DEFINE_integer("rounds", 2, "rounds; each server has one turn per round", lower_bound=1)
flags.DEFINE_list("server_flags", [], "flags of keras-transformer serve: batch_timeout_ms=5")
flags.DEFINE_float(
    "limit_s", 60, "seconds after which a request without an answer has failed", lower_bound=1
)
flags.DEFINE_integer("seed", 0, "seed of the random order of sentences")


async def steady_load(server: ServerProcess, clients: Clients, count: int) -> Turn:
    """Keeps `count` clients sending requests, and returns the results after the warm-up."""
    stop = asyncio.Event()
    asking = asyncio.create_task(clients.keep_asking(count, stop))
    await asyncio.sleep(FLAGS.warm_up)
    before = await asyncio.to_thread(server.usage)
    await asyncio.sleep(FLAGS.seconds)
    after = await asyncio.to_thread(server.usage)
    stop.set()
    every = await asking
    answers = [answer for answer in every if before.clock < answer.ended <= after.clock]
    good = [answer for answer in answers if answer.status == 200]
    return {
        "per_second": max(len(good), 1e-9) / (after.clock - before.clock),
        "latency_ms": latencies(good),
        "problems": problems(every),
        **after.since(before),
        "memory_mb": round(server.memory_mb()),
        "peak_memory_mb": round(server.peak_memory_mb()),
    }


def compare(sentences: Sequence[str]) -> dict[str, Any]:
    """Returns the results with and without batching, for each number of clients."""
    result: dict[str, Any] = {}
    given = FLAGS.server_flags
    with (
        served(FLAGS.export, given) as (batching, _),
        served(FLAGS.export, given, max_batch_size=1) as (single, _),
    ):
        servers = {"batching": batching, "batch of 1": single}
        for server in servers.values():
            info(f"The server was ready after {server.ready_seconds:.1f} s.")
        for count in map(int, FLAGS.clients):

            def turn(server: ServerProcess, count: int = count) -> Turn:
                limit_s, seed = FLAGS.limit_s, FLAGS.seed
                clients = Clients(server.port, server.model, sentences, limit_s, seed)
                return asyncio.run(steady_load(server, clients, count))

            info(f"Measuring {count} clients.")
            calls = {
                name: lambda _, server=server: turn(server) for name, server in servers.items()
            }
            turns = take_turns(calls, FLAGS.rounds, "requests/s")
            result[f"{count} clients"] = {
                **{name: report(many) for name, many in turns.items()},
                "ratio": ratio(turns, "batching", "batch of 1"),
                "quiet": is_quiet(turns),
            }
    return result


def report(turns: Sequence[Turn]) -> dict[str, Any]:
    """Summarizes the turns of one server."""
    latency = [turn["latency_ms"] for turn in turns]
    return {
        "requests_per_second": spread([turn["per_second"] for turn in turns], 2),
        "latency_ms": {
            name: round(statistics.median(client[name] for client in latency), 1)
            for name in ("p50", "p95", "p99")
        },
        **{
            name: spread([turn[name] for turn in turns], 2)
            for name in (
                *("rows_per_batch", "rows_per_cpu_second"),
                *("server_cores", "client_cores", "other_cores"),
            )
            if None not in [turn[name] for turn in turns]
        },
        "memory_mb": turns[-1]["memory_mb"],
        "peak_memory_mb": turns[-1]["peak_memory_mb"],
        "problems": [turn["problems"] for turn in turns if turn["problems"]],
    }


def main() -> int:
    """Runs the measurements and prints the results."""
    sentences = read_sentences(FLAGS.source)
    names = ("clients", "seconds", "rounds", "server_flags", "limit_s")
    settings = {name: getattr(FLAGS, name) for name in names}
    result = compare(sentences)
    print(json.dumps({"machine": describe_machine(), "settings": settings, "clients": result}))
    return int(
        any(
            of_clients[name]["problems"]
            for of_clients in result.values()
            for name in ("batching", "batch of 1")
        )
    )


if __name__ == "__main__":
    command.run(main)
