#!/usr/bin/env python3
r"""Measures servers with LibreTranslate's API: start, load and memory.

Example:
    benchmarks/gateway.py --source=newstest2013.en \
        --server="ours=8501=keras-transformer serve --models_dir=models --cache_mb=0" \
        --server="other=5000=libretranslate --port 5000 --load-only en,de"
    benchmarks/gateway.py --source=newstest2013.en --clients= --targets=de,fr,es,it --server=...

Starts the servers, one after the other, and measures the seconds until /health answers and until
the first translation. Then the servers take turns. Each client sends its next sentence after an
answer. The source should have enough sentences for all turns, because servers may have a cache. At
last, each server translates a sentence into each of --targets, and the memory is measured: that of
its process and its children, now and at most.

Prints one JSON object: the seconds of the start; for each number of clients and each server the
sentences per second (median, minimum and maximum of the rounds), the median and the 95th percentile
of the latency in milliseconds; and the resident memory in MB. The exit code is 1 if a request
failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import shlex
import statistics
import time
import urllib.request
from pathlib import Path
from typing import Any

import command
from absl import flags
from clients import Connection
from measuring import describe_machine, spread
from protocol import Child
from resources import resident_mb

from keras_transformer.data.reading import read_text

FLAGS = flags.FLAGS
flags.DEFINE_multi_string("server", None, "NAME=PORT=COMMAND of a server", required=True)
flags.DEFINE_string("source", None, "file with one sentence per line", required=True)
flags.DEFINE_string("source_language", "en", "language of --source")
flags.DEFINE_list("targets", ["de"], "languages of translations; the first one is that of the load")
command.define_numbers("clients", [1, 8, 64], "numbers of concurrent clients")
flags.DEFINE_integer("rounds", 3, "rounds; each server has one turn per round", lower_bound=1)
flags.DEFINE_integer("requests", 200, "sentences of each turn", lower_bound=1)

_START_S = 300.0


async def turn(
    port: int, target: str, clients: int, sentences: list[str]
) -> tuple[float, list[float], int]:
    """Returns sentences per second, latencies in milliseconds, and the number of failures."""
    latencies, failures, todo = list[float](), list[int](), iter(sentences)
    head = "POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    languages = {"source": FLAGS.source_language, "target": target}

    async def client() -> None:
        connection = Connection(*await asyncio.open_connection("127.0.0.1", port))
        for sentence in todo:
            start = time.perf_counter()
            body = json.dumps({"q": sentence, **languages}).encode()
            request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
            status, _ = await connection.ask(request)
            latencies.append(1000 * (time.perf_counter() - start))
            if status != 200:
                failures.append(status)
        connection.close()

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return len(sentences) / (time.perf_counter() - start), latencies, len(failures)


def seconds_to_health(server: Child, port: int) -> float:
    """Waits until a server answers `/health`, and returns the seconds since its start."""
    while (seconds := time.monotonic() - server.started) < _START_S:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health"),
        ):
            return seconds
        time.sleep(0.02)
    raise RuntimeError(f"{server.name} does not answer.\n{server.output()[-2000:]}")


def memory_mb(pid: int) -> dict[str, float]:
    """Returns the resident memory of a process and of its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    fields = {"now": "VmRSS", "most": "VmHWM"}
    return {
        n: round(sum(resident_mb(f, p) for p in (pid, *children)), 1) for n, f in fields.items()
    }


def main() -> int:
    """Measures the servers of the flags."""
    sentences = itertools.cycle(line for line in read_text(FLAGS.source) if line.strip())
    servers, starts = dict[str, tuple[Child, int]](), dict[str, Any]()
    results, memory, failed = list[dict[str, Any]](), dict[str, Any](), 0
    with contextlib.ExitStack() as stack:
        for entry in FLAGS.server:
            name, port, line = entry.split("=", 2)
            child = stack.enter_context(Child(name, shlex.split(line), answers=False))
            servers[name] = child, int(port)
            health_s = seconds_to_health(child, int(port))
            first = asyncio.run(turn(int(port), FLAGS.targets[0], 1, [next(sentences)]))
            failed += first[2]
            translation_s = time.monotonic() - child.started
            starts[name] = {"health_s": round(health_s, 2), "first_s": round(translation_s, 2)}
        for clients in map(int, FLAGS.clients):
            speeds: dict[str, list[float]] = {name: [] for name in servers}
            waits: dict[str, list[float]] = {name: [] for name in servers}
            for _ in range(FLAGS.rounds):
                part = list(itertools.islice(sentences, FLAGS.requests))
                for name, (_, port) in servers.items():
                    found = asyncio.run(turn(port, FLAGS.targets[0], clients, part))
                    speeds[name].append(found[0])
                    waits[name] += found[1]
                    failed += found[2]
                    command.info(f"{clients} clients, {name}: {found[0]:.1f} sentences/s")
            for name in servers:
                p95 = statistics.quantiles(waits[name], n=20)[-1]
                waited = {"p50_ms": statistics.median(waits[name]), "p95_ms": p95}
                facts = {"clients": clients, "server": name}
                facts["sentences_per_s"] = spread(speeds[name], 1)
                results.append(facts | {n: round(ms, 1) for n, ms in waited.items()})
        for name, (child, port) in servers.items():
            for target in FLAGS.targets:
                failed += asyncio.run(turn(port, target, 1, [next(sentences)]))[2]
            memory[name] = memory_mb(child.pid)
    found = {"starts": starts, "results": results, "memory_mb": memory, "failed": failed}
    print(json.dumps({**describe_machine(), **found}))
    return int(failed > 0)


if __name__ == "__main__":
    command.run(main)
