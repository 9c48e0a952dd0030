"""Requests that failed: made smaller, written to files and read again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.stress.fuzz.requests import Request

TRIES = 200  # requests that shrinking takes at most


def shrink(
    request: Request, problem: str, ask: Callable[[Request], str | None], tries: int = TRIES
) -> tuple[Request, str]:
    """Returns the smallest request found that fails, and what its problem is.

    First one row alone, or one beside the known one; then shorter texts.

    Args:
        request: fails.
        problem: how.
        ask: says what is wrong with the answer to another; None where nothing is.
        tries: requests to ask, at most.
    """
    left = iter(range(tries))

    def first_failing(candidates: Iterator[Request]) -> tuple[Request, str] | None:
        for candidate in candidates:
            if next(left, None) is None:
                return None
            found = ask(candidate)
            if found is not None:
                return candidate, found
        return None

    smallest = first_failing(_fewer_rows(request)) or (request, problem)
    while smaller := first_failing(_shorter_texts(smallest[0])):
        smallest = smaller
    return smallest


def save(request: Request, problem: str, path: Path) -> None:
    """Writes a request as JSON; of each byte of a text, the character of its number."""
    entry = {**request._asdict(), "problem": problem}
    entry["inputs"] = {
        name: {
            "dtype": "string" if values.dtype == object else values.dtype.name,
            "values": [
                value.decode("latin-1") if isinstance(value, bytes) else value
                for value in values.tolist()
            ],
        }
        for name, values in request.inputs.items()
    }
    path.write_text(json.dumps(entry, indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> Request:
    """Reads what `save` wrote."""
    entry = json.loads(path.read_text(encoding="utf-8"))
    inputs = {name: _array(**each) for name, each in entry["inputs"].items()}
    return Request(entry["signature"], inputs, entry["kinds"], entry["place"])


def _array(dtype: str, values: list[Any]) -> np.ndarray:
    if dtype == "string":
        return np.array([value.encode("latin-1") for value in values], object)
    return np.array(values, dtype)


def _fewer_rows(request: Request) -> Iterator[Request]:
    others = [row for row in range(len(request.kinds)) if row != request.place]
    for row in others:
        yield request.rows([row])
    if request.place is not None:
        for row in others:
            yield request.rows([row, request.place])
        yield request.rows([request.place])


def _shorter_texts(request: Request) -> Iterator[Request]:
    """Yields the request with parts of its hostile texts left out, large ones first."""
    for name, values in request.inputs.items():
        for row, text in enumerate(values):
            if row == request.place or not isinstance(text, bytes):
                continue
            size = len(text)
            while size:
                for begin in range(0, len(text), size):
                    changed = values.copy()
                    changed[row] = text[:begin] + text[begin + size :]
                    yield request._replace(inputs={**request.inputs, name: changed})
                size //= 2
