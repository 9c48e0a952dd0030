r"""Serves a model with the REST API of TF Serving, or many for clients of DeepL and others.

Example:
    keras-transformer serve --model_dir=build/export
    curl localhost:8501/v1/models/export:predict -d '{"instances": ["a small dog"]}'
    keras-transformer serve --models_dir=models

--model_dir is a directory of versions, such as build/export, or any model that `kt.load` opens. The
server changes to a new version without losing a request. /healthz is for health checks, and
/monitoring/prometheus/metrics for Prometheus. docs/serving.md describes this server.

--models_dir is a directory of models, such as en-de and de-fr, for clients of DeepL, LibreTranslate
and Google Translate. docs/server.md describes this server.

SIGTERM, SIGHUP and Ctrl-C stop a server after it has answered the waiting requests, or after
--grace_seconds. A second signal stops it immediately.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path
from typing import Any

from absl import flags
from absl import logging as absl_logging

from keras_transformer import plugins
from keras_transformer.cli import app, config_flags
from keras_transformer.errors import needs_extra, require
from keras_transformer.extensions.serving import REQUEST_ID, Settings

FLAGS = flags.FLAGS
_DEFINE: dict[str, Any] = {
    "bool": flags.DEFINE_boolean,
    "float": flags.DEFINE_float,
    "int": flags.DEFINE_integer,
    "str": flags.DEFINE_string,
    "tuple[str, ...]": flags.DEFINE_list,
}


def define_flags() -> None:
    """Defines the flags of the command, from the fields of `Settings`."""
    flags.DEFINE_string("model_dir", None, "directory of versions, or a model")
    config_flags.define_option_flags("host", "source_tag", "source_language", "target_language")
    config_flags.define_option_flags("glossary", "terms", "casing")
    _define_settings(Settings)
    for name, other in plugins.all_of("servers"):
        flags.DEFINE_string(name, None, other.help)
        _define_settings(other.Settings)


def _define_settings(settings: Any) -> None:
    """Defines the flags that are not there yet."""
    for field in dataclasses.fields(settings):
        if field.metadata and field.name not in FLAGS:
            define = _DEFINE[str(field.type).removesuffix(" | None")]
            define(field.name, field.default, **field.metadata)


def main() -> None:
    """Serves the model of the flags."""
    # By default oneDNN caches the kernels of 1,024 shapes, and memory would grow for hours.
    # TensorFlow reads the variable when it is loaded.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
    handler = absl_logging.get_absl_handler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(request)s%(message)s"))
    handler.addFilter(_add_request_id)
    given = [name for name in ("model_dir", *plugins.names("servers")) if FLAGS[name].value]
    require(len(given) == 1, f"Give --model_dir or --{' or --'.join(plugins.names('servers'))}.")
    if given != ["model_dir"]:
        module = plugins.find("servers", given[0])
        app.reject_unused(module.UNUSED, f"with --{given[0]}.")
    else:
        app.load_engine(FLAGS.model_dir)
        with needs_extra("serving", "serving"):
            from keras_transformer.extensions.serving import server as module  # slow to import
    names = [field.name for field in dataclasses.fields(module.Settings)]
    values = config_flags.values_of(names) | {"model_dir": Path(FLAGS[given[0]].value or "")}
    module.run(module.Settings(**values))


def _add_request_id(record: logging.LogRecord) -> bool:
    record.request = f"request {REQUEST_ID.get()}: " if REQUEST_ID.get() else ""
    return True
