"""Learns the quality of translations from validation sentences, their references and faults."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import TypeAlias

import numpy as np
import tensorflow as tf
from sacrebleu.metrics.chrf import CHRF

from keras_transformer import console
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
_RARE = 0.01  # scripts with a smaller share of the letters are not those of the target language

_INPUTS = [
    tf.TensorSpec([None], tf.string),
    tf.TensorSpec([None, None], tf.int32),
    tf.TensorSpec([None], tf.int32),
]
_Texts: TypeAlias = list[list[int]]  # the ids of each text, without the end token


def fit(
    translator: TranslationModule, sentences: Sequence[str], references: Sequence[str]
) -> QualityModel | None:
    """Returns the quality of a translator, or None if there is too little to learn it from.

    The level is learned from the model's own translations, whose chrF is known. The weights of
    faults are learned from faults in these translations and in references.
    """
    models = translator.transformers
    if not all(model.can_return_attention for model in models):
        return None
    random_ = Random(1)
    count = min(len(sentences), _MAX_SENTENCES)
    chosen = sorted(random_.sample(range(len(sentences)), count))
    found = KerasEngine(translator).search([sentences[i] for i in chosen])
    pairs = [(i, best) for i, best in zip(chosen, found, strict=True) if best.lengths[0] > 1]
    if len(pairs) < _MIN_SENTENCES:
        return None
    sources = [sentences[i] for i, _ in pairs]
    tokenizer = translator.tokenizer
    exact = tokenizer.vocabulary.encode_target([references[i].encode() for i, _ in pairs])
    intact = [[best.tokens()[0] for _, best in pairs], exact]
    intact = [[[i for i in ids if i != tokenizer.end_id] for ids in texts] for texts in intact]
    scorer = Scorer(translator)
    good = [_features(scorer, sources, texts) for texts in intact]
    chrf = [
        CHRF().sentence_score(best.texts[0].decode("utf-8", "replace"), [references[i]]).score / 100
        for i, best in pairs
    ]
    # The other features would follow the few sentences in which they are unusual.
    columns = [_logistic(good[0] * (np.arange(good[0].shape[1]) == 0), np.array(chrf))]
    for fault in FAULTS:
        bad = [_features(scorer, sources, _FAULTS[fault](texts, random_)) for texts in intact]
        values = np.concatenate([*good, *bad])
        is_intact = np.arange(len(values)) < 2 * len(pairs)
        weight = np.where(is_intact, _INTACT_WEIGHT, 1.0)
        columns.append(_logistic(values, is_intact.astype(float), weight))
    if columns[0][0] <= 0:
        console.warn(
            "The quality of translations was left out, because the chrF of the sentences does not "
            "rise with their log-probabilities. Train the model longer, or use more sentences."
        )
        return None
    weights = np.stack(columns, axis=1).astype(np.float32)
    vocabulary = tokenizer.vocabulary
    return QualityModel(
        weights[:-1], weights[-1], _scripts(vocabulary, references), _copies(vocabulary)
    )


def _logistic(
    values: np.ndarray, labels: np.ndarray, weight: np.ndarray | float = 1.0
) -> np.ndarray:
    """Returns the weights and the bias of a logistic regression, by Newton's method."""
    mean, deviation = values.mean(0), values.std(0) + 1e-6
    rows = np.column_stack([(values - mean) / deviation, np.ones(len(values))])
    penalty = np.diag([1.0] * values.shape[1] + [1e-6])
    weights = np.zeros(rows.shape[1])
    for _ in range(30):
        probability = 1 / (1 + np.exp(-rows @ weights))
        gradient = rows.T @ (weight * (labels - probability)) - penalty @ weights
        curvature = weight * probability * (1 - probability)
        weights += np.linalg.solve(rows.T @ (curvature[:, None] * rows) + penalty, gradient)
    slopes = weights[:-1] / deviation
    return np.append(slopes, weights[-1] - slopes @ mean)


