#!/usr/bin/env python3
r"""Measures servers with LibreTranslate's API under load, such as ours and LibreTranslate.

Example:
    keras-transformer serve --models_dir=models --cache_mb=0 & OURS=$!
    libretranslate --port 5000 --load-only en,de & OTHER=$!
    benchmarks/gateway.py --servers=ours=8501=$OURS,other=5000=$OTHER --source=newstest2013.en

The servers are started before, with the same model and the same cores. They take turns. Each
client sends its next sentence after an answer. No sentence is sent twice to a server, because
servers may have a cache. The memory is that of a server's process and its children.

Prints one JSON object: for each number of clients and each server the sentences per second (median,
minimum and maximum of the rounds), the median and the 95th percentile of the latency in
milliseconds, and at the end the resident memory in MB. The exit code is 1 if a request failed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import time
from pathlib import Path
from typing import Any

import command
from absl import flags
from clients import Connection
from measuring import describe_machine, spread
from resources import resident_mb

from keras_transformer.data.reading import read_text

FLAGS = flags.FLAGS
flags.DEFINE_list("servers", None, "NAME=PORT=PID of servers on this machine", required=True)
flags.DEFINE_string("source", None, "file with one sentence per line", required=True)
flags.DEFINE_list("pair", ["en", "de"], "source and target language")
command.define_numbers("clients", [1, 8, 64], "numbers of concurrent clients")
flags.DEFINE_integer("rounds", 3, "rounds; each server has one turn per round", lower_bound=1)
flags.DEFINE_integer("requests", 200, "sentences of each turn", lower_bound=1)


async def turn(port: int, clients: int, sentences: list[str]) -> tuple[float, list[float], int]:
    """Returns sentences per second, latencies in milliseconds, and the number of failures."""
    source, target = FLAGS.pair
    latencies, failures, todo = list[float](), list[int](), iter(sentences)
    head = "POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"

    async def client() -> None:
        connection = Connection(*await asyncio.open_connection("127.0.0.1", port))
        for sentence in todo:
            start = time.perf_counter()
            body = json.dumps({"q": sentence, "source": source, "target": target}).encode()
            request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
            status, _ = await connection.ask(request)
            latencies.append(1000 * (time.perf_counter() - start))
            if status != 200:
                failures.append(status)
        connection.close()

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return len(sentences) / (time.perf_counter() - start), latencies, len(failures)


def memory_mb(pid: str) -> float:
    """Returns the resident memory of a process and of its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(resident_mb("VmRSS", process) for process in (pid, *children))


def main() -> int:
    """Measures the servers of the flags."""
    entries = [entry.split("=") for entry in FLAGS.servers]
    servers = {name: int(port) for name, port, _ in entries}
    sentences = itertools.cycle(line for line in read_text(FLAGS.source) if line.strip())
    results, failed = list[dict[str, Any]](), 0
    for clients in map(int, FLAGS.clients):
        speeds: dict[str, list[float]] = {name: [] for name in servers}
        waits: dict[str, list[float]] = {name: [] for name in servers}
        for _ in range(FLAGS.rounds):
            part = list(itertools.islice(sentences, FLAGS.requests))
            for name, port in servers.items():
                speed, latencies, failures = asyncio.run(turn(port, clients, part))
                speeds[name].append(speed)
                waits[name] += latencies
                failed += failures
                command.info(f"{clients} clients, {name}: {speed:.1f} sentences/s")
        for name in servers:
            facts = {"clients": clients, "server": name, "sentences_per_s": spread(speeds[name], 1)}
            p95 = statistics.quantiles(waits[name], n=20)[-1]
            waited = {"p50_ms": round(statistics.median(waits[name]), 1), "p95_ms": round(p95, 1)}
            results.append({**facts, **waited})
    memory = {name: round(memory_mb(pid), 1) for name, _, pid in entries}
    print(
        json.dumps(
            {**describe_machine(), "results": results, "memory_mb": memory, "failed": failed}
        )
    )
    return int(failed > 0)


if __name__ == "__main__":
    command.run(main)
