"""What is done to a server, and what comes of it."""

from __future__ import annotations

import asyncio
import shutil
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from load.clients import Clients, latencies, problems
from load.process import ServerProcess

FLAT = 0.01  # of the memory: so little more, or less, at the end of a soak's second half
_SAMPLE_S = 10.0
_TIE = 1e-4  # scores that a batch may put in another order
_ALONE = 20  # requests that tell what one takes by itself
_VERSION_S = 120.0


async def steady_load(
    server: ServerProcess, clients: Clients, count: int, warm_up_s: float, seconds: float
) -> dict[str, Any]:
    """Lets so many clients ask, and returns what is true of the time after the warm-up."""
    stop = asyncio.Event()
    asking = asyncio.create_task(clients.keep_asking(count, stop))
    await asyncio.sleep(warm_up_s)
    before = await asyncio.to_thread(server.usage)
    await asyncio.sleep(seconds)
    after = await asyncio.to_thread(server.usage)
    stop.set()
    every = await asking
    answers = [answer for answer in every if before.clock < answer.ended <= after.clock]
    good = [answer for answer in answers if answer.status == 200]
    return {
        "requests_per_second": len(good) / (after.clock - before.clock),
        "latency_ms": latencies(good),
        "problems": problems(every),
        **after.since(before),
        "memory_mb": round(server.memory_mb()),
        "peak_memory_mb": round(server.peak_memory_mb()),
    }


async def soak(
    server: ServerProcess, clients: Clients, count: int, minutes: float
) -> dict[str, Any]:
    """Lets so many clients ask for a long time, and returns how memory grows."""
    stop = asyncio.Event()
    begun = time.perf_counter()
    asking = asyncio.create_task(clients.keep_asking(count, stop))
    before = await asyncio.to_thread(server.usage)
    samples = []
    while time.perf_counter() < begun + 60 * minutes:
        await asyncio.sleep(_SAMPLE_S)
        samples.append((round(time.perf_counter() - begun, 1), round(server.memory_mb(), 1)))
    after = await asyncio.to_thread(server.usage)
    stop.set()
    answers = await asking
    good = [answer for answer in answers if answer.status == 200]
    return {
        "clients": count,
        "requests_per_second": round(len(good) / (answers[-1].ended - begun), 1),
        "latency_ms": latencies(good),
        "problems": problems(answers),
        **after.since(before),
        **_growth(samples, len(good) / samples[-1][0]),
        "peak_memory_mb": round(server.peak_memory_mb()),
        "seconds_and_memory_mb": samples,
    }


def _growth(samples: Sequence[tuple[float, float]], rate: float) -> dict[str, Any]:
    """Returns what the straight line through the samples of the second half says."""
    half = samples[len(samples) // 2 :]
    seconds, memory = [each[0] for each in half], [each[1] for each in half]
    slope = statistics.linear_regression(seconds, memory).slope
    rise = slope * (seconds[-1] - seconds[0])
    return {
        "mb_per_hour": round(3600 * slope, 1),
        "bytes_per_request": round(slope * 2**20 / rate, 1),
        "rise_mb": round(rise, 2),
        "second_half_mb": [min(memory), max(memory)],
        "flat": abs(rise) < FLAT * statistics.mean(memory),
    }


async def switch_versions(
    server: ServerProcess, clients: Clients, base_path: Path, switches: int, count: int
) -> dict[str, Any]:
    """Changes the version again and again under load, and returns what came of the requests.

    Args:
        server: what serves `base_path`.
        clients: whose requests have to be answered.
        base_path: holds one version, of which copies take the place.
        switches: how many.
        count: of the clients.
    """
    alone = [answer.best() for answer in await clients.ask_alone(range(clients.sentences))]
    memory = [round(server.memory_mb())]
    stop = asyncio.Event()
    asking = asyncio.create_task(clients.keep_asking(count, stop))
    seconds = []
    for _ in range(switches):
        begun = time.perf_counter()
        await _switch(clients, base_path)
        seconds.append(round(time.perf_counter() - begun, 1))
        memory.append(round(server.memory_mb()))
    stop.set()
    answers = await asking
    good = [answer for answer in answers if answer.status == 200]
    translations = [(answer.best(), alone[answer.sentence]) for answer in good]
    wrong = [
        {"expected": expected, "found": found}
        for found, expected in translations
        if found != expected and abs(found[1] - expected[1]) > _TIE
    ]
    return {
        "clients": count,
        "switches": switches,
        "seconds_of_a_switch": seconds,
        "latency_ms": latencies(good),
        "problems": problems(answers),
        "wrong": wrong[:10],
        "other_text_of_the_same_score": sum(
            found[0] != expected[0] for found, expected in translations
        )
        - len(wrong),
        "lost_or_wrong": len(answers) - len(good) + len(wrong),
        "memory_mb_after_each": memory,
    }


async def _switch(clients: Clients, base_path: Path) -> None:
    """Publishes a copy of the version as the next one, and removes the old when it is served."""
    [old] = (path for path in base_path.iterdir() if path.name.isdecimal())
    new = base_path / str(int(old.name) + 1)
    unfinished = base_path / ".copying"
    await asyncio.to_thread(shutil.copytree, old, unfinished)
    unfinished.rename(new)
    async with asyncio.timeout(_VERSION_S):
        while not await clients.available(int(new.name)):
            await asyncio.sleep(0.2)
    await asyncio.to_thread(shutil.rmtree, old)


async def overload(clients: Clients, bursts: int, count: int) -> dict[str, Any]:
    """Sends so many requests at once, again and again, and others one by one before and after."""
    one_by_one = [0] * _ALONE
    await clients.ask_alone(one_by_one)  # not the first of all, which is slow
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
