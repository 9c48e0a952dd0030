"""Training on several machines: who takes part, what they agree on, what the chief sends them.

The environment variable `TF_CONFIG` lists the workers and says which of them this
process is; all run the same command. The first is the chief, the only one that reads
and writes the run directory. Without `TF_CONFIG` there is one worker, and nothing
here does anything.

TensorFlow cannot take a worker back into a running cluster. So when one is lost the
others end, and all of them have to be started again, as a supervisor does.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_transformer.errors import InputError

log = logging.getLogger(__name__)

_VERSIONED = (__name__.partition(".")[0], "tensorflow", "keras", "numpy")
_SECONDS_BETWEEN_TRIALS = 0.5
_SECONDS_BETWEEN_WARNINGS = 60.0
# TensorFlow counts the groups of its own collective operations upwards from 1.
_GROUP = 1 << 20
_CHUNK_BYTES = 1 << 24
_ARRAY = "numpy.ndarray"  # stands for an array in JSON
_EXPECTED_TF_CONFIG = (
    'expected {"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}'
)


class WorkerLost(RuntimeError):
    """Another worker has gone, and training cannot go on without it in this process."""


class Cluster:
    """The workers of a run, one process each.

    Every worker calls the same methods in the same order: `connect` before
    TensorFlow runs its first operation, then `agree`, then whatever it trains;
    `finish` at the end.

    Args:
        workers: `host:port` of every worker, the chief's first; at least one.
        index: which of them this process is.
    """

    def __init__(self, workers: Sequence[str] = ("localhost:0",), index: int = 0):
        self.workers = tuple(workers)
        self.index = index
        self._instances = itertools.count()

    @classmethod
    def from_environment(cls) -> Cluster:
        """Reads `TF_CONFIG`; one worker where it is not set.

        Raises:
            InputError: where it cannot be read.
        """
        text = os.environ.get("TF_CONFIG", "")
        return cls(*read_tf_config(text)) if text.strip() else cls()

    @property
    def num_workers(self) -> int:
        """Number of workers, this one included."""
        return len(self.workers)

    @property
    def is_chief(self) -> bool:
        """Whether this worker is the one that reads and writes the run directory."""
        return self.index == 0

    def connect(self, device: str = "auto") -> tf.distribute.Strategy | None:
        """Waits for all workers; returns the strategy that joins them, or None for one worker.

        While it waits, Ctrl-C and SIGTERM end the process.

        Args:
            device: "cpu" leaves GPUs alone; otherwise a worker takes all that it sees.

        Raises:
            InputError: where this worker's port is in use.
        """
        if self.num_workers == 1:
            return None
        if device == "cpu":
            tf.config.set_visible_devices([], "GPU")
        self._wait_for_workers()
        implementations = tf.distribute.experimental.CommunicationImplementation
        options = tf.distribute.experimental.CommunicationOptions(
            implementation=implementations.AUTO if _num_gpus() else implementations.RING
        )
        with _signals_as_they_were():
            return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)

    def _wait_for_workers(self) -> None:
        """Returns when the port of every worker answers: it waits here, or within TensorFlow.

        TensorFlow waits too, but silently, and deaf to signals.
        """
        missing = [other for other in range(self.num_workers) if other != self.index]
        with _listen(self.workers[self.index]):
            next_warning = time.monotonic() + _SECONDS_BETWEEN_TRIALS
            while missing := [other for other in missing if not _answers(self.workers[other])]:
                if time.monotonic() >= next_warning:
                    next_warning = time.monotonic() + _SECONDS_BETWEEN_WARNINGS
                    log.info("waiting for %s", ", ".join(map(self._name, missing)))
                time.sleep(_SECONDS_BETWEEN_TRIALS)

    def agree(self, facts: Mapping[str, Any]) -> None:
        """Compares what has to be the same on every worker: these facts, versions, devices.

        Args:
            facts: values for JSON by a name that a person understands.

        Raises:
            InputError: on every worker alike, where one has another value than the chief.
        """
        if self.num_workers == 1:
            return
        own = {
            **{name: importlib.import_module(name).__version__ for name in _VERSIONED},
            "number of GPUs": _num_gpus(),
            **facts,
        }
        chiefs, *others = [json.loads(text) for text in self._gather(json.dumps(own))]
        for worker, theirs in enumerate(others, 1):
            different = [
                f"{name} {theirs.get(name)!r} (the chief: {chiefs.get(name)!r})"
                for name in chiefs | theirs
                if theirs.get(name) != chiefs.get(name)
            ]
            if different:
                self._part()
                raise InputError(
                    f"{self._name(worker)} has {' and '.join(different)}; "
                    "expected the same on every worker"
                )

    def from_chief(self, read: Callable[[], Any]) -> Any:
        """Calls `read` on the chief alone, and returns its result on every worker.

        Args:
            read: returns dictionaries with names as keys, lists, strings, numbers,
                booleans, None and NumPy arrays, nested as they like. Arrays arrive
                with the same bits, tuples as lists.

        Raises:
            InputError: on every worker, where `read` raises it.
        """
        if self.num_workers == 1:
            return read()
        arrays: list[npt.NDArray[Any]] = []
        message: dict[str, Any] = {}
        if self.is_chief:
            try:
                message["value"] = _take_arrays(read(), arrays)
            except InputError as error:
                message["error"] = str(error)
        message = json.loads(self._send_text(json.dumps(message)))
        if "error" in message:
            self._part()
            raise InputError(message["error"])
        return _put_arrays(message["value"], lambda *like: self._send_array(arrays, *like))

    def finish(self) -> None:
        """Waits until all workers are here: none is done before the chief has saved."""
        if self.num_workers > 1:
            self._gather("")

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Raises `WorkerLost` for what TensorFlow says in the block when a worker is lost."""
        try:
            yield
        except (tf.errors.UnavailableError, tf.errors.AbortedError) as error:
            if self.num_workers == 1:
                raise
            log.debug("%s", error)
            raise WorkerLost("another worker was lost") from None

    def _name(self, worker: int) -> str:
        return f"worker {worker} ({self.workers[worker]})" if worker else "the chief"

    def _part(self) -> None:
        """Lets the others hear what this worker has heard, before it ends."""
        with contextlib.suppress(tf.errors.OpError):
            self.finish()

    # What follows runs on CPUs, so that it does the same bits beside any accelerator.

    def _keys(self) -> dict[str, int]:
        return {
            "group_size": self.num_workers,
            "group_key": _GROUP,
            "instance_key": next(self._instances),
        }

    def _gather(self, text: str) -> list[str]:
        """Every worker's text."""

        def gather(numbers: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
            with tf.device("CPU:0"):
                return cast(
                    npt.NDArray[np.int32],
                    tf.raw_ops.CollectiveGatherV2(
                        input=numbers, ordering_token=[], communication_hint="ring", **self._keys()
                    ).numpy(),
                )

        own = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
        lengths = gather(np.array([len(own)], np.int32))
        padded = gather(np.pad(own, (0, int(lengths.max()) + 1 - len(own))))
        rows = padded.reshape(self.num_workers, -1)
        return [
            row[:length].astype(np.uint8).tobytes().decode()
            for row, length in zip(rows, lengths.tolist(), strict=True)
        ]

    def _send(self, numbers: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """The chief's numbers, of a shape that every worker has."""
        with tf.device("CPU:0"):
            if self.is_chief:
                tf.raw_ops.CollectiveBcastSendV2(input=numbers, **self._keys())
                return numbers
            received = tf.raw_ops.CollectiveBcastRecvV2(
                shape=numbers.shape, T=tf.int32, **self._keys()
            )
            return cast(npt.NDArray[np.int32], received.numpy())

    def _send_text(self, text: str) -> str:
        data = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
        [length] = self._send(np.array([len(data)], np.int32)).tolist()
        sent = self._send(data if self.is_chief else np.zeros(length, np.int32))
        return sent.astype(np.uint8).tobytes().decode()

    def _send_array(
        self, arrays: list[npt.NDArray[Any]], place: int, dtype: str, shape: list[int]
    ) -> npt.NDArray[Any]:
        """The chief's array at `place`, in chunks, as integers: floats could lose bits."""
        array = np.array(arrays[place], order="C") if self.is_chief else np.empty(shape, dtype)
        data = array.reshape(-1).view(np.uint8)
        for begin in range(0, len(data), _CHUNK_BYTES):
            chunk = data[begin : begin + _CHUNK_BYTES]
            padded = np.pad(chunk, (0, -len(chunk) % 4)).view(np.int32)
            chunk[:] = self._send(padded).view(np.uint8)[: len(chunk)]
        return array


def _num_gpus() -> int:
    return len(tf.config.get_visible_devices("GPU"))


@contextlib.contextmanager
def _listen(address: str) -> Iterator[None]:
    """Answers at this worker's port, which has to be free, as TensorFlow's server will."""
    _, _, port = address.rpartition(":")
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # of closed connections
        try:
            server.bind(("", int(port)))
            server.listen()
        except OSError as error:
            raise InputError(
                f"TF_CONFIG gives this worker the address {address}, whose port cannot be used: "
                f"{error.strerror}"
            ) from None
        yield


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=2):
            return True
    except OSError:
        return False


@contextlib.contextmanager
def _signals_as_they_were() -> Iterator[None]:
    """TensorFlow blocks Ctrl-C while it connects, and takes SIGTERM for itself for good."""
    try:
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    except ValueError:  # not in the main thread, which alone handles signals
        yield
        return
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _take_arrays(value: Any, arrays: list[npt.NDArray[Any]]) -> Any:
    """`value` for JSON, with each array moved to `arrays` and its likeness left behind."""
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return {_ARRAY: [len(arrays) - 1, value.dtype.str, value.shape]}
    if isinstance(value, Mapping):
        return {name: _take_arrays(each, arrays) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_take_arrays(each, arrays) for each in value]
    return value


def _put_arrays(value: Any, array: Callable[..., npt.NDArray[Any]]) -> Any:
    """What `_take_arrays` was given, with `array(place, dtype, shape)` for each likeness."""
    if isinstance(value, dict):
        if value.keys() == {_ARRAY}:
            return array(*value[_ARRAY])
        return {name: _put_arrays(each, array) for name, each in value.items()}
    if isinstance(value, list):
        return [_put_arrays(each, array) for each in value]
    return value


def read_tf_config(text: str) -> tuple[list[str], int]:
    """Returns `host:port` of every worker, the chief's first, and which of them this process is.

    Raises:
        InputError: where `text`, the value of `TF_CONFIG`, does not say so.
    """

    def require(condition: object, what: str) -> None:
        if not condition:
            raise InputError(f"TF_CONFIG {what}; {_EXPECTED_TF_CONFIG}")

    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"TF_CONFIG is no JSON: {text[:80]!r}; {_EXPECTED_TF_CONFIG}") from None
    require(isinstance(config, dict), f"is {text[:80]!r}")
    cluster, task = config.get("cluster"), config.get("task")
    require(isinstance(cluster, dict) and cluster.get("worker"), f'has the "cluster" {cluster!r}')
    require(isinstance(task, dict), f'has the "task" {task!r}')
    for job, addresses in cluster.items():
        require(job in ("chief", "worker"), f"lists {job!r} in its cluster, not chief and workers")
        require(isinstance(addresses, list), f"has the {job} list {addresses!r}")
        for address in addresses:
            require(_is_address(address), f"lists the {job} {address!r}, not a host:port")
    chiefs = cluster.get("chief", [])
    require(len(chiefs) <= 1, f"lists {len(chiefs)} chiefs")
    workers = chiefs + cluster["worker"]
    for address in workers:
        require(workers.count(address) == 1, f"lists {address} twice")
    job, index = task.get("type"), task.get("index")
    require(job in ("chief", "worker"), f"has the task type {job!r}, not worker or chief")
    places = len(cluster.get(job, []))
    require(
        type(index) is int and 0 <= index < places,
        f"has the task index {index!r}, and lists {places} of type {job}",
    )
    return workers, index + (len(chiefs) if job == "worker" else 0)


def _is_address(address: object) -> bool:
    if not isinstance(address, str):
        return False
    host, _, port = address.rpartition(":")
    return bool(host) and port.isascii() and port.isdigit() and 0 < int(port[:6]) < 1 << 16
