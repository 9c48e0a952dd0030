"""TF Serving's REST API as an ASGI application."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import grpc
import prometheus_client
from google.protobuf import json_format
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from keras_transformer.extensions.serving.server.batching import RequestError
from keras_transformer.extensions.serving.server.tensors import (
    read_document,
    read_inputs,
    write_outputs,
)

if TYPE_CHECKING:
    from keras_transformer.extensions.serving.server.state import Server

_LOG = logging.getLogger(__name__)

_PATH = re.compile(
    r"/v1/models(/(?P<name>[^/:]+))?(/versions/(?P<number>\d+))?"
    r"(?P<what>:predict|:classify|:regress|/metadata)?",
    re.IGNORECASE,
)
_BODY_SECONDS = 60  # time limit for receiving a body
_MAX_VERSION = 2**63 - 1
_DEFECT = "The server has an internal error. See its log."

# From TF Serving's http_server.cc. All other codes are 500.
_HTTP_STATUS = {
    grpc.StatusCode.CANCELLED: 499,
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.OUT_OF_RANGE: 400,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.UNAUTHENTICATED: 401,
}

_Result = TypeVar("_Result")


class RestApi:
    """The routes of `/v1/models`, `/healthz` and `/monitoring/prometheus/metrics`.

    Args:
        server: the state of the server.
        max_body_bytes: maximum bytes of a request.
        cors_origins: origins of web pages whose scripts may read the answers; "*" for all.
    """

    def __init__(self, server: Server, max_body_bytes: int, cors_origins: Sequence[str] = ()):
        self._server = server
        self._max_body_bytes = max_body_bytes
        # Other methods get a message of TF Serving instead of Starlette's status 405.
        methods = ["DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"]
        cors = Middleware(
            CORSMiddleware,
            allow_origins=cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["Retry-After"],
        )
        self.app = Starlette(
            middleware=[cors] if cors_origins else [],
            routes=[
                Route("/v1/models{rest:path}", self._models, methods=methods),
                Route("/healthz", self._health),
                Route("/monitoring/prometheus/metrics", self._metrics),
            ],
            exception_handlers={
                RequestError: _refusal,
                HTTPException: _refusal,
                Exception: _refusal,
            },
        )

    async def _models(self, request: Request) -> Response:
        try:
            response = await self._answer(request)
        except Exception as error:  # Starlette would close the connection
            if not isinstance(error, (RequestError, HTTPException)):
                _LOG.exception("%s %s", request.method, request.url.path)
            response = await _refusal(request, error)
        if self._server.ending:  # the client should use another connection for its next request
            response.headers["Connection"] = "close"
        return response

    async def _answer(self, request: Request) -> Response:
        match = _PATH.fullmatch(request.url.path)
        method = {None: "GET", "/metadata": "GET"}.get(match and match["what"], "POST")
        asked = "GET" if request.method == "HEAD" else request.method
        if match is None or asked != method or (method == "POST" and not match["name"]):
            raise RequestError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"Malformed request: {request.method} {request.url.path}",
            )
        name, what = match["name"] or "", match["what"]
        number = None if match["number"] is None else int(match["number"][:20])
        if not name or (number or 0) > _MAX_VERSION:
            raise RequestError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"{request.url.path} names no model or no version. Use "
                f"/v1/models/{self._server.model.name}.",
            )
        if what is None:
            return _json(self._server.model.status(name, number))
        if what == "/metadata":
            return self._metadata(name, number)
        if what.lower() != ":predict":
            raise RequestError(
                grpc.StatusCode.UNIMPLEMENTED, f"{what} is not supported. Use :predict."
            )
        return await self._timed(request, lambda: self._predict(request, name, number))

    async def _predict(self, request: Request, name: str, number: int | None) -> Response:
        body = await self._body(request)
        document = await asyncio.to_thread(read_document, body)
        with self._server.model.version(name, number) as version:
            signature = document.get("signature_name", "")
            expected = version.signature(signature).inputs
            inputs = await asyncio.to_thread(read_inputs, document, expected)
            prediction = self._server.predict(version, signature, inputs)
            outputs = await _while_connected(request, prediction)
        answer = await asyncio.to_thread(write_outputs, outputs, "instances" in document)
        return Response(answer, media_type="application/json")

    async def _body(self, request: Request) -> bytes:
        """Returns the body.

        A body that is too large is read to the end and discarded, because a client that is still
        sending would not see the answer.
        """
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size <= self._max_body_bytes:
                        chunks.append(chunk)
        except TimeoutError:
            raise HTTPException(408, f"The body did not arrive within {_BODY_SECONDS} s.") from None
        except ClientDisconnect:
            raise RequestError(grpc.StatusCode.CANCELLED, "The client has disconnected.") from None
        if size > self._max_body_bytes:
            raise HTTPException(
                413, f"The body has {size:,} bytes, but the limit is {self._max_body_bytes:,}."
            )
        return b"".join(chunks)

    async def _timed(self, request: Request, answer: Callable[[], Awaitable[Response]]) -> Response:
        """Counts a request with the status of its answer."""
        start = time.perf_counter()
        status = 500
        try:
            response = await answer()
            status = response.status_code
        except Exception as error:
            status = _status(error)
            raise
        finally:
            self._server.metrics.count("REST", str(status), time.perf_counter() - start)
        return response

    def _metadata(self, name: str, number: int | None) -> Response:
        with self._server.model.version(name, number) as version:
            signatures = self._server.signatures(version)
            return JSONResponse(
                {
                    "model_spec": {
                        "name": name,
                        "signature_name": "",
                        "version": str(version.number),
                    },
                    "metadata": {"signature_def": _fields(signatures, keep_names=True)},
                }
            )

    async def _health(self, request: Request) -> Response:
        status = "ending" if self._server.ending else "serving"
        fields = {"status": status, "model": self._server.model.name}
        return JSONResponse(fields, 503 if self._server.ending else 200)

    async def _metrics(self, request: Request) -> Response:
        body = prometheus_client.generate_latest(self._server.metrics.registry)
        return Response(body, media_type=prometheus_client.CONTENT_TYPE_LATEST)


def _status(error: Exception) -> int:
    if isinstance(error, HTTPException):
        return error.status_code
    return _HTTP_STATUS.get(error.code, 500) if isinstance(error, RequestError) else 500


async def _refusal(request: Request, error: Exception) -> Response:
    """Returns the answer to a failed request, the JSON `{"error": message}`."""
    message = str(error)
    if isinstance(error, HTTPException):
        message = error.detail
        if error.status_code in (404, 405):  # of Starlette
            message = f"{error.detail}: {request.method} {request.url.path}"
    elif not isinstance(error, RequestError):
        message = _DEFECT
    status = _status(error)
    headers = {"Retry-After": "1"} if status in (429, 503) else None
    return JSONResponse({"error": message}, status, headers)


async def _while_connected(request: Request, work: Awaitable[_Result]) -> _Result:
    """Returns the result of `work`, and cancels it if the client disconnects."""
    result = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(request.receive())  # after the body, only a disconnect can come
    try:
        await asyncio.wait({result, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            raise RequestError(grpc.StatusCode.CANCELLED, "The client has disconnected.")
        return result.result()
    finally:
        gone.cancel()
        result.cancel()


def _json(message: object) -> Response:
    return JSONResponse(_fields(message))


def _fields(message: object, keep_names: bool = False) -> dict[str, object]:
    """Returns a protobuf message as TF Serving writes it, including unset fields."""
    fields: dict[str, object] = json_format.MessageToDict(
        message,
        always_print_fields_with_no_presence=True,
        preserving_proto_field_name=keep_names,
    )
    return fields
