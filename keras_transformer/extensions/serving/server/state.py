"""The state that REST and gRPC share: settings, metrics, the model and its queue."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import prometheus_client

from keras_transformer.errors import InputError
from keras_transformer.extensions.serving.server.batching import Arrays, Batcher
from keras_transformer.extensions.serving.server.models import (
    ServedModel,
    SignatureCall,
    Version,
)
from keras_transformer.extensions.serving.server.protos import (
    get_model_metadata_pb2,
)
from keras_transformer.extensions.serving.server.tensors import add_source_tag
from keras_transformer.runs.machine import available_cores

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_ORIGIN = re.compile(r"https?://[^\s/?#@*,]+|\*")
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Settings:
    """Settings of a server.

    Attributes:
        model_dir: directory of the versions. The highest is served.
        model_name: name in requests; None for the name of `model_dir`.
        host: address to listen at.
        rest_port: port of HTTP; 0 for any free port.
        grpc_port: port of gRPC; 0 for any free port.
        max_batch_size: maximum rows of a batch.
        batch_timeout_ms: milliseconds that a request waits for others if a core is idle.
        max_queue: maximum rows that wait. Further requests are refused.
        max_body_bytes: maximum bytes of a request.
        batches_at_once: batches that are computed at the same time; None for one per core.
        poll_seconds: seconds between checks for new versions.
        grace_seconds: seconds that requests may take after a stop signal.
        cors_origins: origins of web pages whose scripts may use REST, such as https://a.example;
            "*" for all.
        source_tag: added to each source text that has no tag; None for none. Versions that lack it
            are not served.
    """

    model_dir: Path
    model_name: str | None = None
    host: str = "127.0.0.1"
    rest_port: int = 8501
    grpc_port: int = 8500
    max_batch_size: int = 64
    batch_timeout_ms: float = 2.0
    max_queue: int = 1024
    max_body_bytes: int = 16 * 2**20
    batches_at_once: int | None = None
    poll_seconds: float = 1.0
    grace_seconds: float = 25.0
    cors_origins: tuple[str, ...] = ()
    source_tag: str | None = None

    def __post_init__(self) -> None:
        minimums = {
            "max_batch_size": 1, "max_queue": 1, "max_body_bytes": 1, "batches_at_once": 1,
            "batch_timeout_ms": 0,
        }  # fmt: skip
        for name, minimum in minimums.items():
            value = getattr(self, name)
            if value is not None and not minimum <= value < math.inf:  # also refuses NaN
                raise InputError(f"{name} is {value}, but it must be at least {minimum}.")
        for name in ("poll_seconds", "grace_seconds"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(f"{name} is {getattr(self, name)}, but it must be more than 0.")
        for origin in self.cors_origins:
            if not _ORIGIN.fullmatch(origin):
                raise InputError(
                    f"cors_origins has {origin!r}, but an origin has the form https://HOST[:PORT], "
                    "without a path. Use * for all origins."
                )


class Metrics:
    """Metrics for Prometheus."""

    def __init__(self) -> None:
        prometheus_client.disable_created_metrics()  # they double the number of series
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
        """Counts a request by REST or gRPC."""
        self.requests.labels(entrypoint, status).inc()
        self.seconds.labels(entrypoint).observe(seconds)


class Server:
    """The state that REST and gRPC share.

    Attributes:
        model: the versions of the model.
        batcher: the queue of requests.
        metrics: the metrics.
        ending: True when the server is stopping.
    """

    def __init__(self, settings: Settings):
        path = settings.model_dir
        at_once = settings.batches_at_once or available_cores()
        name = settings.model_name or path.resolve().name
        if not re.fullmatch(r"[\w.-]+", name, re.ASCII):
            raise InputError(
                f"The model name {name!r} cannot be part of a URL. Use letters, digits, _, . and - "
                "(--model_name)."
            )
        self.ending = False
        self._source_tag = settings.source_tag
        self.metrics = Metrics()
        self.model = ServedModel(path, name, at_once, settings.max_body_bytes, settings.source_tag)
        self.batcher = Batcher(
            settings.max_batch_size,
            settings.batch_timeout_ms / 1000,
            settings.max_queue,
            at_once,
            self.metrics.batch_rows.observe,
        )
        self.metrics.waiting_rows.set_function(lambda: self.batcher.waiting_rows)

    async def predict(
        self, version: Version, signature: str, inputs: Arrays, outputs: Sequence[str] | None = None
    ) -> Arrays:
        """Returns the named outputs of a signature, or all of them.

        Raises:
            RequestError: for invalid inputs, an answer that would be too large, a full queue, or
                an error of the model.
        """
        names = version.output_names(signature, outputs)
        call = SignatureCall(version, signature or "serving_default", names)
        checked = version.checked(signature, inputs)
        if self._source_tag:
            checked = add_source_tag(checked, self._source_tag, version.symbols)
        version.check_answer(signature, names, len(next(iter(checked.values()))))
        return await self.batcher.run(call, checked)

    def signatures(self, version: Version) -> Any:
        """Returns the SignatureDefMap of a version."""
        return get_model_metadata_pb2.SignatureDefMap(signature_def=version.signatures)
