"""The API of LibreTranslate."""

from __future__ import annotations

import asyncio
import urllib.parse
import uuid
from pathlib import PurePath

from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response

from keras_transformer.extensions.documents.files import file_suffixes, file_texts, translate_bytes
from keras_transformer.extensions.gateway.server import Fields, Gateway, Protocol, answer
from keras_transformer.extensions.gateway.translation import Detected, language_name, pivots_of
from keras_transformer.extensions.serving.tensors import RequestError

_MISSING = "Invalid request: missing {} parameter"
_MAX_ALTERNATIVES = 10


async def _translate(gateway: Gateway, request: Request, fields: Fields) -> Response:
    LIBRETRANSLATE.required(fields, "source")
    count = str(fields.get("alternatives", ""))
    others = min(int(count[:9]), _MAX_ALTERNATIVES) if count.isdecimal() else 0
    asked = LIBRETRANSLATE.text_request(gateway, request, fields, alternatives=others)
    results = await gateway.translator.translate(asked)
    found: Fields = {"translatedText": [result.text for result in results]}
    if asked.source is None:
        found["detectedLanguage"] = [_detected(result.source) for result in results]
    if asked.alternatives:
        found["alternatives"] = [result.alternatives for result in results]
    if not isinstance(fields["q"], list):
        found = {name: values[0] for name, values in found.items()}
    pivots = pivots_of(results)
    return answer({**found, "pivot": pivots} if pivots else found, pivots)


def _detected(language: Detected) -> Fields:
    return {"confidence": round(100 * language[1]), "language": language[0]}


async def _detect(gateway: Gateway, request: Request, fields: Fields) -> Response:
    found = await gateway.translator.detect(LIBRETRANSLATE.texts(gateway, request, fields)[:1])
    return answer([_detected(language) for language in found[0]])


async def _languages(gateway: Gateway, request: Request, fields: Fields) -> Response:
    targets = gateway.model.targets().items()
    return answer([{"code": c, "name": language_name(c), "targets": t} for c, t in targets])


async def _translate_file(gateway: Gateway, request: Request, fields: Fields) -> Response:
    file = fields.get("file")
    if not isinstance(file, UploadFile):
        raise RequestError(400, _MISSING.format("file"))
    source, target = (LIBRETRANSLATE.required(fields, name) for name in ("source", "target"))
    target = LIBRETRANSLATE.language(gateway, target, 1)
    name = PurePath(file.filename or "")
    if name.suffix.lower() not in file_suffixes():
        raise RequestError(400, "Invalid request: file format not supported")
    data = await file.read()
    if source == "auto":
        texts = await asyncio.to_thread(file_texts, data, name.name)
        source = (await gateway.translator.sources(["\n".join(texts)], target))[0][0]
    source = LIBRETRANSLATE.language(gateway, source, 0)
    found, pivots = await gateway.translator.along_route(
        source, target, data, lambda _, engines, old: translate_bytes(engines(0), old, name.name)[0]
    )
    path = f"{uuid.uuid4()}.{name.stem}_{target}{name.suffix}"
    gateway.files[path] = found
    url = str(request.base_url.replace(path=f"/download_file/{urllib.parse.quote(path)}"))
    return answer({"translatedFileUrl": url}, pivots)


async def _download(gateway: Gateway, request: Request, fields: Fields) -> Response:
    path = request.path_params["name"]
    if path not in gateway.files:
        raise RequestError(404, "The file is not there any more")
    name = urllib.parse.quote(path.partition(".")[2])
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
    return Response(gateway.files[path], 200, headers, "application/octet-stream")


async def _health(gateway: Gateway, request: Request, fields: Fields) -> Response:
    status = ("stopping", 503) if gateway.is_stopping else ("ok", 200)
    return answer({"status": status[0]}, status=status[1])


async def _settings(gateway: Gateway, request: Request, fields: Fields) -> Response:
    target = min((target for _, target in gateway.model.pairs()), default="en")
    codes = {"source": ("auto", "Auto Detect"), "target": (target, language_name(target))}
    facts = {
        "charLimit": gateway.settings.max_characters,
        "frontendTimeout": 500,  # ms that LibreTranslate's page waits after a key was pressed
        "language": {side: {"code": c, "name": name} for side, (c, name) in codes.items()},
        "suggestions": False,
        "supportedFilesFormat": file_suffixes(),
    }
    return answer(facts | dict.fromkeys(("apiKeys", "keyRequired"), gateway.keys is not None))


LIBRETRANSLATE = Protocol(
    "/",
    (
        ("/translate", ("POST",), _translate),
        ("/detect", ("POST",), _detect),
        ("/languages", ("GET",), _languages),
        ("/translate_file", ("POST",), _translate_file),
        ("/download_file/{name}", ("GET",), _download),
        ("/health", ("GET",), _health),
        ("/frontend/settings", ("GET",), _settings),
    ),
    text="q",
    source="source",
    target="target",
    format="format",
    error=lambda status, message: {"error": "Slowdown: " * (status == 429) + message},
    missing=_MISSING,
    unsupported="{} is not supported",
    too_long=(400, "Invalid request: request ({size}) exceeds text limit ({limit})"),
    without_key=(400, "Please contact the server operator to get an API key"),
    wrong_key=(403, "Invalid API key"),
    key=lambda request: request.query_params.get("api_key"),
    body_key="api_key",
    public=(_languages, _health, _settings, _download),
)
