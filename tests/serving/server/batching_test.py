"""Requests merged, split, refused and forgotten, without a model."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import grpc
import numpy as np
import pytest

from keras_transformer.serving.server.batching import Arrays, Batcher, RequestError
from tests.messages import mentions


class Doubling:
    """A call that waits for `gate`, doubles what is there, and fails for -1."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, inputs: Arrays) -> Arrays:
        assert self.gate.wait(60)
        if -1 in inputs["x"]:
            raise ValueError("-1 is not doubled")
        return {name: array * 2 for name, array in inputs.items()}


class Fixture:
    """A batcher, of one thread by default, and the rows of the batches that it has run."""

    def __init__(self, **settings: float) -> None:
        options = {"max_batch_size": 8, "batch_timeout": 0.0, "max_queue": 20, **settings}
        options.setdefault("max_queue_bytes", 2**20)
        options.setdefault("batches_at_once", 1)
        self.rows: list[int] = []
        self.batcher = Batcher(observe=self.rows.append, **options)  # type: ignore[arg-type]
        self.call = Doubling()

    def run(self, *values: float) -> asyncio.Task[Arrays]:
        return asyncio.ensure_future(self.batcher.run(self.call, {"x": np.array(values)}))

    async def held(self, *requests: asyncio.Task[Arrays]) -> None:
        """Waits until requests stand in the queue."""
        for _ in requests:
            await asyncio.sleep(0)


def in_loop(test: Callable[[Fixture], Awaitable[None]], **settings: float) -> Fixture:
    async def main() -> Fixture:
        fixture = Fixture(**settings)
        await test(fixture)
        assert fixture.batcher.waiting_rows == fixture.batcher.waiting_bytes == 0
        fixture.batcher.close()
        return fixture

    return asyncio.run(asyncio.wait_for(main(), 60))


def test_what_comes_while_a_batch_runs_is_one_batch() -> None:
    async def test(f: Fixture) -> None:
        f.call.gate.clear()
        requests = [f.run(i, i + 0.5) for i in range(4)]
        await f.held(*requests)
        assert f.batcher.waiting_rows == 6
        f.call.gate.set()
        answers = await asyncio.gather(*requests)
        assert [a["x"].tolist() for a in answers] == [[2 * i, 2 * i + 1] for i in range(4)]

    assert in_loop(test).rows == [2, 6]


def test_batches_are_full_before_their_time() -> None:
    async def test(f: Fixture) -> None:
        await asyncio.gather(*[f.run(i) for i in range(16)])

    assert in_loop(test, batch_timeout=3600.0).rows == [8, 8]


def test_a_batch_waits_while_others_keep_coming_but_not_for_ever() -> None:
    async def test(f: Fixture) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        requests = []

        async def at(seconds: float, come: bool = False) -> None:
            loop.time = lambda: begun + seconds  # type: ignore[method-assign]
            if come:
                requests.append(f.run(seconds))
            for _ in range(4):
                await asyncio.sleep(0)

        for seconds in (0.0, 0.9, 1.8):
            await at(seconds, come=True)
        await at(2.7)
        assert f.rows == []
        await at(2.9)
        assert f.rows == [3]
        await asyncio.gather(*requests)
        for tenth in range(30, 140, 9):
            await at(tenth / 10, come=True)
        assert f.rows == [3, 13]
        await asyncio.gather(*requests)

    in_loop(test, batch_timeout=1.0, max_batch_size=20)


def test_idle_threads_share_what_waits() -> None:
    async def test(f: Fixture) -> None:
        await asyncio.gather(*[f.run(i) for i in range(6)])

    assert in_loop(test, batches_at_once=2, batch_timeout=0.001).rows == [3, 3]


def test_rows_of_similar_lengths_go_together() -> None:
    async def test(f: Fixture) -> None:
        f.call.gate.clear()
        widths = [40, 900, 50, 800, 40, 30, 900, 1]
        requests = [
            asyncio.ensure_future(f.batcher.run(f.call, {"x": np.full((1, width), 7)}))
            for width in [40, *widths]
        ]
        await f.held(*requests)
        f.call.gate.set()
        _, *answers = await asyncio.gather(*requests)
        # The oldest is 40, then 900, then 1; the widest of a batch is the width of all. Of what is
        # about as long as the oldest all go with it, and what is far shorter waits.
        assert [a["x"].shape[1] for a in answers] == [50, 900, 50, 900, 50, 50, 900, 1]

    assert in_loop(test, max_batch_size=20).rows == [1, 4, 3, 1]


def test_the_rows_of_a_request_go_with_those_as_long() -> None:
    async def test(f: Fixture) -> None:
        texts = [b"y"] * 63
        texts.insert(5, b"x" * 16_000)
        answer = await f.batcher.run(f.call, {"x": np.array(texts, object)})
        assert answer["x"].tolist() == [text * 2 for text in texts]

    assert sorted(in_loop(test, max_batch_size=64, max_queue=64).rows) == [1, 63]


def test_a_full_batch_does_not_wait_behind_another_call() -> None:
    async def test(f: Fixture) -> None:
        first = asyncio.ensure_future(f.run(1))
        await asyncio.sleep(0)
        rows = {"x": np.zeros((4, 1))}
        await asyncio.wait_for(f.batcher.run(Doubling(), rows), 5)
        assert f.rows == [4] and not first.done()
        first.cancel()

    in_loop(test, max_batch_size=4, batch_timeout=60)


