"""The gateway: routes of all protocols, keys, limits and the page."""

from __future__ import annotations

import asyncio
import collections
import hashlib
import importlib.resources
import logging
import re
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import cachetools
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from keras_transformer.errors import InputError, one_line
from keras_transformer.extensions.gateway import Settings
from keras_transformer.extensions.gateway.deepl import DEEPL
from keras_transformer.extensions.gateway.google import GOOGLE
from keras_transformer.extensions.gateway.libretranslate import LIBRETRANSLATE
from keras_transformer.extensions.gateway.models import Models, open_model
from keras_transformer.extensions.gateway.protocols import Fields, Handler, Protocol, read_fields
from keras_transformer.extensions.gateway.translation import Translator
from keras_transformer.extensions.serving.batching import Batcher
from keras_transformer.extensions.serving.server import allowed_hosts, time_limit, while_connected
from keras_transformer.extensions.serving.tensors import RequestError
from keras_transformer.runs.machine import available_cores

_LOG = logging.getLogger(__name__)
_BODY_SECONDS = 60.0  # time limit for receiving a body
_FILES_BYTES = 64 << 20  # translated files that wait for their download
_MAX_CLIENTS = 10_000  # keys and addresses whose rates are known
_PAGE = importlib.resources.files(__package__).joinpath("page.html")
# The page loads nothing from elsewhere.
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}


