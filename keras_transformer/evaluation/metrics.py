"""Scores of translations: BLEU and chrF by sacreBLEU alone, with their signatures.

A score is only comparable with another of the same signature, which names the
tokenization, the casing and the version; so each is printed with its own. The
BLEU of the paper's Table 2 is of another tokenization, and has a function of its own.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence
from typing import Any

from sacrebleu.metrics.base import Signature
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest, Result

from keras_transformer.errors import InputError, needs_extra
from keras_transformer.evaluation.test_sets import EvaluationSet

TOKENIZERS: tuple[str, ...] = tuple(BLEU.TOKENIZERS)


@dataclasses.dataclass(frozen=True)
class Scores:
    """Corpus scores of one set of translations.

    Attributes:
        bleu: BLEU (Papineni et al., 2002), 0 to 100.
        chrf: chrF2 (Popović, 2015), 0 to 100.
        signature: what repeats `bleu`: sacreBLEU's version and settings.
        chrf_signature: what repeats `chrf`.
        exact_match: share of the hypotheses that equal a reference of theirs, 0 to 1.
        sentences: number of hypotheses.
    """

    bleu: float
    chrf: float
    signature: str
    chrf_signature: str
    exact_match: float
    sentences: int

    def summary(self) -> str:
        """Returns the scores in a few words, for a person."""
        return (
            f"BLEU {self.bleu:.2f}, chrF {self.chrf:.2f}, exact matches {self.exact_match:.1%} of "
            f"{self.sentences:,} sentences"
        )


def evaluate(
    hypotheses: Sequence[str],
    references: Sequence[str] | EvaluationSet,
    *,
    tokenize: str | None = None,
    lowercase: bool = False,
) -> Scores:
    """Scores hypotheses against their references, in the same order.

    Args:
        hypotheses: translations, not tokenized unless `tokenize` is "none".
        references: one for each, in the same form, or a test set.
        tokenize: one of `TOKENIZERS`, for BLEU; "none" takes the text as it is.
            sacreBLEU downloads a model for those of the "flores" and "sp" families. None is
            "13a", or what sacreBLEU has for the test set's target language.
        lowercase: whether both scores ignore case; `exact_match` follows.

    Raises:
        InputError: for no sentences, unequal numbers of them, or a tokenizer
            that is unknown or cannot be had.
    """
    test = _checked(hypotheses, references)
    bleu, chrf = _bleu(test, tokenize, lowercase), CHRF(lowercase=lowercase)
    return Scores(
        bleu=bleu.corpus_score(hypotheses, test.references).score,
        chrf=chrf.corpus_score(hypotheses, test.references).score,
        signature=_signature(bleu.get_signature(), test),
        chrf_signature=_signature(chrf.get_signature(), test),
        exact_match=_exact_match(hypotheses, test.references, lowercase),
        sentences=len(hypotheses),
    )


@dataclasses.dataclass(frozen=True)
class PaperScore:
    """BLEU as the paper computed it, in the fields of a JSON object.

    Attributes:
        paper_bleu: 0 to 100; 27.3 and 28.4 for English to German in the paper's Table 2.
        paper_signature: what repeats it, in sacreBLEU's form.
    """

    paper_bleu: float
    paper_signature: str

    def summary(self) -> str:
        """Returns the score in a few words, for a person."""
        return f"BLEU as in the paper {self.paper_bleu:.2f} (tokenized, compounds split)"


def paper_bleu(hypotheses: Sequence[str], references: Sequence[str] | EvaluationSet) -> PaperScore:
    """BLEU of German translations by the steps of tensor2tensor's get_ende_bleu.sh.

    In hypotheses typographic punctuation becomes ASCII; both sides are tokenized by Moses's
    rules for German, and at hyphens; multi-bleu.perl counts, with case and without smoothing.
    The rules are those of Moses in 2017: later ones split off the stop of a last word that
    looks like an abbreviation, too. Text is not tokenized before.

    Raises:
        InputError: for no sentences, unequal numbers of them, another target language
            than German, or without the package sacremoses.
    """
    test = _checked(hypotheses, references)
    if test.target_language not in ("", "de"):
        raise InputError(
            f"the paper's BLEU splits German compounds, but {test.language_pair} is not into "
            "German; expected a language pair that ends in -de"
        )
    with needs_extra("moses", "the paper's BLEU"):
        import sacremoses
    moses = sacremoses.MosesTokenizer(lang="de")

    def tokens(text: str) -> str:
        # Over bytes, as Perl has it: of a-ä-b both hyphens are split, of a-b-c the first alone.
        line = moses.tokenize(text, return_str=True).encode()
        return re.sub(rb"(\S)-(\S)", rb"\1 ##AT##-##AT## \2", line).decode()

    ascii_punctuation = sacremoses.MosesPunctNormalizer(lang="de").replace_unicode_punct
    bleu = BLEU(tokenize="none", smooth_method="none", force=True)
    score = bleu.corpus_score(
        [tokens(ascii_punctuation(line)) for line in hypotheses],
        [[tokens(line) for line in reference] for reference in test.references],
    )
    signature = bleu.get_signature()
    signature.update("tok", f"get_ende_bleu-sacremoses-{sacremoses.__version__}")
    return PaperScore(score.score, _signature(signature, test))


@dataclasses.dataclass(frozen=True)
class SignificanceTest:
    """Two systems on one test set, by sacreBLEU's paired bootstrap (Koehn, 2004).

    Attributes:
        bleu: of the system, 0 to 100.
        bleu_interval: half the width of its 95 % confidence interval.
        baseline_bleu: of the other system.
        baseline_interval: half the width of its 95 % confidence interval.
        p_value: how often so large a difference would come about by chance between systems
            that are equally good, 0 to 1; None where there is no difference.
        comparison_signature: what repeats this, the number of samples and the seed included.
    """

    bleu: float
    bleu_interval: float
    baseline_bleu: float
    baseline_interval: float
    p_value: float | None
    comparison_signature: str

    def summary(self) -> str:
        """Returns both scores, and in a sentence what they mean, for a person."""
        scores = (
            f"BLEU {self.bleu:.2f} ± {self.bleu_interval:.2f}, baseline {self.baseline_bleu:.2f} "
            f"± {self.baseline_interval:.2f} (95 % confidence)"
        )
        if self.p_value is None:
            return f"{scores}: the same score, which says nothing for either system"
        better = "better" if self.bleu > self.baseline_bleu else "worse"
        verdict = f"significantly {better}" if self.p_value < 0.05 else "no significant difference"
        return (
            f"{scores}: {verdict}, p = {self.p_value:.4f}; of systems that are equally good, "
            f"{self.p_value:.1%} of such test sets would show a difference of "
            f"{abs(self.bleu - self.baseline_bleu):.2f} or more"
        )


def compare(
    hypotheses: Sequence[str],
    baseline: Sequence[str],
    references: Sequence[str] | EvaluationSet,
    *,
    tokenize: str | None = None,
    lowercase: bool = False,
) -> SignificanceTest:
    """Asks of two systems whether their difference in BLEU could be chance.

    1,000 test sets are drawn with replacement from the sentences of this one. The seed is
    sacreBLEU's: 12345, or what the variable SACREBLEU_SEED says.

    Args:
        hypotheses: translations of the one system.
        baseline: as many, of the other.
        references: as in `evaluate`, and so are the others.

    Raises:
        InputError: for what `evaluate` refuses, of either system, or a malformed seed.
    """
    seed = os.environ.get("SACREBLEU_SEED", "12345")
    if seed.lower() != "none" and not re.fullmatch("[0-9]*[1-9][0-9]*", seed):
        raise InputError(
            f"SACREBLEU_SEED is {seed!r}; expected a whole number above 0, or none for another "
            "result each time"
        )
    test = _checked(hypotheses, references)
    _checked(baseline, test, "baseline translations")
    bleu = _bleu(test, tokenize, lowercase)
    systems = [("baseline", baseline), ("system", hypotheses)]
    signatures, results = PairedTest(systems, {"BLEU": bleu}, test.references, test_type="bs")()
    base, system = (result for result in results["BLEU"] if isinstance(result, Result))
    return SignificanceTest(
        bleu=system.score,
        bleu_interval=float(system.ci or 0),
        baseline_bleu=base.score,
        baseline_interval=float(base.ci or 0),
        # sacreBLEU's formula gives equal systems the smallest p of all.
        p_value=system.p_value if system.score != base.score else None,
        comparison_signature=_signature(signatures["BLEU"], test),
    )


@dataclasses.dataclass(frozen=True)
class Assessment:
    """All that was asked of one system's translations; None is what was not."""

    scores: Scores
    paper: PaperScore | None
    comparison: SignificanceTest | None

    def summary(self) -> str:
        """Returns a line for each kind of score, for a person."""
        parts = (self.scores, self.paper, self.comparison)
        return "\n".join(part.summary() for part in parts if part is not None)

    def fields(self) -> dict[str, Any]:
        """Returns what is in it, ready for JSON."""
        fields = dataclasses.asdict(self.scores)
        fields.update(dataclasses.asdict(self.paper) if self.paper else {})
        if self.comparison:
            fields["comparison"] = dataclasses.asdict(self.comparison)
        return fields


