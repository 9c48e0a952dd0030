"""Models behind signatures: arrays by name in, arrays by name out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.extensions.serving.tensors import Arrays, RequestError, Signature, Tensor
from keras_transformer.inference.loading import LoadedModel, load_model
from keras_transformer.runs.machine import available_cores

_SOURCE_CUT = 1  # a bit of export.request_params.Status, whose module loads TensorFlow
_TEXT, _NUMBER = Tensor(object, (-1,)), Tensor(np.int32, (-1,))
_INPUT = {"text": _TEXT}


class TextEngine:
    """A model with the signatures `serving_default`, `lengths` and `symbols`.

    Attributes:
        name: name of the engine, for the log.
        model: the model.
        signatures: its signatures by name.
        max_rows: the most rows that a call of `run` should have; None for any number.
    """

    name = "TensorFlow"

    def __init__(self, model: LoadedModel):
        self.model = model
        self.max_rows = model.max_batch_lines
        self._symbols = np.array([symbol.encode() for symbol in model.symbols or ()], object)
        best = model.n_best
        translations = {
            "translations": Tensor(object, (-1, best)),
            "scores": Tensor(np.float32, (-1, best)),
        }
        counts = dict.fromkeys(("tokens", "used", "unknown"), _NUMBER)
        symbols = {"symbols": Tensor(object, (-1, len(self._symbols)))}
        self.signatures = {
            "serving_default": Signature(_INPUT, translations),
            "lengths": Signature(_INPUT, counts),
            "symbols": Signature(_INPUT, symbols),
        }
        self._functions: dict[str, Callable[..., Mapping[str, Any]]] = {
            "serving_default": model.translate,
            "lengths": model.lengths,
            "symbols": self._known_symbols,
        }

    def run(self, signature: str, inputs: Arrays) -> Arrays:
        """Returns all outputs of a signature. It is thread-safe."""
        try:
            outputs = self._functions[signature](**inputs)
        except InputError as error:
            raise RequestError(500, str(error)) from error
        expected = self.signatures[signature].outputs
        return {name: np.asarray(outputs[name], t.dtype) for name, t in expected.items()}

    def warm_up(self) -> None:
        """Translates a sentence."""
        self.run("serving_default", {"text": np.array([b"warm up"], object)})

    def _known_symbols(self, text: np.ndarray) -> Arrays:
        return {"symbols": np.repeat(self._symbols[None], len(text), axis=0)}


class LiteRTEngine(TextEngine):
    """A LiteRT model, which also has the signatures `translate` and `tokenize` of a SavedModel.

    `translate` has no `prefix` and no alignments. Each call of `run` translates on one core.
    """

    name = "LiteRT"

    def __init__(self, model: LoadedModel):
        super().__init__(model)
        self._litert = model.owner
        width = self._litert.metadata.max_source_tokens
        self._pieces = np.array([p.encode() for p in self._litert.vocabulary.pieces()[0]], object)
        self.signatures["translate"] = Signature(
            {**_INPUT, "max_length": _NUMBER, "length_penalty": Tensor(np.float32, (-1,))},
            {
                **self.signatures["serving_default"].outputs,
                "lengths": Tensor(np.int32, (-1, model.n_best)),
                "truncated": Tensor(np.bool_, (-1,)),
                "status": _NUMBER,
            },
        )
        self.signatures["tokenize"] = Signature(
            _INPUT,
            {
                "ids": Tensor(np.int32, (-1, width)),
                "tokens": Tensor(object, (-1, width)),
                "lengths": _NUMBER,
            },
        )
        self._functions |= {"translate": self._translate, "tokenize": self._tokenize}

    def warm_up(self) -> None:
        """Makes all interpreters, and translates a sentence."""
        self._litert.warm_up()
        super().warm_up()

    def _translate(
        self, text: np.ndarray, max_length: np.ndarray, length_penalty: np.ndarray
    ) -> Arrays:
        model = self._litert
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

    def _tokenize(self, text: np.ndarray) -> Arrays:
        width = self._litert.metadata.max_source_tokens
        ids = np.full((len(text), width), self._litert.vocabulary.pad_id, np.int32)
        lengths = []
        for row, line in zip(ids, text, strict=True):
            source = self._litert.source_ids(line.decode("utf-8", "surrogateescape"))
            lengths.append(min(len(source), width))
            row[: lengths[-1]] = [*source[: lengths[-1] - 1], source[-1]]  # the end token stays
        is_token = np.arange(width) < np.array(lengths)[:, None]
        tokens = np.where(is_token, self._pieces[ids], b"")
        return {"ids": ids, "tokens": tokens, "lengths": np.array(lengths)}


class SavedModelEngine:
    """A SavedModel with all its signatures."""

    name = "TensorFlow"
    max_rows = None

    def __init__(self, path: Path, model: LoadedModel):
        self._path = path
        self.model = model
        self._functions = dict(model.owner.signatures)
        self.signatures = {
            name: Signature(
                _tensors(function.structured_input_signature[1]),
                _tensors(function.structured_outputs),
            )
            for name, function in self._functions.items()
        }

    def run(self, signature: str, inputs: Arrays) -> Arrays:
        """Returns all outputs of a signature. Errors of TensorFlow become answers."""
        import tensorflow as tf

        try:
            tensors = {name: tf.constant(array) for name, array in inputs.items()}
            outputs = self._functions[signature](**tensors)
        except tf.errors.OpError as error:
            # The lines before the reason are a stack trace, and after it come names of nodes.
            reason = error.message.partition("\n\t [[")[0].strip() or "TensorFlow has failed"
            sentence = reason.splitlines()[-1]
            is_input = isinstance(error, tf.errors.InvalidArgumentError)
            raise RequestError(400 if is_input else 500, sentence) from error
        return {name: tensor.numpy() for name, tensor in outputs.items()}

    def warm_up(self) -> None:
        """Runs the warm-up requests of the version."""
        import tensorflow as tf
        from google.protobuf.message import DecodeError
        from tensorflow_serving.apis import prediction_log_pb2

        path = self._path / "assets.extra" / "tf_serving_warmup_requests"
        try:
            records = tf.data.TFRecordDataset(str(path)) if path.is_file() else ()
            for record in records:
                log = prediction_log_pb2.PredictionLog.FromString(record.numpy())
                request = log.predict_log.request
                inputs = {name: tf.make_ndarray(t) for name, t in request.inputs.items()}
                self.run(request.model_spec.signature_name, inputs)
        except (tf.errors.OpError, DecodeError) as error:
            raise InputError(f"{path} cannot be read: {error}. Remove or replace it.") from error


def open_engine(path: Path, batches_at_once: int) -> TextEngine | SavedModelEngine:
    """Loads any model that `kt.load` opens.

    Args:
        path: the model.
        batches_at_once: number of calls of `run` at the same time, which share the cores.
    """
    if _runs_in_litert(path):
        return LiteRTEngine(load_model(path, threads=batches_at_once))
    _configure_tensorflow(batches_at_once)
    model = load_model(path)
    is_saved_model = hasattr(model.owner, "signatures")
    return SavedModelEngine(path, model) if is_saved_model else TextEngine(model)


def _tensors(specs: Mapping[str, Any]) -> dict[str, Tensor]:
    return {
        name: Tensor(
            spec.dtype.as_numpy_dtype, tuple(-1 if size is None else size for size in spec.shape)
        )
        for name, spec in specs.items()
    }


def _runs_in_litert(path: Path) -> bool:
    return path.suffix == ".tflite" or (path / "model.tflite").is_file()


def _configure_tensorflow(batches_at_once: int) -> None:
    """Divides the cores between the batches, and lets two versions share a GPU."""
    import tensorflow as tf

    with contextlib.suppress(RuntimeError):  # TensorFlow has been used in this process
        threads = max(1, available_cores() // batches_at_once)
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(batches_at_once)
        for gpu in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)
