"""Requests are merged, split, ordered and cancelled, without a model."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_transformer.extensions.serving import Settings
from keras_transformer.extensions.serving.batching import Batcher
from keras_transformer.extensions.serving.tensors import Arrays


class DoublingCall:
    """A call that waits for `gate` and doubles its inputs."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, inputs: Arrays) -> Arrays:
        assert self.gate.wait(60)
        return {name: array * 2 for name, array in inputs.items()}


class Fixture:
    """A batcher with one thread by default, and the rows of its batches so far."""

    def __init__(self, num_threads: int = 1, **settings: Any) -> None:
        options = {"max_batch_size": 8, "batch_timeout_ms": 0.0, "max_queue": 20, **settings}
        self.rows: list[int] = []
        self.batcher = Batcher(Settings(Path(), **options), num_threads, self.rows.append)
        self.call = DoublingCall()

    def run(self, *values: float, rows: int | None = None) -> asyncio.Task[Arrays]:
        """Starts a request with a value per row, or with the values divided into `rows`."""
        x = np.array(values).reshape([rows, -1] if rows else -1)
        return asyncio.ensure_future(self.batcher.run(self.call, {"x": x}))

    async def held(self, *requests: asyncio.Task[Arrays]) -> None:
        """Waits until requests stand in the queue."""
        for _ in requests:
            await asyncio.sleep(0)

    async def queued(self, *requests: asyncio.Task[Arrays]) -> None:
        """Starts the first batch when all requests stand in the queue."""
        self.call.gate.clear()
        await self.held(*requests)
        self.call.gate.set()

    async def results(self, *requests: asyncio.Task[Arrays]) -> list[Any]:
        """Returns the results of requests that stand in the queue at the same time."""
        await self.queued(*requests)
        return await asyncio.gather(*requests)


def in_loop(test: Callable[[Fixture], Awaitable[None]], **settings: Any) -> Fixture:
    async def main() -> Fixture:
        fixture = Fixture(**settings)
        await test(fixture)
        assert fixture.batcher.waiting_rows == 0
        fixture.batcher.close()
        return fixture

    return asyncio.run(asyncio.wait_for(main(), 60))


def test_batches_are_full_before_their_time() -> None:
    async def test(f: Fixture) -> None:
        await f.queued(*(requests := [f.run(i) for i in range(17)]))  # the first one runs alone
        await asyncio.gather(*requests)

    assert in_loop(test, num_threads=2, batch_timeout_ms=3.6e6).rows == [1, 8, 8]


def test_idle_threads_share_waiting_requests() -> None:
    async def test(f: Fixture) -> None:
        f.call.gate.clear()  # so that the first batch does not end before the second one starts
        requests = [f.run(i) for i in range(7)]
        while sum(f.rows) < 7:
            await asyncio.sleep(0.01)
        f.call.gate.set()
        await asyncio.gather(*requests)

    assert in_loop(test, num_threads=3, batch_timeout_ms=100).rows == [1, 3, 3]


def test_rows_of_similar_lengths_go_together() -> None:
    async def test(f: Fixture) -> None:
        widths = [40, 400, 50, 350, 40, 30, 400, 1]
        _, *answers = await f.results(*(f.run(*[7] * width, rows=1) for width in [40, *widths]))
        # 400 and 1 are the first of their classes, and 40 comes after another one. The widest row
        # sets the width of a batch. Rows of similar length go with the first, and others wait.
        assert [a["x"].shape[1] for a in answers] == [50, 400, 50, 400, 50, 50, 400, 1]

    assert in_loop(test, max_batch_size=20).rows == [1, 3, 1, 4]


def test_a_full_batch_does_not_wait_behind_another_call() -> None:
    async def test(f: Fixture) -> None:
        f.call.gate.clear()
        await f.held(first := f.run(1), second := f.run(2, 3))  # the second one waits
        rows = {"x": np.zeros((4, 1))}
        await asyncio.wait_for(f.batcher.run(DoublingCall(), rows), 5)
        assert f.rows == [1, 4] and not second.done()
        second.cancel()
        f.call.gate.set()
        await first

    in_loop(test, num_threads=2, max_batch_size=4, batch_timeout_ms=60_000)


def test_a_large_request_is_split_and_joined() -> None:
    async def test(f: Fixture) -> None:
        answer = await f.run(*range(19))
        assert answer["x"].tolist() == list(range(0, 38, 2))

    assert in_loop(test).rows == [8, 8, 3]


def test_inner_dimensions_are_padded() -> None:
    async def test(f: Fixture) -> None:
        requests = (f.run(0), f.run(7, 7, 7, rows=1), f.run(7, rows=1))
        _, wide, narrow = await f.results(*requests)
        assert wide["x"].tolist() == [[14, 14, 14]]
        assert narrow["x"].tolist() == [[14, 0, 0]]

    assert in_loop(test).rows == [1, 2]


def test_different_calls_are_not_merged() -> None:
    async def test(f: Fixture) -> None:
        requests = [f.run(1), f.run(2), f.run(3)]
        other = asyncio.ensure_future(f.batcher.run(DoublingCall(), {"x": np.array([5])}))
        answers = await f.results(*requests, other)
        assert [a["x"].tolist() for a in answers] == [[2], [4], [6], [10]]

    assert in_loop(test).rows == [1, 2, 1]


def test_a_short_request_overtakes_the_parts_of_a_long_one_which_end_with_their_client() -> None:
    async def test(f: Fixture) -> None:
        long, short = f.run(*[7] * (6 * 4096), rows=6), f.run(1)  # a row has the bytes of a batch
        await f.queued(long, short)
        assert (await short)["x"].tolist() == [2] and len(f.rows) <= 3
        long.cancel()

    rows = in_loop(test).rows
    assert rows[:2] == [1, 1] and len(rows) <= 4


@pytest.mark.parametrize("rows", [1, 2])
def test_a_short_request_waits_for_one_of_many_long_ones(rows: int) -> None:
    async def test(f: Fixture) -> None:
        long = [f.run(*[7] * (rows * 4096), rows=rows) for _ in range(60)]
        await f.results(*long, f.run(1, 1))

    assert in_loop(test, max_queue=200).rows == [1, 2, *[1] * (60 * rows - 1)]


def test_a_request_does_not_wait_for_one_whose_client_has_gone() -> None:
    async def test(f: Fixture) -> None:
        f.call.gate.clear()
        first, gone = f.run(1), f.run(*[7] * (6 * 4096), rows=6)
        await f.held(first, gone)
        gone.cancel()
        await f.held(gone)
        await f.results(f.run(*[7] * 4096, rows=1), f.run(1, 1), first)

    assert in_loop(test).rows == [1, 1, 2]


def test_a_long_request_and_all_short_ones_get_equal_shares() -> None:
    async def test(f: Fixture) -> None:
        first, long = f.run(1), f.run(*[7] * 32, rows=2)
        short = [f.run(1) for _ in range(30)]
        await f.queued(first, long, *short)
        await long  # its first part has the bytes of 17 short requests
        assert 14 <= sum(request.done() for request in short) <= 20
        await asyncio.gather(first, *short)

    in_loop(test, max_batch_size=1, max_queue=40)


def test_a_very_long_row_does_not_delay_later_short_ones() -> None:
    async def test(f: Fixture) -> None:
        await f.batcher.run(f.call, {"x": np.ones((1, 2**21))})
        large, short = f.run(*[7] * 16_000, rows=1000), f.run(1)
        await f.queued(large, short)
        await short
        assert not large.done() and f.batcher.waiting_rows > 500
        await large

    in_loop(test, max_queue=2000)
