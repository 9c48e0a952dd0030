"""The API of LibreTranslate."""

from __future__ import annotations

import uuid
from pathlib import PurePath
from typing import TYPE_CHECKING

from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from keras_transformer.extensions.documents.files import file_suffixes
from keras_transformer.extensions.gateway.protocols import Fields, Protocol, pivot_headers
from keras_transformer.extensions.gateway.translation import Detected, language_name
from keras_transformer.extensions.serving.tensors import RequestError

if TYPE_CHECKING:
    from keras_transformer.extensions.gateway.server import Gateway

_MISSING = "Invalid request: missing {} parameter"
_TIMEOUT_MS = 500  # time that LibreTranslate's page waits after a key was pressed


async def _translate(gateway: Gateway, request: Request, fields: Fields) -> Response:
    LIBRETRANSLATE.required(fields, "texts")
    LIBRETRANSLATE.required(fields, "source")
    asked = LIBRETRANSLATE.text_request(gateway, fields)
    results = await LIBRETRANSLATE.translate(gateway, asked)
    columns = {"translatedText": [result.text for result in results]}
    answer: Fields = dict(columns)
    if asked.source is None:
        answer["detectedLanguage"] = [_detected(result.source) for result in results]
    if asked.alternatives:
        answer["alternatives"] = [list(result.alternatives) for result in results]
    if not isinstance(fields["q"], list):
        answer = {name: values[0] for name, values in answer.items()}
    if pivots := results[0].pivots:
        answer["pivot"] = list(pivots)
    return JSONResponse(answer, headers=pivot_headers(pivots))


def _detected(language: Detected) -> Fields:
    code, confidence = language
    return {"confidence": round(100 * confidence), "language": code}


async def _detect(gateway: Gateway, request: Request, fields: Fields) -> Response:
    texts = LIBRETRANSLATE.texts(fields)
    found = await gateway.translator.detect(texts[:1])
    return JSONResponse([_detected(language) for language in found[0]])


async def _languages(gateway: Gateway, request: Request, fields: Fields) -> Response:
    targets = gateway.models.targets().items()
    names = [
        {"code": code, "name": language_name(code), "targets": codes} for code, codes in targets
    ]
    return JSONResponse(names)


async def _translate_file(gateway: Gateway, request: Request, fields: Fields) -> Response:
    file = fields.get("file")
    if not isinstance(file, UploadFile):
        raise RequestError(400, _MISSING.format("file"))
    code = LIBRETRANSLATE.required(fields, "source")
    target = LIBRETRANSLATE.language(gateway, LIBRETRANSLATE.required(fields, "target"))
    name = PurePath(file.filename or "").name
    if PurePath(name).suffix.lower() not in file_suffixes():
        raise RequestError(400, "Invalid request: file format not supported")
    data = await file.read()
    if code == "auto":
        code = (await gateway.translator.detect([data.decode(errors="replace")]))[0][0][0]
    source = LIBRETRANSLATE.language(gateway, code)
    try:
        found, pivots = await gateway.translator.translate_file(data, name, source, target)
    except LookupError as error:
        raise RequestError(400, LIBRETRANSLATE.unsupported.format(target)) from error
    stem, suffix = PurePath(name).stem, PurePath(name).suffix
    path = f"{uuid.uuid4()}.{stem}_{target}{suffix}"
    gateway.files[path] = found
    url = request.url_for("download", name=path)
    return JSONResponse({"translatedFileUrl": str(url)}, headers=pivot_headers(pivots))


async def _download(gateway: Gateway, request: Request, fields: Fields) -> Response:
    path = request.path_params["name"]
    data = gateway.files.get(path)
    if data is None:
        raise RequestError(404, "The file is not there any more")
    name = path.partition(".")[2].encode("ascii", "replace").decode().replace('"', "_")
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(data, media_type="application/octet-stream", headers=headers)


async def _health(gateway: Gateway, request: Request, fields: Fields) -> Response:
    if gateway.is_stopping:
        return JSONResponse({"status": "stopping"}, 503)
    return JSONResponse({"status": "ok"})


async def _settings(gateway: Gateway, request: Request, fields: Fields) -> Response:
    codes = sorted(code for codes in gateway.models.targets().values() for code in codes)
    target = codes[0] if codes else "en"
    return JSONResponse(
        {
            "apiKeys": gateway.needs_key,
            "charLimit": gateway.settings.max_characters,
            "frontendTimeout": _TIMEOUT_MS,
            "keyRequired": gateway.needs_key,
            "language": {
                "source": {"code": "auto", "name": "Auto Detect"},
                "target": {"code": target, "name": language_name(target)},
            },
            "suggestions": False,
            "supportedFilesFormat": file_suffixes(),
        }
    )


LIBRETRANSLATE = Protocol(
    "libretranslate",
    (
        ("/translate", ("POST",), _translate),
        ("/detect", ("POST",), _detect),
        ("/languages", ("GET",), _languages),
        ("/translate_file", ("POST",), _translate_file),
        ("/download_file/{name}", ("GET",), _download),
        ("/health", ("GET",), _health),
        ("/frontend/settings", ("GET",), _settings),
    ),
    error=lambda status, message: {"error": "Slowdown: " * (status == 429) + message},
    missing=_MISSING,
    unsupported="{} is not supported",
    too_long=(400, "Invalid request: request ({size}) exceeds text limit ({limit})"),
    without_key=(400, "Please contact the server operator to get an API key"),
    wrong_key=(403, "Invalid API key"),
    key=lambda headers: None,
    public=("/languages", "/health", "/frontend/settings", "/download_file/{name}"),
)
