"""A translation, as every way to a model returns it: from disk, from a server, from LiteRT."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

_NOTHING = -5e8  # a place that nothing was found for has the score -1e9


class Translation(NamedTuple):
    """One translation of a line."""

    text: str
    score: float  # log P and penalties, as it was ranked by; minus infinity where there is none


def found(texts: Iterable[str | bytes], scores: Iterable[float]) -> list[Translation]:
    """Returns what was found for a line, of the texts (bytes in UTF-8) and scores of all places."""
    pairs = zip(texts, scores, strict=True)
    known = [(text, float(score)) for text, score in pairs if score > _NOTHING]
    return [
        Translation(text if isinstance(text, str) else text.decode("utf-8", "replace"), score)
        for text, score in known
    ]
