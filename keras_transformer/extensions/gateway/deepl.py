"""The API of DeepL, version 2."""

from __future__ import annotations

import csv
import datetime
import io
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from keras_transformer.errors import InputError
from keras_transformer.extensions.documents.glossary import Glossary
from keras_transformer.extensions.gateway.protocols import Fields, Protocol, pivot_headers
from keras_transformer.extensions.gateway.translation import FORMALITY, language_name
from keras_transformer.extensions.serving.tensors import RequestError

if TYPE_CHECKING:
    from keras_transformer.extensions.gateway.server import Gateway

_MAX_GLOSSARIES = 1_000
_SENTENCES = {"0": "0", "false": "0", "1": "1", "true": "1", "nonewlines": "nonewlines"}
# DeepL's clients refuse these codes as targets. A region means the model of the language.
_REGIONS = {"EN": ("EN-GB", "EN-US"), "PT": ("PT-BR", "PT-PT")}
_UNLIMITED = 10**12  # characters, as in DeepL's accounts without a limit


async def _translate(gateway: Gateway, request: Request, fields: Fields) -> Response:
    asked = DEEPL.text_request(gateway, fields)
    # With tags, DeepL splits texts only at stops.
    default = "1" if asked.format == "text" else "nonewlines"
    sentences = str(DEEPL.value(fields, "sentences", default)).lower()
    if sentences not in _SENTENCES:
        raise RequestError(400, "Value for 'split_sentences' not supported.")
    formality = str(DEEPL.value(fields, "formality", "default")).lower()
    wish = formality.removeprefix("prefer_")
    if wish not in ("default", *FORMALITY):
        raise RequestError(400, "Value for 'formality' not supported.")
    if formality in FORMALITY and not _has_formality(gateway, asked.target):
        raise RequestError(400, "'formality' is not supported for given 'target_lang'.")
    terms: Mapping[str, str] = {}
    if number := DEEPL.value(fields, "glossary"):
        if asked.source is None:
            raise RequestError(400, "'source_lang' is required when using a glossary.")
        facts, terms = _find(gateway, request, str(number))
        if (facts["source_lang"], facts["target_lang"]) != (asked.source, asked.target):
            raise RequestError(400, "The languages of the glossary are others.")
    asked = asked._replace(
        sentences=_SENTENCES[sentences], glossary=terms, formality="" if wish == "default" else wish
    )
    results = await DEEPL.translate(gateway, asked)
    translations = [
        {
            "detected_source_language": result.source[0].upper(),
            "text": result.text,
            "billed_characters": len(text),
        }
        for result, text in zip(results, asked.texts, strict=True)
    ]
    return JSONResponse({"translations": translations}, headers=pivot_headers(results[0].pivots))


def _has_formality(gateway: Gateway, target: str) -> bool:
    """Returns whether a model in memory translates into a language with a given formality."""
    models = (model for pair, model in gateway.models.pairs().items() if pair[1] == target)
    symbols = (model.loaded[0].symbols or () for model in models if model.loaded)
    return any({*FORMALITY.values()} <= {*known} for known in symbols)


async def _languages(gateway: Gateway, request: Request, fields: Fields) -> Response:
    targets = gateway.models.targets()
    if fields.get("type") != "target":
        found = [{"language": code.upper(), "name": language_name(code)} for code in targets]
        return JSONResponse(found)
    languages = []
    for code in sorted({code for others in targets.values() for code in others}):
        facts = {"name": language_name(code), "supports_formality": _has_formality(gateway, code)}
        codes = _REGIONS.get(code.upper(), (code.upper(),))
        languages += [{"language": region, **facts} for region in codes]
    return JSONResponse(languages)


async def _usage(gateway: Gateway, request: Request, fields: Fields) -> Response:
    count = gateway.characters[request.state.key]
    return JSONResponse({"character_count": count, "character_limit": _UNLIMITED})


async def _glossary_pairs(gateway: Gateway, request: Request, fields: Fields) -> Response:
    targets = gateway.models.targets()
    pairs = [
        {"source_lang": source.lower(), "target_lang": target.lower()}
        for source, codes in targets.items()
        for target in codes
        if source != target
    ]
    return JSONResponse({"supported_languages": pairs})


