"""Functions of tasks, run by several processes, with their results in the tasks' order."""

from __future__ import annotations

import collections
import contextlib
import itertools
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol, TypeVar

from keras_transformer.errors import InputError, StoppedError

_Source = TypeVar("_Source")
_Task = TypeVar("_Task")
Result = dict[str, Any]


class Runner(Protocol):
    """Who does the work of a stage."""

    def __call__(
        self,
        stage: Callable[[_Task], Result],
        sources: Sequence[_Source],
        expand: Callable[[_Source], Iterable[_Task]],
    ) -> Iterator[Result]:
        """Yields what `stage` returns of each task of each source, in their order.

        Args:
            stage: of a module, so that other processes find it; returns JSON values.
            sources: what tasks are made of.
            expand: makes the tasks of a source; of a module too.

        Raises:
            InputError: what `stage` and `expand` raise; `StoppedError` where a process or a
                machine went away.
            OSError: for a file that cannot be written.
        """
        ...


def alone(task: _Task) -> Iterable[_Task]:
    """Returns the one task of a source that is a task itself."""
    return (task,)


class Workers:
    """Processes of this machine; with one, this process does the work.

    With more, a script that uses them needs the line `if __name__ == "__main__":`. They end at
    once, in the middle of their tasks, on Ctrl-C, after an error, and where the results are closed.
    """

    def __init__(self, count: int) -> None:
        """Starts nothing yet; raises `InputError` for a count below 1."""
        if count < 1:
            raise InputError(f"there are {count} workers; expected 1 or more")
        self._count = count

    def __call__(
        self,
        stage: Callable[[_Task], Result],
        sources: Sequence[_Source],
        expand: Callable[[_Source], Iterable[_Task]],
    ) -> Iterator[Result]:
        """Yields the results, as `Runner` says; only a few tasks are made ahead."""
        unbegun = (task for source in sources for task in expand(source))
        first = list(itertools.islice(unbegun, 2))
        tasks = itertools.chain(first, unbegun)
        if self._count == 1 or len(first) < 2:
            yield from map(stage, tasks)
            return
        # Not forked: TensorFlow's threads may be here, and would be missing in the children.
        context = multiprocessing.get_context("spawn")
        waiting: collections.deque[Future[Result]] = collections.deque()
        with _Pool(self._count, context, _begin) as pool:
            try:
                for task in tasks:
                    with interrupts_ignored():  # any of the first tasks may begin a worker
                        waiting.append(pool.submit(stage, task))
                    if len(waiting) > self._count + 2:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            except BrokenProcessPool as error:
                raise StoppedError(
                    "a worker process was killed, most likely for want of memory, of which fewer "
                    "workers need less; the same command continues"
                ) from error
            except BaseException:  # Ctrl-C, an error, or nobody takes more results
                _kill(pool)
                raise
            finally:
                pool.shutdown(cancel_futures=True)


class _Pool(ProcessPoolExecutor):
    """A pool that ends when its workers are killed.

    Before Python 3.11.5, as of Debian 12, a task that is more than the pipe holds would be written
    for ever, with nobody left to read it: https://github.com/python/cpython/issues/94777. What
    newer ones do is done here by the same thread as there, which closes the queue next: of two
    threads that close the pipe at once one fails, and the queue is waited for in vain.
    """

    if sys.version_info < (3, 11, 5):

        def _start_executor_manager_thread(self) -> None:
            super()._start_executor_manager_thread()
            manager: Any = self._executor_manager_thread

            def terminate_broken(cause: object) -> None:
                manager.call_queue._reader.close()
                type(manager).terminate_broken(manager, cause)

            manager.terminate_broken = terminate_broken


@contextlib.contextmanager
def interrupts_ignored() -> Iterator[None]:
    """Ignores Ctrl-C, which processes that begin meanwhile inherit: it is left to this one."""
    if threading.current_thread() is not threading.main_thread():
        yield  # where signals cannot be set
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _kill(pool: ProcessPoolExecutor) -> None:
    """Ends the workers at once, as `kill_workers` of Python 3.14: a task can take minutes."""
    for process in list((pool._processes or {}).values()):
        process.kill()


def _begin() -> None:
    """Ends this process with the one that began it, to which interrupts are left."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()


def end_with_parent() -> None:
    """Waits for the process that began this one, and ends this one with it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)  # it was killed, and nobody waits for what is done here
