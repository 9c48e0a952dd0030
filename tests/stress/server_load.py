r"""Runs keras-transformer serve for a long time, under overload, and while its version changes.

Example:
    python -m tests.stress server_load --export=build/export --source=newstest2013.en \
        --soak_minutes=20 --switches=20 --overload

The server runs in a separate process. This process runs all clients, on the same cores. A request
is one sentence, and a client sends the next request when it has an answer.

* --soak_minutes: 64 clients send requests for this long. Memory is `flat` if the straight line
  through the samples of the second half rises by less than 1 % of their mean.
* --switches: the number of times that a copy of the version is published as the next version and
  the old version is removed, under the load of 64 clients. Every answer must be the translation of
  the sentence in a batch of one, or another text with the same score (to 1e-4). With int8
  activations, the score of the same text may differ by 0.02: the batch changes their last bits, and
  some of them are then rounded to another of 255 values.
* --overload: three bursts of ten requests at the same time for each row of the queue. An answer
  must have the status 200 or 429. Single requests before and after each burst show how the server
  recovers.

Prints one JSON object. The exit code is 1 if a request was lost or answered wrongly, or if memory
is not flat.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import command
from absl import flags
from clients import Clients, latencies, problems
from command import say
from measuring import describe_machine
from serving import ServerProcess, read_sentences, served

FLAGS = flags.FLAGS
flags.DEFINE_string("export", None, "directory of versions, such as build/export", required=True)
flags.DEFINE_list("source", None, "files with one sentence per line", required=True)
flags.DEFINE_float("soak_minutes", 0, "minutes of constant load", lower_bound=0)
flags.DEFINE_integer("switches", 0, "changes of the version under load", lower_bound=0)
flags.DEFINE_bool("overload", False, "whether to send more requests than the queue takes")
flags.DEFINE_integer("max_queue", 64, "rows of the queue, under --overload", lower_bound=1)
flags.DEFINE_list(
    "server_flags", [], "flags of keras-transformer serve, such as batch_timeout_ms=5"
)
flags.DEFINE_float("limit_s", 60, "seconds after which a request is lost", lower_bound=1)
flags.DEFINE_integer("seed", 0, "seed of the order of the sentences")

FLAT = 0.01  # the largest change of memory in the second half of a soak, relative to the mean
_SAMPLE_S = 10.0
_TIE = 1e-4  # scores whose order may depend on the batch
_INT8_ROUNDING = 0.02  # scores of the same text; the largest difference of 400 sentences was 0.014
_SINGLE = 20  # requests one by one, before and after each burst
_VERSION_S = 120.0
_KNOWN = 200  # sentences whose translations are compared
_CLIENTS = 64
_BURSTS = 3
_BURST = 10  # requests at the same time, for each row of the queue


def clients_of(server: ServerProcess, sentences: Sequence[str]) -> Clients:
    """Returns clients of a server."""
    return Clients(server.port, server.model, sentences, FLAGS.limit_s, FLAGS.seed)


async def soak(
    server: ServerProcess, clients: Clients, count: int, minutes: float
) -> dict[str, Any]:
    """Lets `count` clients send requests for a long time, and returns how memory grows."""
    stop = asyncio.Event()
    started = time.perf_counter()
    asking = asyncio.create_task(clients.keep_asking(count, stop))
    before = await asyncio.to_thread(server.usage)
    samples = []
    while time.perf_counter() < started + 60 * minutes:
        await asyncio.sleep(_SAMPLE_S)
        samples.append((round(time.perf_counter() - started, 1), round(server.memory_mb(), 1)))
    after = await asyncio.to_thread(server.usage)
    stop.set()
    answers = await asking
    good = [answer for answer in answers if answer.status == 200]
    return {
        "clients": count,
        "requests_per_second": round(len(good) / (answers[-1].ended - started), 1),
        "latency_ms": latencies(good),
        "problems": problems(answers),
        **after.since(before),
        **_growth(samples, len(good) / samples[-1][0]),
        "peak_memory_mb": round(server.peak_memory_mb()),
        "seconds_and_memory_mb": samples,
    }


def _growth(samples: Sequence[tuple[float, float]], rate: float) -> dict[str, Any]:
    """Fits a straight line to the samples of the second half."""
    half = samples[len(samples) // 2 :]
    seconds, memory = [each[0] for each in half], [each[1] for each in half]
    slope = statistics.linear_regression(seconds, memory).slope
    rise = slope * (seconds[-1] - seconds[0])
    return {
        "mb_per_hour": round(3600 * slope, 1),
        "bytes_per_request": round(slope * 2**20 / rate, 1),
        "rise_mb": round(rise, 2),
        "second_half_mb": [min(memory), max(memory)],
        "flat": rise < FLAT * statistics.mean(memory),
    }


async def switch_versions(
    server: ServerProcess, clients: Clients, base_path: Path, switches: int, count: int
) -> dict[str, Any]:
    """Changes the version again and again under load, and checks the answers.

    Args:
        server: serves `base_path`.
        clients: send the requests.
        base_path: holds one version, which copies replace.
        switches: number of changes.
        count: number of clients.
    """
    [version] = _versions(base_path)
    manifest = json.loads((version / "manifest.json").read_text(encoding="utf-8"))
    rounding = _INT8_ROUNDING if manifest["weights"] in ("int8", "int4") else _TIE
    alone = [answer.best() for answer in await clients.ask_alone(range(clients.sentences))]
    memory = [round(server.memory_mb())]
    stop = asyncio.Event()
    asking = asyncio.create_task(clients.keep_asking(count, stop))
    seconds = []
    for _ in range(switches):
        started = time.perf_counter()
        await _switch(clients, base_path)
        seconds.append(round(time.perf_counter() - started, 1))
        memory.append(round(server.memory_mb()))
    stop.set()
    answers = await asking
    good = [answer for answer in answers if answer.status == 200]
    translations = [(answer.best(), alone[answer.sentence]) for answer in good]
    wrong = [
        {"expected": expected, "found": found}
        for found, expected in translations
        # Also wrong if it is not a number.
        if not abs(found[1] - expected[1]) <= (rounding if found[0] == expected[0] else _TIE)
    ]
    return {
        "clients": count,
        "switches": switches,
        "seconds_of_a_switch": seconds,
        "latency_ms": latencies(good),
        "problems": problems(answers),
        "wrong": wrong[:10],
        "other_text_of_the_same_score": sum(
            found[0] != expected[0] and abs(found[1] - expected[1]) <= _TIE
            for found, expected in translations
        ),
        "largest_difference_of_scores": max(
            (abs(found[1] - expected[1]) for found, expected in translations), default=0.0
        ),
        "lost_or_wrong": len(answers) - len(good) + len(wrong),
        "memory_mb_after_each": memory,
    }


def _versions(base_path: Path) -> list[Path]:
    return [path for path in base_path.iterdir() if path.name.isdecimal()]


async def _switch(clients: Clients, base_path: Path) -> None:
    """Publishes a copy of the version as the next one, and removes the old version after that."""
    [old] = _versions(base_path)
    new = base_path / str(int(old.name) + 1)
    unfinished = base_path / ".copying"
    await asyncio.to_thread(shutil.copytree, old, unfinished)
    unfinished.rename(new)
    async with asyncio.timeout(_VERSION_S):
        while not await clients.available(int(new.name)):
            await asyncio.sleep(0.2)
    await asyncio.to_thread(shutil.rmtree, old)


async def overload(clients: Clients, bursts: int, count: int) -> dict[str, Any]:
    """Sends bursts of `count` requests, and single requests before and after each burst."""
    one_by_one = [0] * _SINGLE
    await clients.ask_alone(one_by_one)  # the first request of a server is slow
    before = latencies(await clients.ask_alone(one_by_one))
    reports, every = [], []
    for _ in range(bursts):
        answers = await clients.ask_at_once(count)
        after = await clients.ask_alone(one_by_one)
        reports.append(
            {
                "answered_ms": latencies([a for a in answers if a.status == 200]),
                "refused_ms": latencies([a for a in answers if a.status == 429]),
                "first_after_ms": round(1000 * after[0].seconds, 1),
                "alone_after_ms": latencies(after),
            }
        )
        every += [a for a in [*answers, *after] if a.status not in (200, 429)]
    return {
        "requests_of_a_burst": count,
        "alone_before_ms": before,
        "bursts": reports,
        "problems": problems(every),
    }


def run_soak(sentences: Sequence[str]) -> dict[str, Any]:
    """Starts a server and soaks it."""
    with served(FLAGS.export, FLAGS.server_flags) as (server, _):
        clients = clients_of(server, sentences)
        return asyncio.run(soak(server, clients, _CLIENTS, FLAGS.soak_minutes))


def run_switches(sentences: Sequence[str]) -> dict[str, Any]:
    """Starts a server and changes its version."""
    with served(FLAGS.export, FLAGS.server_flags) as (server, base_path):
        clients = clients_of(server, sentences[:_KNOWN])
        return asyncio.run(switch_versions(server, clients, base_path, FLAGS.switches, _CLIENTS))


def run_overload(sentences: Sequence[str]) -> dict[str, Any]:
    """Starts a server and overloads it."""
    with served(FLAGS.export, FLAGS.server_flags, max_queue=FLAGS.max_queue) as (server, _):
        clients = clients_of(server, sentences)
        return asyncio.run(overload(clients, _BURSTS, _BURST * FLAGS.max_queue))


def failures(result: dict[str, Any]) -> list[str]:
    """Returns the checks that failed."""
    found = [f"{name}: requests failed" for name, each in result.items() if each.get("problems")]
    if not result.get("soak", {"flat": True})["flat"]:
        found.append("soak: memory is not flat")
    if result.get("switches", {}).get("lost_or_wrong"):
        found.append("switches: requests were lost or answered wrongly")
    return found


def main() -> int:
    """Prints the results."""
    sentences = read_sentences(FLAGS.source)
    result = {}
    for name, wanted, run in (
        ("soak", FLAGS.soak_minutes, run_soak),
        ("switches", FLAGS.switches, run_switches),
        ("overload", FLAGS.overload, run_overload),
    ):
        if wanted:
            say(f"Running {name}.")
            result[name] = run(sentences)
    failed = failures(result)
    print(json.dumps({"machine": describe_machine(), **result, "failures": failed}))
    return int(bool(failed))


if __name__ == "__main__":
    command.run(main)