def test_long_rows_go_in_smaller_batches() -> None:
    async def test(f: Fixture) -> None:
        wide = {"x": np.ones((8, 2**11))}  # 16 KB a row
        answer = await f.batcher.run(f.call, wide)
        assert answer["x"].shape == (8, 2**11)
        f.call.gate.clear()
        one = {"x": np.ones((1, 2**12))}
        requests = [asyncio.ensure_future(f.batcher.run(f.call, one)) for _ in range(6)]
        await f.held(*requests)
        f.call.gate.set()
        await asyncio.gather(*requests)

    rows = in_loop(test).rows
    assert rows[:2] == [4, 4] and sum(rows[2:]) == 6 and max(rows[2:]) == 2


def test_a_large_request_is_split_and_joined() -> None:
    async def test(f: Fixture) -> None:
        answer = await f.run(*range(19))
        assert answer["x"].tolist() == list(range(0, 38, 2))

    assert in_loop(test).rows == [8, 8, 3]


def test_inner_dimensions_are_padded() -> None:
    async def test(f: Fixture) -> None:
        f.call.gate.clear()
        first = f.run(0)
        wide, narrow = (
            asyncio.ensure_future(f.batcher.run(f.call, {"x": np.full((1, size), 7)}))
            for size in (3, 1)
        )
        await f.held(first, wide, narrow)
        f.call.gate.set()
        assert (await wide)["x"].tolist() == [[14, 14, 14]]
        assert (await narrow)["x"].tolist() == [[14, 0, 0]]
        await first

    assert in_loop(test).rows == [1, 2]


def test_different_calls_are_not_merged() -> None:
    async def test(f: Fixture) -> None:
        f.call.gate.clear()
        other = Doubling()
        requests = [f.run(1), f.run(2), f.run(3)]
        requests.insert(2, asyncio.ensure_future(f.batcher.run(other, {"x": np.array([5])})))
        await f.held(*requests)
        f.call.gate.set()
        answers = await asyncio.gather(*requests)
        assert [a["x"].tolist() for a in answers] == [[2], [4], [10], [6]]

    assert in_loop(test).rows == [1, 2, 1]


def test_a_request_that_fails_fails_alone() -> None:
    async def test(f: Fixture) -> None:
        f.call.gate.clear()
        requests = [f.run(0), f.run(1), f.run(-1), f.run(2)]
        await f.held(*requests)
        f.call.gate.set()
        answers = await asyncio.gather(*requests, return_exceptions=True)
        texts = [str(a) if isinstance(a, ValueError) else a["x"].tolist() for a in answers]  # type: ignore[index]
        assert texts == [[0], [2], "-1 is not doubled", [4]]

    assert in_loop(test).rows == [1, 3, 1, 1, 1]


def test_a_full_queue_refuses_at_once_and_recovers() -> None:
    async def test(f: Fixture) -> None:
        f.call.gate.clear()
        requests = [f.run(0), f.run(*range(20))]
        await f.held(*requests)
        with pytest.raises(RequestError, match=mentions("20 of 20 rows", "1")) as no:
            await f.run(1)
        assert no.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        f.call.gate.set()
        await asyncio.gather(*requests)
        assert (await f.run(4))["x"].tolist() == [8]

    assert in_loop(test).rows == [1, 8, 8, 4, 1]


def test_a_queue_is_full_of_few_rows_that_are_large() -> None:
    async def test(f: Fixture) -> None:
        def run(size: int) -> asyncio.Task[Arrays]:
            text = np.array([b"y" * size], object)
            return asyncio.ensure_future(f.batcher.run(f.call, {"x": text}))

        f.call.gate.clear()
        requests = [run(900), run(400), run(400)]  # the first does not wait
        await f.held(*requests)
        assert f.batcher.waiting_bytes == 2 * (400 + 8)  # 8: of a pointer
        with pytest.raises(RequestError, match=mentions("816", "1,000", "185")) as no:
            await run(177)
        assert no.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(RequestError, match=mentions("1,001", "bytes", "0", "1,000")) as no:
            await run(993)
        assert no.value.code is grpc.StatusCode.INVALID_ARGUMENT
        requests.append(run(176))
        await f.held(requests[-1])
        assert f.batcher.waiting_bytes == 1000
        f.call.gate.set()
        await asyncio.gather(*requests)
        await run(992)
        nothing = await f.batcher.run(f.call, {"x": np.zeros((1, 0))})
        assert nothing["x"].shape == (1, 0)

    in_loop(test, max_queue_bytes=1000)


@pytest.mark.parametrize("rows", [0, 21])
def test_what_never_fits_is_invalid(rows: int) -> None:
    async def test(f: Fixture) -> None:
        with pytest.raises(RequestError, match=mentions(rows, "rows", "1", "20")) as no:
            await f.run(*range(rows))
        assert no.value.code is grpc.StatusCode.INVALID_ARGUMENT

    assert in_loop(test).rows == []


def test_what_nobody_waits_for_is_not_run() -> None:
    async def test(f: Fixture) -> None:
        f.call.gate.clear()
        running, cancelled, kept = f.run(0), f.run(*range(12)), f.run(3)
        await f.held(running, cancelled, kept)
        cancelled.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert f.batcher.waiting_rows == 1
        f.call.gate.set()
        assert (await kept)["x"].tolist() == [6]
        await running

    assert in_loop(test).rows == [1, 1]
