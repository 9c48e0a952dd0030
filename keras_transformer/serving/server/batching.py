"""Requests merged into batches, run in threads beside the event loop, and split again."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import grpc
import numpy as np

Arrays = dict[str, np.ndarray]

# Of a batch of more than one row, all as wide as the widest: attention takes the square of it.
_MOST_BYTES = 2**16
_BATCH_ROWS = 4  # what a batch costs by itself, in rows: of `small` and `base` on CPUs
_ROW_BYTES = 16  # what a row costs besides its own
_LONGEST = 1000  # bytes of what is said of a request; gRPC sends three for each beyond ASCII
_PATIENCE = 10  # for others that keep coming, in times of what it is for one


class RequestError(Exception):
    """Why a request gets no answer, in one sentence.

    Attributes:
        code: gRPC's status; REST sends the HTTP status that stands for it.
    """

    def __init__(self, code: grpc.StatusCode, sentence: str):
        # A name in it may be as long as the request, and of signs that are no text.
        sentence = sentence.encode("utf-8", "backslashreplace").decode()
        data = sentence.encode()
        if len(data) > _LONGEST:
            sentence = data[:_LONGEST].decode("utf-8", "ignore") + "…"
        super().__init__(sentence)
        self.code = code


class Call(Hashable, Protocol):
    """What is done to a batch. Requests whose calls are equal are merged."""

    def __call__(self, inputs: Arrays) -> Arrays:
        """Returns outputs for inputs, all with the batch as their first dimension."""
        ...


@dataclass(eq=False)
class _Part:
    """Rows of one request, no more than a batch has."""

    call: Call
    inputs: Arrays
    rows: int
    row_bytes: int  # of the longest
    all_bytes: int  # what it holds in memory
    came: float  # by the event loop's clock
    answer: asyncio.Future[Arrays]


class Batcher:
    """Runs requests in batches: the oldest first, with others that wait for the same call.

    Args:
        max_batch_size: most rows of a batch, fewer of long ones; larger requests are split.
        batch_timeout: seconds in which nothing more has come when a batch starts, if a
            thread is idle. One that is full starts at once, and one that others keep
            coming for after ten times as long.
        max_queue: most rows that wait.
        max_queue_bytes: most bytes of the rows that wait.
        batches_at_once: number of threads.
        observe: is told the rows of each batch that is run.
    """

    def __init__(
        self,
        max_batch_size: int,
        batch_timeout: float,
        max_queue: int,
        max_queue_bytes: int,
        batches_at_once: int,
        observe: Callable[[int], object],
    ):
        self._max_batch_size = max_batch_size
        self._batch_timeout = batch_timeout
        self._max_queue = max_queue
        self._max_queue_bytes = max_queue_bytes
        self._observe = observe
        self._threads = concurrent.futures.ThreadPoolExecutor(batches_at_once, "batch")
        self._idle = batches_at_once
        self._waiting: list[_Part] = []
        self._running: set[asyncio.Task[None]] = set()

    @property
    def waiting_rows(self) -> int:
        """Rows of requests that somebody waits for and no thread has begun with."""
        return sum(part.rows for part in self._waiting if not part.answer.done())

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the same."""
        return sum(part.all_bytes for part in self._waiting if not part.answer.done())

    @property
    def running(self) -> int:
        """Batches that have begun and not ended."""
        return len(self._running)

    async def run(self, call: Call, inputs: Arrays) -> Arrays:
        """Returns what `call` returns for `inputs`, of which each has the same number of rows.

        Where it is cancelled before its batch begins, nothing is run.

        Raises:
            RequestError: INVALID_ARGUMENT for no rows, or more rows or bytes than the queue
                ever takes; RESOURCE_EXHAUSTED for more than it has room for now.
        """
        rows = len(next(iter(inputs.values())))
        _check_room("rows", rows, 1, self.waiting_rows, self._max_queue)
        sizes = _row_bytes(inputs)
        held = sizes + _pointer_bytes(inputs)
        _check_room("bytes", int(held.sum()), 0, self.waiting_bytes, self._max_queue_bytes)
        loop = asyncio.get_running_loop()
        now, groups = loop.time(), self._groups(sizes)
        parts = [
            _Part(
                call,
                {name: array[group] for name, array in inputs.items()},
                len(group),
                int(sizes[group].max()),
                int(held[group].sum()),
                now,
                loop.create_future(),
            )
            for group in groups
        ]
        self._waiting += parts
        loop.call_at(now + self._batch_timeout, self._start_batches)
        self._start_batches()
        try:
            outputs = concatenate(await asyncio.gather(*(part.answer for part in parts)))
            places = np.argsort(np.concatenate(groups))
            return {name: array[places] for name, array in outputs.items()}
        finally:
            for part in parts:  # that are left, where one has failed or nobody waits any more
                part.answer.cancel()

    def _groups(self, sizes: np.ndarray) -> list[np.ndarray]:
        """Returns the places of rows that may be in one batch, of lengths as equal as can be."""
        order = np.argsort(sizes, kind="stable")
        starts = [0]
        for end, size in enumerate(sizes[order].tolist()):
            count = end - starts[-1]
            if count == self._max_batch_size or (count and (count + 1) * size > _MOST_BYTES):
                starts.append(end)
        return [np.sort(group) for group in np.split(order, starts[1:])]

    def close(self) -> None:
        """Waits for the threads; to be called when no request is left."""
        self._threads.shutdown()

    def _start_batches(self) -> None:
        """Starts what is due, while there are threads for it."""
        self._waiting = [part for part in self._waiting if not part.answer.done()]
        while self._idle and (batch := self._next_batch()):
            taken = set(batch)
            self._waiting = [part for part in self._waiting if part not in taken]
            self._idle -= 1
            task = asyncio.get_running_loop().create_task(self._run(batch))
            self._running.add(task)  # the loop alone would not keep it
            task.add_done_callback(self._running.discard)

    def _next_batch(self) -> list[_Part]:
        """Returns parts of the call that has waited longest of those that need not wait more."""
        now = asyncio.get_running_loop().time()
        for call in dict.fromkeys(part.call for part in self._waiting):
            same = [part for part in self._waiting if part.call == call]
            patience = same[0].came + _PATIENCE * self._batch_timeout
            due = min(patience, same[-1].came + self._batch_timeout)
            if now >= due or sum(part.rows for part in same) >= self._max_batch_size:
                return self._best_batch(same)
        return []

    def _best_batch(self, same: list[_Part]) -> list[_Part]:
        """Returns the first of parts of one call, and what goes with it.

        Threads that are idle share what waits. A batch takes as long as its longest row, so
        parts with rows as long as the oldest's go first, and of the others as many as leave
        the largest share of the time to real bytes: time is taken to be
        longest row × (rows + `_BATCH_ROWS`).
        """
        oldest, rows = same[0], sum(part.rows for part in same)
        most = min(-(-rows // self._idle), self._max_batch_size)
        same = sorted(same, key=lambda part: abs(part.row_bytes - oldest.row_bytes))
        taken: list[_Part] = []
        count, best, end, widest, useful = 0, 0.0, 0, 0, 0
        for part in same:
            wider = max(widest, part.row_bytes)
            fits = end + part.rows <= most and (end + part.rows) * wider <= _MOST_BYTES
            if not fits and taken:
                continue
            taken, end, widest = [*taken, part], end + part.rows, wider
            useful += part.rows * (part.row_bytes + _ROW_BYTES)
            share = useful / ((widest + _ROW_BYTES) * (end + _BATCH_ROWS))
            if share >= best:
                count, best = len(taken), share
        return taken[:count]

    async def _run(self, batch: list[_Part]) -> None:
        try:
            await self._answer(batch)
        finally:
            self._idle += 1
            self._start_batches()

    async def _answer(self, batch: Sequence[_Part]) -> None:
        """Answers the parts of a batch, one by one where together they fail."""
        self._observe(sum(part.rows for part in batch))
        loop = asyncio.get_running_loop()
        inputs = [part.inputs for part in batch]
        try:
            answers = await loop.run_in_executor(self._threads, _merged, batch[0].call, inputs)
        except Exception as error:
            if len(batch) > 1:
                for part in batch:
                    if not part.answer.done():
                        await self._answer([part])
            elif not batch[0].answer.done():
                batch[0].answer.set_exception(error)
        else:
            for part, answer in zip(batch, answers, strict=True):
                if not part.answer.done():
                    part.answer.set_result(answer)


def _check_room(what: str, more: int, least: int, waiting: int, most: int) -> None:
    """Refuses rows, or their bytes, that the queue never takes, or has no room for now."""
    if not least <= more <= most:
        raise RequestError(
            grpc.StatusCode.INVALID_ARGUMENT,
            f"the request has {more:,} {what}; expected {least} to {most:,}",
        )
    if waiting + more > most:
        raise RequestError(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            f"the queue is full ({waiting:,} of {most:,} {what} wait, and {more:,} more have "
            "come); try again later",
        )


def _row_bytes(inputs: Arrays) -> np.ndarray:
    """Returns the bytes of each row, int64 `[B]`; of strings their text alone."""
    sizes = []
    for array in inputs.values():
        rows = len(array)
        if array.dtype == object:
            lengths = np.fromiter(map(len, array.flat), np.int64, array.size)
            sizes.append(lengths.reshape(rows, -1).sum(axis=1))
        else:
            sizes.append(np.full(rows, array.nbytes // rows))
    return np.sum(sizes, axis=0)


def _pointer_bytes(inputs: Arrays) -> int:
    """Returns the bytes that a row has besides: an array of strings points to each of them."""
    return sum(array[:1].nbytes for array in inputs.values() if array.dtype == object)


def _merged(call: Call, requests: Sequence[Arrays]) -> list[Arrays]:
    """Returns the outputs of each request, of one call for them all."""
    if len(requests) == 1:
        return [call(requests[0])]
    ends = np.cumsum([len(next(iter(inputs.values()))) for inputs in requests])
    outputs = call(concatenate(requests))
    for name, array in outputs.items():
        if array.shape[:1] != (ends[-1],):
            raise ValueError(f"output {name} does not have the batch as its first dimension")
    parts = {name: np.split(array, ends[:-1]) for name, array in outputs.items()}
    return [{name: parts[name][i] for name in parts} for i in range(len(requests))]


def concatenate(requests: Sequence[Arrays]) -> Arrays:
    """Joins arrays of the same name, padded with 0 (strings: empty) to the largest of them."""
    if len(requests) == 1:
        return requests[0]
    joined = {}
    for name in requests[0]:
        arrays = [inputs[name] for inputs in requests]
        largest = np.max([array.shape[1:] for array in arrays], axis=0).astype(int).tolist()
        joined[name] = np.concatenate([_padded(array, largest) for array in arrays])
    return joined


def _padded(array: np.ndarray, shape: list[int]) -> np.ndarray:
    """Returns `array` with the inner dimensions `shape`."""
    if list(array.shape[1:]) == shape:
        return array
    padding = b"" if array.dtype == object else 0
    result = np.full([len(array), *shape], padding, array.dtype)
    result[tuple(slice(size) for size in array.shape)] = array
    return result
