"""A server of one model with TF Serving's REST API, for one machine, and its client.

TF Serving serves the same directory where that is not enough.
"""

from __future__ import annotations

import contextvars
import dataclasses
from pathlib import Path
from typing import Any

# The id of the request that is answered, for log lines.
REQUEST_ID: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")  # the names of this machine


def setting(default: Any, text: str, **limits: float) -> Any:
    """Returns a field that is a flag of `keras-transformer serve`."""
    return dataclasses.field(default=default, metadata={"help": text, **limits})


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a server. The flags of `keras-transformer serve` are made from its fields."""

    model_dir: Path
    host: str = "127.0.0.1"
    source_tag: str | None = None
    source_language: str | None = None
    target_language: str | None = None
    document: bool | None = setting(None, "split texts into sentences, or not")
    glossary: str | None = None
    terms: str | None = None
    casing: str | None = None
    model_name: str | None = setting(None, "name in requests; default: name of the directory")
    rest_port: int = setting(8501, "port of REST; 0 for any free port", lower_bound=0)
    max_batch_size: int = setting(64, "maximum rows of a batch", lower_bound=1)
    batch_timeout_ms: float = setting(2.0, "time that a request waits for others", lower_bound=0)
    max_queue: int = setting(1024, "maximum number of waiting rows", lower_bound=1)
    max_body_bytes: int = setting(16 * 2**20, "maximum bytes of a request", lower_bound=1)
    max_rows: int | None = setting(None, "rows of a request; default: --max_queue", lower_bound=1)
    max_connections: int = setting(1024, "maximum number of connections", lower_bound=1)
    request_seconds: float = setting(300.0, "time limit of a request", lower_bound=0.01)
    batches_at_once: int | None = setting(None, "parallel batches; default: cores", lower_bound=1)
    poll_seconds: float = setting(1.0, "seconds between checks for new versions", lower_bound=0.01)
    grace_seconds: float = setting(25.0, "time for requests after a stop signal", lower_bound=0)
    tls_certificate: str | None = setting(None, "PEM file of the certificates, for https")
    tls_key: str | None = setting(None, "PEM file of the private key of --tls_certificate")
    cors_origins: tuple[str, ...] = setting((), "origins of web pages that may use REST; *: all")
    allowed_hosts: tuple[str, ...] = setting(
        (), "names of this server in URLs, or *; default: local names for a local --host"
    )
