"""The API of Google Cloud Translation, version 2 (Basic)."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from keras_transformer.extensions.gateway.server import Fields, Gateway, Protocol, answer
from keras_transformer.extensions.gateway.translation import language_name, pivots_of

_PATH = "/language/translate/v2"
_SURE = 0.9  # confidence of a reliable detection
# Google's names of errors, by their HTTP status.
_REASONS = {
    400: ("invalid", "INVALID_ARGUMENT"),
    403: ("forbidden", "PERMISSION_DENIED"),
    404: ("notFound", "NOT_FOUND"),
    413: ("uploadTooLarge", "INVALID_ARGUMENT"),
    429: ("rateLimitExceeded", "RESOURCE_EXHAUSTED"),
}


async def _translate(gateway: Gateway, request: Request, fields: Fields) -> Response:
    asked = GOOGLE.text_request(gateway, request, fields)
    results = await gateway.translator.translate(asked)
    translations = []
    for result in results:
        found = {"translatedText": result.text}
        if asked.source is None:
            found["detectedSourceLanguage"] = result.source[0]
        if result.pivots:  # the field for the name of the model
            found["model"] = "-".join([result.source[0], *result.pivots, asked.target])
        translations.append(found)
    return answer({"data": {"translations": translations}}, pivots_of(results))


async def _detect(gateway: Gateway, request: Request, fields: Fields) -> Response:
    found = await gateway.translator.detect(GOOGLE.texts(gateway, request, fields))
    detections = [
        [{"language": code, "confidence": confidence, "isReliable": confidence >= _SURE}]
        for (code, confidence), *_ in found
    ]
    return answer({"data": {"detections": detections}})


async def _languages(gateway: Gateway, request: Request, fields: Fields) -> Response:
    languages = [{"language": c, "name": language_name(c)} for c in gateway.model.languages()]
    return answer({"data": {"languages": languages}})


def _error(status: int, message: str) -> Any:
    reason, code = _REASONS.get(status, ("backendError", "INTERNAL"))
    errors = [{"message": message, "domain": "global", "reason": reason}]
    return {"error": {"code": status, "message": message, "errors": errors, "status": code}}


GOOGLE = Protocol(
    "/language/",
    (
        (_PATH, ("GET", "POST"), _translate),
        (f"{_PATH}/detect", ("GET", "POST"), _detect),
        (f"{_PATH}/languages", ("GET", "POST"), _languages),
    ),
    text="q",
    source="source",
    target="target",
    format="format",
    error=_error,
    missing="Required field is missing: {}",
    unsupported="Invalid Value: {}",
    too_long=(413, "Text too long: {size} characters, the limit is {limit}"),
    without_key=(403, "The request is missing a valid API key."),
    wrong_key=(400, "API key not valid. Please pass a valid API key."),
    key=lambda request: request.headers.get("x-goog-api-key") or request.query_params.get("key"),
    default_format="html",
)
