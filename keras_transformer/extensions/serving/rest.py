"""TF Serving's REST API as an ASGI application."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, TypeVar

import prometheus_client
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from keras_transformer.extensions.serving.tensors import (
    RequestError,
    read_document,
    read_inputs,
    signature_fields,
    write_outputs,
)

if TYPE_CHECKING:
    from keras_transformer.extensions.serving.state import Server

_LOG = logging.getLogger(__name__)
_BODY_SECONDS = 60  # time limit for receiving a body
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
        cors = Middleware(
            CORSMiddleware,
            allow_origins=cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["Retry-After"],
        )
        routes = [
            Route("/healthz", self._health),
            Route("/monitoring/prometheus/metrics", self._metrics),
        ]
        for path in ("/v1/models/{name}", "/v1/models/{name}/versions/{number:int}"):
            routes.append(Route(f"{path}:predict", self._counted, methods=["POST"]))
            routes.append(Route(f"{path}/metadata", self._metadata))
            routes.append(Route(path, self._status))
        self.app = Starlette(
            middleware=[cors] if cors_origins else [],
            routes=routes,
            exception_handlers={RequestError: _refusal, HTTPException: _refusal},
        )

    async def _counted(self, request: Request) -> Response:
        start = time.perf_counter()
        try:
            response = await self._predict(request)
        except Exception as error:  # Starlette would close the connection
            if not isinstance(error, (RequestError, HTTPException)):
                _LOG.exception("%s %s", request.method, request.url.path)
                error = RequestError(500, "The server has an internal error. See its log.")
            response = await _refusal(request, error)
        seconds = time.perf_counter() - start
        self._server.metrics.count("REST", str(response.status_code), seconds)
        return response

    async def _predict(self, request: Request) -> Response:
        body = await self._body(request)
        document = await asyncio.to_thread(read_document, body)
        version = self._server.model.version(**request.path_params)
        signature = document.get("signature_name") or "serving_default"
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
            raise RequestError(408, f"The body did not arrive within {_BODY_SECONDS} s.") from None
        except ClientDisconnect:
            raise RequestError(499, "The client has disconnected.") from None
        if size > self._max_body_bytes:
            raise RequestError(
                413, f"The body has {size:,} bytes, but the limit is {self._max_body_bytes:,}."
            )
        return b"".join(chunks)

    async def _status(self, request: Request) -> Response:
        states = self._server.model.status(**request.path_params)
        return JSONResponse({"model_version_status": states})

    async def _metadata(self, request: Request) -> Response:
        version = self._server.model.version(**request.path_params)
        spec = {"name": self._server.model.name, "signature_name": ""}
        signatures = signature_fields(version.engine.signatures)
        return JSONResponse(
            {
                "model_spec": {**spec, "version": str(version.number)},
                "metadata": {"signature_def": {"signature_def": signatures}},
            }
        )

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "serving", "model": self._server.model.name})

    async def _metrics(self, request: Request) -> Response:
        body = prometheus_client.generate_latest(self._server.metrics.registry)
        return Response(body, media_type=prometheus_client.CONTENT_TYPE_LATEST)


async def _refusal(request: Request, error: Exception) -> Response:
    """Returns the answer to a failed request, the JSON `{"error": message}`."""
    if isinstance(error, HTTPException):  # of Starlette: 404 or 405
        message = f"{error.detail}: {request.method} {request.url.path}"
        return JSONResponse({"error": message}, error.status_code)
    status = error.status if isinstance(error, RequestError) else 500
    headers = {"Retry-After": "1"} if status == 429 else None
    return JSONResponse({"error": str(error)}, status, headers)


async def _while_connected(request: Request, work: Awaitable[_Result]) -> _Result:
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
