"""Test sets translated by a model and scored."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from keras_transformer.errors import InputError
from keras_transformer.evaluation import metrics
from keras_transformer.evaluation.metrics import Scores
from keras_transformer.inference.loading import LoadedModel
from keras_transformer.inference.translate import translate_lines


class Evaluation(NamedTuple):
    """A test set translated and scored."""

    scores: Scores
    hypotheses: list[str]
    seconds: float  # of translating

    def summary(self) -> str:
        """Returns the scores in a few words, for a person."""
        return (
            f"{self.scores.summary()}, translated in {self.seconds:.1f} s "
            f"({self.scores.sentences / max(self.seconds, 1e-9):,.0f} a second)"
        )


def evaluate(
    model: LoadedModel,
    sources: Sequence[str],
    references: Sequence[str],
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
) -> Evaluation:
    """Translates `sources` and scores the best translations against `references`.

    Raises:
        InputError: for different numbers of lines, none, or an unknown tokenizer,
            each before anything is translated.
    """
    if len(sources) != len(references):
        raise InputError(
            f"the source has {len(sources):,} lines and the reference {len(references):,}; "
            "expected the same number"
        )
    metrics.evaluate(references[:1], references[:1], tokenize=tokenize, lowercase=lowercase)
    start = time.perf_counter()
    hypotheses = [best.text for best, *_ in translate_lines(model, sources)]
    seconds = time.perf_counter() - start
    scores = metrics.evaluate(hypotheses, references, tokenize=tokenize, lowercase=lowercase)
    return Evaluation(scores, hypotheses, seconds)
