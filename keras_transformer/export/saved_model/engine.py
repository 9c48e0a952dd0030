"""Runs a SavedModel in another process, which has only TensorFlow and tensorflow-text."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.export.comparison import Engine, Hypotheses
from keras_transformer.export.saved_model import fresh_process
from keras_transformer.inference.batching import batches

_TOKENIZED_AT_ONCE = 100


class SavedModelEngine(Engine):
    """A SavedModel in a separate process, so that it cannot depend on this package."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._files = tempfile.TemporaryDirectory()
        self._log = Path(self._files.name) / "log"
        command = [sys.executable, "-I", fresh_process.__file__, str(folder)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def call(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> list[dict[str, np.ndarray]]:
        """Calls signatures, on all cores at the same time, and returns their numeric outputs.

        A call is the name of a signature, or `search`, and its inputs as lists.
        """
        results = Path(self._files.name) / "results.npz"
        assert self._process.stdin is not None and self._process.stdout is not None
        answer = ""
        try:
            request = json.dumps([[[name, dict(inputs)] for name, inputs in calls], str(results)])
            self._process.stdin.write(request + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            pass  # it has ended, and the log says why
        if not answer:
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

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        starts = range(0, len(texts), _TOKENIZED_AT_ONCE)
        calls = [("tokenize", {"text": list(texts[i : i + _TOKENIZED_AT_ONCE])}) for i in starts]
        rows: list[list[int]] = []
        for output in self.call(calls):
            pairs = zip(output["ids"].tolist(), output["lengths"].tolist(), strict=True)
            rows += [ids[:length] for ids, length in pairs]
        return rows

    def translate(self, texts: Sequence[str]) -> list[Hypotheses]:
        todo = batches(texts)
        outputs = self.call([("search", {"text": [texts[i] for i in batch]}) for batch in todo])
        found: dict[int, Hypotheses] = {}
        for batch, output in zip(todo, outputs, strict=True):
            rows = map(Hypotheses, *(output[field] for field in Hypotheses._fields))
            found.update(zip(batch, rows, strict=True))
        return [found[index] for index in range(len(texts))]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._files.cleanup()
