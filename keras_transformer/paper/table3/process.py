"""A function called in a process of its own, which ends as gently as this one is asked to.

Rows of a table differ in size, and each has to find the machine as the first one did: TensorFlow
gives memory back only as a process ends, and takes no second model of another size on several
devices in one process.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any, TypeVar

from keras_transformer.data.preparation.workers import end_with_parent, interrupts_ignored
from keras_transformer.errors import InputError

_Result = TypeVar("_Result")


def call(function: Callable[..., _Result], *arguments: Any) -> _Result:
    """Returns what `function` returns in a new process, which logs to standard error as this one.

    Ctrl-C and SIGTERM are passed on to it: it ends when it has done what it does then.

    Args:
        function: of a module, so that the other process finds it.
        arguments: what can be pickled.

    Raises:
        InputError: that of `function`, or where the process was killed.
        KeyboardInterrupt: where a signal came.
        RuntimeError: after a defect, whose stack trace the process has written.
    """
    level = logging.getLogger("keras_transformer").getEffectiveLevel()
    context = multiprocessing.get_context("spawn")  # a fork would lack the threads of libraries
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(sender, level, function, arguments))
    with interrupts_ignored():  # until the process has a group of its own
        process.start()
    with _passing_signals_on(process) as signals:
        sender.close()
        try:
            result, error = receiver.recv()
        except EOFError:
            result = error = None
        process.join()
    if signals:
        raise KeyboardInterrupt
    if error is not None:
        raise error
    code = process.exitcode or 0
    if code < 0:
        raise InputError(
            f"a process was killed by signal {-code}, most likely for want of memory; the same "
            "command continues"
        )
    if code:
        raise RuntimeError(f"a process ended with exit code {code}; its stack trace is above")
    return result


@contextlib.contextmanager
def _passing_signals_on(process: BaseProcess) -> Iterator[list[int]]:
    """Passes signals on to a process while it lives; gives a list of those that have come."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came  # where signals cannot be handled
        return

    def pass_on(number: int, frame: FrameType | None) -> None:
        # The first as SIGTERM, which ends the process gently even before it knows of signals.
        came.append(number)
        if process.is_alive():
            os.kill(process.pid or 0, number if len(came) > 1 else signal.SIGTERM)

    before = {n: signal.signal(n, pass_on) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(
    sender: Connection, level: int, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    """Is what the new process does."""
    os.setpgid(0, 0)  # so that a terminal's Ctrl-C comes once, from the process that waits
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    threading.Thread(target=end_with_parent, daemon=True).start()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("keras_transformer").setLevel(level)
    try:
        sender.send((function(*arguments), None))
    except InputError as error:
        sender.send((None, error))
    except KeyboardInterrupt:
        sender.send((None, KeyboardInterrupt()))
