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
  must have the status 200 or 429, and single requests after a burst the status 200.
* --hostile: 1,100 connections that send nothing, six bodies with millions of empty lists, long
  lines without spaces, and the same from clients that leave at once. Next to each, two clients
  send sentences. All must be answered, within --patience_s, and the log may not grow.

Prints one JSON object. The exit code is 1 if a request was lost or answered wrongly, or if memory
is not flat.
"""

import asyncio
import contextlib
import json
import shutil
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import command
from absl import flags
from clients import Clients, Connection, latencies, problems
from command import info
from measuring import describe_machine
from serving import ServerProcess, read_sentences, served

FLAGS = flags.FLAGS
flags.DEFINE_string("export", None, "directory of versions, such as build/export", required=True)
flags.DEFINE_list("source", None, "files with one sentence per line", required=True)
flags.DEFINE_float("soak_minutes", 0, "minutes of constant load", lower_bound=0)
flags.DEFINE_integer("switches", 0, "changes of the version under load", lower_bound=0)
flags.DEFINE_bool("overload", False, "whether to send more requests than the queue takes")
flags.DEFINE_bool("hostile", False, "whether to send hostile requests next to ordinary ones")
flags.DEFINE_float("patience_s", 10, "seconds that --hostile may delay others", lower_bound=0)
flags.DEFINE_integer("max_queue", 64, "rows of the queue, under --overload", lower_bound=1)
flags.DEFINE_list(
    "server_flags", [], "flags of keras-transformer serve, such as batch_timeout_ms=5"
)
flags.DEFINE_float("limit_s", 60, "seconds after which a request is lost", lower_bound=1)
flags.DEFINE_integer("seed", 0, "seed of the order of the sentences")

_FLAT = 0.01  # the largest change of memory in the second half of a soak, relative to the mean
_SAMPLE_S = 10.0
_TIE = 1e-4  # scores whose order may depend on the batch
_INT8_ROUNDING = 0.02  # scores of the same text; the largest difference of 400 sentences was 0.014
_SINGLE = 20  # requests one by one, before and after each burst
_VERSION_S = 120.0
_KNOWN = 200  # sentences whose translations are compared
_CLIENTS = 64
_BURSTS = 3
_BURST = 10  # requests at the same time, for each row of the queue
_HOSTILE_BODIES = {
    "silent": [],
    "lists": [b'{"instances": [' + b"[]," * 5_000_000 + b"[]]}"] * 6,
    "long": [json.dumps({"instances": ["a\u00df\u4e2d?" * 1500] * 24}).encode()],
}


async def soak(server: ServerProcess, clients: Clients) -> dict[str, Any]:
    """Lets clients send requests for a long time, and fits a line to the memory."""
    stop = asyncio.Event()
    started = time.perf_counter()
    asking = asyncio.create_task(clients.keep_asking(_CLIENTS, stop))
    seconds, memory = [], []
    while time.perf_counter() < started + 60 * FLAGS.soak_minutes:
        await asyncio.sleep(_SAMPLE_S)
        seconds.append(round(time.perf_counter() - started, 1))
        memory.append(round(server.memory_mb(), 1))
    stop.set()
    answers = await asking
    half = len(seconds) // 2
    slope = statistics.linear_regression(seconds[half:], memory[half:]).slope
    rise = slope * (seconds[-1] - seconds[half])
    is_flat = rise < _FLAT * statistics.mean(memory[half:])
    return {
        "requests_per_second": round(len(answers) / (answers[-1].ended - started), 1),
        "latency_ms": latencies(answers),
        "rise_mb": round(rise, 2),
        "seconds_and_memory_mb": list(zip(seconds, memory, strict=True)),
        "failures": problems(answers) or ([] if is_flat else ["memory is not flat"]),
    }


async def switch_versions(clients: Clients, base_path: Path) -> dict[str, Any]:
    """Changes the only version of a directory repeatedly under load, and checks the answers."""
    [version] = (path for path in base_path.iterdir() if path.name.isdecimal())
    manifest = json.loads((version / "manifest.json").read_text(encoding="utf-8"))
    rounding = _INT8_ROUNDING if manifest["weights"] in ("int8", "int4") else _TIE
    alone = [answer.best() for answer in await clients.ask_alone(range(clients.sentences))]
    stop = asyncio.Event()
    asking = asyncio.create_task(clients.keep_asking(_CLIENTS, stop))
    seconds = []
    for _ in range(FLAGS.switches):
        started = time.perf_counter()
        new = base_path / str(int(version.name) + 1)
        unfinished = base_path / ".copying"
        await asyncio.to_thread(shutil.copytree, version, unfinished)
        unfinished.rename(new)
        async with asyncio.timeout(_VERSION_S):
            while not await clients.available(int(new.name)):
                await asyncio.sleep(0.2)
        await asyncio.to_thread(shutil.rmtree, version)
        version = new
        seconds.append(round(time.perf_counter() - started, 1))
    stop.set()
    answers = await asking
    translations = [(a.best(), alone[a.sentence]) for a in answers if a.status == 200]
    wrong = [
        {"expected": expected, "found": found}
        for found, expected in translations
        # Also wrong if it is not a number.
        if not abs(found[1] - expected[1]) <= (rounding if found[0] == expected[0] else _TIE)
    ]
    return {
        "seconds_of_a_switch": seconds,
        "latency_ms": latencies(answers),
        "other_text_of_the_same_score": sum(
            found[0] != expected[0] for found, expected in translations
        ),
        "failures": problems(answers) or wrong[:10],
    }


async def overload(clients: Clients) -> dict[str, Any]:
    """Sends bursts of requests, and single requests before and after each burst."""
    one_by_one = [0] * _SINGLE
    await clients.ask_alone(one_by_one)  # the first request of a server is slow
    single = await clients.ask_alone(one_by_one)
    answers = []
    for _ in range(_BURSTS):
        answers += await clients.ask_at_once(_BURST * FLAGS.max_queue)
        single += await clients.ask_alone(one_by_one)
    others = [answer for answer in answers if answer.status not in (200, 429)]
    return {
        "answered_ms": latencies([answer for answer in answers if answer.status == 200]),
        "refused_ms": latencies([answer for answer in answers if answer.status == 429]),
        "alone_ms": latencies(single),
        "failures": problems([*others, *single]),
    }


async def hostile(server: ServerProcess, clients: Clients) -> dict[str, Any]:
    """Sends hostile requests, and sentences next to them."""

    head = f"POST /v1/models/{server.model}:predict HTTP/1.1\r\nHost: localhost\r\n"

    async def send(body: bytes, seconds: float) -> int:
        connection = Connection(*await asyncio.open_connection("127.0.0.1", server.port))
        request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        with contextlib.closing(connection), contextlib.suppress(TimeoutError):
            return (await asyncio.wait_for(connection.ask(request), seconds))[0]
        return 0

    silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(1100)]
    memory, log, results = server.memory_mb(), len(server.output()), {}
    failures: list[Any] = []
    for name, bodies in {**_HOSTILE_BODIES, "left": _HOSTILE_BODIES["long"] * 3}.items():
        stop, before = asyncio.Event(), server.usage()
        others = asyncio.create_task(clients.keep_asking(2, stop))
        statuses = await asyncio.gather(
            *(send(body, 0.5 if name == "left" else FLAGS.limit_s) for body in bodies)
        )
        await asyncio.sleep(2)
        stop.set()
        answers = await others
        results[name] = {
            "statuses": statuses, "others_ms": latencies(answers), **server.usage().since(before),
        }  # fmt: skip
        if problems(answers) or max(answer.seconds for answer in answers) > FLAGS.patience_s:
            failures.append({name: problems(answers) or "others waited"})
    del silent  # keeps the ends of this side until here
    growth = {"peak_mb": server.peak_memory_mb() - memory, "log": len(server.output()) - log}
    if growth["log"] > 10_000:
        failures.append("the log has grown")
    return {**results, **growth, "failures": failures}


def run(name: str, sentences: Sequence[str]) -> dict[str, Any]:
    """Starts a server, and runs one of the tests."""
    limits = {"max_queue": FLAGS.max_queue} if name == "overload" else {}
    with served(FLAGS.export, FLAGS.server_flags, **limits) as (server, base_path):
        known = sentences[:_KNOWN] if name == "switches" else sentences
        clients = Clients(server.port, server.model, known, FLAGS.limit_s, FLAGS.seed)
        if name == "soak":
            return asyncio.run(soak(server, clients))
        if name == "switches":
            return asyncio.run(switch_versions(clients, base_path))
        if name == "hostile":
            return asyncio.run(hostile(server, clients))
        return asyncio.run(overload(clients))


def main() -> int:
    """Prints the results."""
    sentences = read_sentences(FLAGS.source)
    wanted = {"soak": FLAGS.soak_minutes, "switches": FLAGS.switches, "overload": FLAGS.overload}
    wanted["hostile"] = FLAGS.hostile
    result = {}
    for name in filter(wanted.get, wanted):
        info(f"Running {name}.")
        result[name] = run(name, sentences)
    print(json.dumps({"machine": describe_machine(), **result}))
    return int(any(section["failures"] for section in result.values()))


if __name__ == "__main__":
    command.run(main)
