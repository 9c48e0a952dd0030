"""A server of many models for clients of DeepL, LibreTranslate and Google Translate.

`serving` serves one model with TF Serving's API. This extension uses its batches and connections.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from keras_transformer.errors import needs_extra, require
from keras_transformer.extensions import serving
from keras_transformer.extensions.serving import LOOPBACK, setting

# The help of the flag that selects this server (`plugins.py`, group `servers`).
help = "directory of models for DeepL, LibreTranslate and Google clients"
# The settings of a server of one model that do not apply.
UNUSED = (
    "source_tag", "source_language", "target_language", "document", "glossary", "terms", "casing",
    "model_name", "max_rows",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Settings(serving.Settings):
    """Settings of a gateway. `model_dir` is the directory of the models."""

    memory_mb: int = setting(4096, "memory of loaded models", lower_bound=1)
    cache_mb: int = setting(64, "memory of translated sentences; 0: none", lower_bound=0)
    keys: str | None = setting(None, "file with the SHA-256 of a key in each line")
    requests_per_minute: int = setting(0, "limit per key and address; 0: none", lower_bound=0)
    max_characters: int = setting(100_000, "maximum characters of a request", lower_bound=1)


def create_gateway(settings: Settings, **options: Any) -> Any:
    """Returns a `server.Gateway` with all protocols. Options are arguments of it."""
    from keras_transformer.extensions.gateway.deepl import DEEPL
    from keras_transformer.extensions.gateway.google import GOOGLE
    from keras_transformer.extensions.gateway.libretranslate import LIBRETRANSLATE
    from keras_transformer.extensions.gateway.server import Gateway

    return Gateway(settings, (DEEPL, GOOGLE, LIBRETRANSLATE), **options)


def run(settings: Settings) -> None:
    """Serves until SIGTERM, SIGHUP or SIGINT."""
    with needs_extra("gateway", "--models_dir"):
        from keras_transformer.extensions.gateway import server as _  # noqa: F401
        from keras_transformer.extensions.serving import server

    require(
        settings.host in (*LOOPBACK, "::1") or settings.keys is not None,
        f"Anyone could use and overload a server at --host={settings.host}. Give --keys.",
    )
    server.run(settings, create_gateway)
