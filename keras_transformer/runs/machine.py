"""The machine that runs this process."""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path


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
