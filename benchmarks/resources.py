"""Memory and cores of processes, read from Linux's /proc; uses only the standard library."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path


def resident_mb(field: str = "VmHWM", pid: int | str = "self") -> float:
    """Returns the resident memory of a process: a field of `/proc/PID/status`.

    For example "VmRSS" (now) or "VmHWM" (at most so far).
    """
    status = Path(f"/proc/{pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith(f"{field}:")]
    return int(line.split()[1]) / 1024


def dirty_mb() -> float:
    """Returns the anonymous and the shared memory of this process, in MB.

    Pages of files do not count, because the system can drop them and read them again.
    """
    return resident_mb("RssAnon") + resident_mb("RssShmem")


class CoreUse:
    """Measures how many cores this process and all other processes keep busy.

    The work of a child process is that of this process from the moment when the child ends.
    """

    def __init__(self) -> None:
        self._begin = self._now()

    def read(self) -> tuple[float, float]:
        """Returns the mean number of cores, of this process and of others, since the start."""
        now = zip(self._now(), self._begin, strict=True)
        wall, own, everything = (end - begin for end, begin in now)
        return own / wall, max(everything - own, 0.0) / wall

    @staticmethod
    def _now() -> tuple[float, float, float]:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        own = time.process_time() + children.ru_utime + children.ru_stime
        return time.perf_counter(), own, all_cores_seconds()


def all_cores_seconds() -> float:
    """Returns the seconds of work of all cores since the machine started, and of stolen time."""
    user, nice, system, _, _, irq, softirq, stolen = (
        int(ticks) for ticks in Path("/proc/stat").read_text().split()[1:9]
    )
    return (user + nice + system + irq + softirq + stolen) / os.sysconf("SC_CLK_TCK")
