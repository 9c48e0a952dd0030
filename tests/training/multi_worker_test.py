"""One worker, waiting for others, and two real processes that lose each other."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.training import multi_worker as cluster_module
from keras_transformer.training.multi_worker import Cluster, WorkerLost
from tests.conftest import ROOT
from tests.messages import mentions

LOST = 75  # the exit code of a worker that has lost another
WORKERS = ["a:2222", "b:2222"]


def tf_config(workers: Sequence[str], index: int) -> str:
    task = {"type": "worker", "index": index}
    return json.dumps({"cluster": {"worker": workers}, "task": task})


def free_ports(count: int) -> list[int]:
    servers = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return ports


def test_without_tf_config_there_is_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    cluster = Cluster.from_environment()
    assert (cluster.num_workers, cluster.is_chief) == (1, True)
    assert cluster.connect() is None
    value = {"weights": np.zeros(3)}
    assert cluster.from_chief(lambda: value) is value
    cluster.agree({"seed": 1})
    cluster.finish()
    with pytest.raises(tf.errors.UnavailableError), cluster.watch():
        raise tf.errors.UnavailableError(None, None, "a file server")


def test_the_environment_says_which_worker_this_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", tf_config(WORKERS, 1))
    cluster = Cluster.from_environment()
    assert (cluster.workers, cluster.num_workers) == (tuple(WORKERS), 2)
    assert (cluster.index, cluster.is_chief) == (1, False)
    monkeypatch.setenv("TF_CONFIG", tf_config(WORKERS, 2))
    with pytest.raises(InputError, match=mentions("TF_CONFIG", "task", "index 2")):
        Cluster.from_environment()


def test_a_port_in_use_is_told_before_tensorflow_finds_it() -> None:
    with socket.create_server(("localhost", 0)) as server:
        address = f"localhost:{server.getsockname()[1]}"
        with pytest.raises(InputError, match=mentions(address, "Address already in use")):
            Cluster([address, "localhost:1"]).connect()


def test_a_worker_says_whom_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """TensorFlow would wait just as well, but deaf to Ctrl-C."""
    monkeypatch.setattr(cluster_module, "_SECONDS_BETWEEN_TRIALS", 0.01)
    caplog.set_level(logging.INFO, cluster_module.__name__)
    here, early, late = (f"localhost:{port}" for port in free_ports(3))
    cluster = Cluster([here, early, late])
    waiting = threading.Thread(target=cluster._wait_for_workers, daemon=True)
    with socket.create_server(("localhost", int(early.split(":")[1]))):
        waiting.start()
        deadline = time.monotonic() + 60
        while not caplog.messages and time.monotonic() < deadline:
            time.sleep(0.01)
        assert caplog.messages == [f"waiting for worker 2 ({late})"]
        assert waiting.is_alive()
        with socket.create_server(("localhost", int(late.split(":")[1]))):
            waiting.join(60)
    assert not waiting.is_alive()


def test_other_errors_are_no_lost_worker() -> None:
    cluster = Cluster(WORKERS)
    with pytest.raises(tf.errors.ResourceExhaustedError), cluster.watch():
        raise tf.errors.ResourceExhaustedError(None, None, "out of memory")
    with pytest.raises(WorkerLost, match=mentions("worker", "lost")), cluster.watch():
        raise tf.errors.UnavailableError(None, None, "recvmsg:Connection reset by peer")


# What every bit pattern has to survive: a sum with zeros would lose the first three.
BITS = np.array([0x80000000, 0x7FC00001, 0x00000001, 0x3F800000], np.uint32).view(np.float32)
SENT = {
    "weights": {"bits": BITS, "none": np.zeros((0, 3)), "steps": np.array(5, np.int64)},
    "large": np.random.default_rng(0).integers(0, 256, (3, 7_000_001), np.uint8),
    "transposed": np.arange(6, dtype=np.float16).reshape(2, 3).T,
    "metrics": [{"loss": 0.1, "ü": None}, True, np.array([True, False])],
}


def take_part() -> None:
    """A worker's life in these tests: prints one JSON object."""
    cluster = Cluster.from_environment()
    strategy = cluster.connect()
    assert strategy is not None
    said: dict[str, Any] = {"replicas": strategy.num_replicas_in_sync}
    said["sigterm"] = str(signal.getsignal(signal.SIGTERM))
    said["received"] = repr(describe(cluster.from_chief(lambda: SENT if cluster.is_chief else 1)))

    def fail() -> None:
        raise InputError("the run is damaged")

    for name, act in (
        ("failed", lambda: cluster.from_chief(fail)),
        ("agreed", lambda: cluster.agree({"training.seed": 1, "data": "f00"})),
        (
            "differed",
            lambda: cluster.agree({"seed": cluster.index, "same": 1, "data": [cluster.index]}),
        ),
    ):
        try:
            act()
        except InputError as error:
            said[name] = str(error)
    print(json.dumps(said), flush=True)
    try:
        with cluster.watch():
            if not cluster.is_chief and "DIE" in os.environ:
                os.kill(os.getpid(), signal.SIGKILL)
            cluster.finish()
    except WorkerLost:
        sys.exit(LOST)


