r"""Serves an exported model by the REST and gRPC API of TF Serving, on this machine.

Example:
    bin/serve.py --model_dir=build/export
    curl localhost:8501/v1/models/export:predict -d '{"instances": ["a small dog"]}'
    bin/translate.py --server=localhost:8501 <input.en >output.de

The highest version under --model_dir is served: of build/export it is build/export/1, say,
which is no --model_dir itself. A higher one that is written there takes its place without a
request lost. SIGTERM or Ctrl-C answers what waits, and ends, after --grace_seconds whatever
hangs; a second one ends it at once.

    /v1/models/NAME:predict             predictions; also /v1/models/NAME/versions/N:predict
    /v1/models/NAME, .../metadata       the state of the versions; the signatures
    /healthz                            for probes, as gRPC's health service
    /monitoring/prometheus/metrics      for Prometheus

Requests at the same time are computed in one batch. With more than --max_queue rows
or --max_queue_bytes waiting the answer is 429 (gRPC: RESOURCE_EXHAUSTED). Nothing is
encrypted, and anyone who reaches the ports may ask: other machines are to come through
a proxy.
"""

from __future__ import annotations

import os
from pathlib import Path

from absl import flags

from keras_transformer.cli import app
from keras_transformer.errors import needs_extra

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of the command."""
    flags.DEFINE_string(
        "model_dir", None, "directory of versions, --output_dir of bin/export.py", required=True
    )
    flags.DEFINE_string("model_name", None, "name in requests; the directory's when not given")
    flags.DEFINE_string("host", "127.0.0.1", "address to listen at; 0.0.0.0: all of this machine")
    flags.DEFINE_integer("rest_port", 8501, "port of REST; 0: any that is free")
    flags.DEFINE_integer("grpc_port", 8500, "port of gRPC; 0: any that is free")
    flags.DEFINE_integer("max_batch_size", 64, "most rows of a batch")
    flags.DEFINE_float("batch_timeout_ms", 2.0, "how long a request waits for others to go with")
    flags.DEFINE_integer("max_queue", 1024, "most rows that wait")
    flags.DEFINE_integer("max_queue_bytes", 256 * 2**20, "most bytes of the rows that wait")
    flags.DEFINE_integer("max_body_bytes", 16 * 2**20, "most bytes of a request")
    flags.DEFINE_integer(
        "batches_at_once", None, "batches computed side by side; a core for each when not given"
    )
    flags.DEFINE_float("poll_seconds", 1.0, "time between two looks for new versions")
    flags.DEFINE_float("grace_seconds", 25, "that requests may take when the server is to end")


def main() -> None:
    """Runs `server.run` on what the flags name."""
    # oneDNN keeps what it has compiled for 1,024 shapes, and batches have more: memory would grow
    # for hours. Read when TensorFlow is loaded.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
    app.load_tensorflow()
    with needs_extra("serving", "serving"):
        from keras_transformer.serving.server import server, state  # late: --help stays quick

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
            FLAGS.max_queue_bytes,
            FLAGS.max_body_bytes,
            FLAGS.batches_at_once,
            FLAGS.poll_seconds,
            FLAGS.grace_seconds,
        )
    )
