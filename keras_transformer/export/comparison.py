"""Compares an export with its run before the export is published."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Sequence

import numpy as np

from keras_transformer import console
from keras_transformer.decoding import NEG_INF
from keras_transformer.errors import InputError
from keras_transformer.evaluation import metrics
from keras_transformer.evaluation.metrics import Scores
from keras_transformer.export import ExportResult
from keras_transformer.export.probes import escaped, texts_to_translate, token_difference
from keras_transformer.inference.engine import Engine, Hypotheses, KerasEngine
from keras_transformer.inference.translation_module import TranslationModule

TIE = 1e-4  # hypotheses whose scores differ by less may swap on another machine
_MAX_TIES = 0.01  # largest share of sentences with ties, which are rare in a trained model
_TOLERANCE = 1e-3  # a log-probability is a sum of many rounded terms
# Below this BLEU of the run, the allowed losses are a large part of the score, which depends on a
# few frequent words. Then the export is compared with the translations of the run.
_MIN_BLEU = 5.0
# Correct exports of tiny models with 0 to 4 BLEU have chrF 94 to 100, and with int4 weights 87.
_MIN_CHRF = 70.0


def compare_tokens(
    translator: TranslationModule,
    engine: Engine,
    sentences: Sequence[str],
    probes: Sequence[str],
    *,
    is_exact: bool = True,
) -> ExportResult:
    """Translates sentences with the run and with an export, and compares the results.

    All tokens of `probes`, which are generated texts, are compared, and a few of their
    translations. With rounded weights, results are not exact: only the tokens of sources must be
    equal. The engine works in another thread, at the same time as the run.
    """
    vocabulary = translator.tokenizer.vocabulary
    texts = [*sentences, *texts_to_translate(vocabulary, probes)]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        tokens = pool.submit(engine.tokenize, probes)
        found = pool.submit(engine.search, texts)
        run = KerasEngine(translator)
        own = run.search(texts if is_exact else ())
        translations = [found.texts[0].decode("utf-8", "replace") for found in own]
        _check_tokens(run, probes, tokens.result())
        theirs = found.result()
    if not is_exact:
        translations = [vocabulary.target_text(other.tokens()[0]) for other in theirs]
    ties = []
    for number, (text, ours, other) in enumerate(zip(texts, own, theirs, strict=False), 1):
        name = _text_name(text, number, len(sentences))
        if compare_sentence(ours, other, name, text):
            ties.append(f"{name}, score {ours.scores[0]:.5f}")
    if len(ties) > max(1, _MAX_TIES * len(texts)):
        raise InputError(
            f"For {len(ties):,} of {len(texts):,} sentences, the export and the run find different "
            f"tokens with the same score. At most {_MAX_TIES:.0%} is allowed. Nothing was exported."
        )
    return ExportResult(translations[: len(sentences)], ties)


def compare_log_probs(
    translator: TranslationModule,
    engine: Engine,
    sentences: Sequence[str],
    probes: Sequence[str],
    *,
    is_exact: bool = True,
) -> ExportResult:
    """Compares the log-probabilities that the run and an export give the run's translations.

    All tokens of `probes`, which are generated texts, are compared, and a few of their
    translations. With rounded weights, log-probabilities may differ, but must be numbers.
    """
    run = KerasEngine(translator)
    _check_tokens(run, probes, engine.tokenize(probes))
    texts = [*sentences, *texts_to_translate(translator.tokenizer.vocabulary, probes)]
    hypotheses = run.search(texts)
    translations = [found.texts[0].decode("utf-8", "replace") for found in hypotheses]
    end_id, best = translator.tokenizer.end_id, (found.tokens()[0] for found in hypotheses)
    targets = [[*(i for i in ids if i != end_id), end_id] for ids in best]
    expected = run.log_probs(texts, targets)
    differences = []
    limit = _TOLERANCE if is_exact else np.inf
    triples = zip(texts, expected, engine.log_probs(texts, targets), strict=True)
    for number, (text, score, found) in enumerate(triples, 1):
        difference = 0.0 if found is None else abs(found - score)
        if not difference < limit:  # True for NaN, too
            raise InputError(
                f"The export gives the translation of {_text_name(text, number, len(sentences))} "
                f"the log-probability {found:.5f}, the run {score:.5f}. Nothing was exported."
            )
        differences.append(difference)
    # The reported difference measures rounding, so it leaves out the generated texts.
    return ExportResult(translations[: len(sentences)], [], max(differences[: len(sentences)]))


def check_quality(
    other: Sequence[str], own: Sequence[str], score: Callable[..., Scores], losses: dict[str, float]
) -> str:
    """Refuses an export whose translations differ too much, and describes the agreement.

    `own` are the translations of the run. `losses` has the options that change translations, with
    the allowed loss of BLEU; 100 allows all translations.
    """
    bleu, exact_bleu, max_loss = score(other).bleu, score(own).bleu, max(losses.values())
    equal = metrics.evaluate(other, own, tokenize="none")
    agreement = (
        f"With the same search, BLEU is {bleu:.2f}, and {exact_bleu:.2f} in the run. The "
        f"translations of both have chrF {equal.chrf:.2f}, and {equal.exact_match:.1%} are equal."
    )
    is_good = exact_bleu - bleu <= max_loss  # False for NaN
    if exact_bleu < _MIN_BLEU and max_loss < 100:
        agreement += f" BLEU below {_MIN_BLEU:g} cannot judge this: chrF {_MIN_CHRF:g} is needed."
        is_good &= equal.chrf >= _MIN_CHRF or equal.exact_match == 1  # empty texts have chrF 0
        console.warn(agreement)
    if not is_good:
        raise InputError(
            f"{agreement} The limit is a loss of {max_loss:g} BLEU, but {' and '.join(losses)}. "
            "Nothing was exported. Use a finer type, a larger shortlist, or max_bleu_loss."
        )
    return agreement


def compare_sentence(own: Hypotheses, other: Hypotheses, name: str, sentence: str) -> bool:
    """Returns True if only the tokens differ, and the scores are equal up to rounding: a tie.

    The quality then differs, too. It can also differ alone, because two source tokens may have the
    same attention. Messages call the sentence `name`, such as "sentence 7 ('A dog .')".
    """
    if sentence.strip() and own.scores[0] <= NEG_INF / 2:
        raise InputError(
            f"The run finds no translation of {name}. Its weights may contain NaN. Nothing was "
            "exported."
        )
    same = np.abs(own.scores - other.scores) < TIE  # False for NaN
    if not np.all(same):
        rank = int(np.argmin(same))
        raise InputError(
            f"The score of {name} is {other.scores[rank]:.5f} in the export, but "
            f"{own.scores[rank]:.5f} in the run. Nothing was exported."
        )
    is_tie = own.tokens() != other.tokens()
    if own.quality is not None and other.quality is not None:
        is_tie |= not np.allclose(own.quality, other.quality, rtol=0, atol=TIE)
    return is_tie


def _text_name(text: str, number: int, sentences: int) -> str:
    """Returns what messages call a text. The sentences come first, then generated texts."""
    if number > sentences:
        return f"the generated text {escaped(text)}"
    return f"sentence {number} ({text[:60]!r})"


def _check_tokens(run: KerasEngine, texts: Sequence[str], found: Sequence[Sequence[int]]) -> None:
    """Raises `InputError` if a text has other source ids in the export than in the run."""
    difference = token_difference(texts, run.tokenize(texts), found)
    if difference is not None:
        raise InputError(f"The export tokenizes differently: {difference}. Nothing was exported.")
