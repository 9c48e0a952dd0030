"""A SavedModel in a separate process that has only TensorFlow and tensorflow-text, and requests.

If a request ends the process, the request has failed, and another process is started.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

Arrays = Mapping[str, np.ndarray]

Random = np.random.Generator

_SLICE_S = 0.1
_LOAD_S = 600.0
_INTEGERS = [-(2**31), -(2**31) + 1, -1, 0, 1, 2, 3, 4, 2**15, 2**16, 2**30, 2**31 - 2, 2**31 - 1]
_FLOATS = [0.0, -0.0, 1.0, -1.0, 0.6, 10.0, np.nan, np.inf, -np.inf, 1e-45, -1e-45, 1e-38, 3.4e38]
_WIDTHS = [1, 2, 17, 64, 300, 2000]  # lengths of rows of ids


class Tensor(NamedTuple):
    """An input or output of a signature."""

    dtype: str
    shape: tuple[int | None, ...]


class Signature(NamedTuple):
    """The inputs and outputs of a signature."""

    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]


class Answer(NamedTuple):
    """The result of a request."""

    outputs: Arrays | None  # None if there is a problem
    problem: str | None
    peak_memory_mb: float  # of the process so far


class ModelProcess:
    """Answers requests, one at a time, in a process that is replaced if it ends.

    Args:
        path: the SavedModel.
        limit_s: time limit of a request, in seconds.

    Attributes:
        signatures: the signatures by name.
    """

    def __init__(self, path: str, limit_s: float):
        self._path, self._limit_s = path, limit_s
        self.signatures: dict[str, Signature] = {}
        self._start()

    def ask(self, signature: str, inputs: Arrays) -> Answer:
        """Returns the answer, or the problem."""
        if self._process.exitcode is not None:
            self._start()
        self._connection.send((signature, dict(inputs)))
        if self._answers(self._limit_s):
            try:
                return Answer(*self._connection.recv())
            except EOFError:
                self._process.join()
                problem = f"the process ended with the code {self._process.exitcode}"
        else:
            self.close()
            problem = f"there was no answer within {self._limit_s:g} s"
        return Answer(None, problem, 0.0)

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.join()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(self._path, theirs), daemon=True)
        self._process.start()
        theirs.close()
        try:
            if not self._answers(_LOAD_S):
                raise EOFError
            self.signatures = self._connection.recv()
        except EOFError as error:
            self.close()
            raise RuntimeError(f"{self._path} could not be loaded. Give a SavedModel.") from error

    def _answers(self, limit_s: float) -> bool:
        # In slices, because time in which both processes were stopped must not count.
        return any(self._connection.poll(_SLICE_S) for _ in range(round(limit_s / _SLICE_S)))


def _serve(path: str, connection: Connection) -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")  # faster for small models
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  its ops

    model = tf.saved_model.load(path)
    functions = {name: model.signatures[name] for name in model.signatures}
    connection.send({name: _describe(function) for name, function in functions.items()})
    while True:
        try:
            name, inputs = connection.recv()
        except EOFError:
            return
        connection.send(_answer(tf, functions[name], inputs))
        if "keras_transformer" in sys.modules:
            raise RuntimeError(
                "The model's process has loaded keras_transformer, but should need only TensorFlow."
            )


def _answer(tf: Any, function: Any, inputs: Arrays) -> Answer:
    outputs, problem = None, None
    try:
        found = function(**{name: tf.constant(value) for name, value in inputs.items()})
        outputs = {name: tensor.numpy() for name, tensor in found.items()}
    except Exception as error:  # no request may raise anything
        problem = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
    return Answer(outputs, problem, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def _describe(function: Any) -> Signature:
    def tensors(specs: Mapping[str, Any]) -> dict[str, Tensor]:
        return {k: Tensor(s.dtype.name, tuple(s.shape.as_list())) for k, s in specs.items()}

    return Signature(
        tensors(function.structured_input_signature[1]), tensors(function.structured_outputs)
    )


class Known(NamedTuple):
    """A sentence whose translation is known."""

    text: bytes
    translation: bytes
    ids: np.ndarray  # int32 [tokens]; empty without the signature tokenize


class Request(NamedTuple):
    """A batch: the arrays of the inputs (texts as objects), and the row of the known sentence."""

    signature: str
    inputs: Arrays
    row: int

    def known_row(self) -> Request:
        """Returns a request of only the known sentence."""
        known = slice(self.row, self.row + 1)
        return Request(self.signature, {name: v[known] for name, v in self.inputs.items()}, 0)


def make_request(
    name: str, signature: Signature, rows: Sequence[bytes], known: Known, row: int, random: Random
) -> Request:
    """Returns a request of malformed texts with a known sentence in a row."""
    of_known = {
        "text": known.text,
        "source": known.text,
        "target": known.translation,
        "prefix": b"",
        "max_length": 0,
        "length_penalty": 0.6,
        "lengths": len(known.ids),
    }
    texts = list(rows)
    inputs = {}
    for key, tensor in sorted(signature.inputs.items(), reverse=True):  # text before prefix
        if tensor.dtype == "string":
            values: Sequence[Any] = texts
            texts = [*texts[1:], texts[0]] if random.integers(4) else [b""] * len(texts)
        elif len(tensor.shape) == 2:
            width = tensor.shape[1] or max(int(random.choice(_WIDTHS)), len(known.ids))
            values = list(_integers(random, len(rows) * width).reshape(len(rows), width))
            of_known[key] = np.pad(known.ids, [0, width - len(known.ids)])
        else:
            make = _integers if tensor.dtype == "int32" else _floats
            values = list(make(random, len(rows)))
        # As bytes, NumPy would drop NULs at the end of a text.
        dtype = object if tensor.dtype == "string" else tensor.dtype
        inputs[key] = np.array([*values[:row], of_known[key], *values[row:]], dtype)
    return Request(name, inputs, row)


def _integers(random: Random, count: int) -> np.ndarray:
    """Returns int32 `[count]`: plausible ids, lengths and limits, and any numbers."""
    return np.choose(
        random.integers(4, size=count),
        [
            random.integers(-(2**31), 2**31, count),
            random.choice(_INTEGERS, count),
            random.integers(0, 40, count),
            random.integers(0, 10_000, count),
        ],
    ).astype(np.int32)


def _floats(random: Random, count: int) -> np.ndarray:
    """Returns float32 `[count]`: random bits, and plausible penalties."""
    with np.errstate(invalid="ignore"):  # NaNs of any bits
        return np.choose(
            random.integers(3, size=count),
            [
                random.integers(0, 2**32, count, np.uint32).view(np.float32),
                random.choice(np.array(_FLOATS, np.float32), count),
                random.random(count, np.float32) * 2,
            ],
        )
