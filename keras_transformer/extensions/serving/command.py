r"""Serves a model with the REST API of TF Serving.

Example:
    keras-transformer serve --model_dir=build/export
    curl localhost:8501/v1/models/export:predict -d '{"instances": ["a small dog"]}'
    keras-transformer translate --model_dir=localhost:8501 <input.en >output.de

--model_dir is a directory of versions, such as build/export, or any model that `kt.load` opens.
The highest version is served. When a new version appears, the server changes to it without losing a
request. SIGTERM, SIGHUP and Ctrl-C stop the server after it has answered the waiting requests, or
after --grace_seconds. A second signal stops it immediately.
A version with a LiteRT model runs in LiteRT. If the highest version has one, TensorFlow is not
loaded. If --model_dir is a LiteRT file, a file that replaces it is a new version.

    /v1/models/NAME:predict             predictions; also /v1/models/NAME/versions/N:predict
    /v1/models/NAME, .../metadata       states of the versions; signatures
    /healthz                            health checks
    /monitoring/prometheus/metrics      metrics for Prometheus

Requests that arrive at the same time are computed in one batch. When --max_queue rows wait, further
requests get the status 429. A request with much text is computed in parts, between other requests.
After --request_seconds it is refused, and its waiting rows are dropped.

Connections are not encrypted, and clients are not authenticated. Use a proxy for clients on other
machines. Scripts of web pages may use the server only if --cors_origins names their origins.
Answers and log lines have the id of a request (X-Request-Id), which clients may send.

--source_tag is added to each text of a request that has no tag. --document, --glossary, --terms and
--casing are as for `keras-transformer translate`, and apply to the signature serving_default.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path
from typing import Any

from absl import flags
from absl import logging as absl_logging

from keras_transformer.cli import app, config_flags
from keras_transformer.errors import needs_extra
from keras_transformer.extensions.serving import REQUEST_ID, Settings

FLAGS = flags.FLAGS
_DEFINE: dict[str, Any] = {
    "bool | None": flags.DEFINE_boolean,
    "float": flags.DEFINE_float,
    "int": flags.DEFINE_integer,
    "int | None": flags.DEFINE_integer,
    "str | None": flags.DEFINE_string,
    "tuple[str, ...]": flags.DEFINE_list,
}


def define_flags() -> None:
    """Defines the flags of the command, from the fields of `Settings`."""
    flags.DEFINE_string("model_dir", None, "directory of versions, or a model", required=True)
    config_flags.define_option_flags("host", "source_tag", "source_language", "target_language")
    config_flags.define_option_flags("glossary", "terms", "casing")
    for field in dataclasses.fields(Settings):
        if field.metadata:
            _DEFINE[str(field.type)](field.name, field.default, **field.metadata)


def main() -> None:
    """Serves the model of the flags."""
    # By default oneDNN caches the kernels of 1,024 shapes, and memory would grow for hours.
    # TensorFlow reads the variable when it is loaded.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
    handler = absl_logging.get_absl_handler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(request)s%(message)s"))
    handler.addFilter(_add_request_id)
    app.load_engine(FLAGS.model_dir)
    with needs_extra("serving", "serving"):
        from keras_transformer.extensions.serving import server  # slow to import

    values: dict[str, Any] = {f.name: FLAGS[f.name].value for f in dataclasses.fields(Settings)}
    server.run(Settings(**{**values, "model_dir": Path(FLAGS.model_dir)}))


def _add_request_id(record: logging.LogRecord) -> bool:
    record.request = f"request {REQUEST_ID.get()}: " if REQUEST_ID.get() else ""
    return True
