"""A SavedModel in a separate process that has only TensorFlow and tensorflow-text.

If a request ends the process, the request has failed, and another process is started.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

Arrays = Mapping[str, np.ndarray]

_SLICE_S = 0.1
_LOAD_S = 600.0


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
    cpu_seconds: float
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
        if not self._answers(self._limit_s):
            self._process.kill()
            problem = f"there was no answer within {self._limit_s:g} s"
        else:
            try:
                return Answer(*self._connection.recv())
            except EOFError:
                problem = ""
        self._process.join()
        problem = problem or f"the process ended with {_ending(self._process.exitcode)}"
        return Answer(None, problem, 0.0, 0.0)

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


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"code {code}"


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
    start = time.process_time()
    outputs, problem = None, None
    try:
        found = function(**{name: tf.constant(value) for name, value in inputs.items()})
        outputs = {name: tensor.numpy() for name, tensor in found.items()}
    except Exception as error:  # no request may raise anything
        problem = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Answer(outputs, problem, seconds, peak)


def _describe(function: Any) -> Signature:
    def tensors(specs: Mapping[str, Any]) -> dict[str, Tensor]:
        return {k: Tensor(s.dtype.name, tuple(s.shape.as_list())) for k, s in specs.items()}

    return Signature(
        tensors(function.structured_input_signature[1]), tensors(function.structured_outputs)
    )
