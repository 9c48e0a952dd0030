"""The gateway: requests of all protocols, keys, limits and the page."""

from __future__ import annotations

import collections
import functools
import hashlib
import importlib.resources
import math
import re
import time
import urllib.parse
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import cachetools
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from keras_transformer.data.reading import read_text
from keras_transformer.errors import InputError
from keras_transformer.extensions.gateway import Settings
from keras_transformer.extensions.gateway.models import Models, OpenModel, open_model
from keras_transformer.extensions.gateway.translation import TextRequest, Translator
from keras_transformer.extensions.serving.batching import Batcher
from keras_transformer.extensions.serving.server import application, time_limit, while_connected
from keras_transformer.extensions.serving.tensors import RequestError, read_document
from keras_transformer.runs.machine import available_cores

_FILES_BYTES = 64 << 20  # translated files that wait for their download
_MAX_CLIENTS = 10_000  # keys and addresses whose rates are known
_PAGE = importlib.resources.files(__package__).joinpath("page.html")

Fields = dict[str, Any]
Handler = Callable[["Gateway", Request, Fields], Awaitable[Response]]


class Protocol(NamedTuple):
    """How a protocol differs from the others.

    Attributes:
        prefix: the start of its paths; "/" for the protocol of all other paths.
        routes: path, methods and handler of each endpoint.
        text, source, target, format: the names of the fields of a request.
        error: returns the body of an error with a status and a message.
        missing: the message about a missing field.
        unsupported: the message about a language that no model has.
        too_long: status and message for a request with too many characters.
        without_key: status and message for a request without a key.
        wrong_key: status and message for an unknown key.
        key: returns the key in the headers or the URL, or None.
        body_key: the name of the field of a body that may have the key.
        default_format: the format of texts without that field.
        public: the handlers that need no key.
    """

    prefix: str
    routes: tuple[tuple[str, tuple[str, ...], Handler], ...]
    text: str
    source: str
    target: str
    format: str
    error: Callable[[int, str], Any]
    missing: str
    unsupported: str
    too_long: tuple[int, str]
    without_key: tuple[int, str]
    wrong_key: tuple[int, str]
    key: Callable[[Request], str | None]
    body_key: str = ""
    default_format: str = "text"
    public: tuple[Handler, ...] = ()

    def required(self, fields: Fields, name: str) -> Any:
        """Returns the value of a field, and refuses a request without it."""
        if not (value := fields.get(name)):
            raise RequestError(400, self.missing.format(name))
        return value

    def texts(self, gateway: Gateway, request: Request, fields: Fields) -> list[str]:
        """Returns the texts of a request, and counts their characters. Refuses too many."""
        value = self.required(fields, self.text)
        texts = value if isinstance(value, list) else [value]
        if not all(isinstance(text, str | int | float) for text in texts):
            raise RequestError(400, f"{self.text} has a value that is no text.")
        limit, size = gateway.settings.max_characters, sum(max(1, len(str(t))) for t in texts)
        if size > limit:
            status, message = self.too_long
            raise RequestError(status, message.format(size=size, limit=limit))
        gateway.characters[request.state.key] += size
        return list(map(text_of, texts))

    def language(self, gateway: Gateway, code: Any, side: int) -> str:
        """Returns the language that a code means (see `Translator`), and refuses unknown ones."""
        found = gateway.translator.language(str(code), side)
        if found is None:
            raise RequestError(400, self.unsupported.format(code))
        return found

    def text_request(
        self, gateway: Gateway, request: Request, fields: Fields, **options: Any
    ) -> TextRequest:
        """Returns the request for translations that the fields and the options describe."""
        texts, source = self.texts(gateway, request, fields), fields.get(self.source) or "auto"
        format = fields.get(self.format) or self.default_format
        if format not in ("text", "html", "xml"):
            raise RequestError(400, f"{format} format is not supported")
        code = None if source == "auto" else self.language(gateway, source, 0)
        target = self.language(gateway, self.required(fields, self.target), 1)
        return TextRequest(texts, code, target, format, **options)


def text_of(value: Any) -> str:
    """Returns a value of a request as a text that can be sent back."""
    return str(value).encode("utf-8", "replace").decode()


def answer(content: Any, pivots: Sequence[str] = (), status: int = 200) -> Response:
    """Returns an answer, whose header names the languages between source and target, if any."""
    return JSONResponse(content, status, {"X-Pivot": ", ".join(pivots)} if pivots else None)


