"""The gateway: requests of all protocols, keys, limits and the page."""

from __future__ import annotations

import collections
import hashlib
import importlib.resources
import logging
import re
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import cachetools
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from keras_transformer.data.reading import read_text
from keras_transformer.errors import InputError
from keras_transformer.extensions.gateway import Settings
from keras_transformer.extensions.gateway.models import Models, OpenModel, open_model
from keras_transformer.extensions.gateway.translation import TextRequest, Translator
from keras_transformer.extensions.serving.batching import Batcher
from keras_transformer.extensions.serving.server import allowed_hosts, time_limit, while_connected
from keras_transformer.extensions.serving.tensors import RequestError, read_document
from keras_transformer.runs.machine import available_cores

_LOG = logging.getLogger(__name__)
_BODY_SECONDS = 60.0  # time limit for receiving a body
_SMALL_BYTES = 2**16  # smaller bodies need no limit besides that of connections
_LARGE_BODIES = 4  # how many of the largest size the server may hold at the same time
_FILES_BYTES = 64 << 20  # translated files that wait for their download
_MAX_CLIENTS = 10_000  # keys and addresses whose rates are known
_MAX_ALTERNATIVES = 10
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
_PAGE = importlib.resources.files(__package__).joinpath("page.html")

# For each field of a request its name in DeepL, LibreTranslate and Google; "" if one lacks it.
FIELDS: dict[str, tuple[str, str, str]] = {
    "texts": ("text", "q", "q"),
    "source": ("source_lang", "source", "source"),
    "target": ("target_lang", "target", "target"),
    "format": ("tag_handling", "format", "format"),
    "sentences": ("split_sentences", "", ""),
    "glossary": ("glossary_id", "", ""),
    "formality": ("formality", "", ""),
    "ignored": ("ignore_tags", "", ""),
    "alternatives": ("", "alternatives", ""),
    "key": ("auth_key", "api_key", "key"),
}
Fields = dict[str, Any]
Handler = Callable[["Gateway", Request, Fields], Awaitable[Response]]


class Protocol(NamedTuple):
    """How a protocol differs from the others.

    Attributes:
        column: the column of its names in `FIELDS`.
        prefix: the start of its paths; "/" for the protocol of all other paths.
        routes: path, methods and handler of each endpoint.
        error: returns the body of an error with a status and a message.
        missing: the message about a missing field.
        unsupported: the message about a language that no model has.
        too_long: status and message for a request with too many characters.
        without_key: status and message for a request without a key.
        wrong_key: status and message for an unknown key.
        key: returns the key in the headers, or None.
        format: the default format of texts.
        public: the paths that need no key.
    """

    column: int
    prefix: str
    routes: tuple[tuple[str, tuple[str, ...], Handler], ...]
    error: Callable[[int, str], Any]
    missing: str
    unsupported: str
    too_long: tuple[int, str]
    without_key: tuple[int, str]
    wrong_key: tuple[int, str]
    key: Callable[[Mapping[str, str]], str | None] = lambda headers: None
    format: str = "text"
    public: tuple[str, ...] = ()

    def value(self, fields: Fields, name: str, default: Any = None) -> Any:
        """Returns the value of a field, by its name in `FIELDS`. Empty ones get the default."""
        return fields.get(FIELDS[name][self.column]) or default

    def required(self, fields: Fields, name: str) -> Any:
        """Returns the value of a field, and refuses a request without it."""
        if not (value := self.value(fields, name)):
            raise RequestError(400, self.missing.format(FIELDS[name][self.column]))
        return value

    def given_texts(self, fields: Fields) -> list[Any]:
        """Returns the texts of a request as they are, or [] without any."""
        value = self.value(fields, "texts", [])
        return value if isinstance(value, list) else [value]

    def texts(self, fields: Fields) -> list[str]:
        """Returns the texts of a request, and refuses a request without any."""
        self.required(fields, "texts")
        texts = self.given_texts(fields)
        if not all(isinstance(text, str | int | float) for text in texts):
            raise RequestError(400, f"{FIELDS['texts'][self.column]} has a value that is no text.")
        return list(map(without_surrogates, texts))

    def language(self, gateway: Gateway, code: Any, side: int) -> str:
        """Returns the language that a code means (see `Translator`), and refuses unknown ones."""
        found = gateway.translator.language(str(code), side)
        if found is None:
            raise RequestError(400, self.unsupported.format(code))
        return found

    def text_request(self, gateway: Gateway, fields: Fields) -> TextRequest:
        """Returns the request for translations that the fields describe."""
        texts, source = self.texts(fields), self.value(fields, "source", "auto")
        format = self.value(fields, "format", self.format)
        if format not in ("text", "html", "xml"):
            raise RequestError(400, f"{format} format is not supported")
        count, ignored = (str(self.value(fields, n, "")) for n in ("alternatives", "ignored"))
        others = min(int(count[:9]), _MAX_ALTERNATIVES) if count.isdecimal() else 0
        code = None if source == "auto" else self.language(gateway, source, 0)
        target = self.language(gateway, self.required(fields, "target"), 1)
        names = re.findall(r"[\w:.-]+", ignored.lower())
        return TextRequest(texts, code, target, format, alternatives=others, ignored=names)


