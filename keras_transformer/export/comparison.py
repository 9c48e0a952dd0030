"""Compares an export with its run before the export is published."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.decoding import NEG_INF, SearchResult
from keras_transformer.decoding.shortlist import Shortlist
from keras_transformer.errors import InputError
from keras_transformer.evaluation.metrics import Scores, blind_score
from keras_transformer.export.probes import ProbeTexts, escaped, token_difference
from keras_transformer.inference.batching import batches
from keras_transformer.inference.scoring import Scorer, score_ids
from keras_transformer.inference.translation_module import TranslationModule

TIE = 1e-4  # hypotheses whose scores differ by less may swap places on another machine
_MAX_TIES = 0.01  # largest share of sentences with ties, which are rare in a trained model
_TOLERANCE = 1e-3  # for the log-probability of a translation, a sum of many rounded terms
_TOKENIZED_AT_ONCE = 1000
MAX_SHORTLIST_LOSS = 0.3  # BLEU, the default limit


class Comparison(NamedTuple):
    """The result of a successful comparison.

    Attributes:
        ties: sentences whose tokens differ although the scores are equal up to rounding.
        translations: the best translation of each sentence.
        largest_difference: of the log-probabilities of the sentences' translations, if these
            were compared.
    """

    ties: list[str]
    translations: list[str]
    largest_difference: float | None = None


class Hypotheses(NamedTuple):
    """The search results of a sentence as NumPy arrays, best first.

    Attributes:
        ids: int32 `(n_best, length)`.
        lengths: int32 `(n_best,)`, including the end token.
        scores: float32 `(n_best,)`.
    """

    ids: np.ndarray
    lengths: np.ndarray
    scores: np.ndarray

    @classmethod
    def of(cls, result: SearchResult) -> list[Hypotheses]:
        """Returns the hypotheses of each sentence of a batch."""
        arrays = (tensor.numpy() for tensor in (result.ids, result.lengths, result.scores))
        return list(map(cls, *arrays))

    def tokens(self) -> list[list[int]]:
        """Returns the ids of each hypothesis, without padding."""
        pairs = zip(self.ids, self.lengths, strict=True)
        return [ids[:length].tolist() for ids, length in pairs]


class Engine:
    """An opened export. It does not know the run.

    A subclass has `tokenize`, and `translate` if it searches like the run, or `log_probs` if it
    has a search of its own.
    """

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the source ids of each text, truncated, with the end token."""
        raise NotImplementedError

    def translate(self, texts: Sequence[str]) -> list[Hypotheses]:
        """Searches for translations of each text."""
        raise NotImplementedError

    def log_probs(
        self, texts: Sequence[str], targets: Sequence[Sequence[int]]
    ) -> list[float | None]:
        """Returns the log-probability of a translation of each text, or None if it has none.

        Args:
            texts: the sources.
            targets: the ids of their translations, with the end token.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Ends what the engine has started, such as a process."""


def compare_tokens(
    translator: TranslationModule,
    engine: Engine,
    sentences: Sequence[str],
    probes: ProbeTexts,
    *,
    is_exact: bool = True,
) -> Comparison:
    """Translates sentences with the run and with an export, and compares the results.

    Args:
        translator: the translator of the run.
        engine: the export. It works in another thread, at the same time as the run.
        sentences: source sentences.
        probes: generated texts, which are also compared.
        is_exact: False for rounded weights: only the tokens of sources must be equal, and the
            translations are those of the export.

    Raises:
        InputError: if a text has other tokens in the export, if the scores of a sentence differ by
            more than rounding, or if the run finds no translation.
    """
    texts = [*sentences, *probes.translated]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        tokens = pool.submit(engine.tokenize, probes.tokenized)
        found = pool.submit(engine.translate, texts)
        own, translations = _search(translator, texts if is_exact else ())
        check_tokens(translator, probes.tokenized, tokens.result())
        theirs = found.result()
    if not is_exact:
        target_text = translator.tokenizer.vocabulary.target_text
        translations = [target_text(hypotheses.tokens()[0]) for hypotheses in theirs]
    ties = []
    for number, (text, ours, other) in enumerate(zip(texts, own, theirs, strict=False), 1):
        tie = compare_sentence(ours, other, text_name(text, number, len(sentences)), text)
        ties += [] if tie is None else [tie]
    check_ties(ties, len(texts))
    return Comparison(ties, translations[: len(sentences)])


