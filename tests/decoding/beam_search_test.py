"""Beam search against plain NumPy: every sequence, and a beam search that never ends early."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import assume, given
from hypothesis import strategies as st

from keras_transformer.config import DecodingConfig
from tests.decoding.reference import (
    EXHAUSTIVE_BEAMS,
    NODES,
    SOURCE,
    VOCAB,
    A,
    B,
    Rules,
    Tables,
    assert_best,
    hypotheses,
    log_softmax,
    ordinary,
    outputs,
    patient_search,
    penalized,
    random_tables,
    search,
    step_of,
    tied_tables,
)
from tests.decoding.strategies import OTHER_IDS, SEARCHES, SEEDS, batches, rules


def assert_exhaustive(result, rules, tables, max_lengths, prefix=None, normalized=False):
    """The results are the best of all sequences that the rules allow."""
    config = rules.config
    for sentence, max_length in enumerate(max_lengths):
        forced = () if prefix is None else ordinary(prefix[sentence], rules.ids)
        expected = outputs(rules, forced, int(max_length)).scores(
            tables, sentence, config, normalized
        )
        assert_best(hypotheses(result, sentence, rules.ids), expected, config.n_best)


# --- Every sequence ----------------------------------------------------------------------------


@SEARCHES
@pytest.mark.parametrize("kind", ["random", "tied", "impossible tokens"])
@given(data=st.data(), seed=SEEDS, scale=st.sampled_from([0.5, 2.0, 5.0]), batch=batches(32, 4))
def test_exhaustive_beam_equals_brute_force(kind, data, seed, scale, batch):
    chosen, is_tied = data.draw(rules(EXHAUSTIVE_BEAMS[4])), kind == "tied"
    tables = tied_tables(seed, 32) if is_tied else random_tables(seed, 32, scale)
    if kind == "impossible tokens":
        random = np.random.default_rng(seed)
        for share, value in ((0.3, -np.inf), (0.01, np.nan), (0.01, np.inf)):  # NaN: a whole row
            tables.logits[random.random(tables.logits.shape) < share] = value
    result = search(
        tables, batch.max_lengths, chosen, prefix=batch.prefix, returns_log_probs=is_tied
    )
    assert_exhaustive(result, chosen, tables, batch.max_lengths, batch.prefix, normalized=is_tied)


@SEARCHES
@given(data=st.data(), seed=SEEDS, ids=st.sampled_from(OTHER_IDS), batch=batches(30, 3))
def test_exhaustive_beam_equals_brute_force_with_shared_special_ids(data, seed, ids, batch):
    # One or two more tokens are generated: at most 5 * 5 * 6 candidates.
    chosen, tables = data.draw(rules(150, ids)), random_tables(seed, 30)
    result = search(tables, batch.max_lengths, chosen, prefix=batch.prefix)
    assert_exhaustive(result, chosen, tables, batch.max_lengths, batch.prefix)


@SEARCHES
@given(data=st.data(), seed=SEEDS, batch=batches(30, 4))
def test_a_given_first_token_is_certain(data, seed, batch):
    """The results are those of a model whose first token is always this one."""
    chosen, tables = data.draw(rules(EXHAUSTIVE_BEAMS[4])), random_tables(seed, 30)
    first = np.random.default_rng(seed).integers(A, B + 1, [30, 1], np.int32)
    result = search(tables, batch.max_lengths, chosen, prefix=batch.prefix, first=first[:, 0])
    tables.logits[:, 0] = np.where(np.arange(VOCAB) == first, 0, -np.inf)
    prefix = np.concatenate([first, batch.prefix], axis=1)
    assert_exhaustive(result, chosen, tables, batch.max_lengths, prefix)


@functools.cache
def compiled_search(config):
    """The search as a graph of unknown batch size."""
    signature = [
        tf.TensorSpec([None, NODES, VOCAB]),
        tf.TensorSpec([None, NODES, SOURCE]),
        tf.TensorSpec([None, SOURCE], tf.bool),
        tf.TensorSpec([None], tf.int32),
    ]
    return tf.function(
        lambda *arguments: search(Tables(*arguments[:3]), arguments[3], config),
        input_signature=signature,
        autograph=False,
    )


@pytest.mark.parametrize(
    "options",
    [
        {"length_penalty": 0},
        {"length_penalty": 2, "n_best": EXHAUSTIVE_BEAMS[5]},
        {"length_penalty": 1, "length_penalty_formula": "power", "n_best": 4},
        {"n_best": 4, "repetition_penalty": 1.5, "no_repeat_ngram": 2, "min_length": 3},
    ],
)
def test_exhaustive_beam_equals_brute_force_as_a_graph(options):
    config = DecodingConfig(beam_size=EXHAUSTIVE_BEAMS[5], **options)
    for seed in range(3):
        tables = random_tables(seed, 24, scale=3.0)
        max_lengths = np.resize(np.array([1, 5, 2, 4, 5, 3], np.int32), 24)
        result = compiled_search(config)(*tables, max_lengths)
        assert_exhaustive(result, Rules(config), tables, max_lengths)


# --- A search that takes every step -------------------------------------------------------------


def patient_results(rules, tables, sentence, batch, normalized=False):
    """Returns the search of one sentence, and its outputs: tokens → score, log-probability."""
    config, logits = rules.config, tables.logits[sentence]
    max_length = int(batch.max_lengths[sentence])
    prefix = ordinary(batch.prefix[sentence], rules.ids)
    log_probs = logits.astype(np.float64) if normalized else log_softmax(logits)
    patient = patient_search(rules, prefix, max_length, log_probs)
    scores = outputs(rules, prefix, max_length).scores(tables, sentence, config, normalized)
    return patient, {tokens: scores[tokens] for tokens, _ in patient.complete}


@SEARCHES
@given(
    data=st.data(),
    seed=SEEDS,
    beam=st.integers(2, 4),
    early=st.sampled_from([False, "marian"]),
    batch=batches(30),
)
def test_a_narrow_beam_equals_a_search_of_every_step(data, seed, beam, early, batch):
    chosen = data.draw(rules(beam, early_stopping=early))
    tables = tied_tables(seed, 30)
    result = search(tables, batch.max_lengths, chosen, prefix=batch.prefix, returns_log_probs=True)
    for sentence in range(30):
        _, expected = patient_results(chosen, tables, sentence, batch, normalized=True)
        assert_best(hypotheses(result, sentence), expected, chosen.config.n_best)


@SEARCHES
@given(data=st.data(), seed=SEEDS, beam=st.integers(2, 4), batch=batches(30))
def test_of_equal_hypotheses_the_lower_parent_and_then_the_lower_id_is_first(
    data, seed, beam, batch
):
    # Exact sums give real ties.
    chosen = data.draw(rules(beam, length_penalty=0))
    tables = tied_tables(seed, 30)
    result = search(tables, batch.max_lengths, chosen, prefix=batch.prefix, returns_log_probs=True)
    for sentence in range(30):
        patient, _ = patient_results(chosen, tables, sentence, batch, normalized=True)
        # If scores are equal, the hypothesis that was completed first comes first.
        best = sorted(patient.complete, key=lambda one: -one[1])[: chosen.config.n_best]
        assert [one.tokens for one in hypotheses(result, sentence)] == [t for t, _ in best]


def count_steps(tables, max_lengths, rules, **arguments):
    """The result and the number of steps taken (run eagerly, each step is a call)."""
    positions, step = [], step_of(tables)

    def counting_step(ids, position, cache):
        positions.append(int(position))
        return step(ids, position, cache)

    result = search(tables, max_lengths, rules, step=counting_step, **arguments)
    assert positions == list(range(len(positions)))
    return result, len(positions)


@SEARCHES
@given(
    data=st.data(),
    seed=SEEDS,
    scale=st.sampled_from([1.0, 3.0]),
    beam=st.integers(2, 4),
    early=st.sampled_from([False, True, "marian"]),
    batch=batches(1),
)
def test_ends_as_soon_as_it_may(data, seed, scale, beam, early, batch):
    chosen = data.draw(rules(beam, early_stopping=early))
    config, tables = chosen.config, random_tables(seed, 1, scale)
    patient, expected = patient_results(chosen, tables, 0, batch)
    max_length = int(batch.max_lengths[0])
    needed = max_length
    for step, open_ones in enumerate(patient.open_after, start=1):
        complete = [tokens for tokens, _ in patient.complete if len(tokens) <= step]
        scores = sorted([expected[tokens][0] for tokens in complete], reverse=True)[: config.n_best]
        # The best case: every further token, up to the longest output, has the probability 1.
        hopes = [penalized(total, max_length, config) for total in open_ones]
        assume(all(abs(hope - score) > 1e-4 for hope in hopes for score in scores))
        is_decided = len(scores) == config.n_best and max(hopes, default=0) < scores[-1]
        if not hopes or is_decided or (early and len(complete) >= beam):
            needed = step
            expected = {tokens: expected[tokens] for tokens in complete}
            break
    result, steps = count_steps(tables, batch.max_lengths, chosen, prefix=batch.prefix)
    assert steps == needed
    assert_best(hypotheses(result, 0), expected, config.n_best)
