"""A SavedModel in a process with only TensorFlow and tensorflow-text, and requests."""

import faulthandler
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")  # faster for small models

Arrays = Mapping[str, np.ndarray]

Random = np.random.Generator

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


class Model:
    """Answers requests, one at a time. A request that takes too long ends the process.

    Args:
        path: the SavedModel.
        limit_s: time limit of a request, in seconds.

    Attributes:
        signatures: the signatures by name.
    """

    def __init__(self, path: str, limit_s: float):
        import tensorflow as tf
        import tensorflow_text  # noqa: F401  its ops

        self._constant, self._limit_s = tf.constant, limit_s
        self._model = tf.saved_model.load(path)  # keeps the variables of the signatures
        signatures = self._model.signatures
        self._functions = {name: signatures[name] for name in signatures}
        self.signatures = {name: _describe(call) for name, call in self._functions.items()}

    def ask(self, signature: str, inputs: Arrays) -> tuple[Arrays | None, str | None]:
        """Returns the answer and None, or None and the problem."""
        faulthandler.dump_traceback_later(self._limit_s, exit=True)
        try:
            tensors = {name: self._constant(value) for name, value in inputs.items()}
            found = self._functions[signature](**tensors)
            return {name: tensor.numpy() for name, tensor in found.items()}, None
        except Exception as error:  # no request may raise anything
            return None, f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
        finally:
            faulthandler.cancel_dump_traceback_later()


def _describe(function: Any) -> Signature:
    def tensors(specs: Mapping[str, Any]) -> dict[str, Tensor]:
        return {k: Tensor(s.dtype.name, tuple(s.shape.as_list())) for k, s in specs.items()}

    return Signature(
        tensors(function.structured_input_signature[1]), tensors(function.structured_outputs)
    )


class KnownSentence(NamedTuple):
    """A sentence whose translation is known."""

    text: bytes
    translation: bytes
    ids: np.ndarray  # int32 [tokens]; empty without the signature tokenize


class Request(NamedTuple):
    """A batch: the arrays of the inputs (texts as objects), and the row of the known sentence."""

    signature: str
    inputs: Arrays
    row: int

    def known_row(self) -> "Request":
        """Returns a request of only the known sentence."""
        known = slice(self.row, self.row + 1)
        return Request(self.signature, {name: v[known] for name, v in self.inputs.items()}, 0)


def make_request(
    name: str,
    signature: Signature,
    rows: Sequence[bytes],
    known: KnownSentence,
    row: int,
    random: Random,
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
