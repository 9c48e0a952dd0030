"""Several worker processes (TF_CONFIG) train together, each in a separate folder."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.training import training_run
from tests.conftest import ROOT
from tests.messages import tells
from tests.stress import kill

MAX_STEPS, CHECKPOINT_STEPS = 60, 12
SETTINGS: dict[str, Any] = {
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "model.d_model": 16,
    "model.d_ff": 32,
    "model.num_heads": 2,
    "model.embedding_dropout": 0.0,
    "model.residual_dropout": 0.0,
    "training.max_steps": MAX_STEPS,
    "training.batch_tokens": 128,
    "training.schedule": "constant",
    "training.learning_rate": 1e-3,
    "training.warmup_steps": 5,
    "training.mixed_precision": "float32",
    "training.jit_compile": "false",
    "training.checkpoint_steps": CHECKPOINT_STEPS,
    "training.log_steps": 1,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with prepared data in `data`."""
    folder = tmp_path_factory.mktemp("workers")
    kill.prepare_data(folder)
    return folder


class Workers:
    """The processes of a cluster of a chief and a worker, as in a `TFJob`.

    Process `i` has the folder `i`, with only the data.
    """

    def __init__(self, folder: Path, data: Path):
        servers = [socket.create_server(("localhost", 0)) for _ in range(2)]
        self.addresses = [f"localhost:{server.getsockname()[1]}" for server in servers]
        for server in servers:
            server.close()
        self.folders = [folder / "0", folder / "1"]
        self.run = self.folders[0] / "run"
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        for own in self.folders:
            shutil.copytree(data, own / "data")

    def start(self, *indices: int) -> None:
        cluster = {"chief": self.addresses[:1], "worker": self.addresses[1:]}
        settings = [f"--set={name}={value}" for name, value in SETTINGS.items()]
        command = [
            sys.executable, str(ROOT / "bin" / "train.py"), "--data_dir=data", "--run_dir=run",
            "--preset=tiny", *settings,
        ]  # fmt: skip
        for index in indices:
            task = {"type": ("chief", "worker")[index], "index": 0}
            tf_config = json.dumps({"cluster": cluster, "task": task, "environment": "cloud"})
            with (self.folders[index] / "log").open("ab") as log:
                self.processes[index] = subprocess.Popen(
                    command, cwd=self.folders[index], stdout=log, stderr=log,
                    env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CONFIG": tf_config},
                )  # fmt: skip

    def said(self, index: int) -> str:
        return (self.folders[index] / "log").read_text()

    def wait(self, index: int) -> int:
        return self.processes[index].wait(timeout=240)

    def finish(self) -> None:
        for index in self.processes:
            assert self.wait(index) == 0, self.said(index)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Waits until a condition holds while the chief runs."""
        deadline = time.monotonic() + 240
        while not condition():
            assert time.monotonic() < deadline and self.processes[0].poll() is None, self.said(0)
            time.sleep(0.005)

    def start_chief(self) -> None:
        """Starts the chief, and waits until it waits for the worker."""
        self.start(0)
        self.wait_until(lambda: tells(self.said(0), "waiting", "2 workers"))

    def pause_chief_when(self, condition: Callable[[], bool]) -> None:
        """Stops the chief, and so the worker, in the middle of training."""
        self.wait_until(condition)
        self.processes[0].send_signal(signal.SIGSTOP)
        assert kill.last_saved(self.run) < MAX_STEPS

    def let_chief_go_on(self) -> None:
        self.processes[0].send_signal(signal.SIGCONT)


@pytest.fixture
def workers(folder: Path, tmp_path: Path) -> Iterator[Workers]:
    """Ends the processes after the test."""
    workers = Workers(tmp_path, folder / "data")
    yield workers
    for process in workers.processes.values():
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def whole(folder: Path, one_replica: None) -> Path:
    """A run of the same global batches in one process."""
    training_run.train(folder / "data", folder / "run", "tiny", SETTINGS)
    return folder / "run"


def assert_same_training(run: Path, whole: Path) -> None:
    ours, theirs = (RunDirectory(path) for path in (run, whole))
    assert ours.checkpoints()[-1].step == theirs.checkpoints()[-1].step == MAX_STEPS
    theirs_by_path = theirs.named_weights("last")
    ours_by_path = ours.named_weights("last")
    assert ours_by_path.keys() == theirs_by_path.keys() and ours_by_path
    for path, weights in theirs_by_path.items():
        difference = np.linalg.norm(ours_by_path[path] - weights) / np.linalg.norm(weights)
        assert difference < 1e-6, path
    np.testing.assert_allclose(losses(run), losses(whole), rtol=1e-5)


def losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, MAX_STEPS + 1))
    return [line["loss"] for line in lines if "loss" in line]


@pytest.mark.long  # every change: two replicas of a process, and the cluster of multi_worker_test
def test_workers_train_like_one_process(workers: Workers, whole: Path) -> None:
    workers.start_chief()
    workers.start(1)
    workers.finish()
    assert tells(workers.said(0), "2 replicas")
    assert_same_training(workers.run, whole)
    written = [{path.name for path in own.iterdir()} for own in workers.folders]
    assert written == [{"data", "log", "run"}, {"data", "log"}]


@pytest.mark.long  # tests/training/multi_worker_test.py kills a worker that trains nothing
def test_killed_and_stopped_workers_lose_nothing(workers: Workers, whole: Path) -> None:
    workers.start(0, 1)
    workers.pause_chief_when(lambda: kill.last_saved(workers.run) >= CHECKPOINT_STEPS)
    saved = kill.last_saved(workers.run)
    workers.processes[1].kill()
    assert workers.wait(1) == -signal.SIGKILL
    workers.let_chief_go_on()
    assert workers.wait(0) == 75, workers.said(0)
    assert tells(workers.said(0), "error", "worker", "lost", "checkpoint")
    assert "Traceback" not in workers.said(0)
    workers.start(0, 1)
    again = (f"step {saved}", f"step {MAX_STEPS}")
    workers.pause_chief_when(
        lambda: tells(workers.said(0), *again) and kill.last_saved(workers.run) > saved
    )
    assert tells(workers.said(1), *again)
    workers.processes[1].send_signal(signal.SIGTERM)
    workers.let_chief_go_on()
    assert [workers.wait(0), workers.wait(1)] == [0, 130], workers.said(0) + workers.said(1)
    stopped = kill.last_saved(workers.run)
    assert saved < stopped < MAX_STEPS
    assert tells(workers.said(0), "same command", f"step {stopped}")
    workers.start(0, 1)
    workers.finish()
    assert_same_training(workers.run, whole)


@pytest.mark.long  # starts a process that loads TensorFlow, and no other test stops a waiting one
def test_a_chief_that_waits_can_be_stopped(workers: Workers) -> None:
    workers.start_chief()
    workers.processes[0].send_signal(signal.SIGINT)
    assert workers.wait(0) == -signal.SIGINT, workers.said(0)
