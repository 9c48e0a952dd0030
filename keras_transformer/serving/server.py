"""One exported model behind TF Serving's REST and gRPC API, on one machine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import prometheus_client
import uvicorn
from tensorflow_serving.apis import get_model_metadata_pb2

from keras_transformer.errors import InputError
from keras_transformer.serving.batching import Arrays, Batcher
from keras_transformer.serving.grpc_service import GrpcApi
from keras_transformer.serving.models import Model, SignatureCall, Version, cores
from keras_transformer.serving.rest import RestApi

_LOG = logging.getLogger(__name__)
_KEEP_ALIVE_SECONDS = 75  # of connections between requests
_DRAIN_SECONDS = 0.5  # in which clients are told to come no more, and those who do are answered
_LAST_SECONDS = 3.0  # that an end may take besides the grace: draining, the last words of both APIs
_LONGEST_SECONDS = 2.0**31  # that a timer takes
_ENDS = (signal.SIGINT, signal.SIGTERM)
_BACKLOG = 2048  # connections that wait to be taken
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
        at_once = settings.batches_at_once or cores()
        name = settings.model_name or path.resolve().name
        if not re.fullmatch(r"[\w.-]+", name, re.ASCII):
            raise InputError(
                f"the model's name is {name!r}, which no URL can hold as it is; expected letters, "
                "digits, _, . and - (--model_name)"
            )
        self.ending = False
        self.metrics = Metrics()
        self.model = Model(path, name, at_once, settings.max_body_bytes)
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


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to `run`, which ends gRPC with them, too."""
        yield


async def serve(
    settings: Settings,
    stop: asyncio.Event,
    started: Callable[[Server, int, int], object] = lambda *_: None,
) -> None:
    """Serves until `stop` is set and all requests are answered, or the grace is over.

    Args:
        settings: what is served.
        stop: ends it.
        started: is told the server and its REST and gRPC ports, once it answers.

    Raises:
        InputError: for a directory without a version that loads, or a port that is taken.
    """
    server = Server(settings)
    with _listener(settings.host, settings.rest_port) as rest_socket:
        grpc_api = GrpcApi(
            server, _address(settings.host, settings.grpc_port), settings.max_body_bytes
        )
        if not grpc_api.port:
            raise _taken(settings.host, settings.grpc_port)
        _LOG.info("%s is being loaded and warmed up", settings.model_dir)
        await server.model.start()
        try:
            rest_socket.listen(_BACKLOG)
        except OSError as error:  # another process was as quick
            raise _taken(settings.host, settings.rest_port) from error
        app = RestApi(server, settings.max_body_bytes).app
        config = uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=math.ceil(settings.grace_seconds),
        )
        rest_api = _Uvicorn(config)
        await grpc_api.start()
        rest = asyncio.create_task(rest_api.serve(sockets=[rest_socket]))
        watch = asyncio.create_task(server.model.watch(settings.poll_seconds))
        rest_port = rest_socket.getsockname()[1]
        _LOG.info(
            "REST at http://%s/v1/models/%s, gRPC at %s",
            _address(settings.host, rest_port),
            server.model.name,
            _address(settings.host, grpc_api.port),
        )
        started(server, rest_port, grpc_api.port)
        await stop.wait()
        _LOG.info("no more requests are taken; those that wait are answered")
        server.ending = True
        await asyncio.sleep(_DRAIN_SECONDS)
        rest_api.should_exit = True
        await asyncio.gather(rest, grpc_api.stop(settings.grace_seconds))
        watch.cancel()
        if running := server.batcher.running:
            _LOG.warning("batches that have not ended, and are waited for: %d", running)
        server.batcher.close()
        server.model.close()


def run(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT, as `serve` does; a second signal ends it at once.

    So does SIGALRM when the grace is over, whatever hangs.
    """

    async def main() -> None:
        loop, stop, serves = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

        def end(number: int) -> None:
            if not serves.is_set():  # a model that is being loaded cannot be told to stop
                _LOG.info("ended before anything was served")
                os._exit(0)
            if stop.is_set():  # both had come before the first was looked at
                signal.raise_signal(number)
            stop.set()
            # From here on the system ends the process: Python would wait for what it computes.
            for each in _ENDS:
                loop.remove_signal_handler(each)
                signal.signal(each, signal.SIG_DFL)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            seconds = min(settings.grace_seconds + _LAST_SECONDS, _LONGEST_SECONDS)
            signal.setitimer(signal.ITIMER_REAL, seconds)

        for each in _ENDS:
            loop.add_signal_handler(each, end, each)
        await serve(settings, stop, lambda *_: serves.set())

    asyncio.run(main())


def _listener(host: str, port: int) -> socket.socket:
    try:
        return _bound(host, port)
    except (OSError, OverflowError) as error:  # OverflowError: a port beyond 65,535
        raise _taken(host, port) from error


def _bound(host: str, port: int) -> socket.socket:
    """Returns a socket that nobody can connect to before it listens."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except BaseException:
        listener.close()
        raise
    return listener


def _address(host: str, port: int) -> str:
    """Returns both as URLs and gRPC write them, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _taken(host: str, port: int) -> InputError:
    return InputError(
        f"{_address(host, port)} cannot be listened at; expected an address that is free"
    )
