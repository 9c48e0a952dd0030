r"""Serves a model with the REST API of TF Serving.

Example:
    keras-transformer serve --model_dir=build/export
    curl localhost:8501/v1/models/export:predict -d '{"instances": ["a small dog"]}'
    keras-transformer translate --server=localhost:8501 <input.en >output.de

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
requests get the status 429. Connections are not encrypted, and clients are not authenticated. Use a
proxy for clients on other machines. Scripts of web pages may use the server only if --cors_origins
names their origins.

--source_tag is added to each source text of a request that has no tag.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from absl import flags

from keras_transformer.cli import app, config_flags
from keras_transformer.errors import needs_extra

FLAGS = flags.FLAGS
_SETTINGS = (
    "model_name", "host", "rest_port", "max_batch_size", "batch_timeout_ms", "max_queue",
    "max_body_bytes", "batches_at_once", "poll_seconds", "grace_seconds", "source_tag",
)  # fmt: skip


def define_flags() -> None:
    """Defines the flags of the command."""
    flags.DEFINE_string(
        "model_dir",
        None,
        "directory of versions (keras-transformer export), or a model",
        required=True,
    )
    flags.DEFINE_string("model_name", None, "name in requests; default: name of the directory")
    config_flags.define_option_flags("host", "source_tag")
    flags.DEFINE_integer("rest_port", 8501, "port of REST; 0 for any free port")
    flags.DEFINE_integer("max_batch_size", 64, "maximum rows of a batch")
    flags.DEFINE_float("batch_timeout_ms", 2.0, "time that a request waits for others")
    flags.DEFINE_integer("max_queue", 1024, "maximum number of waiting rows")
    flags.DEFINE_integer("max_body_bytes", 16 * 2**20, "maximum bytes of a request")
    flags.DEFINE_integer("batches_at_once", None, "parallel batches; default: one per core")
    flags.DEFINE_float("poll_seconds", 1.0, "seconds between checks for new versions")
    flags.DEFINE_float("grace_seconds", 25, "seconds that requests may take after a stop signal")
    flags.DEFINE_list(
        "cors_origins",
        [],
        "origins of web pages that may use REST, as in https://a.example; *: all",
    )


def main() -> None:
    """Serves the model of the flags."""
    # By default oneDNN caches the kernels of 1,024 shapes, and memory would grow for hours.
    # TensorFlow reads the variable when it is loaded.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
    app.load_engine(FLAGS.model_dir)
    with needs_extra("serving", "serving"):
        from keras_transformer.extensions.serving import server, state  # late: --help is fast

    settings: dict[str, Any] = {name: FLAGS[name].value for name in _SETTINGS}
    settings["model_dir"] = Path(FLAGS.model_dir)
    settings["cors_origins"] = tuple(FLAGS.cors_origins)
    server.run(state.Settings(**settings))
