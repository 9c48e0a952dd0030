"""The comparison of an export with its run: ties, differences, and the separate process."""

import contextlib

import numpy as np
import pytest

from keras_transformer.errors import InputError
from keras_transformer.evaluation.metrics import Scores
from keras_transformer.export import Hypotheses, KerasEngine, comparison
from keras_transformer.export.comparison import compare_log_probs, compare_tokens
from keras_transformer.inference import loading, translate
from tests.builders import refuses
from tests.conftest import PHRASES
from tests.messages import mentions


@pytest.fixture(scope="module")
def translator(run_directory):
    return loading.load_translator(run_directory, {"decoding.n_best": 2})


class ChangedEngine(KerasEngine):
    """An engine that gives the answers of the run, with changes."""

    def __init__(self, translator):
        super().__init__(translator)
        self.token = self.id = 0
        self.score = np.zeros(1, np.float32)

    def tokenize(self, texts):
        rows = super().tokenize(texts)
        if rows:
            rows[-1][0] += self.token
        return rows

    def search(self, texts):
        found = super().search(texts)
        scores = np.broadcast_to(self.score, len(found))
        return [
            one._replace(ids=one.ids + self.id, scores=one.scores + score)
            for one, score in zip(found, scores, strict=True)
        ]


def test_translations_are_in_the_order_of_the_sentences(translator):
    sentences = [*PHRASES, "", *PHRASES[:2]] * 8  # of different lengths, more than a batch
    engine = ChangedEngine(translator)
    result = compare_tokens(translator, engine, sentences, [])
    assert result.ties == [] and len(set(result.translations)) > 3
    expected = translate.translate_lines(KerasEngine(translator), sentences)
    assert result.translations == [best.text for best, *_ in expected]


def test_different_scores_and_tokens_are_errors(translator):
    engine, probes = ChangedEngine(translator), ["a", "a\u3000b"]
    assert compare_tokens(translator, engine, PHRASES[:2], probes).ties == []
    engine.token = 1
    with pytest.raises(InputError, match=mentions(r"'a\u3000b'", "tokens", "Nothing was exported")):
        compare_tokens(translator, engine, PHRASES[:2], probes)
    engine.token, engine.score = 0, np.array([0, 0, 0.01, 0.01], np.float32)
    refuses(compare_tokens, (translator, engine, PHRASES[:2], probes), "generated text", "score")
    engine.score, engine.id = np.zeros(1, np.float32), 1
    refuses(compare_tokens, (translator, engine, PHRASES[:2], []), "2 of 2", "tokens")


def test_log_probs_of_an_engine_with_its_own_search(translator):
    class EngineWithScores(ChangedEngine):
        def log_probs(self, texts, targets):
            return [score + self.score[0] for score in super().log_probs(texts, targets)[:-1]] + [
                None
            ]

    engine = EngineWithScores(translator)
    same = compare_log_probs(translator, engine, PHRASES, [])
    assert len(same.translations) == len(PHRASES) and same.largest_difference < 1e-4
    engine.score = np.array([0.01])
    refuses(compare_log_probs, (translator, engine, PHRASES, []), "sentence 1", "log-probability")
    rounded = compare_log_probs(translator, engine, PHRASES, [], is_exact=False)
    assert rounded.largest_difference == pytest.approx(0.01, abs=1e-4)
    engine.score = np.array([np.nan])
    with pytest.raises(InputError, match=mentions("sentence 1", "nan")):
        compare_log_probs(translator, engine, PHRASES, [], is_exact=False)


@pytest.mark.parametrize(
    ("changed", "bleu", "own_bleu", "max_loss", "is_good"),
    [
        (1, 20.2, 20.4, 0.3, True),
        (1, 20.0, 20.4, 0.3, False),
        (1, float("nan"), 20.4, 0.3, False),
        (1, 0.1, 0.2, 0.3, True),
        (1, 4.0, 4.9, 0.3, False),  # both must hold
        (6, 0.2, 0.2, 0.3, False),
    ],
)
def test_rounded_weights_may_lose_little(changed, bleu, own_bleu, max_loss, is_good):
    def score(lines):
        return Scores(own_bleu if lines is PHRASES else bleu, 0, "", "", 0, 6)

    facts = mentions(f"{bleu:.2f}", f"{own_bleu:.2f}", "chrF", "int4", "Nothing was exported")
    with contextlib.nullcontext() if is_good else pytest.raises(InputError, match=facts):
        texts = ["der"] * changed + [*PHRASES[changed:]]
        comparison.check_quality(texts, PHRASES, score, {"weights is int4": max_loss})


def test_ties_are_reported_and_differences_are_refused(translator):
    (own,) = KerasEngine(translator).search(["a"])

    def is_tie(of_scores, of_ids=1):
        other = own._replace(ids=own.ids + of_ids, scores=own.scores + np.float32(of_scores))
        return comparison.compare_sentence(own, other, "sentence 1 ('a')", "a")

    assert is_tie(5e-5) and not is_tie(5e-5, of_ids=0)
    refuses(is_tie, (2e-4,), "sentence 1", "'a'", "score")
    refuses(lambda: is_tie(float("nan"), of_ids=0), (), "score", "nan")
    # A run that finds nothing is refused, except for empty texts.
    none = np.zeros(1, np.int32)
    nothing = Hypotheses(none[:, None], none, np.full(1, -1e9))
    with pytest.raises(InputError, match=mentions("sentence 2", "'a'", "run")):
        comparison.compare_sentence(nothing, nothing, "sentence 2 ('a')", "a")
    assert not comparison.compare_sentence(nothing, nothing, "sentence 1", " ")
