"""A model behind TF Serving's REST API, on one machine."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import math
import os
import re
import socket
import ssl
import time
import traceback
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import prometheus_client
import uvicorn
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keras_transformer.errors import InputError, require
from keras_transformer.extensions.serving import LOOPBACK, REQUEST_ID, Settings, connections
from keras_transformer.extensions.serving.batching import Batcher, fair_share
from keras_transformer.extensions.serving.engines import Version, with_glossary
from keras_transformer.extensions.serving.models import ServedModel
from keras_transformer.extensions.serving.tensors import (
    Arrays,
    RequestError,
    Signature,
    add_source_tag,
    read_document,
    read_inputs,
    signature_fields,
    write_outputs,
)
from keras_transformer.runs.machine import available_cores, stop_signals

_LOG = logging.getLogger(__name__)
_Result = TypeVar("_Result")
_BODY_SECONDS = 60  # time limit for receiving a body
_SMALL_BYTES = 2**16  # smaller bodies and answers need no limit besides that of connections
_LARGE_BODIES = 8  # bodies of the largest size that the server holds, half of them for one client
_BACKLOG = 2048  # connections that are not accepted yet
_DRAIN_SECONDS = 0.5  # new requests are still answered after a stop signal
_LAST_SECONDS = 3.0  # longest stop after the grace period
_MAX_ANSWER_BYTES = 2**24  # size as arrays; JSON needs several times this memory
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:=/+-]{1,128}")  # ids that are taken from clients
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Server:
    """An ASGI application: the model, the queue of requests, the metrics and the routes."""

    def __init__(self, settings: Settings):
        at_once = settings.batches_at_once or available_cores()
        name = settings.model_name or settings.model_dir.resolve().name
        self.model = ServedModel(settings, name, at_once)
        prometheus_client.disable_created_metrics()  # they double the number of series
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "serving_requests", "Predictions by HTTP status", ["status"], registry=registry
        )
        self._seconds = Histogram(
            "serving_request_seconds", "Time from a request to its answer", registry=registry
        )
        rows = Histogram("serving_batch_rows", "Rows of batches", registry=registry, buckets=_ROWS)
        self.batcher = Batcher(settings, at_once, rows.observe)
        waiting = Gauge("serving_waiting_rows", "Rows that wait for a batch", registry=registry)
        waiting.set_function(lambda: self.batcher.waiting_rows)
        self.path = f"/v1/models/{name}"
        self.is_stopping = False
        self.settings = settings
        self._converting_large = asyncio.Lock()  # from and to JSON
        routes = [
            Route("/healthz", self._health),
            Route("/monitoring/prometheus/metrics", self._metrics),
        ]
        for path in ("/v1/models/{name}", "/v1/models/{name}/versions/{number:int}"):
            routes.append(Route(f"{path}:predict", self._predict, methods=["POST"]))
            routes.append(Route(f"{path}/metadata", self._metadata))
            routes.append(Route(path, self._status))
        self._routes = application(self, routes, lambda _, __, message: {"error": message})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, with an id that its log lines have, too. Counts predictions."""
        given = Headers(scope=scope).get("x-request-id", "")
        REQUEST_ID.set(given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex)
        start, status = time.perf_counter(), 500

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = REQUEST_ID.get()
            await send(message)

        await self._routes(scope, receive, send_with_headers)
        path, seconds = scope["path"], time.perf_counter() - start
        if status >= 500 and path != "/healthz":
            _LOG.warning("%s %r: status %d after %.1f s.", scope["method"], path, status, seconds)
        if scope["method"] == "POST" and path.endswith(":predict"):
            self._requests.labels(str(status)).inc()
            self._seconds.observe(seconds)

    async def _predict(self, request: Request) -> Response:
        seconds = self.settings.request_seconds
        late = f"There was no answer within {seconds:g} s. Send fewer rows."
        async with time_limit(seconds, 504, late):
            body = bytearray()  # so that its memory is free during the prediction
            async for chunk in request.stream():
                body += chunk
            async with self._turn(len(body)):
                version, signature, inputs, by_row = await asyncio.to_thread(
                    self._read, body, **request.path_params
                )
            body.clear()
            prediction = self.batcher.run(signature.call, inputs, version.engine.max_batch_lines)
            # After the body, only a disconnect can come.
            outputs = await while_connected(request.receive(), prediction)
            async with self._turn(sum(array.nbytes for array in outputs.values())):
                answer = await asyncio.to_thread(write_outputs, outputs, by_row)
        return Response(answer, media_type="application/json")

    def _turn(self, size: int) -> contextlib.AbstractAsyncContextManager[Any]:
        """Returns a context in which one large body or answer is converted at a time."""
        return self._converting_large if size > _SMALL_BYTES else contextlib.nullcontext()

    def _read(
        self, body: bytearray, name: str, number: int | None = None
    ) -> tuple[Version, Signature, Arrays, bool]:
        """Returns the version, the signature and the inputs of a request, and its format."""
        document = read_document(body)
        version = self.model.version(name, number)
        key = document.get("signature_name") or "serving_default"
        glossary, terms = document.get("glossary"), document.get("terms")
        if glossary is not None or terms is not None:
            if key != "serving_default":
                raise RequestError(400, f"{key} has no glossary and terms. serving_default has.")
            version = with_glossary(version, glossary, terms)
        signature = version.signatures.get(key)
        if signature is None:
            known = ", ".join(sorted(version.signatures))
            raise RequestError(400, f'Serving signature key "{key}" not found. Choose of {known}.')
        max_queue = self.settings.max_queue
        max_rows = min(self.settings.max_rows or max_queue, max_queue)
        inputs = read_inputs(document, signature.inputs, max_rows)
        sizes = {
            name: np.dtype(dtype).itemsize * math.prod(max(size, 1) for size in shape[1:])
            for name, (dtype, shape) in signature.outputs.items()
        }
        rows, row_bytes = len(next(iter(inputs.values()))), sum(sizes.values())
        most, largest = max(1, _MAX_ANSWER_BYTES // row_bytes), max(sizes, key=sizes.__getitem__)
        if rows > most:
            reason = f"The answer would have {rows * row_bytes:,} bytes, most of them in {largest}."
            raise RequestError(400, f"{rows:,} rows: {reason} Send at most {most:,} rows to {key}.")
        if tag := self.settings.source_tag or version.engine.source_tag:
            inputs = add_source_tag(inputs, tag, version.engine.symbols)
        return version, signature, inputs, "instances" in document

    async def _status(self, request: Request) -> Response:
        return JSONResponse({"model_version_status": self.model.status(**request.path_params)})

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


def application(
    server: Any, routes: Sequence[Route], error_body: Callable[[Request, int, str], Any]
) -> ASGIApp:
    """Returns routes behind checks of the host, the origin and the body of a request.

    `error_body` returns the JSON of an error from the request, its status and a message. `server`
    has the attributes `settings` and `is_stopping`, and gets `held`: see `limited_body`.
    """
    settings, server.held = server.settings, collections.Counter()

    async def refusal(request: Request, error: Exception) -> Response:
        status, message = 500, "The server has an internal error. See its log."
        headers: Mapping[str, str] | None = None
        if isinstance(error, InputError):
            error = RequestError(400, str(error))
        if isinstance(error, RequestError):
            status, message = error.status, str(error)
            headers = {"Retry-After": str(error.retry_seconds)} if status == 429 else None
        elif isinstance(error, HTTPException):
            status, headers, message = error.status_code, error.headers, error.detail
            if status in (404, 405):  # others are about the form of a body
                message = f"{message}: {request.method} {request.url.path}"
        return JSONResponse(error_body(request, status, message), status, headers)

    handlers: Any = dict.fromkeys((InputError, RequestError, HTTPException, Exception), refusal)
    # Outside of Starlette, which answers internal errors outside of its middleware.
    with_cors = CORSMiddleware(
        Starlette(routes=routes, exception_handlers=handlers),
        allow_origins=settings.cors_origins,
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=["*"],
    )
    checked = TrustedHostMiddleware(with_cors, allowed_hosts(settings), www_redirect=False)

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_or_close(message: Message) -> None:
            if server.is_stopping and message["type"] == "http.response.start":
                MutableHeaders(scope=message)["Connection"] = "close"  # clients use another server
            await send(message)

        try:
            with limited_body(scope, receive, settings.max_body_bytes, server.held) as limited:
                await checked(scope, limited, send_or_close)
        except Exception as error:  # Starlette answers it, and raises it again
            stack = "".join(traceback.format_tb(error.__traceback__))  # without text of the client
            _LOG.error("Internal error: %s\n%s", type(error).__name__, stack)

    return respond


@contextlib.asynccontextmanager
async def time_limit(seconds: float, status: int, message: str) -> AsyncIterator[None]:
    """Refuses a request if the block takes too long."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise RequestError(status, message) from None


@contextlib.contextmanager
def limited_body(
    scope: Scope, receive: Receive, max_bytes: int, held: collections.Counter[str]
) -> Iterator[Receive]:
    """Yields a function that receives the body of a request within the limits of size and time.

    A body that is too large is read to the end and discarded, because a client that is still
    sending would not see the answer. `held` has the bytes of large bodies by the address of the
    client until their requests are answered. Addresses divide the memory by `fair_share`.
    """
    size, own, is_complete = 0, 0, False
    expected = int(Headers(scope=scope).get("content-length", 0))
    client = scope["client"][0] if scope["client"] else ""  # "": it has left already
    end = time.monotonic() + _BODY_SECONDS

    async def receive_limited() -> Message:
        nonlocal size, own, is_complete
        while not is_complete:
            late = f"The body did not arrive within {_BODY_SECONDS} s."
            async with time_limit(end - time.monotonic(), 408, late):
                message = await receive()
            if message["type"] == "http.disconnect":
                raise RequestError(499, "The client has disconnected.")
            size += len(message.get("body", b""))
            is_complete = not message.get("more_body")
            if max(size, expected) <= max_bytes:
                if size > _SMALL_BYTES:
                    held[client] += size - own
                    own = size
                    if fair_share(held[client], held.total(), _LARGE_BODIES * max_bytes) < 0:
                        raise RequestError(429, "The server has too many large requests.")
                return message
        if (most := max(size, expected)) > max_bytes:
            raise RequestError(413, f"The body has {most:,} bytes, but the limit is {max_bytes:,}.")
        return await receive()

    try:
        yield receive_limited
    finally:
        held[client] -= own
        if not held[client]:
            del held[client]


async def while_connected(leaving: Awaitable[Any], work: Awaitable[_Result]) -> _Result:
    """Returns the result of `work`, and cancels it if the client leaves before."""
    result, gone = asyncio.ensure_future(work), asyncio.ensure_future(leaving)
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


async def serve(
    settings: Settings,
    stop: asyncio.Event,
    started: Callable[[Any, int], object] = lambda *_: None,
    create: Callable[[Any], Any] | None = None,
) -> None:
    """Serves until `stop` is set, and then for at most `grace_seconds`.

    When it answers requests, it calls `started` with the server and its port. `create` makes
    another server with the attributes `model`, `batcher`, `path` and `is_stopping`.
    """
    server = Server(settings) if create is None else create(settings)
    tls, certificate, key = None, settings.tls_certificate, settings.tls_key
    if certificate:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            tls.load_cert_chain(certificate, key)
        except OSError as error:
            raise InputError(f"--tls_certificate={certificate} --tls_key={key}: {error}") from error
    with _listener(settings.host, settings.rest_port) as listener:
        _LOG.info("Loading %s.", settings.model_dir)
        await server.model.start()
        listener.listen(_BACKLOG)
        rest_api = _Uvicorn(
            uvicorn.Config(
                server,
                lifespan="off",
                log_config=None,
                access_log=False,
                log_level=logging.ERROR,  # otherwise each refused connection writes a line
                ws="none",
                http=connections.limited(settings.max_connections, tls),  # type: ignore[arg-type]
                backlog=connections.ACCEPTED_AT_ONCE,
                timeout_keep_alive=connections.KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=math.ceil(settings.grace_seconds),
            )
        )
        rest = asyncio.create_task(rest_api.serve(sockets=[listener]))
        watch = asyncio.create_task(server.model.watch(settings.poll_seconds))
        port = listener.getsockname()[1]
        scheme = "https" if tls else "http"
        _LOG.info("REST at %s://%s%s", scheme, _address(settings.host, port), server.path)
        started(server, port)
        await stop.wait()
        _LOG.info("Stopping: answering the requests that wait.")
        server.is_stopping = True
        await asyncio.sleep(_DRAIN_SECONDS)
        rest_api.should_exit = True
        await rest
        watch.cancel()
        await asyncio.to_thread(server.batcher.close)


def run(settings: Settings, create: Callable[[Any], Any] | None = None) -> None:
    """Serves until SIGTERM, SIGHUP or SIGINT. A second signal ends the process immediately."""

    async def main() -> None:
        loop, started, stop = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

        def end() -> None:
            if stop.is_set() or not started.is_set():  # loading a model cannot be interrupted
                os._exit(int(stop.is_set()))
            stop.set()
            loop.call_later(settings.grace_seconds + _LAST_SECONDS, os._exit, 1)

        for number in stop_signals():
            loop.add_signal_handler(number, end)
        await serve(settings, stop, lambda *_: started.set(), create)

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


def allowed_hosts(settings: Settings) -> list[str]:
    """Returns the names by which clients may call the server.

    A web page can give its own name the address of this machine (DNS rebinding). The browser then
    lets its scripts call local servers, but the requests still have the name of the page.
    """
    own = f"[{settings.host}]" if ":" in settings.host else settings.host
    for name in settings.allowed_hosts:
        is_valid = name == "*" or "*" not in name.removeprefix("*.")
        require(is_valid, f"allowed_hosts has {name}. Use a name, *.NAME for all below it, or *.")
    local = own in LOOPBACK or own.startswith("127.")
    return [own, *LOOPBACK, *settings.allowed_hosts] if settings.allowed_hosts or local else ["*"]
