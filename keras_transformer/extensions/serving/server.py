"""A model behind TF Serving's REST API, on one machine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import prometheus_client
import uvicorn

from keras_transformer.errors import InputError
from keras_transformer.extensions.serving.batching import Batcher
from keras_transformer.extensions.serving.models import ServedModel, SignatureCall, Version
from keras_transformer.extensions.serving.rest import RestApi
from keras_transformer.extensions.serving.tensors import Arrays, RequestError, add_source_tag
from keras_transformer.runs.machine import available_cores, stop_signals

_LOG = logging.getLogger(__name__)
_MAX_ANSWER_BYTES = 2**27  # size as arrays; JSON needs ten times this memory
_KEEP_ALIVE_SECONDS = 75  # of idle connections
_BACKLOG = 2048  # connections that are not accepted yet
_LAST_SECONDS = 3.0  # that stopping may take after the grace period
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
        limits = {"max_batch_size": 1, "max_queue": 1, "max_body_bytes": 1, "batches_at_once": 1}
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


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to `run`."""
        yield


async def serve(
    settings: Settings,
    stop: asyncio.Event,
    started: Callable[[Server, int], object] = lambda *_: None,
) -> None:
    """Serves until `stop` is set, and then for at most `grace_seconds`.

    Args:
        settings: the settings.
        stop: stops the server.
        started: called with the server and its port when it answers requests.

    Raises:
        InputError: if no version can be loaded, or the port is in use.
    """
    server = Server(settings)
    with _listener(settings.host, settings.rest_port) as listener:
        _LOG.info("Loading %s.", settings.model_dir)
        await server.model.start()
        listener.listen(_BACKLOG)
        rest_api = _Uvicorn(
            uvicorn.Config(
                RestApi(server, settings.max_body_bytes, settings.cors_origins).app,
                lifespan="off",
                log_config=None,
                access_log=False,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=math.ceil(settings.grace_seconds),
            )
        )
        rest = asyncio.create_task(rest_api.serve(sockets=[listener]))
        watch = asyncio.create_task(server.model.watch(settings.poll_seconds))
        port = listener.getsockname()[1]
        address = _address(settings.host, port)
        _LOG.info("REST at http://%s/v1/models/%s", address, server.model.name)
        started(server, port)
        await stop.wait()
        _LOG.info("Stopping: answering the requests that wait.")
        rest_api.should_exit = True
        await rest
        watch.cancel()
        await asyncio.to_thread(server.batcher.close)


def run(settings: Settings) -> None:
    """Serves until SIGTERM, SIGHUP or SIGINT. A second signal ends the process immediately."""

    async def main() -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        is_loading = True

        def started(*_: object) -> None:
            nonlocal is_loading
            is_loading = False

        def end() -> None:
            if is_loading or stop.is_set():  # loading a model cannot be interrupted
                os._exit(int(stop.is_set()))
            stop.set()
            loop.call_later(settings.grace_seconds + _LAST_SECONDS, os._exit, 1)

        for number in stop_signals():
            loop.add_signal_handler(number, end)
        await serve(settings, stop, started)

    asyncio.run(main())


def _listener(host: str, port: int) -> socket.socket:
    """Returns a bound socket that does not listen yet."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except (OSError, OverflowError) as error:  # OverflowError: a port beyond 65,535
        raise InputError(
            f"{_address(host, port)} is not available. Choose a free address."
        ) from error
    return listener


def _address(host: str, port: int) -> str:
    """Returns HOST:PORT, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
