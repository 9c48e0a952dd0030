"""Mixed corpora: their shares of the steps, the epochs of each corpus, and the batch shapes."""

from fractions import Fraction

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from keras_transformer.data.batches import corpus_and_step, parse_mix
from tests.builders import refuses
from tests.data.pairs_in_memory import (
    PAD,
    assert_each_pair_once,
    assert_same_batch,
    batches,
    epoch_indices,
    like_text,
    of_lengths,
)


def mixed(stores, batch_tokens=256, **options):
    return batches(stores, batch_tokens, **options)


def turns(weights, first, last):
    return [corpus_and_step(step, weights) for step in range(first, last)]


@hypothesis.given(
    st.lists(st.integers(1, 3000), min_size=1, max_size=6),
    st.integers(0, 10**9),
)
def test_shares_are_kept_over_any_number_of_steps(weights, first):
    found = [corpus for corpus, _ in turns(weights, first, first + 60)]
    total = sum(weights)
    for corpus, weight in enumerate(weights):
        seen = np.cumsum([turn == corpus for turn in found])
        share = weight / total
        expected = share * np.arange(1, len(seen) + 1)
        # With two corpora, the shares of consecutive steps are off by at most one step.
        most = 1.0 if len(weights) <= 2 else 1.0 + share * len(weights)
        assert np.abs(seen - expected).max() <= most + 1e-9


@hypothesis.given(
    st.lists(st.integers(1, 3000), min_size=1, max_size=5),
    st.integers(0, 10**9),
)
def test_corpora_take_turns(weights, first):
    next_steps = {}
    for corpus, own in turns(weights, first, first + 40):
        assert own == next_steps.get(corpus, own)
        next_steps[corpus] = own + 1
    for corpus, own in turns(weights, 0, len(weights)):
        assert own >= 0 and (corpus, own) not in turns(weights, len(weights), 60)


@pytest.mark.parametrize("weights", [None, [Fraction(1), Fraction(3), Fraction(2)]])
def test_each_pass_over_a_corpus_has_every_pair_once(weights):
    stores = [like_text(700), like_text(700), like_text(150, seed=1)]
    made = mixed(stores, weights=weights)
    for corpus, store in zip(made.corpora, stores, strict=True):
        for own_epoch in (0, 3):
            assert_each_pair_once(corpus, store, own_epoch)
    first, second = (np.concatenate(epoch_indices(corpus)) for corpus in made.corpora[:2])
    assert not np.array_equal(first, second), "equal corpora have different orders"


def test_without_weights_an_epoch_is_one_pass_over_each_corpus():
    made = mixed([like_text(400), like_text(90, seed=1), like_text(30, seed=2)])
    sizes = [corpus.steps_per_epoch for corpus in made.corpora]
    assert made.steps_per_epoch == sum(sizes)
    for epoch in (0, 2):
        found = turns(sizes, epoch * sum(sizes), (epoch + 1) * sum(sizes))
        passes = [(i, epoch * size + step) for i, size in enumerate(sizes) for step in range(size)]
        assert sorted(found) == passes


def test_shares_of_steps_follow_weights_or_temperature():
    stores = [like_text(900), like_text(60, seed=1)]

    def share(**options):
        made = mixed(stores, **options)
        taken = [corpus_and_step(step, made._weights) for step in range(600)]
        second = [own_step for corpus, own_step in taken if corpus == 1]
        assert second == list(range(len(second)))
        return len(second) / len(taken)

    sizes = [corpus.steps_per_epoch for corpus in mixed(stores).corpora]
    assert share() == pytest.approx(sizes[1] / sum(sizes), abs=0.01)
    assert share(weights=[Fraction(1), Fraction(2)]) == pytest.approx(2 / 3, abs=0.01)
    fifth = [size ** (1 / 5) for size in sizes]
    assert share(temperature=5) == pytest.approx(fifth[1] / sum(fifth), abs=0.01)


def test_all_corpora_together_have_few_shapes():
    long = np.random.default_rng(0).integers(20, 90, (2, 500))
    stores = [like_text(1500), of_lengths(*long), like_text(40, seed=3)]
    made = mixed(stores, 1024)
    assert len(made.shapes) <= 16
    seen = set()
    positions = tokens = 0
    for step in range(made.steps_per_epoch):
        inputs, labels = made.batch(step)
        seen.add((*inputs["source_ids"].shape, labels.shape[1]))
        positions += inputs["source_ids"].size + labels.size
        tokens += sum(np.count_nonzero(ids != PAD) for ids in (inputs["source_ids"], labels))
    assert seen == set(made.shapes)
    assert made.padding_share == pytest.approx(1 - tokens / positions)


def test_shapes_suit_the_most_frequent_corpus():
    random = np.random.default_rng(0)
    stores = [of_lengths(*random.integers(30, 90, (2, 400))), like_text(3000)]
    shares = []
    for weights in (None, [Fraction(9), Fraction(1)]):
        made = mixed(stores, 1024, weights=weights)
        shares.append(1 - made.corpora[0].tokens / made.corpora[0].positions)
        assert len(made.shapes) <= 16
    assert shares[1] < shares[0] - 0.02


def test_a_batch_depends_only_on_corpora_weights_seed_and_step():
    stores = [like_text(300), like_text(80, seed=1)]
    weights = [Fraction(1, 3), Fraction(2, 3)]
    walked = mixed(stores, weights=weights)
    for step in range(20):
        walked.batch(step)
    fresh = mixed(stores, weights=weights)
    for step in (1_000_003, 11, 0):
        inputs, labels = walked.batch(step)
        assert_same_batch(fresh.batch(step), (inputs, labels))
        assert (*inputs["source_ids"].shape, labels.shape[1]) in walked.shapes
    element = next(iter(walked.dataset(first_step=11).as_numpy_iterator()))
    assert_same_batch(element, walked.batch(11))


def test_weights_are_read_in_the_order_of_the_corpora():
    assert parse_mix("b:1, a:2", ["a", "b"]) == [2, 1]
    assert parse_mix("a:0.1,c:d:3", ["c:d", "a"]) == [3, Fraction(1, 10)]


@pytest.mark.parametrize(
    "mix, facts",
    [
        ("a:2", ("mix=a:2", "a", "b")),
        ("a:2,b:1,c:1", ("a", "b", "c")),
        ("a:2,a:1", ("a", "new")),
        ("a:2,b", ("b", "weight")),
        *(
            (f"a:2,b:{odd}", (f"b:{odd}", "weight"))
            for odd in ("x", "1/0", "nan", "1e3000000", "0")
        ),
        ("", ("''", "weight")),
    ],
)
def test_errors_name_the_invalid_part_of_a_mix(mix, facts):
    refuses(parse_mix, {"mix": mix, "names": ["a", "b"]}, *facts)


def test_errors_name_the_invalid_argument():
    refuses(parse_mix, {"mix": "data:1", "names": ["data", "data"]}, "names", "data, data")
    one = {"stores": [like_text(60)]}
    refuses(mixed, {**one, "temperature": 0.5}, "temperature", "mixture", "0.5")
    refuses(mixed, {**one, "temperature": float("nan")}, "temperature", "nan")
    refuses(mixed, {"stores": [like_text(60), of_lengths([], [])]}, "0", "sentence", "pairs")
