r"""Serves an exported model with the REST and gRPC API of TF Serving.

Example:
    keras-transformer serve --model_dir=build/export
    curl localhost:8501/v1/models/export:predict -d '{"instances": ["a small dog"]}'
    keras-transformer translate --server=localhost:8501 <input.en >output.de

--model_dir is the directory of versions, such as build/export, not a version such as
build/export/1. The highest version is served. When a new version appears, the server changes to it
without losing a request. SIGTERM, SIGHUP and Ctrl-C stop the server after it has answered the
waiting requests, or after --grace_seconds. A second signal stops it immediately.

A version with a LiteRT model runs in LiteRT. If the highest version has one, TensorFlow is not
loaded. --model_dir may also be a LiteRT file. Then a newer file in its place is a new version.

    /v1/models/NAME:predict             predictions; also /v1/models/NAME/versions/N:predict
    /v1/models/NAME, .../metadata       states of the versions; signatures
    /healthz                            health checks; gRPC has its health service
    /monitoring/prometheus/metrics      metrics for Prometheus

Requests that arrive at the same time are computed in one batch. When --max_queue rows wait, further
requests get the status 429 (gRPC: RESOURCE_EXHAUSTED). Connections are not encrypted, and clients
are not authenticated. Use a proxy for clients on other machines. Scripts of web pages may use REST
only if --cors_origins names their origins.

--source_tag is added to each source text of a request that has no tag.
"""

from __future__ import annotations

import os
from pathlib import Path

from absl import flags

from keras_transformer.cli import app, config_flags
from keras_transformer.errors import needs_extra

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of the command."""
    flags.DEFINE_string(
        "model_dir",
        None,
        "directory of versions (keras-transformer export), or a LiteRT file",
        required=True,
    )
    flags.DEFINE_string("model_name", None, "name in requests; default: name of the directory")
    config_flags.define_option_flags("host", "source_tag")
    flags.DEFINE_integer("rest_port", 8501, "port of REST; 0 for any free port")
    flags.DEFINE_integer("grpc_port", 8500, "port of gRPC; 0 for any free port")
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
        from keras_transformer.extensions.serving.server import (
            server,
            state,
        )  # late, so that --help is fast

    server.run(
        state.Settings(
            Path(FLAGS.model_dir),
            FLAGS.model_name,
            FLAGS.host,
            FLAGS.rest_port,
            FLAGS.grpc_port,
            FLAGS.max_batch_size,
            FLAGS.batch_timeout_ms,
            FLAGS.max_queue,
            FLAGS.max_body_bytes,
            FLAGS.batches_at_once,
            FLAGS.poll_seconds,
            FLAGS.grace_seconds,
            tuple(FLAGS.cors_origins),
            FLAGS.source_tag,
        )
    )