class Gateway:
    """An ASGI application that answers the clients of several protocols with the same models.

    Attributes:
        model: the models. The server of one model has it under this name.
        glossaries: facts and terms, by the client's key and the id.
        files: translated files, by name.
        characters: the number of characters that each key has sent.
    """

    path = "/"

    def __init__(
        self, settings: Settings, protocols: Sequence[Protocol], open_model: OpenModel = open_model
    ) -> None:
        at_once = settings.batches_at_once or available_cores()
        self.settings, self._protocols, self.is_stopping = settings, protocols, False
        self.batcher = Batcher(settings, at_once, lambda rows: None)
        self.model = Models(settings, lambda path: open_model(path, at_once))
        self.translator = Translator(self.model, self.batcher, settings)
        self.glossaries: dict[tuple[str, str], tuple[Fields, dict[str, str]]] = {}
        # The last one stays, even if it is larger than all may be.
        self.files: Any = cachetools.LRUCache(_FILES_BYTES, lambda d: min(len(d), _FILES_BYTES))
        self.characters: collections.Counter[str] = collections.Counter()
        self.keys = None if settings.keys is None else _read_keys(settings.keys)
        self._rates: Any = cachetools.LRUCache(_MAX_CLIENTS)
        routes = [Route("/", lambda request: HTMLResponse(_PAGE.read_text("utf-8")))]
        for protocol in protocols:
            for path, methods, handler in protocol.routes:
                endpoint = functools.partial(self._respond, protocol, handler)
                routes.append(Route(path, endpoint, methods=methods))
        self._routes = application(self, routes, self._error_body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        await self._routes(scope, receive, send)

    async def _respond(self, protocol: Protocol, handler: Handler, request: Request) -> Response:
        fields = await self._admit(protocol, handler, request)
        async with time_limit(self.settings.request_seconds, 504, "It took too long."):
            return await while_connected(request.receive(), handler(self, request, fields))

    async def _admit(self, protocol: Protocol, handler: Handler, request: Request) -> Fields:
        """Returns the fields of a request whose client may send it.

        If its key can only be in a header or in the URL, it is checked before the body is read.
        """
        if request.url.path != "/health":  # monitors ask often
            self._count(f"address {request.client.host if request.client else ''}")
        key, fields = protocol.key(request), None
        if not key and protocol.body_key:
            fields = await _read_fields(request, self.settings.max_body_bytes)
            key = fields.get(protocol.body_key)
        request.state.key = ""
        if self.keys is not None and handler not in protocol.public:
            if not key:
                raise RequestError(*protocol.without_key)
            request.state.key = hashlib.sha256(str(key).encode("utf-8", "replace")).hexdigest()
            if request.state.key not in self.keys:
                raise RequestError(*protocol.wrong_key)
            self._count(f"key {request.state.key}")
        return fields or await _read_fields(request, self.settings.max_body_bytes)

    def _count(self, client: str) -> None:
        """Counts a request of a client. As many as in a minute may come at once."""
        limit, now = self.settings.requests_per_minute, time.monotonic()
        left, last = self._rates.get(client, (limit, now))
        left = min(limit, left + (now - last) * limit / 60)
        if limit and left < 1:
            raise RequestError(429, f"{limit} per 1 minute", math.ceil((1 - left) * 60 / limit))
        self._rates[client] = left - 1, now

    def _error_body(self, request: Request, status: int, message: str) -> Any:
        """Returns the body of an error, as the protocol of the request's path has it."""
        found = (p for p in self._protocols if request.url.path.startswith(p.prefix))
        return next(found, self._protocols[-1]).error(status, message)


async def _read_fields(request: Request, max_bytes: int) -> Fields:
    """Returns the fields of a query, and of a form or a JSON object. Repeated ones are lists."""
    pairs: list[tuple[str, Any]] = list(request.query_params.multi_items())
    document: Fields = {}
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        pairs += (await request.form(max_files=1, max_part_size=max_bytes)).multi_items()
    elif (body := await request.body()) and kind == "application/x-www-form-urlencoded":
        # Starlette takes other characters for Latin-1. curl sends them as they are.
        pairs += urllib.parse.parse_qsl(body.decode(errors="replace"), keep_blank_values=True)
    elif body:
        document = read_document(body)
    columns: dict[str, list[Any]] = {}
    for name, value in pairs:
        columns.setdefault(name, []).append(value)
    return {name: v[0] if len(v) == 1 else v for name, v in columns.items()} | document


def _read_keys(path: str) -> frozenset[str]:
    """Returns the hashes of the keys in a file. What follows a hash in its line is a comment."""
    words = [(line.split() or ["#"])[0] for line in read_text(path)]
    for number, word in enumerate(words, 1):
        if not re.fullmatch("[0-9a-f]{64}|#.*", word):
            raise InputError(
                f"{path}, line {number} does not begin with a SHA-256. Write the hash of a key, "
                "not the key: printf %s KEY | sha256sum"
            )
    return frozenset(words)