async def _create(gateway: Gateway, request: Request, fields: Fields) -> Response:
    name, entries = (str(fields.get(field) or "") for field in ("name", "entries"))
    if not name or not entries:
        raise RequestError(400, f"Parameter '{'entries' if name else 'name'}' not specified.")
    terms = _terms(entries, str(fields.get("entries_format", "tsv")))
    source, target = (
        DEEPL.language(gateway, fields.get(field)) for field in ("source_lang", "target_lang")
    )
    if len(gateway.glossaries) >= _MAX_GLOSSARIES:
        raise RequestError(456, "Too many glossaries.")
    number = str(uuid.uuid4())
    facts = {
        "glossary_id": number,
        "name": name,
        "ready": True,
        "source_lang": source,
        "target_lang": target,
        "creation_time": datetime.datetime.now(datetime.UTC).isoformat(),
        "entry_count": len(terms),
    }
    gateway.glossaries[request.state.key, number] = facts, terms
    return JSONResponse(facts, 201)


def _terms(entries: str, format: str) -> dict[str, str]:
    """Returns the terms of a glossary, which is TSV or CSV."""
    if format not in ("tsv", "csv"):
        raise RequestError(400, "Value for 'entries_format' not supported.")
    dialect: Any = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if format == "tsv" else {}
    try:
        rows = [row for row in csv.reader(io.StringIO(entries, newline=""), **dialect) if row]
        terms = {row[0].strip(): row[1].strip() for row in rows}
        if len(terms) != len(rows):
            raise ValueError
        Glossary(terms)  # refuses empty terms
    except (csv.Error, IndexError, ValueError) as error:  # InputError is a ValueError
        detail = str(error) if isinstance(error, InputError) else ""
        raise RequestError(400, f"Invalid glossary entries provided. {detail}".strip()) from error
    return terms


def _find(gateway: Gateway, request: Request, number: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the facts and the terms of a glossary of the client's key."""
    found = gateway.glossaries.get((request.state.key, number))
    if found is None:
        raise RequestError(404, "Glossary not found.")
    return found


async def _list(gateway: Gateway, request: Request, fields: Fields) -> Response:
    items = gateway.glossaries.items()
    own = [facts for (key, _), (facts, _) in items if key == request.state.key]
    return JSONResponse({"glossaries": own})


async def _show(gateway: Gateway, request: Request, fields: Fields) -> Response:
    facts, _ = _find(gateway, request, request.path_params["number"])
    return JSONResponse(facts)


async def _entries(gateway: Gateway, request: Request, fields: Fields) -> Response:
    _, terms = _find(gateway, request, request.path_params["number"])
    text = "\n".join(f"{source}\t{target}" for source, target in terms.items())
    return Response(text, media_type="text/tab-separated-values")


async def _delete(gateway: Gateway, request: Request, fields: Fields) -> Response:
    facts, _ = _find(gateway, request, request.path_params["number"])
    del gateway.glossaries[request.state.key, facts["glossary_id"]]
    return Response(status_code=204)


def _key(headers: Mapping[str, str]) -> str | None:
    kind, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if kind.lower() == "deepl-auth-key" else None


DEEPL = Protocol(
    "deepl",
    (
        ("/v2/translate", ("POST", "GET"), _translate),
        ("/v2/languages", ("GET", "POST"), _languages),
        ("/v2/usage", ("GET", "POST"), _usage),
        ("/v2/glossary-language-pairs", ("GET",), _glossary_pairs),
        ("/v2/glossaries", ("POST",), _create),
        ("/v2/glossaries", ("GET",), _list),
        ("/v2/glossaries/{number}", ("GET",), _show),
        ("/v2/glossaries/{number}/entries", ("GET",), _entries),
        ("/v2/glossaries/{number}", ("DELETE",), _delete),
    ),
    error=lambda status, message: {"message": message},
    missing="Parameter '{}' not specified.",
    unsupported="Value for 'target_lang' or 'source_lang' not supported: {}.",
    too_long=(413, "The request has {size:,} characters, but the limit is {limit:,}."),
    without_key=(403, "Authorization failed. The header Authorization has no DeepL-Auth-Key."),
    wrong_key=(403, "Authorization failed. The key is unknown."),
    key=_key,
    max_texts=50,
)
