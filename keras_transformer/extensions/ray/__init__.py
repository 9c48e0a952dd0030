"""Runs blocks of work on the machines of a Ray cluster: `--ray` of the commands that have blocks.

A cluster gets the tasks of `data.workers.run_tasks`. Blocks and their results are the same as on
one machine. Tasks that write files do it in a directory that all nodes share.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import os
import platform
import re
import shutil
import signal
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_transformer import __version__, console
from keras_transformer.data.workers import OnLoss, Result, TaskRunner
from keras_transformer.errors import InputError, StoppedError, needs_extra, one_line
from keras_transformer.runs.machine import signal_handlers

help = "address of a Ray cluster that does the work, such as auto or 10.0.0.1:6379"

_OTHER_CODE = re.compile(r"(?s)ip=([^)]+)\).*(No module named '.+?'|Can't get attribute '.+?')")
_MAX_LOSSES = 3  # of the workers of one task
DEATH_SECONDS = 30  # in which Ray finds out that a node has died
QUEUED = 2  # tasks that wait for a node, so that no node waits for a task
# Tasks whose results are not yet yielded, for each task that runs. Results wait for those of a slow
# task, but other nodes do not (benchmarks/cluster.py).
AHEAD = 8


def connect(address: str, shows_output: bool = False) -> TaskRunner:
    """Connects this process to a cluster, and returns what runs tasks there."""
    # Ray reads these when it is imported. Otherwise it tries 20 times if another service answers.
    os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")
    os.environ.setdefault("RAY_py_gcs_connect_timeout_s", "5")
    with needs_extra("ray", "--ray"):
        import ray
    host, _, port = address.rpartition(":")
    if not (shows_output or ray.is_initialized()):  # a program that uses Ray has its own streams
        # Ray writes the errors of nodes, which are exceptions here, to standard output.
        ray._private.worker.print_to_stdstream = lambda *_, **__: None
    try:
        if host:  # Ray would wait, and write to standard error
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        with signal_handlers(signal.SIG_DFL):  # Ray replaces the handler of SIGTERM
            quiet = {"log_to_driver": shows_output, "logging_level": "error"}
            ray.init(address, ignore_reinit_error=True, **quiet)
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(
            f"The Ray cluster {address} cannot be used ({one_line(error)}). Start it with ray "
            "start --head, and give the address that this command prints."
        ) from error
    return _run


def train(address: str, flags: Sequence[str], run_dir: Path) -> int:
    """Runs the command `train` on the nodes of a cluster, and returns its exit code."""
    connect(address, shows_output=True)
    from keras_transformer.extensions.ray import training

    return training.train(flags, run_dir)


@dataclasses.dataclass
class _Task:
    """A task whose result was not yielded yet."""

    number: int
    arguments: Any
    losses: int = 0
    start: float = 0.0  # time.monotonic() when it is to start; infinite if it has
    result: list[Any] = dataclasses.field(default_factory=list)


def _run(
    function: Callable[..., Result],
    tasks: Iterable[tuple[Any, ...]],
    directory: Path | None,
    uses_all_cores: bool,
    on_loss: OnLoss | None = None,
) -> Iterator[Result]:
    """Yields the results of tasks that nodes of the cluster run, in the order of the tasks."""
    import ray
    from ray import exceptions

    # Ray's libraries use this store, too. Here, it has the node that last started a task.
    from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get

    # A node that was taken away says nothing about the task, nor does a lost result.
    away = (exceptions.NodeDiedError, exceptions.ObjectLostError)
    losses = (*away, exceptions.OutOfMemoryError, exceptions.WorkerCrashedError)
    needs = {"CPU": math.inf if uses_all_cores else 1}
    run_task = ray.remote(max_retries=0)(_run_task).options
    key = uuid.uuid4().hex
    mark = directory and directory / f".{key}.unfinished"  # nodes that share the directory see it
    remaining, warn = enumerate(tasks), iter([console.warn])  # once
    waiting: collections.deque[_Task] = collections.deque()
    running: dict[Any, _Task] = {}
    if mark:
        mark.mkdir()
    try:
        while True:
            if uses_all_cores:
                needs = _resources(ray.nodes(), needs)
            total = ray.cluster_resources()  # nodes may have joined or died
            slots = int(min(total.get(name, 0) // number for name, number in needs.items()))
            if not slots:
                next(warn, str)(
                    f"No machine of the cluster has a {' and a '.join(needs)}. Waiting."
                )
                time.sleep(1)
                continue
            submit = run_task(num_cpus=needs["CPU"], num_gpus=needs.get("GPU", 0)).remote
            most = QUEUED + slots
            room = min(most - len(running), AHEAD * most - len(waiting))
            for number, arguments in itertools.islice(remaining, max(0, room)):
                waiting.append(_Task(number, arguments))
            if not waiting:
                return
            for task in waiting:
                if task.start <= time.monotonic():
                    task.start = math.inf
                    task_arguments = (function, key, task.number, task.arguments)
                    running[submit(__version__, mark, *task_arguments)] = task
            time.sleep(0 if running else 1)  # all were lost
            for reference in ray.wait([*running], timeout=1)[0]:
                task = running.pop(reference)
                try:
                    task.result.append(ray.get(reference))
                    task.arguments = None  # its memory is free, even if the result has to wait
                except losses as error:
                    task.losses += not isinstance(error, away)
                    if task.losses < _MAX_LOSSES:
                        # Until Ray knows that a node has died, the task could go there again.
                        task.start = time.monotonic() + DEATH_SECONDS
                        continue
                    node = _internal_kv_get(f"{key} {task.number}") or b"an unknown node"
                    stopped = StoppedError(
                        f"{task.arguments[0]}: {_MAX_LOSSES} workers were lost ({one_line(error)}; "
                        f"the last one on {node.decode()}). Most likely memory ran out. Use nodes "
                        "with more of it. Then the same command resumes."
                    )
                    if on_loss is None:
                        raise stopped from error
                    task.result.append(on_loss(task.arguments, stopped))
                except exceptions.RayTaskError as error:
                    raise cause(error) from None
            while waiting and waiting[0].result:
                yield waiting.popleft().result[0]
    finally:
        if ray.is_initialized():  # otherwise the process ends, and this would start another cluster
            for reference in running:  # Ctrl-C, an error, or the iterator was closed
                ray.cancel(reference, force=True)
            _internal_kv_del(key, del_by_prefix=True)
        if mark:
            shutil.rmtree(mark, ignore_errors=True)


def _resources(nodes: Iterable[Mapping[str, Any]], before: dict[str, float]) -> dict[str, float]:
    """Returns the resources of a task that uses a machine, or one of its GPUs: as many cores as the
    smallest machine has, or has for each GPU. Once a machine has GPUs, only such ones are used.
    While no machine can be used, the result is that of before.
    """
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    shares = [int(n.get("CPU", 0) // n["GPU"]) for n in alive if n.get("GPU", 0) >= 1]
    if shares:
        return {"CPU": max(1, min(shares)), "GPU": 1}
    cores = [int(node["CPU"]) for node in alive if node.get("CPU", 0) >= 1]
    return {"CPU": min(cores)} if cores and "GPU" not in before else before


def _run_task(
    version: str,
    mark: Path | None,
    function: Callable[..., Result],
    key: str,
    number: int,
    arguments: tuple[Any, ...],
) -> Result:
    """Runs a task on a node. Errors name the node."""
    from ray.experimental.internal_kv import _internal_kv_put

    node = check_node(version, mark)
    _internal_kv_put(f"{key} {number}", node)
    try:
        return function(*arguments)
    except OSError as error:
        raise StoppedError(
            f"Node {node}: {error}. Fix this, then the same command resumes."
        ) from error
    except InputError as error:  # it may be a fault of this node, so finished blocks stay
        raise StoppedError(f"Node {node}: {error}") from error


def check_node(version: str, directory: Path | None) -> str:
    """Returns the name of this node. Raises an error if its version is another, or if it does not
    see a directory.
    """
    import ray

    node = f"{platform.node()} ({ray.util.get_node_ip_address()})"
    if version != __version__:
        raise StoppedError(
            f"Node {node} has version {__version__} of keras-transformer-mt, but this command "
            f"version {version}. Install the same version on all nodes."
        )
    if not (directory is None or directory.is_dir()):
        raise StoppedError(
            f"Node {node} does not see {directory}. Use a directory that all nodes share, and that "
            "has the same path on each of them."
        )
    return node


def cause(error: Any) -> BaseException:
    """Returns what a `RayTaskError` means to a user, or the error itself if it is a defect."""
    if isinstance(error.cause, InputError):
        return error.cause
    if other := _OTHER_CODE.search(str(error)):
        return StoppedError(
            f"Node {other[1]} has other code ({other[2]}). Install the same version of "
            "keras-transformer-mt, with the same extras, on all nodes."
        )
    return error
