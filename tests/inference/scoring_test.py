"""Scores equal the forward pass and the search, and do not depend on the batch."""

import dataclasses
import math
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.config import DecodingConfig
from keras_transformer.inference import loading, scoring
from keras_transformer.inference.scoring import Scorer
from keras_transformer.runs.run_directory import RunDirectory
from tests.builders import nan_weights, refuses
from tests.conftest import PHRASES
from tests.export.model_variants import make_run

SOURCES = [*PHRASES, "", "a", "", "ball " * 30, PHRASES[0]]
TARGETS = [*reversed(PHRASES), "das Haus", "", "", "Ball", "Ball " * 60]


@pytest.fixture(scope="module")
def scorer(run_directory: RunDirectory) -> Scorer:
    return Scorer(loading.load_translator(run_directory.path))


def forward_pass(
    scorer: Scorer, source_ids: list[int], target_ids: list[int], member: int = 0
) -> np.ndarray:
    """Returns the log-probabilities float64 `[T]` of one target, from the logits of `call`."""
    shifted = [scorer.translator.tokenizer.start_id, *target_ids[:-1]]
    logits = scorer.translator.transformers[member](
        {"source_ids": tf.constant([source_ids]), "target_ids": tf.constant([shifted])},
        training=False,
    )
    logits = logits.numpy()[0].astype(np.float64)
    log_softmax = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return log_softmax[np.arange(len(target_ids)), target_ids]


def test_every_pair_has_the_score_of_its_own_forward_pass(scorer: Scorer) -> None:
    tokenizer = scorer.translator.tokenizer
    limit = scorer.translator.config.max_source_tokens
    sources = tokenizer.tokenize_source(tf.constant(SOURCES)).to_list()
    targets = tokenizer.tokenize_target(tf.constant(TARGETS)).to_list()
    results = scoring.score_pairs(scorer, SOURCES, TARGETS)
    assert any(len(ids) > limit for ids in sources) and any(len(ids) > limit for ids in targets)
    for source, target, result in zip(sources, targets, results, strict=True):
        used = source if len(source) <= limit else [*source[: limit - 1], tokenizer.end_id]
        expected = forward_pass(scorer, used, target)
        np.testing.assert_allclose(result, expected, atol=3e-4)
        perplexity = scoring.perplexity([result])
        assert perplexity == pytest.approx(math.exp(-expected.mean()), rel=1e-3)


def test_a_window_is_scored_without_attention_weights(tmp_path: Path) -> None:
    # Requesting all weights would turn the window into a mask (layers/attention.py).
    run = make_run(tmp_path / "run", model__attention_window=8)
    scorer = Scorer(loading.load_translator(run.path))
    target = scorer.translator.tokenizer.tokenize_target(tf.constant(TARGETS[:1])).to_list()[0]
    source = scorer.translator.tokenizer.tokenize_source(tf.constant(SOURCES[:1])).to_list()[0]
    read = scorer.translator.read_targets
    with mock.patch.object(scorer.translator, "read_targets", wraps=read) as asking:
        (result,) = scoring.score_ids(scorer, SOURCES[:1], [target])
    assert asking.call_args.args[2] is False
    np.testing.assert_allclose(result, forward_pass(scorer, source, target), atol=3e-4)


