"""Inference: loading models, translating lines, documents and corpora, and scoring."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

PRECISIONS = ("float32", "bfloat16", "float16", "int8")
EMPTY_SCORE = -5e8  # unused entries of a search result have a lower score, -1e9


class Translation(NamedTuple):
    """One translation of a line.

    Attributes:
        text: the translation.
        score: its score in the search, or minus infinity if there is no translation.
        details: tokens, log-probabilities and alignment, if they were requested. The keys are
            those of `inference.translate.translate_verbose`.

    Example:
    >>> Translation("Ein Hund .", -0.5).text
    'Ein Hund .'
    """

    text: str
    score: float
    details: Mapping[str, Any] | None = None


def translations_of(texts: Iterable[str | bytes], scores: Iterable[float]) -> list[Translation]:
    """Returns the translations of a line, without the unused entries of the search result."""
    return [
        Translation(
            text if isinstance(text, str) else text.decode("utf-8", "replace"), float(score)
        )
        for text, score in zip(texts, scores, strict=True)
        if score > EMPTY_SCORE
    ]
