"""A model behind TF Serving's REST API, on one machine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import numpy as np
import prometheus_client
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from keras_transformer.errors import InputError
from keras_transformer.extensions.serving import LOOPBACK, Settings, connections
from keras_transformer.extensions.serving.batching import Batcher
from keras_transformer.extensions.serving.engines import Version
from keras_transformer.extensions.serving.models import ServedModel
from keras_transformer.extensions.serving.tensors import (
    Arrays,
    RequestError,
    add_source_tag,
    read_document,
    read_inputs,
    signature_fields,
    write_outputs,
)
from keras_transformer.runs.machine import available_cores, stop_signals

_LOG = logging.getLogger(__name__)
_BODY_SECONDS = 60  # time limit for receiving a body
_SMALL_BODY_BYTES = 2**16  # smaller bodies need no limit besides that of connections
_LARGE_BODIES = 4  # how many of the largest size the server may hold at the same time
_BACKLOG = 2048  # connections that are not accepted yet
_DRAIN_SECONDS = 0.5  # new requests are still answered after a stop signal
_LAST_SECONDS = 3.0  # longest stop after the grace period
_MAX_ANSWER_BYTES = 2**27  # size as arrays; JSON needs ten times this memory
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Server:
    """The model, the queue of requests, the metrics and the routes (`app`) of a server."""

    def __init__(self, settings: Settings):
        at_once = settings.batches_at_once or available_cores()
        name = settings.model_name or settings.model_dir.resolve().name
        prometheus_client.disable_created_metrics()  # they double the number of series
        self._registry = registry = prometheus_client.CollectorRegistry()
        self._requests = prometheus_client.Counter(
            "serving_requests",
            "Requests for predictions, by the status of their answers",
            ("status",),
            registry=registry,
        )
        self._seconds = prometheus_client.Histogram(
            "serving_request_seconds", "Time from a request to its answer", registry=registry
        )
        batch_rows = prometheus_client.Histogram(
            "serving_batch_rows", "Rows of the batches run", registry=registry, buckets=_ROWS
        )
        waiting_rows = prometheus_client.Gauge(
            "serving_waiting_rows", "Rows that wait for a batch", registry=registry
        )
        self.model = ServedModel(settings.model_dir, name, at_once, settings.source_tag)
        self.batcher = Batcher(
            settings.max_batch_size,
            settings.batch_timeout_ms / 1000,
            settings.max_queue,
            at_once,
            batch_rows.observe,
        )
        waiting_rows.set_function(lambda: self.batcher.waiting_rows)
        self.is_stopping = False
        self._source_tag = settings.source_tag
        self._max_rows = min(settings.max_rows or settings.max_queue, settings.max_queue)
        self._request_seconds = settings.request_seconds
        self._max_body_bytes = settings.max_body_bytes
        self._large_bytes = 0  # size of the large bodies that the server holds
        self._reading_large = asyncio.Lock()
        routes = [
            Route("/healthz", self._health),
            Route("/monitoring/prometheus/metrics", self._metrics),
        ]
        for path in ("/v1/models/{name}", "/v1/models/{name}/versions/{number:int}"):
            routes.append(Route(f"{path}:predict", self._counted_predict, methods=["POST"]))
            routes.append(Route(f"{path}/metadata", self._metadata))
            routes.append(Route(path, self._status))
        hosts = Middleware(
            TrustedHostMiddleware, allowed_hosts=_allowed_hosts(settings), www_redirect=False
        )
        cors = Middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["Retry-After"],
        )
        self.app = Starlette(
            middleware=[hosts, cors] if settings.cors_origins else [hosts],
            routes=routes,
            exception_handlers={RequestError: _refusal, HTTPException: _refusal},
        )

    async def _counted_predict(self, request: Request) -> Response:
        start = time.perf_counter()
        try:
            async with asyncio.timeout(self._request_seconds):
                response = await self._predict(request)
        except Exception as error:  # Starlette would close the connection
            if isinstance(error, TimeoutError):
                error = RequestError(
                    504,
                    f"The request was not answered within {self._request_seconds:g} s. "
                    "Send fewer rows, or try again later.",
                )
            elif not isinstance(error, RequestError):
                _LOG.exception("Internal error.")
                error = RequestError(500, "The server has an internal error. See its log.")
            response = await _refusal(request, error)
        seconds = time.perf_counter() - start
        status, path = response.status_code, request.url.path
        if status >= 500:
            _LOG.warning(
                "%s %r has the status %d after %.1f s.", request.method, path, status, seconds
            )
        self._requests.labels(str(status)).inc()
        self._seconds.observe(seconds)
        return response

    async def _predict(self, request: Request) -> Response:
        async with self._body(request) as body:
            is_large = len(body) > _SMALL_BODY_BYTES
            async with self._reading_large if is_large else contextlib.nullcontext():
                version, signature, inputs, by_row = await asyncio.to_thread(
                    self._read, body, **request.path_params
                )
            body.clear()
            prediction = self.batcher.run(
                version.functions[signature], inputs, version.engine.max_batch_lines
            )
            outputs = await _while_connected(request, prediction)
        answer = await asyncio.to_thread(write_outputs, outputs, by_row)
        return Response(answer, media_type="application/json")

    @contextlib.asynccontextmanager
    async def _body(self, request: Request) -> AsyncIterator[bytearray]:
        """Yields the body. Until the request is answered, a large body counts to the limit of all.

        A body that is too large is read to the end and discarded, because a client that is still
        sending would not see the answer.
        """
        body = bytearray()
        size, held = 0, 0
        expected = int(request.headers.get("content-length", 0))
        try:
            try:
                async with asyncio.timeout(_BODY_SECONDS):
                    async for chunk in request.stream():
                        size += len(chunk)
                        if max(size, expected) > self._max_body_bytes:
                            body.clear()
                            continue
                        body += chunk
                        if size > _SMALL_BODY_BYTES:
                            self._large_bytes += size - held
                            held = size
                        if self._large_bytes > _LARGE_BODIES * self._max_body_bytes and held:
                            raise RequestError(
                                429, "The server has too many large requests. Try again later."
                            )
            except TimeoutError:
                raise RequestError(
                    408, f"The body did not arrive within {_BODY_SECONDS} s."
                ) from None
            except ClientDisconnect:
                raise RequestError(499, "The client has disconnected.") from None
            if (size := max(size, expected)) > self._max_body_bytes:
                raise RequestError(
                    413, f"The body has {size:,} bytes, but the limit is {self._max_body_bytes:,}."
                )
            yield body
        finally:
            self._large_bytes -= held

    def _read(
        self, body: bytearray, name: str, number: int | None = None
    ) -> tuple[Version, str, Arrays, bool]:
        """Returns the version, the signature and the inputs of a request, and its format."""
        document = read_document(body)
        version = self.model.version(name, number)
        signature = document.get("signature_name") or "serving_default"
        known = version.signatures
        if signature not in known:
            raise RequestError(
                400,
                f'Serving signature key "{signature}" not found. Choose one of '
                f"{', '.join(sorted(known))}",
            )
        inputs = read_inputs(document, known[signature].inputs, self._max_rows)
        row_bytes = sum(
            np.dtype(dtype).itemsize * math.prod(max(size, 1) for size in shape[1:])
            for dtype, shape in known[signature].outputs.values()
        )
        rows, most = len(next(iter(inputs.values()))), max(1, _MAX_ANSWER_BYTES // row_bytes)
        if rows > most:
            raise RequestError(
                400,
                f"The answer to {rows:,} rows would have {rows * row_bytes:,} bytes. Send at most "
                f"{most:,} rows per request to {signature}.",
            )
        if self._source_tag:
            inputs = add_source_tag(inputs, self._source_tag, version.engine.symbols)
        return version, signature, inputs, "instances" in document

    async def _status(self, request: Request) -> Response:
        states = self.model.status(**request.path_params)
        return JSONResponse({"model_version_status": states})

    async def _metadata(self, request: Request) -> Response:
        version = self.model.version(**request.path_params)
        signatures = signature_fields(version.signatures)
        spec = {"name": self.model.name, "signature_name": "", "version": str(version.number)}
        metadata = {"signature_def": {"signature_def": signatures}}
        return JSONResponse({"model_spec": spec, "metadata": metadata})

    async def _health(self, request: Request) -> Response:
        status = "stopping" if self.is_stopping else "serving"
        fields = {"status": status, "model": self.model.name}
        return JSONResponse(fields, 503 if self.is_stopping else 200)

    async def _metrics(self, request: Request) -> Response:
        body = prometheus_client.generate_latest(self._registry)
        return Response(body, media_type=prometheus_client.CONTENT_TYPE_LATEST)


async def _refusal(request: Request, error: Exception) -> Response:
    """Returns the answer to a failed request, the JSON `{"error": message}`."""
    if isinstance(error, HTTPException):  # from Starlette: 404 or 405
        message = f"{error.detail}: {request.method} {request.url.path}"
        return JSONResponse({"error": message}, error.status_code, error.headers)
    status = error.status if isinstance(error, RequestError) else 500
    headers = {"Retry-After": "1"} if status == 429 else None
    return JSONResponse({"error": str(error)}, status, headers)


async def _while_connected(request: Request, work: Awaitable[Arrays]) -> Arrays:
    """Returns the result of `work`, and cancels it if the client disconnects."""
    result = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(request.receive())  # after the body, only a disconnect can come
    try:
        await asyncio.wait({result, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            raise RequestError(499, "The client has disconnected.")
        return result.result()
    finally:
        gone.cancel()
        result.cancel()


class _Uvicorn(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Lets more connections wait than asyncio accepts at once."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_BACKLOG)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to `run`."""
        yield

    def close_connections(self) -> None:
        """Makes every answer from now on close its connection, so that clients use another."""
        header = (b"connection", b"close")
        self.config.encoded_headers.append(header)  # used from the next second on
        self.server_state.default_headers.append(header)  # used in this second


