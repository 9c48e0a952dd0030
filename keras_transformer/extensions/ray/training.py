"""Trains on all nodes of a Ray cluster: starts the workers, and starts them again after a loss."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_transformer import __version__
from keras_transformer.cli.train import WORKER_LOST
from keras_transformer.errors import StoppedError
from keras_transformer.extensions.ray import DEATH_SECONDS, cause, check_node

log = logging.getLogger(__name__)

_INTERRUPTED = 130
_MAX_LOSSES = 3  # without a new checkpoint in between
_POLL_SECONDS = 0.5


def train(flags: Sequence[str], run_dir: Path) -> int:
    """Runs the command `train` with flags on all nodes, and returns its exit code."""
    losses, saved = 0, _checkpoints(run_dir)
    while (code := _train_once(flags)) == WORKER_LOST:
        before, saved = saved, _checkpoints(run_dir)
        losses = losses + 1 if saved == before else 1
        if losses == _MAX_LOSSES:
            raise StoppedError(
                f"{losses} times a worker was lost before the next checkpoint of {run_dir}. Most "
                "likely memory ran out, or checkpoint_steps is too large. The same command resumes."
            )
        log.info("A worker was lost. Training continues from the last checkpoint.")
        time.sleep(DEATH_SECONDS)
    return code


def _checkpoints(run_dir: Path) -> list[str]:
    return sorted(path.name for path in run_dir.glob("checkpoints/step-*"))


def _train_once(flags: Sequence[str]) -> int:
    """Runs a worker on each node until all end. Returns `WORKER_LOST` if one was lost."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    kind = "GPU" if "GPU" in ray.cluster_resources() else "CPU"
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get(kind)]
    if not nodes:
        raise StoppedError("The cluster has no machine that can train now. Start one.")
    port = random.randrange(20_000, 30_000)
    workers = [f"{node['NodeManagerAddress']}:{port + i}" for i, node in enumerate(nodes)]
    log.info("Training on %d nodes: %s", len(nodes), ", ".join(workers))
    running = []
    for index, node in enumerate(nodes):
        # A worker uses the whole node.
        cpus, gpus = (node["Resources"].get(name, 0) for name in ("CPU", "GPU"))
        here = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        worker = ray.remote(_run_worker).options(
            num_cpus=cpus, num_gpus=gpus, max_retries=0, scheduling_strategy=here
        )
        running.append(worker.remote(__version__, workers, index, [*flags], Path.cwd()))
    codes = set()
    try:
        while running:
            [ended], running = ray.wait(running)
            codes.add(_exit_code(ended))
            if codes != {0}:  # the others may wait for this worker
                for reference in running:
                    ray.cancel(reference)
    except KeyboardInterrupt:
        for reference in running[:1]:  # after a signal of one, all save a checkpoint and stop
            ray.cancel(reference)
        ray.wait(running, num_returns=len(running))
        raise
    errors = codes - {0, _INTERRUPTED, WORKER_LOST}
    return max(errors or codes & {WORKER_LOST} or codes)


def _exit_code(reference: Any) -> int:
    """Returns the exit code of a worker. A worker that was killed was lost, like its node."""
    import ray

    try:
        code: int = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise cause(error) from None
    except ray.exceptions.RayError:
        return WORKER_LOST
    return code if code >= 0 else WORKER_LOST


def _run_worker(
    version: str, workers: list[str], index: int, flags: list[str], folder: Path
) -> int:
    """Runs a worker of the training on this node until it ends, and returns its exit code."""
    check_node(version, folder)
    config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
    set_option = ctypes.CDLL(None).prctl
    process = subprocess.Popen(
        [sys.executable, "-m", "keras_transformer", "train", *flags],
        cwd=folder,
        env={**os.environ, "TF_CONFIG": json.dumps(config)},
        preexec_fn=lambda: set_option(1, signal.SIGKILL),  # it ends with this process
    )
    try:
        while process.poll() is None:
            time.sleep(_POLL_SECONDS)  # Ray can interrupt this, but not a call that waits
        return process.returncode
    except KeyboardInterrupt:
        process.terminate()
        return process.wait()
