"""Models behind signatures: arrays by name in, arrays by name out."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.export.saved_model.engine import SavedModelEngine
from keras_transformer.extensions.litert.exporter import LiteRTEngine
from keras_transformer.extensions.serving.tensors import Arrays, RequestError, Signature, Tensor
from keras_transformer.inference.engine import Engine
from keras_transformer.inference.loading import find_loader, load_model
from keras_transformer.runs.machine import available_cores

if TYPE_CHECKING:
    from keras_transformer.extensions.litert.engine import LiteRTModel

_SOURCE_CUT = 1  # a bit of export.request_params.Status, whose module loads TensorFlow
_TEXT, _NUMBER = Tensor(object, (-1,)), Tensor(np.int32, (-1,))


class Version(NamedTuple):
    """A loaded version of a model. Its memory is freed with the last request that uses it.

    Attributes:
        engine: the engine, as `kt.load` opens it.
        signatures: the signatures that clients call, by name.
        functions: the function of each signature, which is thread-safe.
        warm_up: runs the model once.
        number: the number of the version.
    """

    engine: Engine
    signatures: dict[str, Signature]
    functions: dict[str, Callable[[Arrays], Arrays]]
    warm_up: Callable[[], object]
    number: int = 0


def open_engine(path: Path, batches_at_once: int) -> Version:
    """Loads any model that `kt.load` opens.

    Args:
        path: the model.
        batches_at_once: number of calls at the same time, which share the cores.
    """
    loader, _ = find_loader(str(path))
    if loader.needs_tensorflow:
        _configure_tensorflow(batches_at_once)
    has_threads = "threads" in inspect.signature(loader.open).parameters
    engine = load_model(path, threads=batches_at_once if has_threads else None)
    if isinstance(engine, SavedModelEngine):
        return _with_own_signatures(engine)
    return _with_text_signatures(engine)


def _with_text_signatures(engine: Engine) -> Version:
    """Returns a model with the signatures `serving_default`, `lengths` and `symbols`.

    A LiteRT model also has the signatures `translate` and `tokenize` of a SavedModel. Its
    `translate` has no `prefix` and no alignments.
    """
    known = np.array([symbol.encode() for symbol in engine.symbols or ()], object)
    translations = {
        "translations": Tensor(object, (-1, engine.n_best)),
        "scores": Tensor(np.float32, (-1, engine.n_best)),
    }
    counts = dict.fromkeys(("tokens", "used", "unknown"), _NUMBER)
    inputs = {"text": _TEXT}
    table: dict[str, tuple[Signature, Callable[..., Mapping[str, Any]]]] = {
        "serving_default": (Signature(inputs, translations), engine.translate),
        "lengths": (Signature(inputs, counts), engine.lengths),
        "symbols": (
            Signature(inputs, {"symbols": Tensor(object, (-1, len(known)))}),
            lambda text: {"symbols": np.repeat(known[None], len(text), axis=0)},
        ),
    }
    line = np.array([b"warm up"], object)
    warm_up: Callable[[], object] = functools.partial(engine.translate, line)
    if isinstance(engine, LiteRTEngine):
        model = engine.model
        warm_up = model.warm_up  # makes all interpreters
        width = model.metadata.max_source_tokens
        options = {"max_length": _NUMBER, "length_penalty": Tensor(np.float32, (-1,))}
        details = {
            "lengths": Tensor(np.int32, (-1, engine.n_best)),
            "truncated": Tensor(np.bool_, (-1,)),
            "status": _NUMBER,
        }
        pieces = {"ids": Tensor(np.int32, (-1, width)), "tokens": Tensor(object, (-1, width))}
        table["translate"] = (
            Signature({**inputs, **options}, {**translations, **details}),
            lambda **columns: _litert_translate(model, **columns),
        )
        table["tokenize"] = (
            Signature(inputs, {**pieces, "lengths": _NUMBER}),
            lambda text: _litert_tokenize(model, text),
        )

    def call(name: str) -> Callable[[Arrays], Arrays]:
        (_, outputs), function = table[name]

        def of_arrays(inputs: Arrays) -> Arrays:
            try:
                found = function(**inputs)
            except InputError as error:
                raise RequestError(500, str(error)) from error
            return {key: np.asarray(found[key], tensor.dtype) for key, tensor in outputs.items()}

        return of_arrays

    signatures = {name: signature for name, (signature, _) in table.items()}
    return Version(engine, signatures, {name: call(name) for name in table}, warm_up)


def _litert_translate(
    model: LiteRTModel, text: np.ndarray, max_length: np.ndarray, length_penalty: np.ndarray
) -> Arrays:
    lines = [line.decode("utf-8", "surrogateescape") for line in text]
    sources = [model.source_ids(line) for line in lines]
    found = model.translate_batch(sources, max_length.tolist(), length_penalty.tolist())
    status = np.array([result.status for result in found], np.int32)
    too_long = [len(model.truncate(line)) < len(t) for line, t in zip(lines, text, strict=True)]
    status |= np.where(too_long, np.int32(_SOURCE_CUT), np.int32(0))
    texts = [[best.encode() for best in model.texts(result)] for result in found]
    return {
        "translations": np.array(texts, object),
        "scores": np.array([result.scores for result in found]),
        "lengths": np.array([result.lengths for result in found]),
        "truncated": status & _SOURCE_CUT > 0,
        "status": status,
    }


def _litert_tokenize(model: LiteRTModel, text: np.ndarray) -> Arrays:
    width = model.metadata.max_source_tokens
    pieces = np.array([piece.encode() for piece in model.vocabulary.pieces()[0]], object)
    ids = np.full((len(text), width), model.vocabulary.pad_id, np.int32)
    lengths = np.zeros(len(text), np.int32)
    for row, line in enumerate(text):
        source = model.source_ids(line.decode("utf-8", "surrogateescape"))
        lengths[row] = min(len(source), width)
        ids[row, : lengths[row]] = [*source[: lengths[row] - 1], source[-1]]  # keeps the end token
    is_token = np.arange(width) < lengths[:, None]
    return {"ids": ids, "tokens": np.where(is_token, pieces[ids], b""), "lengths": lengths}


def _with_own_signatures(engine: SavedModelEngine) -> Version:
    """Returns a SavedModel with all its signatures."""
    import tensorflow as tf

    def call(function: Any) -> Callable[[Arrays], Arrays]:
        def of_arrays(inputs: Arrays) -> Arrays:
            try:
                tensors = {name: tf.constant(array) for name, array in inputs.items()}
                return {name: tensor.numpy() for name, tensor in function(**tensors).items()}
            except tf.errors.OpError as error:
                # The lines before the reason are a stack trace, and after it come names of nodes.
                reason = error.message.partition("\n\t [[")[0].strip() or "TensorFlow has failed"
                is_input = isinstance(error, tf.errors.InvalidArgumentError)
                raise RequestError(400 if is_input else 500, reason.splitlines()[-1]) from error

        return of_arrays

    known = dict(engine.loaded.signatures)
    functions = {name: call(function) for name, function in known.items()}
    signatures = {
        name: Signature(
            _tensors(function.structured_input_signature[1]), _tensors(function.structured_outputs)
        )
        for name, function in known.items()
    }
    return Version(
        engine, signatures, functions, lambda: _run_warm_up_requests(engine.folder, functions)
    )


def _run_warm_up_requests(path: Path, functions: Mapping[str, Callable[[Arrays], Arrays]]) -> None:
    import tensorflow as tf
    from google.protobuf.message import DecodeError
    from tensorflow_serving.apis import prediction_log_pb2

    path = path / "assets.extra" / "tf_serving_warmup_requests"
    try:
        records = tf.data.TFRecordDataset(str(path)) if path.is_file() else ()
        for record in records:
            log = prediction_log_pb2.PredictionLog.FromString(record.numpy())
            request = log.predict_log.request
            inputs = {name: tf.make_ndarray(t) for name, t in request.inputs.items()}
            functions[request.model_spec.signature_name](inputs)
    except (tf.errors.OpError, DecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}. Remove or replace it.") from error


def _tensors(specs: Mapping[str, Any]) -> dict[str, Tensor]:
    return {
        name: Tensor(
            spec.dtype.as_numpy_dtype, tuple(-1 if size is None else size for size in spec.shape)
        )
        for name, spec in specs.items()
    }


def _configure_tensorflow(batches_at_once: int) -> None:
    """Divides the cores between the batches, and lets two versions share a GPU."""
    import tensorflow as tf

    with contextlib.suppress(RuntimeError):  # TensorFlow has been used in this process
        threads = max(1, available_cores() // batches_at_once)
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(batches_at_once)
        for gpu in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)
