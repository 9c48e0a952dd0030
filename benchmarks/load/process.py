"""bin/serve.py in a process of its own, and what it costs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
_START_S = 300.0
_STOP_S = 60.0
_TICKS = os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """Seconds of work until now, and what the server has counted."""

    clock: float
    server: float
    client: float  # this process
    all: float  # of every process, and of virtual machines beside this one
    batches: float
    rows: float  # of all batches

    def since(self, before: Usage) -> dict[str, float | None]:
        """Returns the mean rows of a batch, and the cores kept busy, between two moments."""
        seconds = self.clock - before.clock
        server, client = self.server - before.server, self.client - before.client
        others = max(self.all - before.all - server - client, 0.0)
        batches = self.batches - before.batches
        return {
            "rows_per_batch": round((self.rows - before.rows) / batches, 2) if batches else None,
            "server_cores": round(server / seconds, 2),
            "client_cores": round(client / seconds, 2),
            "other_cores": round(others / seconds, 2),
        }


class ServerProcess:
    """Serves an export at a free port, until it is closed.

    Args:
        base_path: directory of versions.
        log: file for what the server says.
        settings: flags of bin/serve.py.

    Attributes:
        port: of REST.
        model: the model's name.
        ready_seconds: from its start until it answers, its warm-up done.

    Raises:
        RuntimeError: where it does not begin to serve.
    """

    def __init__(self, base_path: Path, log: Path, **settings: object):
        self.model = base_path.name
        self._log = log
        begun = time.monotonic()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, str(ROOT / "bin" / "serve.py"), f"--model_dir={base_path}"),
                    *("--rest_port=0", "--grpc_port=0"),
                    *(f"--{name}={value}" for name, value in settings.items()),
                ],
                stdout=output, stderr=output, env={**os.environ, "PYTHONPATH": str(ROOT)},
            )  # fmt: skip
        while not (found := re.search(r"REST at http://[^:]+:(\d+)/", log.read_text())):
            if self._process.poll() is not None or time.monotonic() > begun + _START_S:
                self._process.kill()
                raise RuntimeError(f"bin/serve.py does not serve: {log.read_text()[-2000:]}")
            time.sleep(0.05)
        self.port = int(found[1])
        self.ready_seconds = time.monotonic() - begun

    def usage(self) -> Usage:
        """Returns what was used so far."""
        stat = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        user, nice, system, _, _, irq, softirq, stolen = (
            int(ticks) for ticks in Path("/proc/stat").read_text().split()[1:9]
        )
        url = f"http://127.0.0.1:{self.port}/monitoring/prometheus/metrics"
        with urllib.request.urlopen(url, timeout=_STOP_S) as response:
            metrics = response.read().decode()
        return Usage(
            time.perf_counter(),
            (int(stat[11]) + int(stat[12])) / _TICKS,
            time.process_time(),
            (user + nice + system + irq + softirq + stolen) / _TICKS,
            _metric(metrics, "serving_batch_rows_count"),
            _metric(metrics, "serving_batch_rows_sum"),
        )

    def memory_mb(self) -> float:
        """Resident memory now."""
        return self._memory("VmRSS")

    def peak_memory_mb(self) -> float:
        """Most resident memory so far."""
        return self._memory("VmHWM")

    def _memory(self, name: str) -> float:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        [line] = [line for line in status.splitlines() if line.startswith(name)]
        return int(line.split()[1]) / 1024

    def close(self) -> None:
        """Ends it as a user does.

        Raises:
            RuntimeError: where it had ended before, or does not end well.
        """
        self._process.terminate()
        try:
            code = self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        if code:
            said = self._log.read_text()[-2000:]
            raise RuntimeError(f"bin/serve.py ended with code {code}: {said}")


def _metric(text: str, name: str) -> float:
    return sum(float(value) for value in re.findall(rf"(?m)^{name}(?:{{.*}})? (\S+)$", text))
