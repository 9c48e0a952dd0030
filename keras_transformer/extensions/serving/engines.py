"""Models behind signatures: arrays by name in, arrays by name out."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_transformer import plugins
from keras_transformer.errors import InputError
from keras_transformer.export.saved_model.engine import SavedModelEngine
from keras_transformer.extensions.litert.exporter import LiteRTEngine
from keras_transformer.extensions.serving.tensors import Arrays, RequestError, Signature, Tensor
from keras_transformer.inference.engine import Engine
from keras_transformer.inference.loading import find_loader, load_model
from keras_transformer.inference.translate import split_texts
from keras_transformer.runs.machine import available_cores

_MAX_TERMS = 1_000  # of the glossary of a request
_TEXT, _NUMBER = {"text": Tensor(object, (-1,))}, Tensor(np.int32, (-1,))


class Version(NamedTuple):
    """A loaded version of a model. Its memory is freed with the last request that uses it.

    Attributes:
        engine: the engine, as `kt.load` opens it.
        signatures: the signatures that clients call, by name.
        number: the number of the version.
    """

    engine: Engine
    signatures: dict[str, Signature]
    number: int = 0


def open_engine(path: Path, batches_at_once: int) -> Version:
    """Loads any model that `kt.load` opens, and runs it once, because first calls are slow.

    Calls at the same time share the cores.
    """
    loader, _ = find_loader(str(path))
    if loader.needs_tensorflow:
        _configure_tensorflow(batches_at_once)
    has_threads = "threads" in inspect.signature(loader.open).parameters
    engine = load_model(path, threads=batches_at_once if has_threads else None)
    if isinstance(engine, SavedModelEngine):
        version = Version(engine, _own_signatures(engine))
        _run_warm_up_requests(engine.folder, version.signatures)
        return version
    if isinstance(engine, LiteRTEngine):
        engine.model.warm_up()  # all interpreters
        return Version(engine, _text_signatures(engine) | _litert_signatures(engine))
    engine.translate(np.array([b"warm up"], object))
    return Version(engine, _text_signatures(engine))


def with_sentences(version: Version, document: bool | None, **options: Any) -> Version:
    """Returns a version whose signature `serving_default` splits texts, as `split_texts` does.

    `options` are those of `documents.with_options`.
    """
    if any(options.values()):
        engine = plugins.find("text_options", "document").with_options(version.engine, **options)
        version = version._replace(engine=engine)
    default = version.signatures["serving_default"]

    def call(columns: Mapping[str, Any]) -> Arrays:
        texts = [text.decode(errors="replace") for text in columns["text"]]
        split, *_ = split_texts(version.engine, texts, document, "", 1)
        others = [b"" if i in split else text for i, text in enumerate(columns["text"])]
        outputs = default.call({"text": np.array(others, object)})
        translations = outputs["translations"].copy()
        for index, text in split.items():
            translations[index, 0] = text.encode()
        return {**outputs, "translations": translations}

    split_texts(version.engine, ["warm up"], document, "", 1)  # may refuse the model
    signatures = {**version.signatures, "serving_default": default._replace(call=call)}
    return version._replace(signatures=signatures)


def with_glossary(version: Version, glossary: Any, terms: Any) -> Version:
    """Returns a version for a request with a glossary, a JSON object."""
    if not isinstance(glossary, dict):  # a text would be the path of a file
        raise RequestError(400, 'glossary must be an object of texts, as in {"wall": "Wand"}.')
    if len(glossary) > _MAX_TERMS:  # the time to read it has no other limit
        raise RequestError(400, f"The limit of a request is {_MAX_TERMS:,} terms.")
    try:
        "".join(map(str, [*glossary, *glossary.values()])).encode()
        return with_sentences(version, False, glossary=glossary, terms=terms)
    except UnicodeEncodeError as error:
        raise RequestError(400, "The glossary is not valid Unicode.") from error


def _signature(
    inputs: dict[str, Tensor],
    outputs: dict[str, Tensor],
    function: Callable[..., Mapping[str, Any]],
) -> Signature:
    """Returns a signature. Outputs of the function that it lacks are left out."""

    def call(columns: Mapping[str, Any]) -> Arrays:
        found = function(**columns)
        return {name: np.asarray(found[name], tensor.dtype) for name, tensor in outputs.items()}

    return Signature(inputs, outputs, call)


def _text_signatures(engine: Engine) -> dict[str, Signature]:
    """Returns the signatures that any model has."""
    known = np.array([symbol.encode() for symbol in engine.symbols or ()], object)
    symbols = {"symbols": Tensor(object, (-1, len(known)))}
    counts = dict.fromkeys(("tokens", "used", "unknown"), _NUMBER)
    return {
        "serving_default": _signature(_TEXT, _best(engine), engine.translate),
        "lengths": _signature(_TEXT, counts, engine.lengths),
        "symbols": _signature(
            _TEXT, symbols, lambda text: {"symbols": np.repeat(known[None], len(text), axis=0)}
        ),
    }


def _best(engine: Engine) -> dict[str, Tensor]:
    shape = (-1, engine.n_best)
    return {"translations": Tensor(object, shape), "scores": Tensor(np.float32, shape)}


def _litert_signatures(engine: LiteRTEngine) -> dict[str, Signature]:
    """Returns signatures like those of a SavedModel, but without `prefix` and alignments."""
    width = engine.model.metadata.max_source_tokens
    options = {"max_length": _NUMBER, "length_penalty": Tensor(np.float32, (-1,))}
    lengths = {"lengths": Tensor(np.int32, (-1, engine.n_best))}
    status = {"truncated": Tensor(np.bool_, (-1,)), "status": _NUMBER}
    pieces = {"ids": Tensor(np.int32, (-1, width)), "tokens": Tensor(object, (-1, width))}
    return {
        "translate": _signature(
            _TEXT | options, _best(engine) | lengths | status, engine.translate
        ),
        "tokenize": _signature(_TEXT, pieces | {"lengths": _NUMBER}, engine.tokens),
    }


def _own_signatures(engine: SavedModelEngine) -> dict[str, Signature]:
    """Returns all signatures of a SavedModel."""
    import tensorflow as tf

    def call_of(function: Any) -> Callable[[Mapping[str, Any]], Arrays]:
        def call(inputs: Mapping[str, Any]) -> Arrays:
            try:
                tensors = {name: tf.constant(array) for name, array in inputs.items()}
                return {name: tensor.numpy() for name, tensor in function(**tensors).items()}
            except tf.errors.OpError as error:
                # The lines before the reason are a stack trace, and after it come names of nodes.
                reason = error.message.partition("\n\t [[")[0].strip() or "TensorFlow has failed"
                is_input = isinstance(error, tf.errors.InvalidArgumentError)
                raise RequestError(400 if is_input else 500, reason.splitlines()[-1]) from error

        return call

    return {
        name: Signature(
            _tensors(function.structured_input_signature[1]),
            _tensors(function.structured_outputs),
            call_of(function),
        )
        for name, function in engine.loaded.signatures.items()
    }


def _run_warm_up_requests(path: Path, signatures: Mapping[str, Signature]) -> None:
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
            signatures[request.model_spec.signature_name].call(inputs)
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
