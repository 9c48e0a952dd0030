"""The state that REST and gRPC share: the settings, the metrics, the model and its queue."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import prometheus_client
from tensorflow_serving.apis import get_model_metadata_pb2

from keras_transformer.errors import InputError
from keras_transformer.runs.machine import available_cores
from keras_transformer.serving.server.batching import Arrays, Batcher
from keras_transformer.serving.server.models import ServedModel, SignatureCall, Version

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Settings:
    """What is served, where, and within which bounds.

    Attributes:
        model_dir: directory of the versions, of which the highest is served.
        model_name: that requests give; the last name of `model_dir` where it is None.
        host: address to listen at.
        rest_port: of HTTP; 0 takes any that is free.
        grpc_port: of gRPC; 0 takes any that is free.
        max_batch_size: most rows of a batch.
        batch_timeout_ms: milliseconds that a request waits for others, if a core is idle.
        max_queue: most rows that wait; what comes then is refused.
        max_queue_bytes: most bytes of the rows that wait, likewise.
        max_body_bytes: of a request.
        batches_at_once: batches that are computed beside each other; one for each core
            where it is None.
        poll_seconds: after which new versions are looked for again.
        grace_seconds: that requests may still take when the server is to end.
    """

    model_dir: Path
    model_name: str | None = None
    host: str = "127.0.0.1"
    rest_port: int = 8501
    grpc_port: int = 8500
    max_batch_size: int = 64
    batch_timeout_ms: float = 2.0
    max_queue: int = 1024
    max_queue_bytes: int = 256 * 2**20
    max_body_bytes: int = 16 * 2**20
    batches_at_once: int | None = None
    poll_seconds: float = 1.0
    grace_seconds: float = 25.0

    def __post_init__(self) -> None:
        counts = ("max_batch_size", "max_queue", "max_queue_bytes", "max_body_bytes")
        at_least = dict.fromkeys(counts, 1)
        for name, least in {**at_least, "batch_timeout_ms": 0, "batches_at_once": 1}.items():
            value = getattr(self, name)
            if value is not None and not least <= value < math.inf:  # so that NaN is not
                raise InputError(f"{name} is {value}; expected at least {least}")
        for name in ("poll_seconds", "grace_seconds"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(f"{name} is {getattr(self, name)}; expected more than 0")


class Metrics:
    """What Prometheus is told."""

    def __init__(self) -> None:
        prometheus_client.disable_created_metrics()  # a series more for each, of no use
        self.registry = registry = prometheus_client.CollectorRegistry()
        self.requests = prometheus_client.Counter(
            "serving_requests",
            "Requests for predictions, by the status of their answers",
            ("entrypoint", "status"),
            registry=registry,
        )
        self.seconds = prometheus_client.Histogram(
            "serving_request_seconds",
            "Time from a request to its answer",
            ("entrypoint",),
            registry=registry,
            buckets=_SECONDS,
        )
        self.batch_rows = prometheus_client.Histogram(
            "serving_batch_rows", "Rows of the batches run", registry=registry, buckets=_ROWS
        )
        self.waiting_rows = prometheus_client.Gauge(
            "serving_waiting_rows", "Rows that wait for a batch", registry=registry
        )

    def count(self, entrypoint: str, status: str, seconds: float) -> None:
        """Counts a request that came by REST or gRPC."""
        self.requests.labels(entrypoint, status).inc()
        self.seconds.labels(entrypoint).observe(seconds)


class Server:
    """What REST and gRPC have in common.

    Attributes:
        model: the versions.
        batcher: what merges requests.
        metrics: what is counted.
        ending: whether no more requests are wanted.
    """

    def __init__(self, settings: Settings):
        path = settings.model_dir
        at_once = settings.batches_at_once or available_cores()
        name = settings.model_name or path.resolve().name
        if not re.fullmatch(r"[\w.-]+", name, re.ASCII):
            raise InputError(
                f"the model's name is {name!r}, which no URL can hold as it is; expected letters, "
                "digits, _, . and - (--model_name)"
            )
        self.ending = False
        self.metrics = Metrics()
        self.model = ServedModel(path, name, at_once, settings.max_body_bytes)
        self.batcher = Batcher(
            settings.max_batch_size,
            settings.batch_timeout_ms / 1000,
            settings.max_queue,
            settings.max_queue_bytes,
            at_once,
            self.metrics.batch_rows.observe,
        )
        self.metrics.waiting_rows.set_function(lambda: self.batcher.waiting_rows)

    async def predict(
        self, version: Version, signature: str, inputs: Arrays, outputs: Sequence[str] = ()
    ) -> Arrays:
        """Returns outputs of a signature, all or those named.

        Raises:
            RequestError: for inputs that the signature does not take, an answer that would be
                too large, a queue that is full, or a failure of the model's.
        """
        names = version.output_names(signature, outputs)
        call = SignatureCall(version, signature or "serving_default", names)
        checked = version.checked(signature, inputs)
        version.check_answer(signature, names, len(next(iter(checked.values()))))
        return await self.batcher.run(call, checked)

    def signatures(self, version: Version) -> Any:
        """Returns the SignatureDefMap of a version."""
        return get_model_metadata_pb2.SignatureDefMap(signature_def=version.signatures)