def without_surrogates(value: Any) -> str:
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
        batches = settings.max_batch_size, settings.batch_timeout_ms / 1000, settings.max_queue
        self.settings, self._protocols, self.is_stopping = settings, protocols, False
        self.batcher = Batcher(*batches, at_once, lambda rows: None)
        memory = settings.memory_mb << 20
        self.model = Models(settings.model_dir, memory, lambda path: open_model(path, at_once))
        self.translator = Translator(self.model, self.batcher, settings.cache_mb << 20)
        self.glossaries: dict[tuple[str, str], tuple[Fields, dict[str, str]]] = {}
        self.files: Any = cachetools.LRUCache(_FILES_BYTES, len)
        self.characters: collections.Counter[str] = collections.Counter()
        self.keys = None if settings.keys is None else _read_keys(settings.keys)
        self._rates: Any = cachetools.LRUCache(_MAX_CLIENTS)
        self._held_bytes = 0  # of the bodies of all requests
        endpoints = [
            Route(path, self._endpoint(protocol, path, handler), methods=methods)
            for protocol in protocols
            for path, methods, handler in protocol.routes
        ]
        page = Route("/", lambda request: HTMLResponse(_PAGE.read_text("utf-8")))
        handlers: Any = {HTTPException: self._unknown_path}
        routes = Starlette(routes=[page, *endpoints], exception_handlers=handlers)
        own = TrustedHostMiddleware(routes, allowed_hosts(settings), www_redirect=False)
        allowed: Any = {"allow_methods": ["*"], "allow_headers": ["*"], "expose_headers": ["*"]}
        self._routes = CORSMiddleware(own, settings.cors_origins, **allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request whose body is within the limits of size and time."""
        size, held, is_complete, limit = 0, 0, False, self.settings.max_body_bytes
        end = time.monotonic() + _BODY_SECONDS

        async def receive_limited() -> Message:
            """Reads a body that is too large to its end, so that the client sees the answer."""
            nonlocal size, held, is_complete
            while not is_complete:
                async with time_limit(end - time.monotonic(), 408, "The body came too late."):
                    message = await receive()
                size += len(message.get("body", b""))
                is_complete = not message.get("more_body")
                if size <= limit or message["type"] != "http.request":
                    self._held_bytes, held = self._held_bytes + size - held, size
                    if size > _SMALL_BYTES and self._held_bytes > _LARGE_BODIES * limit:
                        raise RequestError(429, "The server has too many large requests.")
                    return message
                if is_complete:
                    raise RequestError(413, f"The body has {size:,} bytes. The limit is {limit:,}.")
            return await receive()

        try:
            await self._routes(scope, receive_limited, send)
        finally:
            self._held_bytes -= held

    def _endpoint(self, protocol: Protocol, path: str, handler: Handler) -> Any:
        """Returns an endpoint that admits a request and answers errors as its protocol does."""

        async def respond(request: Request) -> Response:
            try:
                fields = await _read_fields(request, self.settings.max_body_bytes)
                self._admit(protocol, request, fields, path in protocol.public)
                async with time_limit(self.settings.request_seconds, 504, "It took too long."):
                    return await while_connected(request, handler(self, request, fields))
            except RequestError as error:
                return _refusal(protocol, error.status, str(error))
            except ClientDisconnect:
                return Response(status_code=499)
            except HTTPException as error:  # Starlette cannot read the form
                return _refusal(protocol, error.status_code, error.detail)
            except Exception as error:  # its message may have text of the client
                stack = "".join(traceback.format_tb(error.__traceback__))
                _LOG.error("Internal error: %s\n%s", type(error).__name__, stack)
                return _refusal(protocol, 500, "Internal error")

        return respond

    def _admit(self, protocol: Protocol, request: Request, fields: Fields, is_public: bool) -> None:
        """Refuses a request without a valid key, and one beyond the limits of its client."""
        self._count(f"address {request.client.host if request.client else ''}")
        request.state.key = ""
        if self.keys is not None and not is_public:
            key = protocol.key(request.headers) or protocol.value(fields, "key")
            if not key:
                raise RequestError(*protocol.without_key)
            request.state.key = hashlib.sha256(str(key).encode("utf-8", "replace")).hexdigest()
            if request.state.key not in self.keys:
                raise RequestError(*protocol.wrong_key)
            self._count(f"key {request.state.key}")
        limit = self.settings.max_characters
        size = sum(max(1, len(str(text))) for text in protocol.given_texts(fields))
        if size > limit:
            status, message = protocol.too_long
            raise RequestError(status, message.format(size=size, limit=limit))
        self.characters[request.state.key] += size

    def _count(self, client: str) -> None:
        """Counts a request of a client. As many as in a minute may come at once."""
        limit, now = self.settings.requests_per_minute, time.monotonic()
        left, last = self._rates.get(client, (limit, now))
        left = min(limit, left + (now - last) * limit / 60)
        if limit and left < 1:
            raise RequestError(429, f"{limit} per 1 minute")
        self._rates[client] = left - 1, now

    async def _unknown_path(self, request: Request, error: HTTPException) -> Response:
        path = request.url.path
        protocol = next(p for p in self._protocols if path.startswith(p.prefix) or p.prefix == "/")
        return _refusal(protocol, error.status_code, f"{error.detail}: {request.method} {path}")


def _refusal(protocol: Protocol, status: int, message: str) -> Response:
    headers = {"Retry-After": "1"} if status == 429 else None
    return JSONResponse(protocol.error(status, message), status, headers)


async def _read_fields(request: Request, max_bytes: int) -> Fields:
    """Returns the fields of a query, and of a form or a JSON object. Repeated ones are lists."""
    pairs: list[tuple[str, Any]] = list(request.query_params.multi_items())
    document: Fields = {}
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() in _FORMS:
        form = await request.form(max_files=1, max_part_size=max_bytes)
        pairs += form.multi_items()
    elif body := await request.body():
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
