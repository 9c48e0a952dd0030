"""What the protocols have in common: fields of requests, limits, and errors."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response

from keras_transformer.extensions.gateway.translation import Result, TextRequest
from keras_transformer.extensions.serving.tensors import RequestError

if TYPE_CHECKING:
    from keras_transformer.extensions.gateway.server import Gateway

# For each field of a request its name in the protocols; "" if a protocol lacks it.
PROTOCOLS = ("deepl", "libretranslate", "google")
FIELDS: dict[str, tuple[str, str, str]] = {
    "texts": ("text", "q", "q"),
    "source": ("source_lang", "source", "source"),
    "target": ("target_lang", "target", "target"),
    "format": ("tag_handling", "format", "format"),
    "sentences": ("split_sentences", "", ""),
    "glossary": ("glossary_id", "", ""),
    "formality": ("formality", "", ""),
    "alternatives": ("", "alternatives", ""),
    "ignored": ("ignore_tags", "", ""),
    "splitting": ("splitting_tags", "", ""),
    "key": ("auth_key", "api_key", "key"),
}
_MAX_ALTERNATIVES = 10
_MAX_FORM_FIELDS = 1_000

Fields = dict[str, Any]
Handler = Callable[["Gateway", Request, Fields], Awaitable[Response]]


class Protocol(NamedTuple):
    """How a protocol differs from the others.

    Attributes:
        name: one of `PROTOCOLS`.
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
        max_texts: the most texts of a request.
    """

    name: str
    routes: tuple[tuple[str, tuple[str, ...], Handler], ...]
    error: Callable[[int, str], Any]
    missing: str
    unsupported: str
    too_long: tuple[int, str]
    without_key: tuple[int, str]
    wrong_key: tuple[int, str]
    key: Callable[[Mapping[str, str]], str | None]
    format: str = "text"
    public: tuple[str, ...] = ()
    max_texts: int = 1_000

    def value(self, fields: Fields, name: str, default: Any = None) -> Any:
        """Returns the value of a field, by its name in `FIELDS`."""
        value = fields.get(self._name(name))
        return default if value is None else value

    def _name(self, name: str) -> str:
        return FIELDS[name][PROTOCOLS.index(self.name)]

    def required(self, fields: Fields, name: str) -> Any:
        """Returns the value of a field, and refuses a request without it."""
        value = self.value(fields, name)
        if not value:
            raise RequestError(400, self.missing.format(self._name(name)))
        return value

    def characters(self, fields: Fields) -> int:
        """Returns the number of characters of the texts of a request."""
        value = self.value(fields, "texts")
        values = value if isinstance(value, list) else [value]
        return sum(len(text) for text in values if isinstance(text, str))

    def texts(self, fields: Fields) -> list[str]:
        """Returns the texts of a request."""
        value = self.required(fields, "texts")
        values = value if isinstance(value, list) else [value]
        if not all(isinstance(text, str) for text in values):
            raise RequestError(400, self.missing.format(self._name("texts")))
        if len(values) > self.max_texts:
            raise RequestError(400, f"Too many texts: {len(values)}, the limit is {self.max_texts}")
        return [text.encode("utf-8", "replace").decode() for text in values]  # no lone surrogates

    def language(self, gateway: Gateway, code: Any) -> str:
        """Returns the language of the models that a code means, and refuses unknown ones."""
        found = gateway.translator.language(code) if isinstance(code, str) else None
        if found is None:
            raise RequestError(400, self.unsupported.format(code))
        return found

    def text_request(self, gateway: Gateway, fields: Fields) -> TextRequest:
        """Returns the request for translations that the fields describe."""
        texts = self.texts(fields)
        source = self.value(fields, "source", "auto") or "auto"
        format = self.value(fields, "format", self.format) or self.format
        if format not in ("text", "html", "xml"):
            raise RequestError(400, f"{format} format is not supported")
        count = str(self.value(fields, "alternatives", 0))
        return TextRequest(
            texts,
            None if source == "auto" else self.language(gateway, source),
            self.language(gateway, self.required(fields, "target")),
            format,
            sentences=str(self.value(fields, "sentences", "1")),
            alternatives=min(int(count), _MAX_ALTERNATIVES) if count.isdecimal() else 0,
            ignored=names_of(self.value(fields, "ignored", [])),
            splitting=names_of(self.value(fields, "splitting", [])),
        )

    async def translate(self, gateway: Gateway, request: TextRequest) -> list[Result]:
        """Returns the translations, and refuses pairs of languages without models."""
        try:
            return await gateway.translator.translate(request)
        except LookupError as error:
            raise RequestError(400, self.unsupported.format(error.args[1])) from error


def names_of(value: Any) -> list[str]:
    """Returns the names of elements: a list, or a text with commas, or several of these."""
    values = value if isinstance(value, list) else [value]
    return [name.strip() for text in values for name in str(text).split(",") if name.strip()]


def pivot_headers(pivots: tuple[str, ...]) -> dict[str, str]:
    """Returns the header that names the languages between source and target, if any."""
    return {"X-Pivot": ", ".join(pivots)} if pivots else {}


async def read_fields(request: Request, max_bytes: int) -> Fields:
    """Returns the fields of a query, and of a form or a JSON object. Repeated ones become lists."""
    pairs: list[tuple[str, Any]] = list(request.query_params.multi_items())
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    document: Fields = {}
    if content_type in ("application/x-www-form-urlencoded", "multipart/form-data"):
        form = await request.form(max_files=1, max_fields=_MAX_FORM_FIELDS, max_part_size=max_bytes)
        pairs += form.multi_items()
    elif body := await request.body():
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            raise RequestError(400, "Invalid JSON format") from None
        if not isinstance(document, dict):
            raise RequestError(400, "Invalid JSON format")
    fields: Fields = {}
    for name, value in pairs:
        if name in fields and not isinstance(value, UploadFile):
            known = fields[name]
            fields[name] = [*known, value] if isinstance(known, list) else [known, value]
        else:
            fields[name] = value
    return fields | document
