"""Greedy search and drawn outputs against plain NumPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.config import DecodingConfig
from tests.decoding.reference import (
    IDS,
    LENGTH,
    PAD,
    START,
    UNKNOWN,
    VOCAB,
    A,
    Rules,
    assert_scored,
    distribution,
    greedy_search,
    hypotheses,
    log_softmax,
    ordinary,
    outputs,
    random_tables,
    search,
    tied_tables,
)
from tests.decoding.strategies import OTHER_IDS, PHRASES, SEARCHES, SEEDS, batches, rules

# --- Greedy -----------------------------------------------------------------------------------


def assert_greedy(result, rules, tables, batch, normalized=False):
    config = rules.config
    for sentence, max_length in enumerate(batch.max_lengths.tolist()):
        prefix, logits = ordinary(batch.prefix[sentence], rules.ids), tables.logits[sentence]
        log_probs = logits.astype(np.float64) if normalized else log_softmax(logits)
        tokens = greedy_search(rules, prefix, max_length, log_probs)
        found = hypotheses(result, sentence, rules.ids)
        assert [one.tokens for one in found] == ([] if tokens is None else [tokens])
        scores = outputs(rules, prefix, max_length).scores(tables, sentence, config, normalized)
        assert_scored(found, scores)


@SEARCHES
@given(data=st.data(), seed=SEEDS, ids=st.sampled_from([IDS, *OTHER_IDS]), batch=batches(40))
def test_beam_of_one_is_greedy(data, seed, ids, batch):
    chosen, is_tied = data.draw(rules(1, ids)), ids is IDS  # the lowest id of equal tokens
    tables = tied_tables(seed, 40) if is_tied else random_tables(seed, 40)
    result = search(
        tables, batch.max_lengths, chosen, prefix=batch.prefix, returns_log_probs=is_tied
    )
    assert_greedy(result, chosen, tables, batch, normalized=is_tied)


@SEARCHES
@pytest.mark.parametrize("is_drawn", [False, True])
@given(data=st.data(), seed=SEEDS, batch=batches(40))
def test_a_given_first_token_is_certain(is_drawn, data, seed, batch):
    """The results are those of a model whose first token is always this one."""
    chosen = Rules(sampling(n_best=3, seed=seed)) if is_drawn else data.draw(rules(1))
    tables, first = random_tables(seed, 40), np.full([40, 1], A, np.int32)
    result = search(tables, batch.max_lengths, chosen, first=first[:, 0])
    tables.logits[:, 0] = np.where(np.arange(VOCAB) == first, 0, -np.inf)
    if is_drawn:
        expected = search(tables, batch.max_lengths, chosen, prefix=first)
        for found, other in zip(result[:5], expected[:5], strict=True):
            np.testing.assert_array_equal(found, other)
    else:
        assert_greedy(result, chosen, tables, batch._replace(prefix=first))


# --- Drawn ------------------------------------------------------------------------------------

SAMPLES = 20_000


def sampling(**options):
    return DecodingConfig(sample=True, **options)


@SEARCHES
@given(
    seed=SEEDS,
    ngram=st.integers(0, 3),
    min_length=st.integers(0, 4),
    repetition=st.sampled_from([1.0, 1.5]),
    temperature=st.sampled_from([0.5, 1.0, 1e6, 1e-45]),
    cutoffs=st.fixed_dictionaries(
        {"top_k": st.integers(0, 9), "top_p": st.sampled_from([1e-9, 0.7, 1.0])}
    ),
    formula=st.sampled_from(["gnmt", "power"]),
    banned=PHRASES,
    batch=batches(20),
)
def test_samples_obey_all_rules(
    seed, ngram, min_length, repetition, temperature, cutoffs, formula, banned, batch
):
    config = sampling(
        n_best=5, min_length=min_length, repetition_penalty=repetition, no_repeat_ngram=ngram,
        temperature=temperature, seed=seed % 2**31, length_penalty_formula=formula, **cutoffs,
    )  # fmt: skip
    rules, tables = Rules(config, banned), random_tables(seed, 20)
    tables.logits[np.random.default_rng(seed).random(tables.logits.shape) < 0.1] = -np.inf
    result = search(tables, batch.max_lengths, rules, prefix=batch.prefix)
    for sentence, max_length in enumerate(batch.max_lengths.tolist()):
        prefix = ordinary(batch.prefix[sentence])
        scores = outputs(rules, prefix, max_length).scores(tables, sentence, config)
        assert_scored(hypotheses(result, sentence), scores)


@pytest.mark.parametrize(
    "options",
    [{"temperature": 0, "n_best": 3}, {"top_k": 1, "temperature": 5.0}, {"top_p": 1e-9}],
)
def test_sampling_with_a_single_choice_is_greedy(options):
    tables = random_tables(4, 30)
    expected = search(tables, [LENGTH] * 30, DecodingConfig(beam_size=1))
    found = search(tables, [LENGTH] * 30, sampling(seed=5, **options))
    for n in range(options.get("n_best", 1)):
        np.testing.assert_array_equal(found.ids[:, n], expected.ids[:, 0])
        np.testing.assert_allclose(found.scores[:, n], expected.scores[:, 0], atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 3.0, "top_k": 2},
        {"top_p": 0.6},
        {"temperature": 2.0, "top_k": 3, "top_p": 0.8},
        {"no_repeat_ngram": 1, "min_length": 3, "repetition_penalty": 2.0},
    ],
)
@pytest.mark.parametrize("seed", [0, 2**31 - 1])
def test_frequencies_follow_the_distribution(options, seed):
    rules = Rules(sampling(n_best=SAMPLES, seed=seed, **options), banned=((A, A), (UNKNOWN,)))
    tables = random_tables(6, 1, scale=1.0)
    result = search(tables, [4], rules)
    drawn, counts = np.unique(result.ids.numpy()[0], axis=0, return_counts=True)
    expected = distribution(rules, (), 4, log_softmax(tables.logits[0]))
    frequencies = dict.fromkeys(expected, 0.0)
    for row, count in zip(drawn, counts, strict=True):
        tokens = tuple(int(token) for token in row if token != PAD)
        assert tokens in expected
        frequencies[tokens] = count / SAMPLES
    observed, probs = np.array([*frequencies.values()]), np.array([*expected.values()])
    np.testing.assert_allclose(probs.sum(), 1)
    deviations = (observed - probs) / np.sqrt(probs * (1 - probs) / SAMPLES + 1e-12)
    assert (np.abs(deviations[probs * SAMPLES > 5]) < 4.5).all()
    often = probs * SAMPLES > 5
    chi_square = (SAMPLES * (observed - probs)[often] ** 2 / probs[often]).sum()
    assert chi_square < often.sum() + 5 * np.sqrt(2 * often.sum())


def test_sample_offsets_give_sentences_different_samples():
    count = 1000
    tables, offsets = random_tables(6, 1), np.arange(count, dtype=np.float32) / count
    tables = tables[np.zeros(count, int)]
    result = search(tables, [1] * count, sampling(seed=3), sample_offsets=offsets)
    probs = np.exp(log_softmax(tables.logits[0, 0]))
    probs[[PAD, START]] = 0
    # Numbers spread evenly over the whole range hit each token as often as its probability.
    frequencies = np.bincount(result.ids.numpy().ravel(), minlength=6) / count
    np.testing.assert_allclose(frequencies, probs / probs.sum(), atol=2 / count)
