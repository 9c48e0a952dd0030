"""The machine that runs this process."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def available_cores() -> int:
    """Returns the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


def cpu_name() -> str:
    """Returns the name of the CPU model, or the architecture if the system does not report a
    name.
    """
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def stop_signals() -> tuple[signal.Signals, ...]:
    """Returns the signals that stop work with a checkpoint: Ctrl-C, SIGTERM and SIGHUP.

    A signal that this process ignores is left out: SIGHUP under nohup, and Ctrl-C in a background
    job of a shell. Other threads than the main thread get none, because they cannot handle signals.
    """
    if threading.current_thread() is not threading.main_thread():
        return ()
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return tuple(number for number in signals if signal.getsignal(number) != signal.SIG_IGN)


@contextlib.contextmanager
def signal_handlers(handler: Any) -> Iterator[None]:
    """Handles `stop_signals` in the block, and restores the handlers from before."""
    before = {number: signal.signal(number, handler) for number in stop_signals()}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old or signal.SIG_DFL)  # None: not set by Python
