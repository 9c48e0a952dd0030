"""Warm-up requests: what TF Serving asks a version before it lets clients ask it.

The first call of a signature prunes and optimizes its graph, starts threads and takes
memory from the system, which makes it slower than all that follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from keras_transformer.errors import InputError
from keras_transformer.export.saved_model.signature_defs import (
    dtype_of,
    read_signature_defs,
    shape_of,
)

# Both are fixed in TF Serving's saved_model_warmup_util.
_FILE = Path("assets.extra") / "tf_serving_warmup_requests"
_MOST_RECORDS = 1000
_ROWS = 16  # of the request that holds sentences of all lengths

Function = Callable[..., dict[str, tf.Tensor]]


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
    batches = [_batch(rows, signatures.get("tokenize")) for rows in _choose(sentences)]
    requests = [
        _request(name, _inputs(signature.inputs, batch, length_penalty))
        for name, signature in read_signature_defs(path).items()
        for batch in batches
    ]
    file = path / _FILE
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
    for number, request in enumerate(_read(path / _FILE), start=1):
        place = f"warm-up request {number} of {path / _FILE}"
        name = request.model_spec.signature_name
        if name not in signatures:
            raise InputError(f"{place} asks for {name!r}; expected one of {', '.join(signatures)}")
        if number > _MOST_RECORDS:
            raise InputError(f"{place} is one too many; expected at most {_MOST_RECORDS:,}")
        inputs = {key: tf.constant(tf.make_ndarray(t)) for key, t in request.inputs.items()}
        try:
            signatures[name](**inputs)
        except (tf.errors.OpError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())[:300]
            raise InputError(f"{place} fails ({reason}); expected {name} to answer it") from error
        asked.add(name)
    for name in signatures:
        if name not in asked:
            raise InputError(f"{path / _FILE} has no request for {name}; expected at least one")


def _choose(sentences: Sequence[str]) -> list[list[str]]:
    """Returns the sentences of each request."""
    known = dict.fromkeys(sentence for sentence in sentences if sentence.strip())
    ordered = sorted(known, key=lambda sentence: len(sentence.encode())) or [""]
    last = len(ordered) - 1
    spread = [ordered[i * last // (_ROWS - 1)] for i in range(_ROWS)]
    return [ordered[:1], ordered[-1:], spread]


def _batch(sentences: list[str], tokenize: Function | None) -> _Batch:
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


def _request(signature: str, inputs: Mapping[str, np.ndarray]) -> Any:
    """Returns a `PredictionLog`; it names no model: the server's name for it is not known here."""
    request = predict_pb2.PredictRequest()
    request.model_spec.signature_name = signature
    for name, array in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(array))
    log = prediction_log_pb2.PredictLog(request=request)
    return prediction_log_pb2.PredictionLog(predict_log=log)


def _read(file: Path) -> Iterator[Any]:
    """Yields the `PredictRequest`s."""
    try:
        for record in tf.data.TFRecordDataset(str(file)).as_numpy_iterator():
            yield prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
    except (tf.errors.NotFoundError, tf.errors.DataLossError) as error:
        raise InputError(
            f"{file} cannot be read ({error.message}); expected warm-up requests"
        ) from error
