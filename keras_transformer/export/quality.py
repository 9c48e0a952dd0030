"""Learns the quality of translations from validation sentences, their references and faults."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from sacrebleu.metrics.chrf import CHRF

from keras_transformer import console
from keras_transformer.errors import InputError
from keras_transformer.inference.batching import map_batches
from keras_transformer.inference.engine import KerasEngine
from keras_transformer.inference.quality import FAULTS, QualityModel, features
from keras_transformer.inference.scoring import Scorer
from keras_transformer.inference.translation_module import TranslationModule
from keras_transformer.text.vocabulary import Vocabulary

_MIN_SENTENCES, _MAX_SENTENCES = 100, 500
# Translations without faults count 16 times as much as those with one, because faults are rare.
_INTACT_WEIGHT = 16.0
_NOISE = ["keep"] * 9 + ["drop", "move", "replace"]
_OWN_WEIGHT = 4.0  # of the model's own translations, compared with references
_RARE = 0.01  # scripts with a smaller share of the letters are not those of the target language

_SYMBOL = re.compile("<.+>|｟.+｠")  # special tokens, bytes, tags and spans have no script

_Texts: TypeAlias = list[list[Any]]  # the tokens of each text, without the end token


def fit(
    translator: TranslationModule, sentences: Sequence[str], references: Sequence[str]
) -> QualityModel | None:
    """Returns the quality of a translator, or None if its log-probabilities do not show it.

    The level is learned from the model's own translations, whose chrF is known. The weights of
    faults are learned from faults in these translations and in references.
    """
    if not all(model.can_return_attention for model in translator.transformers):
        raise InputError("The quality of translations needs a model that returns attention.")
    random_, tokenizer = Random(1), translator.tokenizer
    number = min(len(sentences), len(references), _MAX_SENTENCES)
    _check_number(number)
    chosen = sorted(random_.sample(range(len(sentences)), number))
    found = KerasEngine(translator).search([sentences[i] for i in chosen])
    pairs = [(i, best) for i, best in zip(chosen, found, strict=True) if best.lengths[0] > 1]
    _check_number(len(pairs))
    exact = tokenizer.vocabulary.encode_target([references[i].encode() for i, _ in pairs])
    both = [best.tokens()[0] for _, best in pairs], exact
    others = {tokenizer.end_id, *tokenizer.vocabulary.language_ids.values()}
    intact = [[[i for i in ids if i not in others] for ids in texts] for texts in both]
    read = _reader(translator, [sentences[i] for i, _ in pairs])
    own, given = (read(texts) for texts in intact)
    chrf = [
        CHRF().sentence_score(best.texts[0].decode("utf-8", "replace"), [references[i]]).score / 100
        for i, best in pairs
    ]
    # Only the mean log-probability: other features would follow the few sentences in which they are
    # unusual.
    columns = [_regression(own * (np.arange(own.shape[1]) == 0), np.array(chrf), is_log=True)]
    if columns[0][0] <= 0:
        console.warn(
            "The quality of translations was left out, because the chrF of the sentences does not "
            "rise with their log-probabilities. Train the model longer, or use more sentences."
        )
        return None
    labels = np.repeat([1.0, 1.0, 0.0, 0.0], len(pairs))
    weight = np.repeat([_INTACT_WEIGHT * _OWN_WEIGHT, _INTACT_WEIGHT, _OWN_WEIGHT, 1.0], len(pairs))
    for fault in FAULTS:
        faulty = [read(with_fault(fault, texts, random_)) for texts in intact]
        columns.append(_regression(np.concatenate([own, given, *faulty]), labels, weight))
    weights = np.stack(columns, axis=1).astype(np.float32)
    tables = _tables(tokenizer.vocabulary, references)
    return QualityModel(weights[:-1], weights[-1], *tables)


def _check_number(sentences: int) -> None:
    """Refuses too few sentences that are translated and have references."""
    if sentences < _MIN_SENTENCES:
        raise InputError(
            f"The quality of translations is learned from at least {_MIN_SENTENCES} sentences and "
            f"their references, and there are {sentences}. Give more, or leave quality out."
        )


def _regression(
    values: np.ndarray, labels: np.ndarray, weight: np.ndarray | float = 1.0, is_log: bool = False
) -> np.ndarray:
    """Returns the weights and bias of a logistic or log-linear regression, by Newton's method."""
    mean, deviation = values.mean(0), values.std(0) + 1e-6
    rows = np.column_stack([(values - mean) / deviation, np.ones(len(values))])
    penalty = np.diag([1.0] * values.shape[1] + [1e-6])
    weights = np.zeros(rows.shape[1])
    for _ in range(30):
        scores = rows @ weights
        expected = np.exp(scores) if is_log else 0.5 + 0.5 * np.tanh(scores / 2)
        gradient = rows.T @ (weight * (labels - expected)) - penalty @ weights
        curvature = weight * expected * (1 if is_log else 1 - expected)
        weights += np.linalg.solve(rows.T @ (curvature[:, None] * rows) + penalty, gradient)
    slopes = weights[:-1] / deviation
    return np.append(slopes, weights[-1] - slopes @ mean)


