"""What makes a directory of SavedModels ready for TF Serving.

    EXPORT/                    its last name is the model's
      models.config            for --model_config_file
      batching_parameters.txt  for --batching_parameters_file
      1/                       a version
        assets.extra/tf_serving_warmup_requests
        batching_params.pbtxt  for --enable_per_model_batching_parameters
        README.md              the model card
        manifest.json

Files of the base directory are the operator's once they are there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

from keras_transformer.errors import InputError
from keras_transformer.export.manifest import write_manifest
from keras_transformer.export.provenance import Provenance
from keras_transformer.export.saved_model.model_card import About, model_card
from keras_transformer.export.saved_model.signature_defs import describe, read_signature_defs
from keras_transformer.export.saved_model.warmup import Function, write_warmup_requests
from keras_transformer.runs.atomic import write_text

# The most sentences of one request, and of one batch that is computed.
MAX_REQUEST_ROWS = 256
MAX_BATCH_ROWS = 32

_MODEL_BATCHING = f"""\
# How TF Serving merges requests to this model (--enable_batching); SessionBundle's
# BatchingParameters.

# A batch starts when it is full, or when its first sentence has waited so long: little beside
# the time of a translation. A larger batch gains little more and keeps short sentences waiting.
max_execution_batch_size {{ value: {MAX_BATCH_ROWS} }}
batch_timeout_micros {{ value: 5000 }}

# A request of more sentences than a batch is split; one of more than this is refused.
max_batch_size {{ value: {MAX_REQUEST_ROWS} }}
enable_large_batch_splitting {{ value: true }}

# More wait in no queue: the server answers UNAVAILABLE (HTTP 503) at once, and clients try
# again. At least max_batch_size / max_execution_batch_size; longer is only more patience.
max_enqueued_batches {{ value: 16 }}

# No allowed_batch_sizes: any size runs without compilation, rows of padding would be translated
# like others, and a padded batch whose last request has no rows stops the server.
"""
_THREADS = """
# Batches computed at once, of all models: as many as the server has cores, each of which computes
# one (with --tensorflow_inter_op_parallelism the same and --tensorflow_intra_op_parallelism=1).
num_batch_threads { value: 4 }
thread_pool_name { value: "batching" }
"""
_MODELS_HEADER = """\
# The models of one TF Serving (--model_config_file); ModelServerConfig. Which versions are
# served, and labels such as "stable" and "canary" for them, can be changed while it runs with
# --model_config_file_poll_wait_seconds.
"""


def write_version_files(
    path: Path,
    name: str,
    provenance: Provenance,
    sentences: Sequence[str],
    signatures: Mapping[str, Function],
    about: About,
) -> None:
    """Writes all that a version has beside the SavedModel; the manifest last.

    Args:
        path: directory of a SavedModel, not published yet.
        name: the model's.
        provenance: what it was made of.
        sentences: real ones of the source language, for the warm-up.
        signatures: functions by name, of which `tokenize` is called.
        about: what the model card says that no file knows.

    Raises:
        InputError: where the warm-up cannot be written.
        OSError: where others cannot.
    """
    write_warmup_requests(path, sentences, signatures, provenance.decoding.length_penalty)
    (path / "batching_params.pbtxt").write_text(_MODEL_BATCHING, encoding="utf-8")
    card = model_card(path, name, provenance, about)
    (path / "README.md").write_text(card, encoding="utf-8")
    described = {
        name: {"inputs": describe(each.inputs), "outputs": describe(each.outputs)}
        for name, each in read_signature_defs(path).items()
    }
    write_manifest(path, provenance, described)


def write_base_files(output_dir: Path) -> None:
    """Writes `models.config` and `batching_parameters.txt` where they are missing.

    Args:
        output_dir: the base directory.

    Raises:
        InputError: where they cannot be written.
    """
    for name, text in (
        ("batching_parameters.txt", _MODEL_BATCHING + _THREADS),
        ("models.config", _models_config(model_name(output_dir))),
    ):
        try:
            if not (output_dir / name).exists():
                write_text(output_dir / name, text)
        except OSError as error:
            raise InputError(
                f"{output_dir / name} cannot be written ({error.strerror}); expected room and "
                "permission"
            ) from error


def model_name(output_dir: Path) -> str:
    """Returns the last name of the base directory, as it can be part of a URL."""
    return re.sub(r"[^\w.-]", "_", output_dir.resolve().name, flags=re.ASCII) or "model"


def _models_config(name: str) -> str:
    models = model_server_config_pb2.ModelServerConfig()
    model = models.model_config_list.config.add(
        name=name, base_path=f"/models/{name}", model_platform="tensorflow"
    )
    model.model_version_policy.latest.num_versions = 1
    return _MODELS_HEADER + text_format.MessageToString(models)