def describe(value: Any) -> Any:
    """Arrays as type, shape and bytes, so that equal means the same bits."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, hash(value.tobytes())
    if isinstance(value, dict):
        return {name: describe(each) for name, each in value.items()}
    return [describe(each) for each in value] if isinstance(value, list) else value


def start(workers: Sequence[str], index: int, log: Path, **environment: str) -> Any:
    command = "from tests.training.multi_worker_test import take_part; take_part()"
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-c", command],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={
                **os.environ,
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "PYTHONHASHSEED": "0",
                "TF_CONFIG": tf_config(workers, index),
                **environment,
            },
        )


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    """What each of two workers said in two lives: the second is killed in its first."""
    folder = tmp_path_factory.mktemp("cluster")
    workers = [f"localhost:{port}" for port in free_ports(2)]
    logs = [folder / "0", folder / "1"]
    chief = start(workers, 0, logs[0])
    killed = start(workers, 1, logs[1], DIE="1")
    again: list[Any] = []
    try:
        assert killed.wait(120) == -signal.SIGKILL, logs[1].read_text()
        assert chief.wait(120) == LOST, logs[0].read_text()
        again = [start(workers, index, logs[index]) for index in (0, 1)]
        for process, log in zip(again, logs, strict=True):
            assert process.wait(120) == 0, log.read_text()
    finally:
        for process in (chief, killed, *again):
            process.kill()
    return [
        [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
        for log in logs
    ]


def test_a_lost_worker_ends_the_others_and_all_can_start_again(
    lives: list[list[dict[str, Any]]],
) -> None:
    chief, worker = lives
    assert len(chief) == len(worker) == 2
    assert [said["replicas"] for said in (*chief, *worker)] == [2] * 4


def test_signals_are_pythons_again_once_connected(lives: list[list[dict[str, Any]]]) -> None:
    assert lives[0][0]["sigterm"] == str(signal.SIG_DFL)


def test_the_chief_sends_every_bit(lives: list[list[dict[str, Any]]]) -> None:
    chief, worker = lives[0][0], lives[1][0]
    assert worker["received"] == chief["received"]
    assert "'steps': ('<i8', (), " in worker["received"]
    assert "'transposed': ('<f2', (3, 2), " in worker["received"]
    assert "{'loss': 0.1, 'ü': None}, True, ('|b1', (2,), " in worker["received"]


def test_all_hear_what_the_chief_could_not_read(lives: list[list[dict[str, Any]]]) -> None:
    assert [said["failed"] for each in lives for said in each] == ["the run is damaged"] * 4


def test_all_hear_which_worker_differs_and_in_what(lives: list[list[dict[str, Any]]]) -> None:
    for said in (*lives[0], *lives[1]):
        assert "agreed" not in said
        before, _, after = said["differed"].partition(" has ")
        assert before.startswith("worker 1 (localhost:")
        assert re.search(r"\bseed\b.*\b1\b.*\b0\b.*\bdata\b.*\[1\].*\[0\]", after)