def compare_log_probs(
    translator: TranslationModule,
    engine: Engine,
    sentences: Sequence[str],
    probes: ProbeTexts,
    *,
    is_exact: bool = True,
) -> Comparison:
    """Compares the log-probabilities that the run and an export give the run's translations.

    Args:
        translator: the translator of the run.
        engine: the export.
        sentences: source sentences.
        probes: generated texts, which are also compared.
        is_exact: False for rounded weights: log-probabilities may differ, but must be numbers.

    Raises:
        InputError: if a text has other tokens in the export, or if log-probabilities differ by
            more than rounding.
    """
    check_tokens(translator, probes.tokenized, engine.tokenize(probes.tokenized))
    texts, end_id = [*sentences, *probes.translated], translator.tokenizer.end_id
    hypotheses, translations = _search(translator, texts)
    best = [found.tokens()[0] for found in hypotheses]
    targets = [[*(i for i in ids if i != end_id), end_id] for ids in best]
    expected = score_ids(Scorer(translator), texts, targets)
    differences = []
    limit = _TOLERANCE if is_exact else np.inf
    triples = zip(texts, expected, engine.log_probs(texts, targets), strict=True)
    for number, (text, score, found) in enumerate(triples, 1):
        difference = 0.0 if found is None else abs(found - score.log_prob)
        if not difference < limit:  # also fails for NaN
            raise InputError(
                f"The export gives the translation of {text_name(text, number, len(sentences))} "
                f"the log-probability {found:.5f}, the run {score.log_prob:.5f}. Nothing was "
                "exported."
            )
        differences.append(difference)
    # Generated texts have no part in the reported difference, which measures rounding.
    return Comparison([], translations[: len(sentences)], max(differences[: len(sentences)]))


def _search(
    translator: TranslationModule, texts: Sequence[str]
) -> tuple[list[Hypotheses], list[str]]:
    """Returns the hypotheses and the best translation of each text."""
    hypotheses: dict[int, Hypotheses] = {}
    translations = [""] * len(texts)
    for batch in batches(texts):
        text = tf.constant([texts[i] for i in batch])
        result = translator.search(text)
        hypotheses.update(zip(batch, Hypotheses.of(result), strict=True))
        for index, best in zip(batch, translator.texts(result, text)[:, 0].numpy(), strict=True):
            translations[index] = best.decode("utf-8", "replace")
    return [hypotheses[index] for index in range(len(texts))], translations


def check_ties(ties: Sequence[str], sentences: int) -> None:
    """Raises `InputError` if more sentences have ties than rounding can explain."""
    if len(ties) > max(1, _MAX_TIES * sentences):
        raise InputError(
            f"For {len(ties):,} of {sentences:,} sentences, the export and the run find different "
            f"tokens with the same score. At most {_MAX_TIES:.0%} is allowed. Nothing was exported."
        )


def compare_sentence(own: Hypotheses, other: Hypotheses, name: str, sentence: str) -> str | None:
    """Compares the results of the run and the export for one sentence.

    Args:
        own: results of the run.
        other: results of the export.
        name: what messages call the sentence, such as "sentence 7 ('A dog .')".
        sentence: the sentence.

    Returns:
        A description of the tie if the tokens differ and the scores are equal up to rounding,
        or None if the tokens are the same.

    Raises:
        InputError: if the scores differ, or if the run finds no translation.
    """
    if sentence.strip() and own.scores[0] <= NEG_INF / 2:
        raise InputError(
            f"The run finds no translation of {name}. Its weights may contain NaN. Nothing was "
            "exported."
        )
    same = np.abs(own.scores - other.scores) < TIE  # False for NaN
    if not np.all(same):
        place = int(np.argmin(same))
        raise InputError(
            f"The score of {name} is {other.scores[place]:.5f} in the export, but "
            f"{own.scores[place]:.5f} in the run. Nothing was exported."
        )
    if own.tokens() != other.tokens():
        return f"{name}, score {own.scores[0]:.5f}"
    return None


def text_name(text: str, number: int, sentences: int) -> str:
    """Returns what messages call a compared text.

    Args:
        text: the text.
        number: its number, from 1; the sentences come first, then generated texts.
        sentences: number of sentences.
    """
    if number > sentences:
        return f"the generated text {escaped(text)}"
    return f"sentence {number} ({text[:60]!r})"


