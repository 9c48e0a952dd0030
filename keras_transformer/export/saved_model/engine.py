"""Runs a SavedModel in this process, or in another one that has only TensorFlow."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.errors import InputError, one_line
from keras_transformer.export import Engine, Hypotheses
from keras_transformer.export.saved_model import isolated_process
from keras_transformer.inference import manifest
from keras_transformer.inference.batching import BatchFunction, batches
from keras_transformer.text.vocabulary import Vocabulary

_TOKENIZED_AT_ONCE = 100


class SavedModelEngine(Engine):
    """A SavedModel in this process, as `loaded`."""

    def __init__(self, folder: Path):
        self.folder, self.label = folder, str(folder)
        if not (folder / "saved_model.pb").is_file():
            raise InputError(
                f"{folder} is neither a run directory nor a SavedModel or another export. Create "
                "one with keras-transformer train or keras-transformer export."
            )
        if manifest.read(folder).get("weights") == "int8":
            from keras_transformer.inference.int8 import check_int8_products

            check_int8_products()  # without oneDNN, every translation would fail
        import tensorflow as tf
        import tensorflow_text  # noqa: F401  registers operations

        def of_arrays(function: Any) -> BatchFunction:
            """Returns a function of arrays. Functions of SavedModels accept only tensors."""
            return lambda **inputs: function(**{n: tf.constant(x) for n, x in inputs.items()})

        try:
            self.loaded = tf.saved_model.load(str(folder))
        except Exception as error:  # TensorFlow raises many exceptions for damaged files
            reason = one_line(error)
            raise InputError(f"{folder} cannot be loaded as a SavedModel: {reason}") from error
        try:
            signatures = self.loaded.signatures
            self._translate = of_arrays(signatures["serving_default"])
            self._lengths = of_arrays(signatures["lengths"])
            outputs = signatures["serving_default"].structured_outputs
            self.n_best = int(outputs["translations"].shape[1])
            self.translate_verbose = of_arrays(self.loaded.translate_verbose)
            self.has_quality = hasattr(self.loaded, "retry")
            if self.has_quality:
                self.retry = of_arrays(self.loaded.retry)
            self.max_train_source_length = int(self.loaded.max_train_source_length.numpy()) or None
            self.vocabulary = _vocabulary(self.loaded.tokenizer)
        except (AttributeError, KeyError) as error:
            raise InputError(
                f"{folder} is a SavedModel without {error}. Use an export of keras-transformer "
                "export."
            ) from error

    def translate(self, text: Any) -> Mapping[str, Any]:
        return self._translate(text=text)

    def lengths(self, text: Any) -> Mapping[str, Any]:
        return self._lengths(text=text)

    def call(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> list[dict[str, np.ndarray]]:
        """Returns the numeric outputs of signatures for inputs that are lists."""
        return [isolated_process.numeric_outputs(self.loaded, *call) for call in calls]

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        starts = range(0, len(texts), _TOKENIZED_AT_ONCE)
        calls = [("tokenize", {"text": list(texts[i : i + _TOKENIZED_AT_ONCE])}) for i in starts]
        rows: list[list[int]] = []
        for output in self.call(calls):
            pairs = zip(output["ids"].tolist(), output["lengths"].tolist(), strict=True)
            rows += [ids[:length] for ids, length in pairs]
        return rows

    def search(self, texts: Sequence[str]) -> list[Hypotheses]:
        todo = batches(texts)
        sources = self.call([("tokenize", {"text": [texts[i] for i in batch]}) for batch in todo])
        inputs = [
            {name: source[name].tolist() for name in ("ids", "lengths")} for source in sources
        ]
        outputs = self.call([("translate_ids", ids) for ids in inputs])
        found: dict[int, Hypotheses] = {}
        for batch, output in zip(todo, outputs, strict=True):
            rows = map(Hypotheses, output["ids"], output["lengths"], output["scores"])
            found.update(zip(batch, rows, strict=True))
        return [found[index] for index in range(len(texts))]


def _vocabulary(tokenizer: Any) -> Vocabulary:
    """Returns the vocabulary of a loaded `Tokenizer`: the models are attributes of operations."""

    def model(side: Any) -> bytes:
        [create] = side._model_resource._create_resource.concrete_functions
        [op] = [op for op in create.graph.get_operations() if op.type == "SentencepieceOp"]
        return bytes(op.get_attr("model"))

    return Vocabulary(*dict.fromkeys(map(model, (tokenizer._source, tokenizer._target))))


class IsolatedSavedModel(SavedModelEngine):
    """A SavedModel in a separate process, so that it cannot depend on this package."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._files = tempfile.TemporaryDirectory()
        self._log = Path(self._files.name) / "log"
        command = [sys.executable, "-I", isolated_process.__file__, str(folder)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def call(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> list[dict[str, np.ndarray]]:
        """Calls signatures like `SavedModelEngine.call`, but on all cores at the same time.

        If the SavedModel needs more than TensorFlow and tensorflow-text, it raises `RuntimeError`.
        """
        results = Path(self._files.name) / "results.npz"
        assert self._process.stdin is not None and self._process.stdout is not None
        done = False
        with contextlib.suppress(BrokenPipeError):  # it has ended, and the log says why
            request = json.dumps([[[name, dict(inputs)] for name, inputs in calls], str(results)])
            self._process.stdin.write(request + "\n")
            self._process.stdin.flush()
            done = any(line == "done\n" for line in self._process.stdout)
        if not done:
            code = self._process.wait()
            lines = self._log.read_text("utf-8", "replace").strip().splitlines()
            raise RuntimeError(
                "The export does not work with only TensorFlow and tensorflow-text: "
                + (lines[-1] if lines else f"exit code {code}")
            )
        outputs: list[dict[str, np.ndarray]] = [{} for _ in calls]
        with np.load(results) as arrays:
            for key, array in arrays.items():
                name, _, number = key.rpartition(" ")
                outputs[int(number)][name] = array
        return outputs

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._files.cleanup()
