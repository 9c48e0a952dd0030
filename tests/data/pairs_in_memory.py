"""Token pairs in memory. The ids identify the pair and the side."""

from types import SimpleNamespace

import numpy as np

from keras_transformer.data.batches import Batches

PAD, START, END = 0, 2, 3
IDS = SimpleNamespace(pad_id=PAD, start_id=START)


class SideInMemory:
    """Has the lengths, ids and lines of a `StoredSide`."""

    def __init__(self, ids, lines):
        self.rows, self.text = ids, lines
        self.lengths = np.array([len(row) for row in ids], np.uint32)

    def ids(self, pairs):
        return np.array([i for pair in pairs for i in self.rows[pair]], np.int32)

    def lines(self, pairs):
        return [self.text[pair] for pair in pairs]


class PairsInMemory:
    """Has the sides of a `TokenStore`."""

    def __init__(self, source, target, source_text=(), target_text=()):
        self.sides = SideInMemory(source, source_text), SideInMemory(target, target_text)
        self.source, self.target = self.sides

    def __len__(self):
        return len(self.source.rows)


def of_lengths(source_lengths, target_lengths):
    """Sentences of the given lengths. The source ids of pair i are 10 + 2 i, then END."""
    return PairsInMemory(
        [[10 + 2 * pair] * (int(n) - 1) + [END] for pair, n in enumerate(source_lengths)],
        [[11 + 2 * pair] * (int(n) - 1) + [END] for pair, n in enumerate(target_lengths)],
    )


def like_text(pairs, seed=0):
    """Lengths like in captions: a skewed distribution, and correlated sides."""
    random = np.random.default_rng(seed)
    source = 3 + random.gamma(8.0, 1.8, pairs)
    target = source * random.normal(1.05, 0.15, pairs) + random.normal(0, 1, pairs)
    return of_lengths(source.astype(int), np.maximum(target, 2).astype(int))


def encoded(vocabulary, source, target):
    """The pairs of the given lines."""
    ids = vocabulary.encode_source(source), vocabulary.encode_target(target)
    return PairsInMemory(*ids, list(source), list(target))


def batches(stores, batch_tokens=512, seed=1, vocabulary=IDS, **options):
    return Batches(stores, batch_tokens, seed, vocabulary, **options)


def indices(corpus, step):
    """The pair of a `CorpusBatches` in each row of a step, -1 for filler rows."""
    (rows, _, _), pairs, _ = corpus.rows(step)
    return np.pad(pairs, (0, rows - len(pairs)), constant_values=-1)


def epoch_indices(corpus, epoch=0):
    first = epoch * corpus.steps_per_epoch
    return [indices(corpus, step) for step in range(first, first + corpus.steps_per_epoch)]


def assert_each_pair_once(corpus, store, epoch):
    every = np.concatenate(epoch_indices(corpus, epoch))
    np.testing.assert_array_equal(np.sort(every[every >= 0]), np.arange(len(store)))


def assert_same_batch(actual, expected):
    (inputs, labels), (expected_inputs, expected_labels) = actual, expected
    assert inputs.keys() == expected_inputs.keys()
    for name, ids in expected_inputs.items():
        assert inputs[name].dtype == np.int32
        np.testing.assert_array_equal(inputs[name], ids)
    np.testing.assert_array_equal(labels, expected_labels)
