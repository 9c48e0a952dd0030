"""A SavedModel in a TensorFlow session, as in TF Serving."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  models need its ops
from google.protobuf.message import DecodeError

from keras_transformer.errors import InputError
from keras_transformer.extensions.serving.server.batching import (
    Arrays,
    RequestError,
)
from keras_transformer.extensions.serving.server.protos import prediction_log_pb2
from keras_transformer.extensions.serving.server.tensors import read_tensors
from keras_transformer.runs.machine import available_cores

_CODES = {code.value[0]: code for code in grpc.StatusCode}  # TensorFlow's numbers are the same


class SavedModelEngine:
    """A `models.Engine` of a SavedModel.

    Args:
        path: directory of the SavedModel.
        batches_at_once: number of calls of `run` at the same time, which share the cores.
        is_int8: whether the model multiplies in int8.

    Raises:
        InputError: if there is no SavedModel, or if TensorFlow cannot multiply int8 on this CPU.
    """

    name = "TensorFlow"

    def __init__(self, path: Path, batches_at_once: int, is_int8: bool = False):
        if not (path / "saved_model.pb").is_file():
            raise InputError(
                f"{path / 'saved_model.pb'} is missing. Only a SavedModel or a LiteRT model is "
                "served."
            )
        self._path = path
        config = tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=max(1, available_cores() // batches_at_once),
            inter_op_parallelism_threads=-1,  # operations run in the thread that calls `run`
        )
        config.gpu_options.allow_growth = True  # two versions share the GPU during a change
        self._session = tf.compat.v1.Session(graph=tf.Graph(), config=config)
        try:
            if is_int8:  # without oneDNN, every translation would fail
                from keras_transformer.inference.int8 import check_int8_products  # late: Keras

                check_int8_products()
            with self._session.graph.as_default(), _without_deprecation_notice():
                meta_graph = tf.compat.v1.saved_model.load(self._session, ["serve"], str(path))
            self.signatures: Mapping[str, Any] = dict(meta_graph.signature_def)
        except BaseException:
            self.close()
            raise

    def max_rows(self, signature: str) -> int | None:
        """Returns None: a batch may have any number of rows."""
        return None

    def run(self, signature: str, outputs: Sequence[str], inputs: Arrays) -> Arrays:
        """Returns the named outputs of a signature. It is thread-safe.

        Raises:
            RequestError: if TensorFlow fails, with its code.
        """
        info = self.signatures[signature]
        fetches = {key: info.outputs[key].name for key in outputs}
        feeds = {info.inputs[key].name: array for key, array in inputs.items()}
        try:
            result: Arrays = self._session.run(fetches, feeds)
        except tf.errors.OpError as error:
            original = error.__context__  # without the place in Python
            message = (original if isinstance(original, tf.errors.OpError) else error).message
            sentence = next(iter(message.strip().splitlines()), "TensorFlow has failed")
            code = _CODES.get(error.error_code, grpc.StatusCode.UNKNOWN)
            raise RequestError(code, sentence) from error
        return {key: np.asarray(array) for key, array in result.items()}

    def warm_up(self, run: Callable[[str, Arrays], object], max_bytes: int) -> None:
        """Calls `run` for each warm-up request of the version.

        Raises:
            InputError: if the requests cannot be read.
        """
        path = self._path / "assets.extra" / "tf_serving_warmup_requests"
        for log in _read_requests(path) if path.is_file() else ():
            request = log.predict_log.request
            run(request.model_spec.signature_name, read_tensors(request.inputs, max_bytes))

    def close(self) -> None:
        """Frees the memory of the model."""
        self._session.close()


def _read_requests(path: Path) -> list[Any]:
    """Returns the `PredictionLog` of each warm-up request."""
    try:
        records = [record.numpy() for record in tf.data.TFRecordDataset(str(path))]
        return [prediction_log_pb2.PredictionLog.FromString(record) for record in records]
    except (tf.errors.OpError, DecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}. Remove or replace it.") from error


@contextlib.contextmanager
def _without_deprecation_notice() -> Iterator[None]:
    """Hides the notice that loading into a session is deprecated. TF Serving does the same."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
