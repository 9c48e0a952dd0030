"""Requests: a batch of hostile rows and a known one, for each signature."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tests.stress.fuzz.engines import Row
from tests.stress.fuzz.process import Arrays, Signature, Tensor
from tests.stress.fuzz.texts import Random

_INTEGERS = [-(2**31), -(2**31) + 1, -1, 0, 1, 2, 3, 4, 2**15, 2**16, 2**30, 2**31 - 2, 2**31 - 1]
_FLOATS = [0.0, -0.0, 1.0, -1.0, 0.6, 10.0, np.nan, np.inf, -np.inf, 1e-45, -1e-45, 1e-38, 3.4e38]
_WIDTHS = [1, 2, 17, 64, 300, 2000]  # of ids


class Known(NamedTuple):
    """A sentence whose answers are known."""

    text: bytes
    translation: bytes
    ids: np.ndarray  # int32 [tokens]; empty where the export has no signature tokenize

    def values(self) -> dict[str, object]:
        """Returns what a row of each input is."""
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
    """A batch of rows.

    `inputs` are arrays, the batch first, texts as objects of type bytes; `kinds` says of each
    row what it is, and `place` which is the known one, None where there is none.
    """

    signature: str
    inputs: Arrays
    kinds: Sequence[str]
    place: int | None

    def rows(self, numbers: Sequence[int]) -> Request:
        """Returns a request of some of the rows."""
        index = list(numbers)
        return self._replace(
            inputs={name: values[index] for name, values in self.inputs.items()},
            kinds=[self.kinds[number] for number in index],
            place=index.index(self.place) if self.place in index else None,
        )


def make(
    name: str, signature: Signature, rows: Sequence[Row], known: Known, place: int, random: Random
) -> Request:
    """Returns a request of hostile rows, and of `known` at `place` among them.

    Args:
        name: of the signature.
        signature: its inputs.
        rows: their texts are those of the first input of texts; of others, in another order.
        known: the row that is not hostile.
        place: where it comes.
        random: draws everything else.
    """
    texts = [row.text for row in rows]
    inputs = {}
    for key, tensor in sorted(signature.inputs.items(), reverse=True):  # text before prefix
        if tensor.dtype == "string":
            hostile: Sequence[object] = texts
            texts = [*texts[1:], texts[0]] if random.integers(4) else [b""] * len(texts)
        elif len(tensor.shape) == 2:
            hostile = list(_ids(random, len(rows), known.ids, tensor.shape[1]))
        else:
            hostile = list(_NUMBERS[tensor.dtype](random, len(rows)))
        own = known.values().get(key) if len(tensor.shape) == 1 else None
        if own is None:
            own = _padded(known.ids, len(hostile[0]))  # type: ignore[arg-type]
        inputs[key] = _array([*hostile[:place], own, *hostile[place:]], tensor)
    kinds = [row.kind for row in rows]
    return Request(name, inputs, [*kinds[:place], "known", *kinds[place:]], place)


def _array(values: Sequence[object], tensor: Tensor) -> np.ndarray:
    if tensor.dtype == "string":
        return np.array(values, object)  # NumPy's own type of bytes drops NULs at the end
    return np.array(values, tensor.dtype)


def _padded(ids: np.ndarray, width: int) -> np.ndarray:
    return np.pad(ids, [0, width - len(ids)])


def _ids(random: Random, rows: int, known: np.ndarray, places: int | None) -> np.ndarray:
    width = places or max(int(random.choice(_WIDTHS)), len(known))
    return _integers(random, rows * width).reshape(rows, width)


def _integers(random: Random, count: int) -> np.ndarray:
    """Returns int32 `[count]` of what an id, a length or a limit may be, and of any numbers."""
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
    """Returns float32 `[count]` of any bits, and of what a penalty may be."""
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