def check_tokens(
    translator: TranslationModule, texts: Sequence[str], found: Sequence[Sequence[int]]
) -> None:
    """Compares the source ids of texts in the run and in the export.

    Args:
        translator: the translator of the run.
        texts: generated texts.
        found: the ids that the export uses for each text, truncated, with the end token.

    Raises:
        InputError: if the ids of a text differ.
    """
    own: list[list[int]] = []
    for begin in range(0, len(texts), _TOKENIZED_AT_ONCE):
        ids, lengths = translator.source_ids(
            tf.constant(texts[begin : begin + _TOKENIZED_AT_ONCE], tf.string)
        )
        pairs = zip(ids.numpy().tolist(), lengths.numpy().tolist(), strict=True)
        own += [row[:length] for row, length in pairs]
    difference = token_difference(texts, own, found)
    if difference is not None:
        raise InputError(f"The export tokenizes differently: {difference}. Nothing was exported.")


# Engines that look tokens up by their pieces.


def plain_texts(translator: TranslationModule, texts: Sequence[str]) -> list[str]:
    """Returns the texts that engines with pieces can encode like the run.

    Such an engine takes an unknown word that is the name of a special token for that token. It may
    take `>>` at the beginning for a language token, and it does not truncate by bytes.

    Args:
        translator: the translator of the run.
        texts: the texts.
    """
    vocabulary = translator.tokenizer.vocabulary
    _, pieces = vocabulary.pieces()
    special = (vocabulary.pad_id, vocabulary.unknown_id, vocabulary.start_id, vocabulary.end_id)
    names = [pieces[i] for i in special]
    return [
        text
        for text in texts
        if not text.startswith(">>")
        and not any(name in text for name in names)
        and len(text.encode()) <= translator.config.max_source_bytes
    ]


# Exports with rounded weights or a shortlist are judged by BLEU.


def check_references(
    sentences: Sequence[str],
    references: Sequence[str] | None,
    change: str | None,
    tokenize: str | None = None,
) -> None:
    """Checks that BLEU can measure the loss of an export that changes translations.

    Args:
        sentences: source sentences.
        references: their reference translations.
        change: the option that changes translations, such as "weights is bfloat16", or None.
        tokenize: sacreBLEU's tokenizer. If None, `metrics.choose_tokenizer` chooses one.

    Raises:
        InputError: if the numbers of sentences and references differ, or if translations change
            and there are no references.
    """
    if references is not None and len(references) != len(sentences):
        raise InputError(
            f"There are {len(sentences):,} sentences, but {len(references):,} references. Give one "
            "for each sentence."
        )
    if change is not None and references is None:
        raise InputError(
            f"{change}, which changes translations. Add references to measure the loss of BLEU."
        )
    own = None if change is None else blind_score(references or (), tokenize)
    if own is not None:
        raise InputError(
            f"{change}, but BLEU cannot judge it: the references score {own:.1f} against "
            "themselves. Use longer sentences, or another tokenizer (tokenize)."
        )


def change_of(option: str | None, shortlist: Shortlist | None) -> str | None:
    """Returns the options of an export that change translations, for messages.

    Args:
        option: the option that rounds weights, such as "weights is bfloat16", or None.
        shortlist: the shortlist, or None.
    """
    options = [option] if option else []
    if shortlist is not None:
        options.append(f"the shortlist has {shortlist.size} translations of each token")
    return " and ".join(options) or None


def check_loss(scores: Scores, exact: Scores, change: str | None, max_bleu_loss: float) -> None:
    """Raises `InputError` if an export loses more BLEU than allowed.

    Args:
        scores: scores of the export.
        exact: scores of the run in float32, without a shortlist.
        change: the options that change translations, from `change_of`.
        max_bleu_loss: largest allowed loss.
    """
    if not exact.bleu - scores.bleu <= max_bleu_loss:  # also fails for NaN
        raise InputError(
            f"BLEU is {scores.bleu:.2f}, but the run has {exact.bleu:.2f}, because {change}. A "
            f"loss of at most {max_bleu_loss:g} is allowed, so nothing was exported. Use a finer "
            "type, a larger shortlist, or --max_bleu_loss."
        )
