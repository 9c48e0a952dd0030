"""Runs a function on many tasks in several processes, or on other machines."""

from __future__ import annotations

import collections
import contextlib
import itertools
import multiprocessing
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from keras_transformer import plugins
from keras_transformer.errors import StoppedError, require

Result = TypeVar("Result")
_HIDING = threading.Lock()
# Returns the result of a task that cannot be done, from its arguments and the error.
OnLoss: TypeAlias = Callable[[tuple[Any, ...], StoppedError], Any]
# Runs the tasks of `run_tasks` on other machines, with its other arguments. Paths in tasks are
# absolute, and the first argument of a task tells a person which one it is.
TaskRunner: TypeAlias = Callable[
    [Callable[..., Any], Iterable[tuple[Any, ...]], Path | None, bool, OnLoss | None], Iterator[Any]
]
# The number of processes, or what runs the tasks on other machines.
Workers: TypeAlias = int | TaskRunner


def choose_workers(num_workers: int | None, addresses: Mapping[str, Any]) -> Workers | None:
    """Returns the task runner whose address is given by its name, or the number of processes."""
    for name, address in addresses.items():
        if address is not None:
            require(not num_workers, f"{name} and a number of workers: both given. Remove one.")
            runner: TaskRunner = plugins.find("task_runners", name).connect(address)
            return runner
    return num_workers


def run_tasks(
    function: Callable[..., Result],
    tasks: Iterable[tuple[Any, ...]],
    workers: Workers,
    directory: Path | None,
    *,
    uses_all_cores: bool = False,
    on_loss: OnLoss | None = None,
) -> Iterator[Result]:
    """Yields the results of a function for all tasks, in the order of the tasks.

    With one worker, this process does the work. With more, it is done in processes that stop
    immediately on Ctrl-C, after an error, and when the iterator is closed. Only a few tasks are
    taken ahead of their results. The function must be at the top of a module. Tasks read and write
    below `directory`, which exists, or no files if it is None. On other machines, `on_loss` gives
    the result of a task that kills its workers. Otherwise, such a task is an error.
    """
    if not isinstance(workers, int):
        yield from workers(function, tasks, directory, uses_all_cores, on_loss)
        return
    num_workers, remaining = workers, iter(tasks)
    first = list(itertools.islice(remaining, 2))
    tasks = itertools.chain(first, remaining)
    if num_workers <= 1 or len(first) < 2:
        yield from itertools.starmap(function, tasks)
        return
    waiting: collections.deque[Future[Result]] = collections.deque()
    # "fork" would copy TensorFlow's locks without its threads.
    pool = ProcessPoolExecutor(num_workers, multiprocessing.get_context("spawn"), _begin)
    try:
        for task in tasks:
            with interrupts_ignored(), _script_hidden():  # each may start a worker
                waiting.append(pool.submit(function, *task))
            if len(waiting) > num_workers + 2:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise StoppedError(
            "A worker process was killed, most likely because memory ran out. Use fewer workers. "
            "The same command resumes."
        ) from error
    except BaseException:  # Ctrl-C, an error, or the iterator was closed
        # A task can take minutes, so the workers are killed. Python 3.14 has `kill_workers`.
        for process in list((pool._processes or {}).values()):
            process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


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


@contextlib.contextmanager
def _script_hidden() -> Iterator[None]:
    """Hides the running script from the processes that start in the block.

    They need only this package. A script without `if __name__ == "__main__":` would run in each.
    """
    with _HIDING:
        script = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = script


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
