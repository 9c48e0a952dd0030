"""TF Serving's REST API as an ASGI application."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import zlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import grpc
import prometheus_client
from google.protobuf import json_format
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from keras_transformer.serving.server.batching import RequestError
from keras_transformer.serving.server.tensors import read_document, read_inputs, write_outputs

if TYPE_CHECKING:
    from keras_transformer.serving.server.state import Server

_LOG = logging.getLogger(__name__)

_PATH = re.compile(
    r"/v1/models(/(?P<name>[^/:]+))?(/versions/(?P<number>\d+)|/labels/(?P<label>[^/:]+))?"
    r"(?P<what>:predict|:classify|:regress|/metadata)?",
    re.IGNORECASE,
)
_BODY_SECONDS = 60  # in which a body has to arrive
_MAX_VERSION = 2**63 - 1
_GZIP = 16 + zlib.MAX_WBITS  # 16: with gzip's header
_PIECE_BYTES = 1024  # unzipped at once: what follows a member, which may be of 20, is copied

# As TF Serving's http_server.cc; what is not here is a 500.
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
        server: what answers.
        max_body_bytes: of a request.
    """

    def __init__(self, server: Server, max_body_bytes: int):
        self._server = server
        self._max_body_bytes = max_body_bytes
        methods = [
            "DELETE",
            "GET",
            "HEAD",
            "PATCH",
            "POST",
            "PUT",
        ]  # refused by a sentence, not by a 405
        self.app = Starlette(
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
        except Exception as error:  # Starlette would answer too, and then break the connection
            if not isinstance(error, (RequestError, HTTPException)):
                _LOG.exception("%s %s", request.method, request.url.path)
            response = await _refusal(request, error)
        if self._server.ending:  # or the client would send its next request into nothing
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
        name, label, what = match["name"] or "", match["label"] or "", match["what"]
        number = None if match["number"] is None else int(match["number"][:20])
        if not name or (number or 0) > _MAX_VERSION:
            raise RequestError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"{request.url.path} names no model or no version; expected "
                f"/v1/models/{self._server.model.name}",
            )
        if what is None:
            return _json(self._server.model.status(name, number))
        if what == "/metadata":
            return self._metadata(name, number, label)
        if what.lower() != ":predict":
            raise RequestError(
                grpc.StatusCode.UNIMPLEMENTED, f"{what} is not served; expected :predict"
            )
        return await self._timed(request, lambda: self._predict(request, name, number, label))

    async def _predict(
        self, request: Request, name: str, number: int | None, label: str
    ) -> Response:
        body = await self._body(request)
        encoding = request.headers.get("content-encoding", "identity").strip().lower()
        body = await asyncio.to_thread(_decoded, body, encoding, self._max_body_bytes)
        document = await asyncio.to_thread(read_document, body)
        with self._server.model.version(name, number, label) as version:
            signature = document.get("signature_name", "")
            expected = version.signature(signature).inputs
            inputs = await asyncio.to_thread(read_inputs, document, expected)
            prediction = self._server.predict(version, signature, inputs)
            outputs = await _while_connected(request, prediction)
        answer = await asyncio.to_thread(write_outputs, outputs, "instances" in document)
        return Response(answer, media_type="application/json")

    async def _body(self, request: Request) -> bytes:
        """Returns the body. One that is too large is read to its end, but not kept.

        A client that still sends would not see an answer.
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
            raise HTTPException(
                408, f"the body has not arrived in {_BODY_SECONDS} s; expected all of it"
            ) from None
        except ClientDisconnect:
            raise RequestError(grpc.StatusCode.CANCELLED, "the client has gone") from None
        if size > self._max_body_bytes:
            raise HTTPException(
                413, f"the body has {size:,} bytes; expected at most {self._max_body_bytes:,}"
            )
        return b"".join(chunks)

    async def _timed(self, request: Request, answer: Callable[[], Awaitable[Response]]) -> Response:
        """Counts a request, with the status of its answer."""
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

    def _metadata(self, name: str, number: int | None, label: str) -> Response:
        with self._server.model.version(name, number, label) as version:
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


def _decoded(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """Returns a body as it was before gzip, which TF Serving takes too."""
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "x-gzip"):
        raise HTTPException(415, f"the body is encoded by {encoding!r}; expected gzip, or nothing")
    decoded = bytearray()
    member = zlib.decompressobj(_GZIP)
    for start in range(0, len(body), _PIECE_BYTES):
        piece = body[start : start + _PIECE_BYTES]
        while piece:
            if member.eof:  # one follows the other
                member = zlib.decompressobj(_GZIP)
            try:
                decoded += member.decompress(piece, max_bytes - len(decoded) + 1)
            except zlib.error as error:
                raise HTTPException(400, f"the body is no gzip ({error})") from error
            if len(decoded) > max_bytes:
                raise HTTPException(413, f"the body has more than the {max_bytes:,} bytes expected")
            piece = member.unused_data
    if not member.eof:
        raise HTTPException(400, "the body ends within its gzip; expected all of it")
    return bytes(decoded)


def _status(error: Exception) -> int:
    if isinstance(error, HTTPException):
        return error.status_code
    return _HTTP_STATUS.get(error.code, 500) if isinstance(error, RequestError) else 500


async def _refusal(request: Request, error: Exception) -> Response:
    """Returns the answer to what has failed: always JSON, `{"error": sentence}`."""
    sentence = str(error)
    if isinstance(error, HTTPException):
        sentence = error.detail
        if error.status_code in (404, 405):  # Starlette's own
            sentence = f"{error.detail}: {request.method} {request.url.path}"
    elif not isinstance(error, RequestError):
        sentence = "the server has a defect, which its log shows"
    status = _status(error)
    headers = {"Retry-After": "1"} if status in (429, 503) else None
    return JSONResponse({"error": sentence}, status, headers)


async def _while_connected(request: Request, work: Awaitable[_Result]) -> _Result:
    """Returns what `work` does, and cancels it when the client has gone."""
    result = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(request.receive())  # the body is read: nothing else can come
    try:
        await asyncio.wait({result, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            raise RequestError(grpc.StatusCode.CANCELLED, "the client has gone")
        return result.result()
    finally:
        gone.cancel()
        result.cancel()


def _json(message: object) -> Response:
    return JSONResponse(_fields(message))


def _fields(message: object, keep_names: bool = False) -> dict[str, object]:
    """Returns a protobuf message as TF Serving writes it: with the fields that are not set."""
    fields: dict[str, object] = json_format.MessageToDict(
        message,
        always_print_fields_with_no_presence=True,
        preserving_proto_field_name=keep_names,
    )
    return fields
