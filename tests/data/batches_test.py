"""Batches: each pair once per epoch, direct access to any step, few shapes, little padding."""

import tracemalloc

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.text.vocabulary import Vocabulary, learn_vocabulary
from tests.builders import refuses, weekly
from tests.data.pairs_in_memory import (
    PAD,
    START,
    assert_each_pair_once,
    assert_same_batch,
    batches,
    encoded,
    epoch_indices,
    indices,
    like_text,
    of_lengths,
)


class OnlyLengths:
    """Pairs that have lengths but no ids, which is enough for planning."""

    def __init__(self, lengths):
        self.lengths, self.source, self.target = lengths, self, self

    def __len__(self):
        return len(self.lengths)


@hypothesis.settings(max_examples=60)
@hypothesis.given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=80),
    st.integers(40, 400),
    st.sampled_from([1, None]),
)
def test_any_lengths_make_complete_epochs(lengths, batch_tokens, seed):
    store = of_lengths(*np.array(lengths).T)
    made = batches([store], batch_tokens, seed)
    for epoch in (0, 1, 7):
        assert_each_pair_once(made.corpora[0], store, epoch)
    positions = 0
    for step in range(made.steps_per_epoch):
        inputs, labels = made.batch(step)
        positions += inputs["source_ids"].size + inputs["target_ids"].size
    assert made.padding_share == pytest.approx(1 - np.sum(lengths) / positions)


@pytest.mark.parametrize(
    "store", [like_text(300), of_lengths([5, 6, 7], [6, 5, 7])], ids=["text", "filler rows"]
)
def test_rows_have_source_shifted_target_and_labels(store):
    made = batches([store])
    steps = range(made.steps_per_epoch)
    assert sum(len(made.batch(step)[1]) for step in steps) > len(store)  # filler rows
    for step in steps:
        inputs, labels = made.batch(step)
        source, target = inputs["source_ids"], inputs["target_ids"]
        assert source.dtype == target.dtype == labels.dtype == np.int32
        for row, pair in enumerate(indices(made.corpora[0], step)):
            ids = store.source.rows[pair] if pair >= 0 else []
            expected = store.target.rows[pair] if pair >= 0 else []
            shifted = ([START] + expected)[: len(expected)]
            for got, real in ((source, ids), (target, shifted), (labels, expected)):
                assert got[row].tolist() == real + [PAD] * (got.shape[1] - len(real))


@pytest.mark.parametrize("batch_tokens", [100, 512, 4096])
def test_shapes_are_few_and_have_about_batch_tokens(batch_tokens):
    store = like_text(3000)
    made = batches([store], batch_tokens)
    assert len(made.shapes) <= 16
    seen = set()
    for step in range(made.steps_per_epoch):
        inputs, labels = made.batch(step)
        assert labels.shape == inputs["target_ids"].shape
        rows, source_length = inputs["source_ids"].shape
        seen.add((rows, source_length, labels.shape[1]))
    assert seen == set(made.shapes)
    for rows, _, target_length in made.shapes:
        assert rows % 8 == 0 and rows > 0
        assert rows == 8 or rows * target_length <= batch_tokens
    positions = np.mean([made.batch(s)[1].size for s in range(made.steps_per_epoch)])
    # If a corpus has few batches, they are smaller instead of full of padding.
    assert positions > (0.8 if batch_tokens < 4096 else 0.7) * batch_tokens


def test_a_batch_depends_only_on_corpus_seed_and_step():
    store = like_text(600)
    walked, fresh = batches([store], seed=5), batches([store], seed=5)
    for step in range(2 * walked.steps_per_epoch):
        walked.batch(step)
    for step in (1_000_003, walked.steps_per_epoch + 2, 3, 0):
        assert_same_batch(walked.batch(step), fresh.batch(step))
    # Seeds and epochs differ in the company of each pair and in the order of shapes.
    first = epoch_indices(walked.corpora[0], 0)
    other_seed = batches([store], seed=2).corpora[0]
    for other in (epoch_indices(walked.corpora[0], 1), epoch_indices(other_seed, 0)):
        assert {frozenset(b.tolist()) for b in first} != {frozenset(b.tolist()) for b in other}
        shapes_in_order = [len(b) for b in first], [len(b) for b in other]
        assert shapes_in_order[0] != shapes_in_order[1]
        assert sorted(shapes_in_order[0]) == sorted(shapes_in_order[1])
    made = batches([store], seed=None)
    for step in range(made.steps_per_epoch):  # without a seed, all epochs are the same
        again = indices(made.corpora[0], step + 3 * made.steps_per_epoch)
        np.testing.assert_array_equal(indices(made.corpora[0], step), again)