def _reader(
    translator: TranslationModule, sources: Sequence[str]
) -> Callable[[_Texts], np.ndarray]:
    """Returns a function from a translation of each source to their features, `[sources, F]`."""
    scorer, tokenizer = Scorer(translator), translator.tokenizer
    longest = translator.max_output_tokens - 1 - int(tokenizer.has_languages)

    @tf.function(reduce_retracing=True, autograph=False)
    def features_of(text: tf.Tensor, ids: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        source_ids, *_ = translator.source_ids(text)
        if tokenizer.has_languages:
            ids, lengths = tf.concat([source_ids[:, :1], ids], axis=1), lengths + 1
        return features(scorer.search_result(source_ids, ids, lengths), source_ids, tokenizer)

    def read(texts: _Texts) -> np.ndarray:
        def read_batch(batch: list[int]) -> np.ndarray:
            rows = [[*texts[i][:longest], tokenizer.end_id] for i in batch]
            ids = tf.ragged.constant(rows, tf.int32)
            lengths = tf.cast(ids.row_lengths(), tf.int32)
            text = tf.constant([sources[i] for i in batch])
            return features_of(text, ids.to_tensor(tokenizer.pad_id), lengths).numpy()[:, 0]

        found: dict[int, np.ndarray] = {}
        for batch, values in map_batches(read_batch, sources, unit="pairs"):
            found.update(zip(batch, values, strict=True))
        return np.stack([found[index] for index in range(len(texts))])

    return read


def with_fault(fault: str, texts: _Texts, random_: Random) -> _Texts:
    """Returns all texts with one of the `FAULTS`.

    "wrong" is the translation of another source, "cut" the first 30 to 80 % of a text, "repeat" has
    up to four tokens up to three times more, and "noise" drops, moves or replaces a quarter.
    """
    if fault == "wrong":
        order = sorted(range(len(texts)), key=lambda i: (len(texts[i]), random_.random()))
        others = dict(zip(order, [*order[1:], order[0]], strict=True))
        return [texts[others[i]] for i in range(len(texts))]
    tokens = [token for ids in texts for token in ids]
    return [_changed(fault, ids, tokens, random_) for ids in texts]


def _changed(fault: str, ids: list[Any], tokens: list[Any], random_: Random) -> list[Any]:
    """Returns a text with another fault. Noise is taken from `tokens`."""
    if fault == "cut":
        return ids[: max(1, int(len(ids) * random_.uniform(0.3, 0.8)))]
    if fault == "repeat":
        size = random_.randint(1, 4)
        start = random_.randrange(max(1, len(ids) - size + 1))
        end = start + size
        return [*ids[:end], *ids[start:end] * random_.randint(1, 3), *ids[end:]]
    noisy: list[Any] = []
    for token in ids:
        kind = random_.choice(_NOISE)
        if kind == "move":
            noisy.insert(random_.randint(0, len(noisy)), token)
        elif kind != "drop":
            noisy.append(random_.choice(tokens) if kind == "replace" else token)
    return noisy


def _tables(vocabulary: Vocabulary, references: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns `scripts` and `copies` of a `QualityModel`."""
    counts = Counter(filter(None, map(_script, "".join(references))))
    own = {script for script, count in counts.items() if count >= _RARE * counts.total()}
    source, target = vocabulary.pieces()
    texts = ["" if _SYMBOL.fullmatch(piece) else piece for piece in target]
    scripts = ({*map(_script, text)} - {""} for text in texts)
    signs = np.array([1 if some & own else -bool(some) for some in scripts], np.int32)
    is_lower = [t[:1] == "▁" and t[1:2].islower() or t.upper() == t.lower() for t in texts]
    ids = {piece: index for index, piece in enumerate(target)}
    copies = [ids.get(piece, -1) for piece in source]
    return signs + signs * np.array(is_lower), np.array(copies, np.int32)


def _script(character: str) -> str:
    """Returns the script of a letter by its Unicode name, such as "LATIN", and "" for others."""
    return unicodedata.name(character, "").split(" ")[0] if character.isalpha() else ""
