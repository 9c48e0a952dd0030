"""The API of DeepL, version 2."""

from __future__ import annotations

import asyncio
import csv
import datetime
import io
import re
import uuid
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from keras_transformer.errors import InputError, require
from keras_transformer.extensions.documents.glossary import Glossary
from keras_transformer.extensions.gateway.server import Fields, Gateway, Protocol, answer, text_of
from keras_transformer.extensions.gateway.translation import FORMALITY, language_name, pivots_of
from keras_transformer.extensions.serving.tensors import RequestError

_MAX_GLOSSARIES = 1_000
# DeepL's clients refuse these codes as targets. A region means the model of the language.
_REGIONS = {"EN": ("EN-GB", "EN-US"), "PT": ("PT-BR", "PT-PT")}
_UNLIMITED = 10**12  # characters, as in DeepL's accounts without a limit
_CONTROL = re.compile(r"[\x00-\x1f\x80-\x9f\u2028\u2029]")  # DeepL's clients refuse such terms


async def _translate(gateway: Gateway, request: Request, fields: Fields) -> Response:
    names = re.findall(r"[\w:.-]+", str(fields.get("ignore_tags") or "").lower())
    asked = DEEPL.text_request(gateway, request, fields, ignored=names)
    sentences = _choice(fields, "split_sentences", "1", "0", "nonewlines")
    known = ("default", *FORMALITY, *map("prefer_{}".format, FORMALITY))
    formality = _choice(fields, "formality", *known)
    terms: Mapping[str, str] = {}
    if number := fields.get("glossary_id"):
        facts, terms = _find(gateway, request, str(number))
        if (facts["source_lang"], facts["target_lang"]) != (asked.source, asked.target):
            raise RequestError(400, "The languages of the glossary and the request differ.")
    asked = asked._replace(sentences=sentences, glossary=terms, formality=formality)
    results = await gateway.translator.translate(asked)
    translations = [
        {
            "detected_source_language": result.source[0].upper(),
            "text": result.text,
            "billed_characters": len(text),
        }
        for result, text in zip(results, asked.texts, strict=True)
    ]
    return answer({"translations": translations}, pivots_of(results))


def _choice(fields: Fields, name: str, *values: str) -> str:
    """Returns the value of a field, by default the first one, and refuses others."""
    value = values[0] if fields.get(name) in (None, "") else str(fields[name]).lower()
    if value not in values:
        raise RequestError(400, f"Value for '{name}' not supported.")
    return value


async def _languages(gateway: Gateway, request: Request, fields: Fields) -> Response:
    pairs = gateway.model.pairs()
    if fields.get("type") != "target":
        sources = sorted({source for source, _ in pairs})
        return answer([{"language": c.upper(), "name": language_name(c)} for c in sources])
    languages = []
    for code in sorted({target for _, target in pairs}):
        # The symbols of a model are known while it is in memory.
        engines = [m.loaded[0] for (_, target), m in pairs.items() if target == code and m.loaded]
        is_formal = any(FORMALITY["more"] in (engine.symbols or ()) for engine in engines)
        facts = {"name": language_name(code), "supports_formality": is_formal}
        codes = _REGIONS.get(code.upper(), (code.upper(),))
        languages += [{"language": region, **facts} for region in codes]
    return answer(languages)


async def _usage(gateway: Gateway, request: Request, fields: Fields) -> Response:
    count = gateway.characters[request.state.key]
    return answer({"character_count": count, "character_limit": _UNLIMITED})


async def _glossary_pairs(gateway: Gateway, request: Request, fields: Fields) -> Response:
    targets = gateway.model.targets().items()
    pairs = [(source, target) for source, codes in targets for target in codes if source != target]
    languages = [{"source_lang": source, "target_lang": target} for source, target in pairs]
    return answer({"supported_languages": languages})


async def _create(gateway: Gateway, request: Request, fields: Fields) -> Response:
    names = ("name", "entries", "source_lang", "target_lang")
    name, entries, *codes = (text_of(DEEPL.required(fields, field)) for field in names)
    source, target = (DEEPL.language(gateway, code, side) for side, code in enumerate(codes))
    count = sum(key == request.state.key for key, _ in gateway.glossaries)
    if count >= _MAX_GLOSSARIES or len(name + entries) > gateway.settings.max_characters:
        raise RequestError(413, "The glossary is too large, or there are too many.")
    format = _choice(fields, "entries_format", "tsv", "csv")
    terms = await asyncio.to_thread(_terms, entries, format)
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
    return answer(facts, status=201)


def _terms(entries: str, format: str) -> dict[str, str]:
    """Returns the terms of a glossary, which is TSV or CSV."""
    dialect: Any = {} if format == "csv" else {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    try:
        rows = [row for row in csv.reader(io.StringIO(entries, newline=""), **dialect) if row]
        pairs = [(source.strip(), target.strip()) for source, target, *_ in rows]
        Glossary(pairs)  # refuses empty terms, and two translations of a term
        found = _CONTROL.search("".join(map("".join, pairs)))
        require(found is None, "A term has a tab, a line break or another control character.")
    except (csv.Error, ValueError) as error:
        detail = str(error) if isinstance(error, InputError) else ""
        raise RequestError(400, f"Invalid glossary entries provided. {detail}") from error
    return dict(pairs)


def _find(gateway: Gateway, request: Request, number: str) -> tuple[Fields, dict[str, str]]:
    """Returns the facts and the terms of a glossary of the client's key."""
    found = gateway.glossaries.get((request.state.key, number))
    if found is None:
        raise RequestError(404, "Glossary not found.")
    return found


async def _list(gateway: Gateway, request: Request, fields: Fields) -> Response:
    own = [f for (key, _), (f, _) in gateway.glossaries.items() if key == request.state.key]
    return answer({"glossaries": own})


async def _glossary(gateway: Gateway, request: Request, fields: Fields) -> Response:
    facts, _ = _find(gateway, request, request.path_params["number"])
    if request.method == "DELETE":
        del gateway.glossaries[request.state.key, facts["glossary_id"]]
        return Response(status_code=204)
    return answer(facts)


async def _entries(gateway: Gateway, request: Request, fields: Fields) -> Response:
    _, terms = _find(gateway, request, request.path_params["number"])
    text = "\n".join(f"{source}\t{target}" for source, target in terms.items())
    return Response(text, media_type="text/tab-separated-values")


def _key(request: Request) -> str | None:
    kind, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if kind.lower() == "deepl-auth-key" else None


DEEPL = Protocol(
    "/v2/",
    (
        ("/v2/translate", ("POST", "GET"), _translate),
        ("/v2/languages", ("GET", "POST"), _languages),
        ("/v2/usage", ("GET", "POST"), _usage),
        ("/v2/glossary-language-pairs", ("GET",), _glossary_pairs),
        ("/v2/glossaries", ("POST",), _create),
        ("/v2/glossaries", ("GET",), _list),
        ("/v2/glossaries/{number}", ("GET", "DELETE"), _glossary),
        ("/v2/glossaries/{number}/entries", ("GET",), _entries),
    ),
    text="text",
    source="source_lang",
    target="target_lang",
    format="tag_handling",
    error=lambda status, message: {"message": message},
    missing="Parameter '{}' not specified.",
    unsupported="Value for 'target_lang' or 'source_lang' not supported: {}.",
    too_long=(413, "The request has {size:,} characters, but the limit is {limit:,}."),
    without_key=(403, "Authorization failed. The header Authorization has no DeepL-Auth-Key."),
    wrong_key=(403, "Authorization failed. The key is unknown."),
    key=_key,
)