@pytest.mark.parametrize("parts", [1, 3, 8, 16])
def test_parts_are_the_rows_of_the_batch_in_order(parts):
    made = batches([like_text(300)])
    for step in range(3):
        inputs, labels = made.batch(step)
        rows = -(-len(labels) // parts)
        filler = ((0, rows * parts - len(labels)), (0, 0))
        found = [made.batch(step, part, parts) for part in range(parts)]
        assert {len(part_labels) for _, part_labels in found} == {rows}
        for name, ids in inputs.items():
            together = np.concatenate([part_inputs[name] for part_inputs, _ in found])
            np.testing.assert_array_equal(together, np.pad(ids, filler, constant_values=PAD))
        together = np.concatenate([part_labels for _, part_labels in found])
        np.testing.assert_array_equal(together, np.pad(labels, filler, constant_values=PAD))


@pytest.mark.parametrize("parts, own", [(1, (0,)), (4, (1, 2))])
def test_a_dataset_has_own_parts_of_each_step_from_any_step(parts, own):
    made = batches([like_text(60)])
    assert made.steps_per_epoch < 8, "the dataset passes the epoch"
    dataset = made.dataset(first_step=5, num_steps=6, parts=parts, own=own)
    for spec in tf.nest.flatten(dataset.element_spec):
        assert spec.dtype == "int32" and spec.shape.as_list() == [None, None]
    expected = [(step, part) for step in range(5, 11) for part in own]
    elements = list(dataset.as_numpy_iterator())
    assert dataset.cardinality() == len(elements) == len(expected)
    endless = made.dataset(first_step=5, parts=parts, own=own).take(len(expected))
    for found in (elements, list(endless.as_numpy_iterator())):
        for element, (step, part) in zip(found, expected, strict=True):
            assert_same_batch(element, made.batch(step, part, parts))


def test_replicas_get_their_rows_of_each_step(two_cpus):
    made = batches([like_text(300)])
    strategy = tf.distribute.MirroredStrategy(two_cpus)
    steps = 0
    for step, element in enumerate(made.distributed(strategy, first_step=2, num_steps=3), start=2):
        steps += 1
        inputs, labels = tf.nest.map_structure(strategy.experimental_local_results, element)
        for part in range(2):
            found = {name: ids[part] for name, ids in inputs.items()}, labels[part]
            assert_same_batch(
                tf.nest.map_structure(lambda ids: ids.numpy(), found), made.batch(step, part, 2)
            )
    assert steps == 3


def test_workers_share_the_rows_of_each_step():
    """Each replica of each worker gets different rows, and a worker computes only its own rows."""
    made = batches([like_text(300)])
    workers, replicas = 2, 6

    class Worker:
        def __init__(self, number):
            self.context = tf.distribute.InputContext(workers, number, replicas)

        def distribute_datasets_from_function(self, own_rows, options):
            assert options is None  # only for replicas on CPUs
            return list(own_rows(self.context).as_numpy_iterator())

    per_worker = replicas // workers
    for number in range(workers):
        elements = made.distributed(Worker(number), first_step=1, num_steps=2)
        assert len(elements) == 2 * per_worker
        for i, element in enumerate(elements):
            step, replica = divmod(i, per_worker)
            expected = made.batch(1 + step, number * per_worker + replica, replicas)
            assert_same_batch(element, expected)


def test_any_step_is_entered_by_one_permutation_of_an_epoch():
    random = np.random.default_rng(0)
    made = batches([OnlyLengths(random.integers(3, 40, 1_000_000))], batch_tokens=4096)
    tracemalloc.start()
    pairs = indices(made.corpora[0], 987_654_321)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (pairs >= 0).all()
    assert kept < 4.2e6 and peak < 8.4e6, "4 bytes per pair, and 4 more during construction"


def test_pairs_of_equal_lengths_are_shuffled_over_batches():
    made = batches([of_lengths([5] * 64, [5] * 64)], batch_tokens=80)  # 4 batches of 16 rows
    together = np.zeros((64, 64))
    positions = np.zeros((64, 64))
    for epoch in range(400):
        steps = epoch_indices(made.corpora[0], epoch)
        for pairs in steps:
            together[np.ix_(pairs, pairs)] += 1
        positions[np.arange(64), np.concatenate(steps)] += 1
    assert is_plausible(together[~np.eye(64, dtype=bool)], 400 * 15 / 63)
    assert is_plausible(positions, 400 / 64)


def is_plausible(counts, expected):
    """True if the counts fit events of equal probability."""
    deviations = (counts - expected) / np.sqrt(expected)
    return abs(deviations.mean()) < 0.1 and deviations.std() < 1.1 and np.abs(deviations).max() < 6


def test_errors_name_the_invalid_argument():
    store = of_lengths([3, 9], [4, 30])
    made = batches([store], batch_tokens=30)
    assert made.shapes[0][0] == 8
    refuses(batches, {"stores": [store], "batch_tokens": 29}, "batch_tokens", "29", "30")
    refuses(batches, {"stores": [of_lengths([], [])]}, "0", "sentence", "pairs")
    refuses(batches, {"stores": [store], "seed": -1}, "seed", "-1")
    refuses(made.batch, {"step": -1}, "step", "-1")


@pytest.mark.parametrize(
    "files, most, sizes",
    [("multi30k/train", 0.12, (1024, 25_000)), weekly("newstest/newstest2013", 0.15, (1024, 8192))],
)
def test_padding_and_shapes_on_real_corpora(test_data, files, most, sizes):
    lines = [
        (test_data / f"{files}.{code}").read_bytes().removesuffix(b"\n").split(b"\n")
        for code in ("en", "de")
    ]
    sample = lines[0][:3000] + lines[1][:3000]
    store = encoded(Vocabulary(learn_vocabulary(sample, 4000)), *lines)
    for batch_tokens in sizes:
        made = batches([store], batch_tokens)
        assert made.padding_share <= most, batch_tokens
        assert len(made.shapes) <= 16, batch_tokens
        assert_each_pair_once(made.corpora[0], store, epoch=0)
