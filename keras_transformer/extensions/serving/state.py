"""The state of a server: settings, metrics, the model and its queue."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import prometheus_client

from keras_transformer.errors import InputError
from keras_transformer.extensions.serving.batching import Batcher
from keras_transformer.extensions.serving.models import ServedModel, SignatureCall, Version
from keras_transformer.extensions.serving.tensors import Arrays, RequestError, add_source_tag
from keras_transformer.runs.machine import available_cores

_MAX_ANSWER_BYTES = 2**27  # size as arrays; JSON needs ten times this memory
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_ORIGIN = re.compile(r"https?://[^\s/?#@*,]+|\*")


@dataclass(frozen=True)
class Settings:
    """Settings of a server.

    Attributes:
        model_dir: directory of the versions, or a model.
        model_name: name in requests; None for the name of `model_dir`.
        host: address to listen at.
        rest_port: port of HTTP; 0 for any free port.
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
        limits: dict[str, float] = {
            "max_batch_size": 1,
            "max_queue": 1,
            "max_body_bytes": 1,
            "batches_at_once": 1,
        }
        limits |= {"batch_timeout_ms": 0, "grace_seconds": 0, "poll_seconds": 0.001}
        for name, minimum in limits.items():
            value = getattr(self, name)
            if value is not None and not minimum <= value < math.inf:  # also refuses NaN
                raise InputError(f"{name} is {value}, but it must be at least {minimum}.")
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
        """Counts a request."""
        self.requests.labels(entrypoint, status).inc()
        self.seconds.labels(entrypoint).observe(seconds)


class Server:
    """The model, the queue of requests and the metrics of a server."""

    def __init__(self, settings: Settings):
        at_once = settings.batches_at_once or available_cores()
        name = settings.model_name or settings.model_dir.resolve().name
        if not re.fullmatch(r"[\w.-]+", name, re.ASCII):
            raise InputError(
                f"The model name {name!r} cannot be part of a URL. Use letters, digits, _, . and - "
                "(--model_name)."
            )
        self._source_tag = settings.source_tag
        self.metrics = Metrics()
        self.model = ServedModel(settings.model_dir, name, at_once, settings.source_tag)
        self.batcher = Batcher(
            settings.max_batch_size,
            settings.batch_timeout_ms / 1000,
            settings.max_queue,
            at_once,
            self.metrics.batch_rows.observe,
        )
        self.metrics.waiting_rows.set_function(lambda: self.batcher.waiting_rows)

    async def predict(self, version: Version, signature: str, inputs: Arrays) -> Arrays:
        """Returns the outputs of a signature."""
        outputs = version.signature(signature).outputs.values()
        row_bytes = sum(
            np.dtype(dtype).itemsize * math.prod(max(size, 1) for size in shape[1:])
            for dtype, shape in outputs
        )
        rows, most = len(next(iter(inputs.values()))), max(1, _MAX_ANSWER_BYTES // row_bytes)
        if rows > most:
            raise RequestError(
                400,
                f"The answer to {rows:,} rows would have {rows * row_bytes:,} bytes. Send at most "
                f"{most:,} rows per request to {signature}.",
            )
        if self._source_tag:
            inputs = add_source_tag(inputs, self._source_tag, version.engine.model.symbols)
        return await self.batcher.run(SignatureCall(version, signature), inputs)
