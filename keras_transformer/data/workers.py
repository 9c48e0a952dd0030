"""Runs a function on many tasks in several processes."""

from __future__ import annotations

import collections
import contextlib
import itertools
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from keras_transformer.errors import InputError, StoppedError

_Task = TypeVar("_Task")
Result = TypeVar("Result")


def run_tasks(
    function: Callable[[_Task], Result], tasks: Iterable[_Task], num_workers: int = 1
) -> Iterator[Result]:
    """Yields the results of a function for all tasks, in the order of the tasks.

    With one worker, this process does the work. With more, it is done in processes that stop
    immediately on Ctrl-C, after an error, and when the iterator is closed. A script then needs the
    line `if __name__ == "__main__":`. Only a few tasks are taken ahead of their results.
    """
    if num_workers < 1:
        raise InputError(f"There are {num_workers} workers, but there must be at least 1.")
    unstarted = iter(tasks)
    first = list(itertools.islice(unstarted, 2))
    tasks = itertools.chain(first, unstarted)
    if num_workers == 1 or len(first) < 2:
        yield from map(function, tasks)
        return
    # "fork" would copy TensorFlow's locks without its threads.
    context = multiprocessing.get_context("spawn")
    waiting: collections.deque[Future[Result]] = collections.deque()
    with _Pool(num_workers, context, _begin) as pool:
        try:
            for task in tasks:
                with interrupts_ignored():  # any of the first tasks may start a worker
                    waiting.append(pool.submit(function, task))
                if len(waiting) > num_workers + 2:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise StoppedError(
                "A worker process was killed, most likely because memory ran out. Use fewer "
                "workers. The same command resumes."
            ) from error
        except BaseException:  # Ctrl-C, an error, or the iterator was closed
            _kill(pool)
            raise
        finally:
            pool.shutdown(cancel_futures=True)


class _Pool(ProcessPoolExecutor):
    """A pool that does not hang when its workers are killed.

    Before Python 3.11.5 (Debian 12 has 3.11.2), writing a task larger than the pipe's buffer blocks
    forever if no worker is left: https://github.com/python/cpython/issues/94777. This closes the
    pipe, as newer versions do, in the thread that closes the queue next.
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
    """Ignores Ctrl-C in the block. Processes that start there ignore it, too."""
    if threading.current_thread() is not threading.main_thread():
        yield  # other threads cannot change signal handlers
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _kill(pool: ProcessPoolExecutor) -> None:
    """Kills the workers, because a task can take minutes. Python 3.14 has `kill_workers`."""
    for process in list((pool._processes or {}).values()):
        process.kill()


def _begin() -> None:
    """Prepares a worker: it ignores the signals of a terminal, and ends with its parent."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()


def end_with_parent() -> None:
    """Waits for the end of the parent process, and then ends this process."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)  # the parent was killed, so nothing reads the results
