"""Scores of translations: BLEU and chrF by sacreBLEU, with their signatures.

Only scores with the same signature can be compared: it names the tokenization, the casing and the
version. The BLEU of the paper's Table 2 uses another tokenization; `paper_bleu` computes it.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from sacrebleu.metrics.base import Signature
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest, Result

from keras_transformer.errors import InputError, check_names, needs_extra, one_line
from keras_transformer.evaluation.test_sets import EvaluationSet
from keras_transformer.text.charsmap import default_normalizer

TOKENIZERS: tuple[str, ...] = tuple(BLEU.TOKENIZERS)

# Letters of scripts that put no spaces between words, by the tokenizer for them. Words of Korean
# have spaces, but its endings are separate words for sacreBLEU, too.
_SCRIPTS = {
    "zh": re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"),
    "ja-mecab": re.compile("[\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f]"),
    "ko-mecab": re.compile("[\u1100-\u11ff\u3130-\u318f\uac00-\ud7ff]"),
    # Thai, Lao, Tibetan, Burmese, Khmer, Javanese, Balinese.
    "char": re.compile("[\u0e00-\u0eff\u0f00-\u109f\u1780-\u17ff\u1b00-\u1b7f\ua980-\ua9df]"),
}
_LETTER = re.compile(r"[^\W\d_]")
_SHARE = 0.3  # minimum share of letters, because texts quote words in other scripts
_LANGUAGES = {
    **dict.fromkeys(("zh", "yue", "wuu"), "zh"),
    "ja": "ja-mecab",
    "ko": "ko-mecab",
    **dict.fromkeys(("th", "lo", "my", "km", "bo", "dz", "jv", "ban"), "char"),
}
_PACKAGES = {"ja-mecab": "MeCab", "ko-mecab": "mecab_ko"}
Normalization: TypeAlias = Callable[[Sequence[str]], Sequence[str]]


@dataclasses.dataclass(frozen=True)
class SignificanceTest:
    """Comparison of two systems by sacreBLEU's paired bootstrap (Koehn, 2004).

    Attributes:
        bleu: BLEU of the system, 0 to 100.
        bleu_interval: half the width of its 95 % confidence interval.
        baseline_bleu: BLEU of the baseline.
        baseline_interval: half the width of its 95 % confidence interval.
        p_value: probability of such a difference, or a larger one, between systems of equal
            quality, 0 to 1; None if the scores are equal.
        comparison_signature: settings of the comparison, including samples and seed.
    """

    bleu: float
    bleu_interval: float
    baseline_bleu: float
    baseline_interval: float
    p_value: float | None
    comparison_signature: str

    def summary(self) -> str:
        """Returns one line with both scores and their meaning."""
        scores = (
            f"BLEU {self.bleu:.2f} ± {self.bleu_interval:.2f}, baseline {self.baseline_bleu:.2f} "
            f"± {self.baseline_interval:.2f} (95 % confidence)"
        )
        if self.p_value is None:
            return f"{scores}: the same score, so neither system is better"
        better = "better" if self.bleu > self.baseline_bleu else "worse"
        verdict = f"significantly {better}" if self.p_value < 0.05 else "no significant difference"
        return f"{scores}: {verdict}, p = {self.p_value:.4f}"


@dataclasses.dataclass(frozen=True)
class Scores:
    """Corpus scores of one set of translations.

    Attributes:
        bleu: BLEU (Papineni et al., 2002), 0 to 100.
        chrf: chrF2 (Popović, 2015), 0 to 100.
        signature: sacreBLEU's version and settings for `bleu`.
        chrf_signature: the same for `chrf`.
        exact_match: share of the hypotheses that equal a reference, 0 to 1.
        sentences: number of hypotheses.
        paper_bleu: BLEU as in the paper, 27.3 and 28.4 in its Table 2, if it was requested.
        paper_signature: the same for `paper_bleu`.
        comparison: comparison with a baseline, if there is one.
        remarks: sentences about what limits the scores.
    """

    bleu: float
    chrf: float
    signature: str
    chrf_signature: str
    exact_match: float
    sentences: int
    paper_bleu: float | None = None
    paper_signature: str | None = None
    comparison: SignificanceTest | None = None
    remarks: tuple[str, ...] = ()

    def summary(self) -> str:
        """Returns one line per kind of score."""
        lines = [
            f"BLEU {self.bleu:.2f}, chrF {self.chrf:.2f}, exact matches {self.exact_match:.1%} of "
            f"{self.sentences:,} sentences"
        ]
        if self.paper_bleu is not None:
            lines.append(f"BLEU as in the paper {self.paper_bleu:.2f} (tokenized, compounds split)")
        if self.comparison is not None:
            lines.append(self.comparison.summary())
        return "\n".join([*lines, *self.remarks])

    def fields(self) -> dict[str, Any]:
        """Returns the scores as JSON values, without those that there are not."""
        fields = dataclasses.asdict(self)
        return {name: value for name, value in fields.items() if value not in (None, ())}


def evaluate(
    hypotheses: Sequence[str],
    references: Sequence[str] | EvaluationSet,
    *,
    baseline: Sequence[str] | None = None,
    as_in_paper: bool = False,
    tokenize: str | None = None,
    lowercase: bool = False,
    normalize: Normalization | None = None,
) -> Scores:
    """Scores hypotheses against references, and compares them with those of a baseline.

    `tokenize` is one of `TOKENIZERS`, or None for `choose_tokenizer`. sacreBLEU downloads a model
    for the families "flores" and "sp". `normalize` is the normalization of the model, for a remark
    on references that it cannot write, or None for the default of `prepare`. It does not change the
    scores.
    """
    test = _checked(hypotheses, references)
    bleu, chrf = _bleu(test, tokenize, lowercase), CHRF(lowercase=lowercase)
    paper, paper_signature = paper_bleu(hypotheses, test) if as_in_paper else (None, None)
    comparison = None
    if baseline is not None:
        _checked(baseline, test, "baseline translations")
        comparison = _compare(hypotheses, baseline, test, bleu)
    score = bleu.corpus_score(hypotheses, test.references).score
    remarks = [
        _tokenizer_remark(test) if tokenize is None else None,
        _normalization_remark(hypotheses, test, bleu, score, normalize),
    ]
    return Scores(
        bleu=score,
        chrf=chrf.corpus_score(hypotheses, test.references).score,
        signature=_signature(bleu.get_signature(), test),
        chrf_signature=_signature(chrf.get_signature(), test),
        exact_match=_exact_match(hypotheses, test.references, lowercase),
        sentences=len(hypotheses),
        paper_bleu=paper,
        paper_signature=paper_signature,
        comparison=comparison,
        remarks=tuple(filter(None, remarks)),
    )


def _normalization_remark(
    hypotheses: Sequence[str], test: EvaluationSet, bleu: BLEU, score: float,
    normalize: Normalization | None,
) -> str | None:  # fmt: skip
    """Returns a remark if BLEU is another one after the normalization of both sides."""
    if normalize is None:
        spaces = ("add_dummy_prefix", "escape_whitespaces", "remove_extra_whitespaces")
        normalize = default_normalizer(**dict.fromkeys(spaces, False)).normalize
    references = [normalize(list(texts)) for texts in test.references]
    after = bleu.corpus_score(normalize(list(hypotheses)), references).score
    if abs(after - score) < 0.05:
        return None
    rows = zip(zip(*test.references, strict=True), zip(*references, strict=True), strict=True)
    changed = sum(before != normal for before, normal in rows)
    return (
        f"BLEU {after:.2f} after normalization of both sides, which changes {changed:,} of "
        f"{len(hypotheses):,} references: the same text has several forms in Unicode, and a model "
        "writes only normalized text."
    )


def _tokenizer_remark(test: EvaluationSet) -> str | None:
    tokenizer = _tokenizer_for(test.references[0], test.target_language)
    if not _is_missing(tokenizer):
        return None
    return (
        f"BLEU compares characters, because the package {_PACKAGES[tokenizer]} is missing. For the "
        f"usual BLEU of words ({tokenizer}), run: pip install 'sacrebleu[{tokenizer[:2]}]'"
    )


def choose_tokenizer(references: Sequence[str], language: str = "") -> str:
    """Returns the tokenizer of sacreBLEU for a language, or for the script of a text.

    Words of Chinese, Japanese, Thai and other scripts have no spaces between them. The tokenizer
    "13a" would take a sentence for a word, and BLEU would be 0. "char" is used if the package of
    a tokenizer is missing. The language is a code such as "zh" (ISO 639), or empty if unknown.
    """
    tokenizer = _tokenizer_for(references, language)
    return "char" if _is_missing(tokenizer) else tokenizer


def _tokenizer_for(references: Sequence[str], language: str) -> str:
    tokenizer = _LANGUAGES.get(language)
    if tokenizer is None:
        text = "".join(references)
        counts = {name: len(letters.findall(text)) for name, letters in _SCRIPTS.items()}
        if sum(counts.values()) <= _SHARE * len(_LETTER.findall(text)):
            return "13a"
        tokenizer = max(counts, key=lambda name: counts[name])
        # Japanese has more Han characters than kana in some texts, Chinese has no kana.
        if tokenizer == "zh" and counts["ja-mecab"] > 0.05 * counts["zh"]:
            tokenizer = "ja-mecab"
    return tokenizer


def _is_missing(tokenizer: str) -> bool:
    package = _PACKAGES.get(tokenizer)
    return package is not None and importlib.util.find_spec(package) is None


def blind_score(
    references: Sequence[str], tokenize: str | None = None, lowercase: bool = False
) -> float | None:
    """Returns the BLEU of the references against themselves, or None if it is 100.

    If it is lower, the sentences have fewer than four tokens, and BLEU cannot separate good
    translations from bad ones. Do not base decisions on it.
    """
    own = evaluate(references, references, tokenize=tokenize, lowercase=lowercase).bleu
    return None if own > 99.9 else own


def paper_bleu(
    hypotheses: Sequence[str], references: Sequence[str] | EvaluationSet
) -> tuple[float, str]:
    """Returns the BLEU of German translations by tensor2tensor's get_ende_bleu.sh, and a signature.

    Typographic punctuation in hypotheses becomes ASCII. Both sides are tokenized with Moses's
    rules for German and split at hyphens. BLEU is computed as in multi-bleu.perl, with case and
    without smoothing. The tokenizer rules are from Moses in 2017. Later rules also split off the
    full stop of a last word that looks like an abbreviation.
    """
    test = _checked(hypotheses, references)
    if test.target_language not in ("", "de"):
        raise InputError(
            f"The paper's BLEU splits German compounds, but the target language of "
            f"{test.language_pair} is not German. Leave paper_bleu out."
        )
    with needs_extra("moses", "the paper's BLEU"):
        import sacremoses
    moses = sacremoses.MosesTokenizer(lang="de")

    def tokens(text: str) -> str:
        # Over bytes, like Perl: both hyphens of a-ä-b are split, but only the first of a-b-c.
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
    return score.score, _signature(signature, test)


def _compare(
    hypotheses: Sequence[str], baseline: Sequence[str], test: EvaluationSet, bleu: BLEU
) -> SignificanceTest:
    """Tests whether the difference in BLEU between two systems could be chance.

    1,000 test sets are drawn with replacement from the sentences. The seed is 12345, as
    in sacreBLEU, or the environment variable SACREBLEU_SEED.
    """
    systems = [("baseline", baseline), ("system", hypotheses)]
    signatures, results = PairedTest(systems, {"BLEU": bleu}, test.references, test_type="bs")()
    base, system = (result for result in results["BLEU"] if isinstance(result, Result))
    return SignificanceTest(
        bleu=system.score,
        bleu_interval=float(system.ci or 0),
        baseline_bleu=base.score,
        baseline_interval=float(base.ci or 0),
        # For equal systems sacreBLEU's formula gives the smallest p.
        p_value=system.p_value if system.score != base.score else None,
        comparison_signature=_signature(signatures["BLEU"], test),
    )


def _checked(
    hypotheses: Sequence[str], references: Sequence[str] | EvaluationSet, what: str = "hypotheses"
) -> EvaluationSet:
    """Returns the references as a test set, after checking the numbers of sentences."""
    test = references if isinstance(references, EvaluationSet) else EvaluationSet([references])
    for reference in test.references:
        if len(hypotheses) != len(reference):
            raise InputError(
                f"There are {len(hypotheses)} {what}, but {len(reference)} references."
            )
    if not hypotheses:
        raise InputError(f"The {what} are empty. At least one sentence is needed.")
    return test


def _bleu(test: EvaluationSet, tokenize: str | None, lowercase: bool) -> BLEU:
    if tokenize is None:
        tokenize = choose_tokenizer(test.references[0], test.target_language)
    check_names([tokenize], TOKENIZERS, "a tokenizer of sacreBLEU")
    try:
        # `force` silences the advice to detokenize.
        return BLEU(lowercase, tokenize == "none", tokenize, trg_lang=test.target_language)
    except (RuntimeError, ImportError, OSError) as error:  # a missing package, or no network
        raise InputError(
            f"The tokenizer {tokenize!r} is not available: {one_line(error)}"
        ) from error


def _signature(signature: Signature, test: EvaluationSet) -> str:
    """Returns the signature with the name of the test set, if it has one."""
    signature.update("test", test.name)
    signature.update("lang", test.language_pair)
    return str(signature)


def _exact_match(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], lowercase: bool
) -> float:
    def form(text: str) -> str:
        return text.strip().lower() if lowercase else text.strip()

    rows = zip(hypotheses, *references, strict=True)
    return sum(form(line) in map(form, others) for line, *others in rows) / len(hypotheses)