def assess(
    hypotheses: Sequence[str],
    references: Sequence[str] | EvaluationSet,
    *,
    baseline: Sequence[str] | None = None,
    as_in_paper: bool = False,
    tokenize: str | None = None,
    lowercase: bool = False,
) -> Assessment:
    """Calls `evaluate`, `paper_bleu` if `as_in_paper`, and `compare` if there is a `baseline`."""
    return Assessment(
        evaluate(hypotheses, references, tokenize=tokenize, lowercase=lowercase),
        paper_bleu(hypotheses, references) if as_in_paper else None,
        None
        if baseline is None
        else compare(hypotheses, baseline, references, tokenize=tokenize, lowercase=lowercase),
    )


def _checked(
    hypotheses: Sequence[str], references: Sequence[str] | EvaluationSet, what: str = "hypotheses"
) -> EvaluationSet:
    """The references as a test set, of as many sentences as there are hypotheses."""
    test = references if isinstance(references, EvaluationSet) else EvaluationSet([references])
    for each in test.references:
        if len(hypotheses) != len(each):
            raise InputError(
                f"{len(hypotheses)} {what} and {len(each)} references; "
                "expected as many of one as of the other"
            )
    if not hypotheses:
        raise InputError(f"there are no {what}; expected at least one sentence to score")
    return test


