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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2
from tensorflow_serving.config import model_server_config_pb2

from keras_transformer.errors import InputError
from keras_transformer.export.manifest import Provenance, write_manifest
from keras_transformer.export.saved_model.model_card import About, model_card
from keras_transformer.export.saved_model.signature_defs import (
    describe,
    dtype_of,
    read_signature_defs,
    shape_of,
)
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

# Both are fixed in TF Serving's saved_model_warmup_util.
_WARMUP_FILE = Path("assets.extra") / "tf_serving_warmup_requests"
_MAX_RECORDS = 1000
_WARMUP_ROWS = 16  # of the request that holds sentences of all lengths

Function = Callable[..., dict[str, tf.Tensor]]


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


# Warm-up requests: the first call of a signature is slow, because it optimizes the graph, starts
# threads and allocates memory. TF Serving sends these requests before clients can send theirs.


class _Batch(NamedTuple):
    """Sentences, and the ids that `tokenize` makes of them."""

    sentences: list[str]
    ids: np.ndarray  # int32 [B, S]
    lengths: np.ndarray  # int32 [B]


def write_warmup_requests(
    path: Path,
    sentences: Sequence[str],
    signatures: Mapping[str, Function],
    length_penalty: float,
) -> None:
    """Writes `assets.extra/tf_serving_warmup_requests`, three requests for every signature.

    They are the shortest of the sentences, the longest, and one batch of all lengths.

    Args:
        path: directory of a SavedModel.
        sentences: real ones of the source language.
        signatures: functions by name, of which `tokenize`, if it is there, is asked for ids.
        length_penalty: α that the model was exported with.

    Raises:
        InputError: where it cannot be written.
    """
    batches = [_warmup_batch(rows, signatures.get("tokenize")) for rows in _choose(sentences)]
    requests = [
        _prediction_log(name, _inputs(signature.inputs, batch, length_penalty))
        for name, signature in read_signature_defs(path).items()
        for batch in batches
    ]
    file = path / _WARMUP_FILE
    try:
        file.parent.mkdir(exist_ok=True)
        with tf.io.TFRecordWriter(str(file)) as writer:
            for request in requests:
                writer.write(request.SerializeToString(deterministic=True))
    except (OSError, tf.errors.OpError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise InputError(f"{file} cannot be written ({reason}); expected room") from error


def check_warmup_requests(path: Path, signatures: Mapping[str, Function]) -> None:
    """Runs every warm-up request, as a server does, which refuses a version where one fails.

    Args:
        path: directory of a SavedModel.
        signatures: its functions by name, as `tf.saved_model.load` returns them.

    Raises:
        InputError: for a request that cannot be read or fails, more of them than a server
            reads, or a signature without any.
    """
    asked = set()
    for number, request in enumerate(_read_requests(path / _WARMUP_FILE), start=1):
        place = f"warm-up request {number} of {path / _WARMUP_FILE}"
        name = request.model_spec.signature_name
        if name not in signatures:
            raise InputError(f"{place} asks for {name!r}; expected one of {', '.join(signatures)}")
        if number > _MAX_RECORDS:
            raise InputError(f"{place} is one too many; expected at most {_MAX_RECORDS:,}")
        inputs = {key: tf.constant(tf.make_ndarray(t)) for key, t in request.inputs.items()}
        try:
            signatures[name](**inputs)
        except (tf.errors.OpError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())[:300]
            raise InputError(f"{place} fails ({reason}); expected {name} to answer it") from error
        asked.add(name)
    for name in signatures:
        if name not in asked:
            raise InputError(
                f"{path / _WARMUP_FILE} has no request for {name}; expected at least one"
            )


def _choose(sentences: Sequence[str]) -> list[list[str]]:
    """Returns the sentences of each request."""
    known = dict.fromkeys(sentence for sentence in sentences if sentence.strip())
    ordered = sorted(known, key=lambda sentence: len(sentence.encode())) or [""]
    last = len(ordered) - 1
    spread = [ordered[i * last // (_WARMUP_ROWS - 1)] for i in range(_WARMUP_ROWS)]
    return [ordered[:1], ordered[-1:], spread]


def _warmup_batch(sentences: list[str], tokenize: Function | None) -> _Batch:
    if tokenize is None:
        count = len(sentences)
        return _Batch(sentences, np.zeros([count, 1], np.int32), np.ones(count, np.int32))
    outputs = tokenize(text=tf.constant(sentences))
    return _Batch(sentences, outputs["ids"].numpy(), outputs["lengths"].numpy())


def _inputs(tensors: Any, batch: _Batch, length_penalty: float) -> dict[str, np.ndarray]:
    """Returns an array for each of a signature's inputs, told by its name or else its dtype."""
    texts = np.array([sentence.encode() for sentence in batch.sentences], object)
    known = {
        "prefix": np.array(
            [sentence.split(" ")[0].encode() for sentence in batch.sentences], object
        ),
        "lengths": batch.lengths,
        "length_penalty": np.full(len(texts), length_penalty),
    }
    inputs = {}
    for name, tensor in tensors.items():
        dtype = dtype_of(tensor)
        if name == "ids":
            values = _of_width(batch.ids, shape_of(tensor)[1])
        elif name in known:
            values = known[name]
        elif dtype == tf.string:
            values = texts
        else:  # 0 asks of an option what the model was exported with
            values = np.zeros([len(texts), *(dim or 1 for dim in shape_of(tensor)[1:])])
        inputs[name] = values.astype(dtype.as_numpy_dtype)
    return inputs


def _of_width(ids: np.ndarray, width: int | None) -> np.ndarray:
    """Returns ids cut or padded to the width that a signature takes; as they are if to any."""
    if width is None:
        return ids
    return np.pad(ids, [[0, 0], [0, max(width - ids.shape[1], 0)]])[:, :width]


def _prediction_log(signature: str, inputs: Mapping[str, np.ndarray]) -> Any:
    """Returns a `PredictionLog`; it names no model: the server's name for it is not known here."""
    request = predict_pb2.PredictRequest()
    request.model_spec.signature_name = signature
    for name, array in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(array))
    log = prediction_log_pb2.PredictLog(request=request)
    return prediction_log_pb2.PredictionLog(predict_log=log)


def _read_requests(file: Path) -> Iterator[Any]:
    """Yields the `PredictRequest`s."""
    try:
        for record in tf.data.TFRecordDataset(str(file)).as_numpy_iterator():
            yield prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
    except (tf.errors.NotFoundError, tf.errors.DataLossError) as error:
        raise InputError(
            f"{file} cannot be read ({error.message}); expected warm-up requests"
        ) from error