async def serve(
    settings: Settings,
    stop: asyncio.Event,
    started: Callable[[Server, int], object] = lambda *_: None,
) -> None:
    """Serves until `stop` is set, and then for at most `grace_seconds`.

    Args:
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
                server.app,
                lifespan="off",
                log_config=None,
                access_log=False,
                log_level=logging.ERROR,  # otherwise each refused connection writes a line
                ws="none",
                http=connections.limited(settings.max_connections),  # type: ignore[arg-type]
                backlog=connections.ACCEPTED_AT_ONCE,
                timeout_keep_alive=connections.KEEP_ALIVE_SECONDS,
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
        server.is_stopping = True
        rest_api.close_connections()
        await asyncio.sleep(_DRAIN_SECONDS)
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
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # With this protocol, asyncio sends answers at once: others wait 40 ms for the client's ACK.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except (OSError, OverflowError) as error:  # OverflowError: a port beyond 65,535
        raise InputError(
            f"{_address(host, port)} is not available. Choose a free address."
        ) from error
    return listener


def _address(host: str, port: int) -> str:
    """Returns HOST:PORT, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _allowed_hosts(settings: Settings) -> list[str]:
    """Returns the names by which clients may call the server.

    A web page can give its own name the address of this machine (DNS rebinding). The browser then
    lets its scripts call local servers, but the requests still have the name of the page.
    """
    own = f"[{settings.host}]" if ":" in settings.host else settings.host
    for name in settings.allowed_hosts:
        if "*" in name.removeprefix("*.") and name != "*":
            raise InputError(
                f"allowed_hosts has {name}. Use a name, *.NAME for all below it, or *."
            )
    local = own in LOOPBACK or own.startswith("127.")
    return [own, *LOOPBACK, *settings.allowed_hosts] if settings.allowed_hosts or local else ["*"]
