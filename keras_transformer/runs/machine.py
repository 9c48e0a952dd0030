"""The machine that runs this process."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# A quota and its period, in version 2 and in version 1 of control groups.
_QUOTA_FILES = ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")


def available_cores() -> int:
    """Returns the number of CPU cores that this process may use, by its affinity and its quota."""
    return math.ceil(min(len(os.sched_getaffinity(0)), _cpu_quota()))


def _cpu_quota(
    groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> float:
    """Returns the cores that control groups allow, as with `docker run --cpus=1`.

    The limits of a group are in files (Linux, cgroup-v2.rst and sched-bwc.rst). Those of the
    groups around it count, too. A container sees its own group as the root.
    """
    quotas = [math.inf]
    for line in _lines(groups):
        _, controllers, path = line.split(":", 2)
        folder = root / ("cpu" if "cpu" in controllers.split(",") else "") / path.lstrip("/")
        for group in (folder, *folder.parents):
            values = " ".join(
                line for name in _QUOTA_FILES for line in _lines(group / name)
            ).split()
            if len(values) == 2 and values[0] not in ("max", "-1"):
                quotas.append(int(values[0]) / int(values[1]))
    return min(quotas)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def cpu_name() -> str:
    """Returns the name of the CPU model, or the architecture if the system does not report a
    name.
    """
    for line in _lines(Path("/proc/cpuinfo")):
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
