"""The quality of translations: its features, its problems, and what is done about low quality."""

import functools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.decoding import SearchResult
from keras_transformer.export import quality as learning
from keras_transformer.inference import Status, loading
from keras_transformer.inference.engine import Engine, KerasEngine
from keras_transformer.inference.quality import FAULTS, QualityModel, assess, features
from keras_transformer.inference.scoring import Scorer
from keras_transformer.inference.translate import (
    translate_lines,
    translate_verbose,
    with_details,
    with_fallback,
)
from keras_transformer.inference.translation_module import TranslationModule
from keras_transformer.text.tokenizer import Tokenizer
from tests.builders import quality_model, refuses
from tests.conftest import PHRASES

LOW = QualityModel(np.zeros((8, 5), np.float32), np.array([-9.0, 9, 9, 9, 9], np.float32),
                   np.zeros(99, np.int32), np.arange(99, dtype=np.int32))  # fmt: skip


@pytest.fixture(scope="module")
def translator(run_directory: Any) -> TranslationModule:
    return loading.load_translator(run_directory)


def result_of(ids: Any, log_probs: Any = -1.0, alignment: Any = 0) -> SearchResult:
    """Returns a search result. Ids of 0 are padding."""
    ids = np.array(ids)
    lengths = (ids > 0).sum(axis=2).astype(np.int32)
    log_probs = tf.constant(np.broadcast_to(log_probs, ids.shape), tf.float32)
    alignment = tf.constant(np.broadcast_to(alignment, ids.shape), tf.int32)
    return SearchResult(
        tf.constant(ids, tf.int32), tf.zeros([1, 1]), tf.constant(lengths), tf.constant([[True]]),
        tf.zeros([1, 1]), log_probs, alignment,
    )  # fmt: skip


def expected_features(ids: Any, log_probs: Any, links: Any, source: Any, t: Tokenizer) -> Any:
    """Returns the features of one translation, without padding."""
    pairs, seen, repeated = [*zip(ids, ids[1:], strict=False)], set(), 0
    for pair in pairs:
        repeated += pair in seen
        seen.add(pair)
    text = [position for position, token in enumerate(source) if token != t.end_id]
    unknown = [list(side).count(t.unknown_id) / len(side) for side in (ids, source)]
    mean = sum(log_probs) / len(ids)
    return [
        mean, math.sqrt(sum((x - mean) ** 2 for x in log_probs) / len(ids)), min(log_probs),
        log_probs[-1], len({*links} & {*text}) / max(1, len(text)),
        math.log(len(ids) / len(source)), repeated / len(ids), sum(unknown),
    ]  # fmt: skip


def test_features_and_quality_equal_those_of_a_reference(translator: TranslationModule) -> None:
    random, tokenizer = np.random.default_rng(5), translator.tokenizer
    model = quality_model(tokenizer)
    lengths, sizes = random.integers(1, 9, (6, 2)), random.integers(1, 7, 6)
    used, in_source = np.arange(8) < lengths[:, :, None], np.arange(6) < sizes[:, None]
    ids = np.where(used, random.integers(1, 9, (6, 2, 8)), 0)
    source = np.where(in_source, random.integers(1, 9, (6, 6)), 0)
    log_probs, links = -random.exponential(2, ids.shape), random.integers(0, 6, ids.shape)
    result, source_ids = result_of(ids, log_probs, links), tf.constant(source, tf.int32)
    found = features(result, source_ids, tokenizer).numpy()
    quality, _ = assess(model, tokenizer, result, source_ids)
    for (row, rank), length in np.ndenumerate(lengths):
        fields = (field[row, rank, :length].tolist() for field in (ids, log_probs, links))
        expected = expected_features(*fields, source[row, : sizes[row]].tolist(), tokenizer)
        np.testing.assert_allclose(found[row, rank], expected, atol=1e-4)
        level, wrong, *others = np.exp(-(np.array(expected) @ model.weights + model.biases))
        number = min(1, 1 / level) * (1 + 0.3 * sum(others)) / (1 + wrong + sum(others))
        assert quality[row, rank].numpy() == pytest.approx(number, abs=1e-4)


@pytest.mark.parametrize(
    ("ids", "source", "problem"),
    [
        ([9, 5, 6, 5, 6, 5, 6, 5, 6, 3], [5, 6, 3], Status.LOOP),
        ([9, 5, 6, 5, 6, 5, 6, 5, 6, 3], [7, 8, 7, 8, 7, 8, 7, 8, 3], 0),
        ([7, 7, 7, 7, 7, 3], [9, 3], 0),
        ([11, 12, 13, 14, 15, 16, 3], [1, 11, 12, 13, 14, 15, 16, 3], Status.COPY),
        ([11, 12, 13, 14, 16, 15, 3], [11, 12, 13, 14, 15, 16, 3], 0),
        ([11, 12, 13, 14, 3], [11, 12, 13, 14, 3], 0),
        ([11, 13, 14, 15, 16, 3], [11, 13, 14, 15, 16, 3], 0),
        ([30, 9, 31, 3], [9, 3], Status.OTHER_SCRIPT),
        ([30, 9, 8, 3], [9, 3], 0),
    ],
)
def test_problems(
    translator: TranslationModule, ids: list[int], source: list[int], problem: int
) -> None:
    scripts = np.zeros(99, np.int32)
    scripts[[8, 9, 12, 30, 31]] = 1, 1, 2, -1, -1
    for sign, others in ((1, 0), (-1, Status.PART_MISSING)):
        biases = LOW.biases.copy()
        biases[FAULTS.index("cut") + 1] *= sign
        model = LOW._replace(scripts=scripts, biases=biases)
        found = assess(model, translator.tokenizer, result_of([[ids]]), tf.constant([source]))[1]
        assert found.numpy() == problem | others