def _bleu(test: EvaluationSet, tokenize: str | None, lowercase: bool) -> BLEU:
    if tokenize is not None and tokenize not in TOKENIZERS:
        raise InputError(
            f"{tokenize!r} is no tokenizer of sacreBLEU; expected one of {', '.join(TOKENIZERS)}"
        )
    try:
        return BLEU(
            tokenize=tokenize,
            lowercase=lowercase,
            trg_lang=test.target_language,
            # Silences its advice to detokenize, which "none" has decided against.
            force=tokenize == "none",
        )
    except (RuntimeError, ImportError, OSError) as error:  # a missing extra, or no network
        reason = " ".join(str(error).split())
        name = repr(tokenize) if tokenize else f"of {test.target_language}"
        raise InputError(f"the tokenizer {name} cannot be had here: {reason}") from error


def _signature(signature: Signature, test: EvaluationSet) -> str:
    """The signature with the test set's name in it, where sacreBLEU's form has it."""
    signature.update("test", test.name)
    signature.update("lang", test.language_pair)
    return str(signature)


def _exact_match(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], lowercase: bool
) -> float:
    def form(text: str) -> str:
        return text.strip().lower() if lowercase else text.strip()

    rows = zip(hypotheses, zip(*references, strict=True), strict=True)
    equal = sum(form(hypothesis) in map(form, row) for hypothesis, row in rows)
    return equal / len(hypotheses)