def test_slices_of_the_logits_do_not_change_scores(
    scorer: Scorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = scoring.score_pairs(scorer, SOURCES, TARGETS)
    monkeypatch.setattr(scoring, "_SLICE_ROWS", 7)
    sliced = scoring.score_pairs(Scorer(scorer.translator), SOURCES, TARGETS)
    for one, other in zip(whole, sliced, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_the_ids_of_a_search_have_its_scores(own_run: RunDirectory) -> None:
    penalty = {"decoding.length_penalty": 0.8, "decoding.length_penalty_formula": "power"}
    scorer = Scorer(loading.load_translator(own_run.path, {**penalty, "decoding.n_best": 4}))
    embeddings = scorer.translator.transformer.weights_by_path()["embedding/embeddings"]
    factors = np.ones_like(embeddings[:, :1])
    factors[scorer.translator.tokenizer.end_id] = 6  # otherwise no hypothesis would end
    embeddings.assign(embeddings * factors)
    found = scorer.translator.translate_to_ids(tf.constant(PHRASES))
    lengths, scores = found.lengths.numpy().ravel(), found.scores.numpy().ravel()
    rows = found.ids.numpy().reshape(len(lengths), -1)
    ids = [row[:length].tolist() for row, length in zip(rows, lengths, strict=True)]
    results = scoring.score_ids(scorer, [p for p in PHRASES for _ in range(4)], ids)
    # Unfinished hypotheses are scored without an end token.
    assert 4 <= found.finished.numpy().sum() < len(ids)
    penalized = [scoring.penalized(row, scorer.translator.config) for row in results]
    np.testing.assert_allclose(penalized, scores, atol=1e-4)
    log_probs = found.log_probs.numpy().ravel()
    np.testing.assert_allclose([row.sum() for row in results], log_probs, atol=1e-4, rtol=1e-5)


def test_an_ensemble_has_the_mean_of_its_log_probabilities(run_directory: RunDirectory) -> None:
    members = f"{run_directory.path}@step-00000100,{run_directory.path}@step-00000200"
    both = Scorer(loading.load_translator(members))
    tokenizer = both.translator.tokenizer
    sources = tokenizer.tokenize_source(tf.constant(SOURCES[:3])).to_list()
    targets = tokenizer.tokenize_target(tf.constant(TARGETS[:3])).to_list()
    results = scoring.score_ids(both, SOURCES[:3], targets)
    for source, target, mean in zip(sources, targets, results, strict=True):
        first, second = (forward_pass(both, source, target, member) for member in (0, 1))
        assert np.abs(first - second).max() > 1
        np.testing.assert_allclose(mean, (first + second) / 2, atol=1e-4)


def test_unknown_ids_are_the_unknown_piece(scorer: Scorer) -> None:
    unknown = scorer.translator.tokenizer.unknown_id
    targets = [[5, -1, 3], [5, 10**9, 3], [5, unknown, 3]]
    results = scoring.score_ids(scorer, ["ball"] * 3, targets)
    assert len({round(float(row.sum()), 3) for row in results}) == 1


def test_score_and_score_pairs_are_equal(scorer: Scorer) -> None:
    outputs = scorer.score(source=tf.constant(SOURCES), target=tf.constant(TARGETS))
    results = scoring.score_pairs(scorer, SOURCES, TARGETS)
    assert outputs["lengths"].numpy().tolist() == [len(row) for row in results]
    log_probs = [row.sum() for row in results]
    np.testing.assert_allclose(outputs["log_probs"], log_probs, rtol=1e-5, atol=1e-4)
    nothing = tf.constant([], tf.string)
    assert scorer.score(nothing, nothing)["log_probs"].shape == [0]
    assert scoring.score_pairs(scorer, [], []) == []


@given(st.lists(st.tuples(*[st.binary(max_size=60) | st.text(max_size=30)] * 2), max_size=3))
@settings(max_examples=30)
def test_no_text_fails(scorer: Scorer, pairs: list[tuple[str, str]]) -> None:
    sources, targets = (tf.constant([pair[i] for pair in pairs], tf.string) for i in (0, 1))
    outputs = scorer.score(sources, targets)
    assert (outputs["lengths"].numpy() >= 1).all()
    assert (outputs["log_probs"].numpy() < 0).all()
    assert np.isfinite(outputs["log_probs"].numpy()).all()


def test_too_long_targets(scorer: Scorer) -> None:
    limited = Scorer(scorer.translator, 50)
    targets = tf.constant(["ball " * 1000, "ball " * 100, " " * 1000, "a"])
    outputs = limited.score(tf.constant(["a"] * 4), targets)
    (*too_long, other), lengths = outputs["log_probs"].numpy(), outputs["lengths"].numpy()
    assert too_long == [-1e9] * 3 and lengths[1] > 100
    (alone,) = scoring.score_pairs(scorer, ["a"], ["a"])
    assert other == pytest.approx(alone.sum(), abs=1e-4)
    refuses(scoring.score_pairs, (limited, ["a"] * 2, ["a", "ball " * 1000]), "pair 2", "50")


def test_nan_weights_are_refused(scorer: Scorer) -> None:
    with nan_weights(scorer.translator.transformer.weights_by_path()["embedding/embeddings"]):
        refuses(scoring.score_pairs, (scorer, ["a"], ["a"]), "pair 1", "nan")


def test_perplexity_is_per_token_and_finite() -> None:
    short, long = np.float32([-1, -1]), np.float32([-0.25] * 4)
    assert scoring.perplexity([short, long]) == pytest.approx(math.exp(3 / 6))
    assert scoring.perplexity([short]) == pytest.approx(math.e)
    config = DecodingConfig(length_penalty=1.0)
    assert scoring.penalized(short, config) == pytest.approx(-2 / (7 / 6))
    config = dataclasses.replace(config, length_penalty_formula="power")
    assert scoring.penalized(long, config) == pytest.approx(-1 / 4)
    assert math.isfinite(scoring.perplexity([np.float32([-1e30])]))
    assert scoring.perplexity([]) == 1