def test_tokens_that_begin_words_in_lower_case_or_have_no_case_are_marked() -> None:
    pieces = "▁a ▁A b 猫 ▁д 5 ｟0｠ ▁Ab".split()
    scripts, copies = learning._tables(SimpleNamespace(pieces=lambda: (["▁A"], pieces)), ["Ab"])
    assert (scripts.tolist(), copies.tolist()) == ([2, 1, 1, -2, -2, 0, 0, 1], [1])


@pytest.mark.long
def test_the_fit_is_calibrated(translator: TranslationModule, monkeypatch: Any) -> None:
    monkeypatch.setattr(learning, "_MIN_SENTENCES", 36)
    words = " ".join(PHRASES).split()
    sources = [f"{first} {second}" for first in words[:6] for second in words[6:12]]
    found = KerasEngine(translator).search(sources)
    means = [
        best.scores[0] * ((5 + best.lengths[0]) / 6) ** 0.6 / best.lengths[0] for best in found
    ]
    is_sure = np.array(means) > np.median(means)
    # The model is right where it is sure.
    own = [best.texts[0].decode() for best in found]
    references = [text if sure else "z" for text, sure in zip(own, is_sure, strict=True)]
    refuses(learning.fit, (translator, sources, references[:5]), 36, 5)
    model = learning.fit(translator, sources, references)
    assert model is not None
    # The fit reads texts with an end, which this model never writes.
    ended = [[*best.tokens()[0][:-1], translator.tokenizer.end_id] for best in found]
    rows = tf.ragged.constant(ended, tf.int32)
    source_ids, *_ = translator.source_ids(tf.constant(sources))
    lengths = tf.cast(rows.row_lengths(), tf.int32)
    result = Scorer(translator).search_result(source_ids, rows.to_tensor(0), lengths)
    quality = assess(model, translator.tokenizer, result, source_ids)[0][:, 0].numpy()
    assert quality.mean() == pytest.approx(is_sure.mean(), abs=0.15)
    assert np.median(quality[is_sure]) > 0.5 > quality[~is_sure].max()
    worse = [text if not sure else "z" for text, sure in zip(own, is_sure, strict=True)]
    assert learning.fit(translator, sources, worse) is None


class FakeEngine(Engine):
    """Translates two of three lines badly. The second search is better for the first of them."""

    label, has_quality = "fake", True

    def __init__(self, has_retry: bool = True):
        self.translate_verbose = functools.partial(self.outputs, "ab", 2)
        self.retry = functools.partial(self.outputs, "yz", 3) if has_retry else None

    @staticmethod
    def outputs(letters: str, width: int, text: Any, prefix: Any) -> Any:
        quality = {b"1": width / 10, b"2": 0.9, b"3": 0.8}
        names = np.full((len(text), 1, width), b"x", object)
        return {
            "translations": np.array([[letters.encode() + line] for line in text], object),
            "scores": np.zeros((len(text), 1)), "lengths": np.full((len(text), 1), width),
            "finished": np.full((len(text), 1), True), "tokens": names,
            "ids": np.zeros(names.shape, int), "alignments": np.zeros(names.shape, int),
            "source_tokens": names[:, 0],
            "quality": np.array([[quality[line]] for line in text]),
            "status": np.array([Status.LOOP * (line == b"3") for line in text]),
        }  # fmt: skip

    def lengths(self, text: Any) -> Any:
        return dict.fromkeys(("tokens", "used", "unknown"), np.zeros(len(text), int))


@pytest.mark.parametrize(
    ("action", "texts"),
    [
        ("keep", ["ab1", "ab2", "ab3"]),
        ("source", ["1", "ab2", "3"]),
        ("empty", ["", "ab2", ""]),
        ("retry", ["yz1", "ab2", "ab3"]),
    ],
)
def test_translations_of_low_quality_are_replaced(action: str, texts: list[str]) -> None:
    model = with_fallback(FakeEngine(), action)
    details = with_details(translate_verbose(model, ["1", "2", "3"]))
    assert [best.text for best, *_ in details] == texts
    assert details[2][0].details and details[2][0].details["problems"] == ["LOOP"]
    assert bool((details[0][0].details or {})["tokens"]) == (action in ("keep", "retry"))
    if action != "keep":
        assert [best.text for best, *_ in translate_lines(model, ["1", "2", "3"])] == texts


def test_models_and_values_without_a_fallback_are_refused(translator: TranslationModule) -> None:
    model = FakeEngine(has_retry=False)
    refuses(with_fallback, (model, "drop"), "drop", "on_low_quality")
    refuses(with_fallback, (model, "empty", float("nan")), "min_quality", "nan")
    refuses(with_fallback, (model, "keep", 0.5), "on_low_quality", "min_quality", 0.5)
    refuses(with_fallback, (model, "retry"), "fake", "search")
    refuses(with_fallback, (KerasEngine(translator, "run"), "empty"), "run", "--quality")
    model.n_best = 2
    refuses(with_fallback, (model, "empty"), "fake", 2, "n_best=1")
