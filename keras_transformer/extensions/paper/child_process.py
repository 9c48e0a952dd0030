"""Calls a function in a separate process and forwards signals to it.

TensorFlow frees memory only when a process ends, and several devices in one process cannot
train two models of different sizes. In a new process, a trial has the same conditions as the first
one.
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

from keras_transformer.data.workers import end_with_parent, interrupts_ignored
from keras_transformer.errors import InputError
from keras_transformer.runs.machine import stop_signals

_Result = TypeVar("_Result")


def call(function: Callable[..., _Result], *arguments: Any) -> _Result:
    """Returns the result of `function` in a new process, which logs to standard error.

    `function` is at the top of a module, so that the other process finds it.
    Ctrl-C, SIGTERM and SIGHUP are passed on to the process, and this call waits until it has ended.
    """
    level = logging.getLogger("keras_transformer").getEffectiveLevel()
    context = multiprocessing.get_context("spawn")  # a fork would lack the threads of libraries
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(sender, level, function, arguments))
    with interrupts_ignored():  # until the process has its own process group
        process.start()
    with _signals_passed_to(process) as signals:
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
            f"A process was killed by signal {-code}, most likely because memory ran out. The same "
            "command resumes."
        )
    if code:
        raise RuntimeError(f"A process ended with exit code {code}. Its stack trace is above.")
    return result


@contextlib.contextmanager
def _signals_passed_to(process: BaseProcess) -> Iterator[list[int]]:
    """Passes on signals to a process inside the block. Yields the list of received signals."""
    received: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        # The first signal becomes SIGTERM, which is safe even before the process handles signals.
        received.append(number)
        if process.is_alive():
            os.kill(process.pid or 0, number if len(received) > 1 else signal.SIGTERM)

    before = {n: signal.signal(n, pass_on) for n in stop_signals()}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: not set by Python


def _run(
    sender: Connection, level: int, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    """Runs in the new process."""
    os.setpgid(0, 0)  # Ctrl-C in a terminal reaches it only through the parent process
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored while the process started
    for number in stop_signals():
        signal.signal(number, signal.default_int_handler)
    threading.Thread(target=end_with_parent, daemon=True).start()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("keras_transformer").setLevel(level)
    try:
        sender.send((function(*arguments), None))
    except InputError as error:
        sender.send((None, error))
    except KeyboardInterrupt:
        sender.send((None, KeyboardInterrupt()))
