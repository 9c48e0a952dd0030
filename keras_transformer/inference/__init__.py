"""Trained models in use. `Translation` is the result of every way to a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

_EMPTY = -5e8  # a place that nothing was found for has the score -1e9


class Translation(NamedTuple):
    """One translation of a line."""

    text: str
    score: float  # log P and penalties, as it was ranked by; minus infinity where there is none


def translations_of(texts: Iterable[str | bytes], scores: Iterable[float]) -> list[Translation]:
    """Returns the translations of a line, without the places that the search left empty.

    Args:
        texts: the text of each place; bytes are UTF-8.
        scores: the score of each place.
    """
    pairs = zip(texts, scores, strict=True)
    known = [(text, float(score)) for text, score in pairs if score > _EMPTY]
    return [
        Translation(text if isinstance(text, str) else text.decode("utf-8", "replace"), score)
        for text, score in known
    ]
