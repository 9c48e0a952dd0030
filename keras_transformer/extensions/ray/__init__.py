"""Runs blocks of work on the machines of a Ray cluster: `--ray` of the commands that have blocks.

A cluster gets the tasks of `data.workers.run_tasks`. Blocks and their results are the same as on
one machine, because tasks read and write the same files below a directory that all nodes share.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import logging
import platform
import re
import shutil
import signal
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_transformer import __version__
from keras_transformer.data.workers import Result, TaskRunner
from keras_transformer.errors import InputError, StoppedError, needs_extra, one_line, require
from keras_transformer.runs.machine import signal_handlers

help = "address of a Ray cluster that does the work, such as auto or 10.0.0.1:6379"

log = logging.getLogger(__name__)

_CONNECT_SECONDS = 10
_MISSING_MODULE = re.compile(r"ip=([^)]+)\).*No module named '([^']+)'", re.DOTALL)
_MAX_LOSSES = 3  # of the workers of one task
QUEUED = 2  # tasks that wait for a node, so that no node waits for a task
# Tasks whose results are not yet yielded, for each task that runs. Results wait for those of a slow
# task, but other nodes do not (benchmarks/cluster.py).
AHEAD = 8


def connect(address: str, shows_output: bool = False) -> TaskRunner:
    """Connects this process to a cluster, and returns what runs tasks there."""
    with needs_extra("ray", "--ray"):
        import ray
    host, _, port = address.rpartition(":")
    is_valid = address == "auto" or (host != "" and port.isdecimal())
    require(is_valid, f"--ray={address}: give auto or HOST:PORT, as ray start --head prints it.")
    if not (shows_output or ray.is_initialized()):  # a program that uses Ray has its own streams
        # Ray writes the errors of nodes, which are exceptions here, to standard output.
        ray._private.worker.print_to_stdstream = lambda *_, **__: None
    try:
        if host:  # Ray would try for minutes
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
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
    """A task whose result was not yielded yet. Arguments are an object of the cluster."""

    number: int
    name: str
    arguments: Any
    losses: int = 0
    result: list[Any] = dataclasses.field(default_factory=list)


def _run(
    function: Callable[..., Result],
    tasks: Iterable[tuple[Any, ...]],
    directory: Path,
    uses_all_cores: bool,
) -> Iterator[Result]:
    """Yields the results of tasks that nodes of the cluster run, in the order of the tasks."""
    import ray
    from ray import exceptions

    losses = (
        exceptions.NodeDiedError,
        exceptions.ObjectLostError,
        exceptions.OutOfMemoryError,
        exceptions.WorkerCrashedError,
    )
    needs = _resources(ray.nodes()) if uses_all_cores else {"CPU": 1}
    options = {"num_cpus": needs["CPU"], "num_gpus": needs.get("GPU", 0)}
    run_task = ray.remote(max_retries=0, **options)(_run_task).remote
    # Each task leaves the names of the nodes that started it in a file there.
    started = directory / f".{uuid.uuid4().hex}.unfinished"
    submit = functools.partial(run_task, __version__, started, function)
    remaining = enumerate(tasks)
    waiting: collections.deque[_Task] = collections.deque()
    running: dict[Any, _Task] = {}
    started.mkdir()
    try:
        while True:
            total = ray.cluster_resources()  # nodes may have joined
            most = QUEUED + int(min(total.get(name, 0) // number for name, number in needs.items()))
            room = min(most - len(running), AHEAD * most - len(waiting))
            for number, arguments in itertools.islice(remaining, max(0, room)):
                task = _Task(number, str(arguments[0]), ray.put(arguments))
                waiting.append(task)
                running[submit(number, task.arguments)] = task
            if not waiting:
                return
            if most == QUEUED:
                log.info("No machine of the cluster can run a task now. Waiting for one.")
            [reference], _ = ray.wait([*running])
            task = running.pop(reference)
            try:
                task.result.append(ray.get(reference))
                task.arguments = None  # its memory is free, even if the result has to wait
            except losses as error:
                # A node that was taken away says nothing about the task.
                task.losses += not isinstance(error, exceptions.NodeDiedError)
                if task.losses == _MAX_LOSSES:
                    starts = started / str(task.number)  # it is missing if none came so far
                    nodes = starts.read_text().split("\n") if starts.exists() else ["unknown", ""]
                    raise StoppedError(
                        f"{task.name}: {_MAX_LOSSES} workers were lost ({one_line(error)}; nodes: "
                        f"{', '.join(nodes[:-1])}). Most likely memory ran out. Use nodes with "
                        "more of it. Then the same command resumes."
                    ) from error
                running[submit(task.number, task.arguments)] = task
            except exceptions.RayTaskError as error:
                raise cause(error) from None
            while waiting and waiting[0].result:
                yield waiting.popleft().result[0]
    finally:
        for reference in running:  # Ctrl-C, an error, or the iterator was closed
            ray.cancel(reference, force=True)
        shutil.rmtree(started, ignore_errors=True)


def _resources(nodes: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Returns the resources of a task that uses a machine, or one of its GPUs: as many cores as the
    smallest machine has, or has for each GPU. If a machine has GPUs, only such machines are used.
    """
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    if shares := [
        int(node.get("CPU", 0) // node["GPU"]) for node in alive if node.get("GPU", 0) >= 1
    ]:
        return {"CPU": max(1, min(shares)), "GPU": 1}
    cores = (int(node["CPU"]) for node in alive if node.get("CPU", 0) >= 1)
    return {"CPU": min(cores, default=1)}


def _run_task(
    version: str,
    started: Path,
    function: Callable[..., Result],
    number: int,
    arguments: tuple[Any, ...],
) -> Result:
    """Runs a task on a node. Errors name the node."""
    node = check_node(version, started)
    try:
        with (started / str(number)).open("a") as file:
            file.write(f"{node}\n")
        return function(*arguments)
    except OSError as error:
        raise StoppedError(f"Node {node}: {error}. Then the same command resumes.") from error
    except InputError as error:  # it may be a fault of this node, so finished blocks stay
        raise StoppedError(f"Node {node}: {error}") from error


def check_node(version: str, directory: Path) -> str:
    """Returns the name of this node. Raises an error if the version or the files are others."""
    import ray

    node = f"{platform.node()} ({ray.util.get_node_ip_address()})"
    if version != __version__:
        raise StoppedError(
            f"Node {node} has version {__version__} of keras-transformer-mt, but this command "
            f"version {version}. Install the same version on all nodes."
        )
    if not directory.is_dir():
        raise StoppedError(
            f"Node {node} does not see {directory}. Use a directory that all nodes share, and that "
            "has the same path on each of them."
        )
    return node


def cause(error: Any) -> BaseException:
    """Returns what a `RayTaskError` means to a user, or the error itself if it is a defect."""
    if isinstance(error.cause, InputError):
        return error.cause
    if missing := _MISSING_MODULE.search(str(error)):
        return StoppedError(
            f"Node {missing[1]} lacks the module {missing[2]}. Install the same version of "
            "keras-transformer-mt, with the same extras, on all nodes."
        )
    return error
