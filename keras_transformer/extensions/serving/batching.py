"""Merges requests into batches, runs the batches in threads, and splits the results."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from keras_transformer.extensions.serving import Settings
from keras_transformer.extensions.serving.tensors import Arrays, RequestError

# A function of a batch. All inputs and outputs have the batch as their first dimension.
Call = Callable[[Arrays], Arrays]

# Only rows of similar length are merged, because a batch takes as long as its longest row. The
# longer row may have `_MAX_LENGTH_RATIO` times the bytes of the shorter one, plus `_EXTRA_BYTES`,
# so that short rows can always be merged.
_MAX_LENGTH_RATIO = 3
_EXTRA_BYTES = 32
# Bytes of the longest row times rows. So a batch of long rows ends soon, and others get their turn.
_MAX_BATCH_BYTES = 2**14
_PADDING = 16  # bytes of padding that take as long as a byte
_BITS_PER_CLASS = 4  # requests of one class have similar sizes, up to 16 times as large


@dataclass(eq=False)
class _Part:
    """Rows of one request that go into one batch."""

    call: Call
    queue: str
    inputs: Arrays
    rows: int
    row_bytes: int  # size of the longest row
    most: int  # rows of a batch
    arrived: float  # time of the event loop
    turn: int  # orders the parts
    cost: int  # bytes that it adds to the turn
    result: asyncio.Future[Arrays] = field(default_factory=asyncio.Future)


class Batcher:
    """Merges requests with the same call into batches, in fair order.

    A request with many rows or much text is split. Requests of similar size form a class, and the
    classes get equal shares, in bytes (start-time fair queueing). So however many long requests
    wait, a short one waits for at most one batch of each class of longer ones.

    While a batch is computed, a request waits `batch_timeout_ms` for others even if a thread is
    idle. One queue may have `max_queue` waiting rows, and compute `num_threads` batches at the same
    time. Several queues divide twice as many by `fair_share`. `observe` is called with the number
    of rows of each batch.
    """

    def __init__(self, settings: Settings, num_threads: int, observe: Callable[[int], object]):
        self._settings = settings
        self._num_threads = num_threads
        self._observe = observe
        self._batch_timeout = settings.batch_timeout_ms / 1000
        self._threads = concurrent.futures.ThreadPoolExecutor(2 * num_threads, "batch")
        self._computing: collections.Counter[str] = collections.Counter()  # batches, by queue
        self._waiting: list[_Part] = []
        self._turn = 0  # turn of the last batch
        self._next_turns: collections.Counter[Hashable] = collections.Counter()  # for each class
        self._running: set[asyncio.Task[None]] = set()

    @property
    def waiting_rows(self) -> int:
        """Number of rows that wait."""
        return sum(part.rows for part in self._waiting if not part.result.done())

    async def run(
        self, call: Call, inputs: Arrays, max_rows: int | None = None, queue: str = ""
    ) -> Arrays:
        """Returns the result of `call` for `inputs`, in batches of at most `max_rows`.

        Requests of different queues are in different classes. If the caller cancels before the
        batch starts, the rows are not computed.
        """
        rows, waiting = len(next(iter(inputs.values()))), self.waiting_rows
        own = sum(p.rows for p in self._waiting if p.queue == queue and not p.result.done())
        if rows > (left := fair_share(own, waiting, 2 * self._settings.max_queue)):
            reason = f"The queue is full: {own:,} of {own + left:,} rows wait."
            raise RequestError(429, f"{reason} The request has {rows:,}. Try again later.")
        loop = asyncio.get_running_loop()
        sizes = _row_bytes(inputs)
        max_batch_size = self._settings.max_batch_size
        most = min(max_batch_size, max_rows or max_batch_size)
        parts: list[_Part] = []
        groups = _groups(sizes, most)
        now = loop.time()
        size_class = queue, int(sizes.sum()).bit_length() // _BITS_PER_CLASS
        turn = max(self._turn, self._next_turns[size_class])
        for group in groups:
            columns = {name: array[group] for name, array in inputs.items()}
            longest = int(sizes[group].max())
            cost = min(longest, _MAX_BATCH_BYTES) * len(group)  # models truncate long rows
            fitting = _fitting_rows(longest, most)
            parts.append(_Part(call, queue, columns, len(group), longest, fitting, now, turn, cost))
            turn += cost
        self._next_turns[size_class] = turn
        self._waiting = sorted([*self._waiting, *parts], key=lambda part: part.turn)
        loop.call_later(self._batch_timeout, self._start_batches)
        self._start_batches()
        try:
            outputs = concatenate(await asyncio.gather(*(part.result for part in parts)))
            original = np.argsort(np.concatenate(groups))
            return {name: array[original] for name, array in outputs.items()}
        finally:
            for part in parts:  # a part still waits if another one failed or the client left
                if part.result.cancel() or part.result.cancelled():
                    self._next_turns[size_class] -= part.cost

    def close(self) -> None:
        """Waits for the threads. Call it when no requests are left."""
        self._threads.shutdown()

    def _start_batches(self) -> None:
        """Starts batches while threads are idle and requests have waited long enough."""
        self._waiting = [part for part in self._waiting if not part.result.done()]
        while batch := self._next_batch():
            taken = set(batch)
            self._waiting = [part for part in self._waiting if part not in taken]
            self._computing[batch[0].queue] += 1
            task = asyncio.get_running_loop().create_task(self._run(batch))
            self._running.add(task)  # the event loop has only a weak reference
            task.add_done_callback(self._running.discard)

    def _next_batch(self) -> list[_Part]:
        """Returns the parts of the next batch, or [] if all parts should wait longer.

        A batch has the first part of its call, and others of similar length.
        """
        now = asyncio.get_running_loop().time()
        for call in dict.fromkeys(part.call for part in self._waiting):
            parts = [part for part in self._waiting if part.call == call]
            first, rows = parts[0], sum(part.rows for part in parts)
            own, all_batches = self._computing[first.queue], self._computing.total()
            idle = fair_share(own, all_batches, 2 * self._num_threads)
            may_wait = all_batches > 0 and now < first.arrived + self._batch_timeout
            if idle < 1 or (may_wait and rows < first.most):
                continue
            space = min(-(-rows // idle), first.most)  # the idle threads share the rows
            self._turn = max(self._turn, first.turn)
            batch, rows = [first], first.rows
            for part in sorted(parts[1:], key=lambda part: abs(part.row_bytes - first.row_bytes)):
                shorter, longer = sorted((first.row_bytes, part.row_bytes))
                is_similar = longer <= _MAX_LENGTH_RATIO * shorter + _EXTRA_BYTES
                if is_similar and rows + part.rows <= min(space, part.most):
                    batch.append(part)
                    rows, space = rows + part.rows, min(space, part.most)
            return batch
        return []

    async def _run(self, batch: list[_Part]) -> None:
        try:
            await self._set_results(batch)
        finally:
            self._computing[batch[0].queue] -= 1
            self._start_batches()

    async def _set_results(self, batch: Sequence[_Part]) -> None:
        """Runs a batch. If it fails, runs its parts one by one."""
        self._observe(sum(part.rows for part in batch))
        loop = asyncio.get_running_loop()
        try:
            results = await loop.run_in_executor(self._threads, _run_merged, batch)
        except Exception as error:
            if len(batch) > 1:
                for part in batch:
                    if not part.result.done():
                        await self._set_results([part])
            elif not batch[0].result.done():
                batch[0].result.set_exception(error)
        else:
            for part, result in zip(batch, results, strict=True):
                if not part.result.done():
                    part.result.set_result(result)


def fair_share(own: int, total: int, limit: int) -> int:
    """Returns how many units a user may add to its `own` ones of all `total` used ones.

    Nobody may have more than is left free. So one user gets half of the limit, and n users a
    (n + 1)th part each, if they give back what they use. What is small is soon used up.
    """
    return (limit - total - own + 1) // 2


def _row_bytes(inputs: Arrays) -> np.ndarray:
    """Returns the bytes of each row, int64 `[B]`. Padding counts less."""
    sizes = []
    for array in inputs.values():
        rows = len(array)
        if array.dtype == object:
            lengths = np.fromiter(map(len, array.flat), np.int64, array.size)
            sizes.append(lengths.reshape(rows, -1).sum(axis=1))
        else:
            values = np.count_nonzero(array.reshape(rows, -1), axis=1)
            sizes.append(values * array.itemsize + array.nbytes // rows // _PADDING)
    return np.sum(sizes, axis=0)


def _fitting_rows(row_bytes: int, most: int) -> int:
    """Returns how many rows of a length a batch may have."""
    return min(most, max(1, _MAX_BATCH_BYTES // max(1, row_bytes)))


def _groups(sizes: np.ndarray, most: int) -> list[np.ndarray]:
    """Divides rows into batches of rows of similar length. Returns their indices."""
    order = np.argsort(-sizes, kind="stable")
    groups = []
    while len(order):
        fitting = _fitting_rows(int(sizes[order[0]]), most)
        groups.append(order[:fitting])
        order = order[fitting:]
    return groups


def _run_merged(batch: Sequence[_Part]) -> list[Arrays]:
    """Runs the call of a batch and returns the outputs of each part."""
    outputs = batch[0].call(concatenate([part.inputs for part in batch]))
    ends = np.cumsum([part.rows for part in batch])
    columns = {name: np.split(array, ends[:-1]) for name, array in outputs.items()}
    return [{name: columns[name][i] for name in columns} for i in range(len(batch))]


def concatenate(requests: Sequence[Arrays]) -> Arrays:
    """Concatenates the arrays of each name. Pads them with zeros or empty strings."""
    if len(requests) == 1:
        return requests[0]
    joined = {}
    for name in requests[0]:
        arrays = [inputs[name] for inputs in requests]
        padding = b"" if arrays[0].dtype == object else 0
        shape = np.max([array.shape[1:] for array in arrays], axis=0).astype(int).tolist()
        padded = [np.full([len(array), *shape], padding, array.dtype) for array in arrays]
        for target, array in zip(padded, arrays, strict=True):
            target[tuple(map(slice, array.shape))] = array
        joined[name] = np.concatenate(padded)
    return joined
