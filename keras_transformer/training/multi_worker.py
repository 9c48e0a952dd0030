"""Training on several machines.

The environment variable `TF_CONFIG` lists the workers and identifies this process. All workers run
the same command. The first worker is the chief: only the chief reads and writes the run directory.
Without `TF_CONFIG`, there is only one worker, and this module does nothing.

TensorFlow cannot add a worker to a running cluster. If one worker is lost, the other workers
exit, and all of them must be started again.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_transformer.console import info
from keras_transformer.errors import InputError
from keras_transformer.runs.machine import signal_handlers

log = logging.getLogger(__name__)

# TensorFlow's own group keys count up from 1, so this one does not clash.
_GROUP = 1 << 20
_ONE_MACHINE = ("localhost:0",)


class WorkerLost(RuntimeError):
    """Another worker was lost, so this process cannot continue training."""


class Cluster:
    """The workers of a run, one process each.

    Every worker calls the same methods in the same order: `connect` before TensorFlow runs its
    first operation, then `check_equal_on_all_workers`, then the training, then `finish`.

    Attributes:
        num_workers: number of workers, including this process.
        is_chief: True for the worker that reads and writes the run directory.
    """

    def __init__(self, workers: Sequence[str] = _ONE_MACHINE, index: int = 0):
        self.workers = tuple(workers)
        self.num_workers = len(self.workers)
        self.index = index
        self.is_chief = index == 0
        self._instances = itertools.count()

    @classmethod
    def from_environment(cls) -> Cluster:
        """Reads `TF_CONFIG`. Without it, there is one worker."""
        return cls(*read_tf_config(os.environ.get("TF_CONFIG", "")))

    def connect(self, device: str = "auto") -> tf.distribute.Strategy | None:
        """Waits for all workers, and returns the distribution strategy (None for one worker)."""
        if self.num_workers == 1:
            return None
        if device == "cpu":
            tf.config.set_visible_devices([], "GPU")
        # TFConfigClusterResolver supports fewer roles, so `read_tf_config` parses TF_CONFIG.
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({"worker": list(self.workers)}),
            task_type="worker",
            task_id=self.index,
            rpc_layer="grpc",
        )
        info(f"waiting for all {self.num_workers} workers")
        # A signal ends the process while TensorFlow connects. TensorFlow replaces the handler of
        # SIGTERM and does not restore it.
        with signal_handlers(signal.SIG_DFL):
            return tf.distribute.MultiWorkerMirroredStrategy(resolver)

    def check_equal_on_all_workers(self, values: Mapping[str, Any]) -> None:
        """Raises `InputError` on every worker if a value is not the same on all."""
        if self.num_workers == 1:
            return
        values = json.loads(json.dumps(values))
        expected = self.from_chief(lambda: values)
        different = [
            f"{name} {values.get(name)!r} (chief: {expected.get(name)!r})"
            for name in expected | values
            if values.get(name) != expected.get(name)
        ]
        differs = self._gather(bool(different))
        if any(differs):
            other = self.workers[differs.index(1)]
            raise InputError(
                f"This worker has {' and '.join(different)}. Use the same settings on all workers."
                if different
                else f"The settings of worker {other} differ. Its error message lists them."
            )

    def from_chief(
        self,
        read: Callable[[], Any],
        encode: Callable[[Any], str] = json.dumps,
        decode: Callable[[str], Any] = json.loads,
    ) -> Any:
        """Calls `read` only on the chief, and returns its result on every worker.

        It is encoded as text only for other workers. The chief returns the object itself.
        """
        if self.num_workers == 1:
            return read()
        value, message = None, {}
        if self.is_chief:
            try:
                value = read()
                message["value"] = encode(value)
            except InputError as error:
                message["error"] = str(error)
        data = np.frombuffer(json.dumps(message).encode(), np.uint8).astype(np.int32)
        length = int(self.broadcast(np.array(len(data))))
        data = self.broadcast(data if self.is_chief else np.zeros(length, np.int32))
        message = json.loads(data.astype(np.uint8).tobytes())
        if "error" in message:
            with contextlib.suppress(tf.errors.OpError):
                self.finish()  # if one worker exits earlier, the others lose the message
            raise InputError(message["error"])
        return value if self.is_chief else decode(message["value"])

    def copy_variables(self, variables: Iterable[keras.Variable]) -> None:
        """Copies the values of the chief's variables to the variables of every worker."""
        if self.num_workers > 1:
            for variable in variables:
                variable.assign(self.broadcast(keras.ops.convert_to_numpy(variable)))

    def broadcast(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns the chief's array on every worker, with the same bits."""
        # Integers keep all bits, but floats could lose some. CPUs make the result independent of
        # accelerators.
        numbers = np.array(array, order="C").reshape(-1).view(np.int32)
        with tf.device("CPU:0"):
            if self.is_chief:
                tf.raw_ops.CollectiveBcastSendV2(input=numbers, **self._keys())
                return array
            received = tf.raw_ops.CollectiveBcastRecvV2(
                shape=numbers.shape, T=tf.int32, **self._keys()
            )
        return received.numpy().view(array.dtype).reshape(array.shape)

    def finish(self) -> None:
        """Waits for all workers, so that no worker exits before the chief has saved."""
        if self.num_workers > 1:
            self._gather(0)

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Converts the TensorFlow errors that follow the loss of a worker to `WorkerLost`."""
        try:
            yield
        except (tf.errors.UnavailableError, tf.errors.AbortedError) as error:
            if self.num_workers == 1:
                raise
            log.debug("%s", error)
            raise WorkerLost("another worker was lost") from None

    def _gather(self, number: int) -> list[int]:
        """Returns the numbers of all workers."""
        with tf.device("CPU:0"):
            gathered = tf.raw_ops.CollectiveGatherV2(
                input=np.array([number], np.int32),
                ordering_token=[],
                communication_hint="ring",
                **self._keys(),
            )
        return list(gathered.numpy().tolist())

    def _keys(self) -> dict[str, int]:
        return {
            "group_size": self.num_workers,
            "group_key": _GROUP,
            "instance_key": next(self._instances),
        }


def read_tf_config(text: str) -> tuple[Sequence[str], int]:
    """Returns `host:port` of every worker, the chief first, and the index of this process.

    The chief is the task `chief` or `master` (used by Kubeflow's `TFJob`), or the first worker if
    neither exists. Without a cluster, there is one worker. Kubernetes operators also write an empty
    object as null or "".
    """
    try:
        config = json.loads(text.strip() or "null") or {}
        cluster = config.get("cluster") or {}
        if not any(cluster.values()):
            return _ONE_MACHINE, 0
        jobs = (cluster.get(job) or [] for job in ("chief", "master", "worker"))
        workers = [*itertools.chain.from_iterable(jobs)]
        task = config["task"]
        return workers, workers.index(cluster[task["type"]][task["index"]])
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
        raise InputError(
            f"TF_CONFIG is {text[:200]!r}. It must list this process as a chief or worker, in the "
            'form {"cluster": {"worker": ["host:port", ...]}, '
            '"task": {"type": "worker", "index": 0}}.'
        ) from None
