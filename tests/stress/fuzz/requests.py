"""Requests: a batch of malformed texts and a known sentence, for each signature."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tests.stress.fuzz.process import Arrays, Signature
from tests.stress.fuzz.texts import Random

_INTEGERS = [-(2**31), -(2**31) + 1, -1, 0, 1, 2, 3, 4, 2**15, 2**16, 2**30, 2**31 - 2, 2**31 - 1]
_FLOATS = [0.0, -0.0, 1.0, -1.0, 0.6, 10.0, np.nan, np.inf, -np.inf, 1e-45, -1e-45, 1e-38, 3.4e38]
_WIDTHS = [1, 2, 17, 64, 300, 2000]  # lengths of rows of ids


class Known(NamedTuple):
    """A sentence whose translation is known."""

    text: bytes
    translation: bytes
    ids: np.ndarray  # int32 [tokens]; empty without the signature tokenize

    def values(self) -> dict[str, object]:
        """Returns the value of each input."""
        return {
            "text": self.text,
            "source": self.text,
            "target": self.translation,
            "prefix": b"",
            "max_length": 0,
            "length_penalty": 0.6,
            "lengths": len(self.ids),
        }


class Request(NamedTuple):
    """A batch: the arrays of the inputs (texts as objects), and the row of the known sentence."""

    signature: str
    inputs: Arrays
    place: int

    def known_row(self) -> Request:
        """Returns a request of only the known sentence."""
        row = slice(self.place, self.place + 1)
        return Request(self.signature, {name: v[row] for name, v in self.inputs.items()}, 0)


def make(
    name: str, signature: Signature, rows: Sequence[bytes], known: Known, place: int, random: Random
) -> Request:
    """Returns a request of malformed texts with a known sentence among them.

    Args:
        name: name of the signature.
        signature: its inputs.
        rows: the texts, for the first input of texts; the others get them in another order.
        known: the known sentence.
        place: its row.
        random: generator of all other values.
    """
    texts = list(rows)
    inputs = {}
    for key, tensor in sorted(signature.inputs.items(), reverse=True):  # text before prefix
        if tensor.dtype == "string":
            values: Sequence[object] = texts
            texts = [*texts[1:], texts[0]] if random.integers(4) else [b""] * len(texts)
        elif len(tensor.shape) == 2:
            values = list(_ids(random, len(rows), known.ids, tensor.shape[1]))
        else:
            values = list(_NUMBERS[tensor.dtype](random, len(rows)))
        known_value = known.values().get(key) if len(tensor.shape) == 1 else None
        if known_value is None:
            width = len(values[0])  # type: ignore[arg-type]
            known_value = np.pad(known.ids, [0, width - len(known.ids)])
        # As bytes, NumPy would drop NULs at the end of a text.
        dtype = object if tensor.dtype == "string" else tensor.dtype
        inputs[key] = np.array([*values[:place], known_value, *values[place:]], dtype)
    return Request(name, inputs, place)


def _ids(random: Random, rows: int, known: np.ndarray, places: int | None) -> np.ndarray:
    width = places or max(int(random.choice(_WIDTHS)), len(known))
    return _integers(random, rows * width).reshape(rows, width)


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


_NUMBERS: Mapping[str, Callable[[Random, int], np.ndarray]] = {
    "int32": _integers,
    "float32": _floats,
}
