"""What weights in fewer bits may cost, by BLEU of the export beside that of the run in float32."""

from __future__ import annotations

from collections.abc import Sequence

from keras_transformer.errors import InputError
from keras_transformer.evaluation.metrics import Scores


def check_references(
    sentences: Sequence[str], references: Sequence[str] | None, rounding: str | None
) -> None:
    """Looks whether an export can be judged.

    Args:
        sentences: what is translated.
        references: their translations.
        rounding: what rounds weights, as "precision is bfloat16"; None where nothing does.

    Raises:
        InputError: for as many of one as of the other are not there, or none where weights
            are rounded.
    """
    if references is not None and len(references) != len(sentences):
        raise InputError(
            f"there are {len(sentences):,} sentences and {len(references):,} references; expected "
            "as many of one as of the other"
        )
    if rounding is not None and references is None:
        raise InputError(
            f"{rounding}, and there are no references; expected some, by which it is known what "
            "the rounding costs"
        )


def check_loss(scores: Scores, exact: Scores, weights: str, most: float) -> None:
    """Raises InputError where weights of that kind lose more BLEU than `most`."""
    # Written so that a score that is no number fails.
    if not exact.bleu - scores.bleu <= most:
        raise InputError(
            f"{weights} translates the sentences with BLEU {scores.bleu:.2f}, float32 with "
            f"{exact.bleu:.2f}; expected a loss of at most {most:g}, so nothing was exported"
        )
