"""Inference: loading models, translating lines, documents and corpora, and scoring."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from keras_transformer.config import Config, DecodingConfig
from keras_transformer.errors import InputError

# The codes of a source and a target language; None for the default one.
Languages: TypeAlias = tuple[str | None, str | None]
PRECISIONS = ("float32", "bfloat16", "float16", "int8")
ON_LOW_QUALITY = ("keep", "source", "empty", "retry")
MIN_QUALITY = 0.3
EMPTY_SCORE = -5e8  # unused entries of a search result have a lower score, -1e9


class Status(enum.IntFlag):
    """What happened to one row of a request; 0 means nothing.

    The last four are about the best translation, and need a model with a quality of translations.
    """

    SOURCE_CUT = 1  # more tokens or bytes than the model accepts
    MAX_LENGTH_CHANGED = 2  # negative, or more than the longest output of the export
    LENGTH_PENALTY_CHANGED = 4  # negative, or more than MAX_LENGTH_PENALTY
    PREFIX_CUT = 8  # longer than the translation may be
    IDS_REPLACED = 16  # pad ids, or ids outside the vocabulary, became the unknown token
    NOT_TRANSLATED = 32  # no hypothesis was found: the logits are NaN, or all tokens are banned
    LENGTHS_CHANGED = 64  # negative, or more than the number of ids
    TARGET_CUT = 128  # more tokens or bytes than the signature `attention` returns
    LOOP = 256  # it has the same tokens at least three times, and the source does not
    COPY = 512  # most of it is a copy of the source
    PART_MISSING = 1024  # it ends too early
    OTHER_SCRIPT = 2048  # most of it is in another script than the references


PROBLEMS = Status.LOOP | Status.COPY | Status.PART_MISSING | Status.OTHER_SCRIPT


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


def updated_decoding(config: DecodingConfig, settings: Mapping[str, Any]) -> DecodingConfig:
    """Returns a copy with changed settings, such as `{"decoding.beam_size": 1}`.

    If they turn sampling on, `early_stopping` of the old search is dropped: it has no effect on
    samples, and converted models have it.
    """
    for name in settings:
        if not name.startswith("decoding."):
            raise InputError(
                f"{name} cannot be changed after training. Only decoding settings can."
            )
    sample = Config().updated({"decoding.sample": settings.get("decoding.sample", False)})
    dropped = {"decoding.early_stopping": False} if sample.decoding.sample else {}
    return dataclasses.replace(Config(), decoding=config).updated({**dropped, **settings}).decoding


def output_limit(config: DecodingConfig, lengths: Any, minimum: Callable[..., Any] = min) -> Any:
    """Returns the maximum length of outputs that depends on the source, in tokens.

    With `max_extra_tokens=None` a source of n tokens has at most n + 50, and at most 3n + 10.

    Args:
        config: the configuration of the search.
        lengths: the length of a source, or of several, with the end token.
        minimum: the function that returns the smaller of two such numbers or arrays.
    """
    extra = config.max_extra_tokens
    if extra is None:
        return minimum(lengths + 50, 3 * lengths + 10)
    return lengths + extra if extra >= 0 else lengths * (1 - extra)