def _features(scorer: Scorer, sources: Sequence[str], texts: _Texts) -> np.ndarray:
    """Returns the features of given translations, `[texts, F]`."""
    translator, tokenizer = scorer.translator, scorer.translator.tokenizer

    @tf.function(input_signature=_INPUTS, autograph=False)
    def read(text: tf.Tensor, ids: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        source_ids, *_ = translator.source_ids(text)
        result = scorer.search_result(source_ids, ids, lengths)
        return features(result, source_ids, tokenizer)[:, 0]

    def read_batch(batch: list[int]) -> np.ndarray:
        rows = tf.ragged.constant([[*texts[i], tokenizer.end_id] for i in batch], tf.int32)
        lengths = tf.cast(rows.row_lengths(), tf.int32)
        return read([sources[i] for i in batch], rows.to_tensor(tokenizer.pad_id), lengths).numpy()

    found: dict[int, np.ndarray] = {}
    for batch, values in map_batches(read_batch, sources, unit="pairs"):
        found.update(zip(batch, values, strict=True))
    return np.array([found[index] for index in range(len(texts))])


def _wrong(texts: _Texts, random_: Random) -> _Texts:
    """Returns for each text the next longer one, and for the longest the shortest one."""
    order = sorted(range(len(texts)), key=lambda i: (len(texts[i]), random_.random()))
    others = dict(zip(order, [*order[1:], order[0]], strict=True))
    return [texts[others[i]] for i in range(len(texts))]


def _cut(texts: _Texts, random_: Random) -> _Texts:
    """Returns the first 30 to 80 % of each text."""
    return [ids[: max(1, int(len(ids) * random_.uniform(0.3, 0.8)))] for ids in texts]


def _repeat(texts: _Texts, random_: Random) -> _Texts:
    """Returns texts in which one to four tokens are repeated one to three times."""
    changed = []
    for ids in texts:
        size = random_.randint(1, 4)
        start = random_.randrange(max(1, len(ids) - size + 1))
        end = start + size
        changed.append([*ids[:end], *ids[start:end] * random_.randint(1, 3), *ids[end:]])
    return changed


def _noise(texts: _Texts, random_: Random) -> _Texts:
    """Returns texts in which a quarter of the tokens is dropped, moved or replaced."""
    tokens = [token for ids in texts for token in ids]
    changed = []
    for ids in texts:
        noisy: list[int] = []
        for token in ids:
            kind = random_.choice(_NOISE)
            other = random_.choice(tokens)
            if kind == "move":
                noisy.insert(random_.randint(0, len(noisy)), token)
            elif kind != "drop":
                noisy.append(other if kind == "replace" else token)
        changed.append(noisy)
    return changed


def _scripts(vocabulary: Vocabulary, references: Sequence[str]) -> np.ndarray:
    """Returns `QualityModel.scripts`."""
    counts = Counter(map(_script, "".join(references)))
    total = sum(count for script, count in counts.items() if script)
    own = {script for script, count in counts.items() if script and count >= _RARE * total}
    found = [{*map(_script, piece)} - {""} for piece in vocabulary.pieces()[1]]
    return np.array([1 if some & own else -bool(some) for some in found], np.int32)


def _script(character: str) -> str:
    """Returns the script of a letter by its Unicode name, such as "LATIN", and "" for others."""
    return unicodedata.name(character, "").split(" ")[0] if character.isalpha() else ""


def _copies(vocabulary: Vocabulary) -> np.ndarray:
    """Returns `QualityModel.copies`."""
    source, target = vocabulary.pieces()
    ids = {piece: index for index, piece in enumerate(target)}
    return np.array([ids.get(piece, -1) for piece in source], np.int32)


_FAULTS: dict[str, Callable[[_Texts, Random], _Texts]] = {
    "wrong": _wrong,
    "cut": _cut,
    "repeat": _repeat,
    "noise": _noise,
}
