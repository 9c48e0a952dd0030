"""keras-transformer serve in a separate process, with its costs, and sentences for its clients."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from protocol import BENCHMARKS, Child
from resources import all_cores_seconds, resident_mb

from keras_transformer.data.reading import read_text
from keras_transformer.errors import InputError

ROOT = BENCHMARKS.parent
_START_S = 300.0
_METRICS_S = 60.0


class Usage(NamedTuple):
    """Seconds of work so far, and the server's counters."""

    clock: float
    server: float
    client: float  # this process
    all: float  # every process, and time stolen by other virtual machines
    batches: float
    rows: float  # sum over all batches

    def since(self, before: Usage) -> dict[str, float | None]:
        """Returns the rows of a batch and of the server's CPU time, and the busy cores.

        A request of one sentence is a row. Rows per second of CPU time depend less on other
        processes than requests per second.
        """
        seconds = self.clock - before.clock
        server, client = self.server - before.server, self.client - before.client
        others = max(self.all - before.all - server - client, 0.0)
        batches, rows = self.batches - before.batches, self.rows - before.rows
        return {
            "rows_per_batch": round(rows / batches, 2) if batches else None,
            "rows_per_cpu_second": round(rows / server, 1) if server else None,
            "server_cores": round(server / seconds, 2),
            "client_cores": round(client / seconds, 2),
            "other_cores": round(others / seconds, 2),
        }


class ServerProcess(Child):
    """Serves an export at a free port until it is closed.

    Args:
        base_path: directory of versions.
        flags: flags of keras-transformer serve, as in {"max_batch_size": 1}.

    Attributes:
        model: name of the model.
        port: port of the REST interface.
        ready_seconds: seconds from its start until it answers.

    Raises:
        RuntimeError: if it does not start to serve.
    """

    def __init__(self, base_path: Path, **flags: object):
        self.model = base_path.name
        command = [sys.executable, str(ROOT / "bin" / "serve.py"), f"--model_dir={base_path}"]
        command += ["--rest_port=0"]
        command += [f"--{name}={value}" for name, value in flags.items()]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        super().__init__("keras-transformer serve", command, environment, answers=False)
        found = self.wait_for(r"REST at http://[^:]+:(\d+)/", _START_S)
        self.port = int(found[1])
        self.ready_seconds = time.monotonic() - self.started

    def usage(self) -> Usage:
        """Returns the work and the counters so far."""
        stat = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        url = f"http://127.0.0.1:{self.port}/monitoring/prometheus/metrics"
        with urllib.request.urlopen(url, timeout=_METRICS_S) as response:
            metrics = response.read().decode()
        return Usage(
            time.perf_counter(),
            (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK"),
            time.process_time(),
            all_cores_seconds(),
            _metric(metrics, "serving_batch_rows_count"),
            _metric(metrics, "serving_batch_rows_sum"),
        )

    def memory_mb(self) -> float:
        """Returns the resident memory now."""
        return resident_mb("VmRSS", self.pid)

    def peak_memory_mb(self) -> float:
        """Returns the largest resident memory so far."""
        return resident_mb("VmHWM", self.pid)


def _metric(text: str, name: str) -> float:
    return sum(float(value) for value in re.findall(rf"(?m)^{name}(?:{{.*}})? (\S+)$", text))


@contextlib.contextmanager
def served(
    export: str, flags: Sequence[str] = (), **more: object
) -> Iterator[tuple[ServerProcess, Path]]:
    """Serves a copy of the newest version of an export.

    Args:
        export: directory of versions.
        flags: flags of keras-transformer serve, as in ["batch_timeout_ms=5"].
        **more: more flags.

    Yields:
        The server and the directory that it serves.

    Raises:
        RuntimeError: if the server ends with an error.
    """
    given = dict(flag.split("=", 1) for flag in flags)
    versions = [path for path in Path(export).glob("*") if path.name.isdecimal()]
    if not versions:
        raise InputError(f"{export} has no version. Give a directory with folders such as 1.")
    with tempfile.TemporaryDirectory() as folder:
        base_path = Path(folder) / "model"
        newest = max(versions, key=lambda path: int(path.name))
        shutil.copytree(newest, base_path / "1")
        server = ServerProcess(base_path, **{**given, **more})
        try:
            yield server, base_path
        finally:
            code = server.close()
        if code:
            raise RuntimeError(f"keras-transformer serve ended with exit code {code}.")


def read_sentences(paths: Sequence[str]) -> list[str]:
    """Returns the sentences of all files in turn, the same number from each file."""
    kept = [[line for line in read_text(path) if line.strip()] for path in paths]
    for path, lines in zip(paths, kept, strict=True):
        if not lines:
            raise InputError(f"{path} has no sentences. Give a file with one sentence a line.")
    return list(itertools.chain.from_iterable(zip(*kept, strict=False)))
