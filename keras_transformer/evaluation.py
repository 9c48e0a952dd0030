"""Scores of translations: BLEU and chrF by sacreBLEU alone, with their signatures.

A score is only comparable with another of the same signature, which names the
tokenization, the casing and the version; so each is printed with its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from keras_transformer.errors import InputError

TOKENIZERS: tuple[str, ...] = tuple(BLEU.TOKENIZERS)


@dataclasses.dataclass(frozen=True)
class Scores:
    """Corpus scores of one set of translations.

    Attributes:
        bleu: BLEU (Papineni et al., 2002), 0 to 100.
        chrf: chrF2 (Popović, 2015), 0 to 100.
        signature: what repeats `bleu`: sacreBLEU's version and settings.
        chrf_signature: what repeats `chrf`.
        exact_match: share of the hypotheses that equal their reference, 0 to 1.
        sentences: number of hypotheses.
    """

    bleu: float
    chrf: float
    signature: str
    chrf_signature: str
    exact_match: float
    sentences: int


def evaluate(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
) -> Scores:
    """Scores hypotheses against one reference each, in the same order.

    Args:
        hypotheses: translations, not tokenized unless `tokenize` is "none".
        references: as many, in the same form.
        tokenize: one of `TOKENIZERS`, for BLEU; "none" takes the text as it is.
            sacreBLEU downloads a model for those of the "flores" and "sp" families.
        lowercase: whether both scores ignore case; `exact_match` follows.

    Raises:
        InputError: for no sentences, unequal numbers of them, or a tokenizer
            that is unknown or cannot be had.
    """
    if len(hypotheses) != len(references):
        raise InputError(
            f"{len(hypotheses)} hypotheses and {len(references)} references; "
            "expected as many of one as of the other"
        )
    if not hypotheses:
        raise InputError("there are no hypotheses; expected at least one sentence to score")
    if tokenize not in TOKENIZERS:
        raise InputError(
            f"{tokenize!r} is no tokenizer of sacreBLEU; expected one of {', '.join(TOKENIZERS)}"
        )
    try:
        # `force` silences its advice to detokenize, which "none" has decided against.
        bleu = BLEU(tokenize=tokenize, lowercase=lowercase, force=tokenize == "none")
    except (RuntimeError, ImportError, OSError) as error:  # a missing extra, or no network
        reason = " ".join(str(error).split())
        raise InputError(f"the tokenizer {tokenize!r} cannot be had here: {reason}") from error
    chrf = CHRF(lowercase=lowercase)
    return Scores(
        bleu=bleu.corpus_score(hypotheses, [references]).score,
        chrf=chrf.corpus_score(hypotheses, [references]).score,
        signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
        exact_match=_exact_match(hypotheses, references, lowercase),
        sentences=len(hypotheses),
    )


def _exact_match(hypotheses: Sequence[str], references: Sequence[str], lowercase: bool) -> float:
    def form(text: str) -> str:
        return text.strip().lower() if lowercase else text.strip()

    equal = sum(form(h) == form(r) for h, r in zip(hypotheses, references, strict=True))
    return equal / len(hypotheses)