class Gateway:
    """An ASGI application that answers the clients of several protocols with the same models.

    Attributes:
        glossaries: facts and terms, by the client's key and the id.
        files: translated files, by name.
        characters: the number of characters that each key has sent.
    """

    path = "/"

    def __init__(
        self, settings: Settings, open_model: Callable[[Path, int], Any] = open_model
    ) -> None:
        at_once = settings.batches_at_once or available_cores()
        self.settings = settings
        self.batcher = Batcher(
            settings.max_batch_size, settings.batch_timeout_ms / 1000, settings.max_queue, at_once,
            lambda rows: None,
        )  # fmt: skip
        self.model = self.models = Models(
            settings.model_dir, settings.memory_mb << 20, lambda path: open_model(path, at_once)
        )
        self.translator = Translator(self.models, self.batcher, settings.cache_mb << 20)
        self.glossaries: dict[tuple[str, str], Any] = {}
        self.files: Any = cachetools.LRUCache(_FILES_BYTES, len)
        self.characters: collections.Counter[str] = collections.Counter()
        self.is_stopping = False
        self._keys = None if settings.keys is None else _read_keys(Path(settings.keys))
        self.needs_key = self._keys is not None
        self._rates: Any = cachetools.LRUCache(_MAX_CLIENTS)
        routes = [Route("/", self._page)]
        for protocol in (DEEPL, LIBRETRANSLATE, GOOGLE):
            for path, methods, handler in protocol.routes:
                endpoint = self._endpoint(protocol, handler, path in protocol.public)
                name = "download" if path.startswith("/download") else None
                routes.append(Route(path, endpoint, methods=methods, name=name))
        hosts = Middleware(
            TrustedHostMiddleware, allowed_hosts=allowed_hosts(settings), www_redirect=False
        )
        handlers: Any = {HTTPException: _unknown_path}
        self._routes = CORSMiddleware(
            Starlette(middleware=[hosts], routes=routes, exception_handlers=handlers),
            allow_origins=settings.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["Retry-After", "X-Pivot"],
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request whose body is within the limits of size and time."""
        size, is_complete, limit = 0, False, self.settings.max_body_bytes
        end = asyncio.get_running_loop().time() + _BODY_SECONDS

        async def receive_limited() -> Message:
            """Reads a body that is too large to its end, so that the client sees the answer."""
            nonlocal size, is_complete
            while not is_complete:
                try:
                    async with asyncio.timeout_at(end):
                        message = await receive()
                except TimeoutError:
                    raise RequestError(408, "The body did not arrive in time.") from None
                size += len(message.get("body", b""))
                is_complete = not message.get("more_body")
                if size <= limit or message["type"] != "http.request":
                    return message
                if is_complete:
                    raise RequestError(413, f"The body has {size:,} bytes. The limit is {limit:,}.")
            return await receive()

        await self._routes(scope, receive_limited, send)

    def _endpoint(
        self, protocol: Protocol, handler: Handler, is_public: bool
    ) -> Callable[[Request], Awaitable[Response]]:
        """Returns an endpoint that admits a request and answers errors as its protocol does."""
        seconds = self.settings.request_seconds
        late = f"There was no answer within {seconds:g} s. Send less text."

        async def answer(request: Request) -> Response:
            try:
                fields = await read_fields(request, self.settings.max_body_bytes)
                self._admit(protocol, request, fields, is_public)
                async with time_limit(seconds, 504, late):
                    return await while_connected(request, handler(self, request, fields))
            except RequestError as error:
                return _refusal(protocol, error.status, str(error))
            except ClientDisconnect:
                return Response(status_code=499)
            except Exception as error:  # its message may have text of the client
                stack = "".join(traceback.format_tb(error.__traceback__))
                _LOG.error("Internal error: %s\n%s", type(error).__name__, stack)
                return _refusal(protocol, 500, "Internal error")

        return answer

    def _admit(self, protocol: Protocol, request: Request, fields: Fields, is_public: bool) -> None:
        """Refuses a request without a valid key, and one beyond the limits of its client."""
        self._count(f"address {request.client.host if request.client else ''}")
        request.state.key = ""
        if self._keys is not None and not is_public:
            key = protocol.key(request.headers) or protocol.value(fields, "key")
            if not key:
                raise RequestError(*protocol.without_key)
            request.state.key = hashlib.sha256(str(key).encode("utf-8", "replace")).hexdigest()
            if request.state.key not in self._keys:
                raise RequestError(*protocol.wrong_key)
            self._count(f"key {request.state.key}")
        size, limit = protocol.characters(fields), self.settings.max_characters
        if size > limit:
            status, message = protocol.too_long
            raise RequestError(status, message.format(size=size, limit=limit))
        self.characters[request.state.key] += size

    def _count(self, client: str) -> None:
        """Counts a request of a client. As many as in a minute may come at once."""
        limit, now = self.settings.requests_per_minute, time.monotonic()
        if not limit:
            return
        left, last = self._rates.get(client, (limit, now))
        left = min(limit, left + (now - last) * limit / 60)
        if left < 1:
            raise RequestError(429, f"{limit} per 1 minute")
        self._rates[client] = left - 1, now

    async def _page(self, request: Request) -> Response:
        return HTMLResponse(_PAGE.read_text("utf-8"), headers=_PAGE_HEADERS)


def _refusal(protocol: Protocol, status: int, message: str) -> Response:
    headers = {"Retry-After": "1"} if status == 429 else None
    return JSONResponse(protocol.error(status, message), status, headers)


async def _unknown_path(request: Request, error: HTTPException) -> Response:
    """Answers a request for a path or with a method that no endpoint has."""
    path = request.url.path
    protocol = DEEPL if path.startswith("/v2/") else LIBRETRANSLATE
    protocol = GOOGLE if path.startswith("/language/") else protocol
    return _refusal(protocol, error.status_code, f"{error.detail}: {request.method} {path}")


def _read_keys(path: Path) -> frozenset[str]:
    """Returns the hashes of the keys in a file. What follows a hash in its line is a comment."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise InputError(f"--keys={path} cannot be read: {one_line(error)}.") from error
    hashes = set()
    for number, line in enumerate(lines, 1):
        word = line.split()[0].lower() if line.split() else ""
        if re.fullmatch("[0-9a-f]{64}", word):
            hashes.add(word)
        elif word and not word.startswith("#"):
            raise InputError(
                f"{path}, line {number} does not begin with a SHA-256. Write the hash of a key, "
                "not the key: printf %s KEY | sha256sum"
            )
    return frozenset(hashes)
