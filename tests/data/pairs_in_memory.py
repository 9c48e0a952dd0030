"""Token pairs in memory. The ids identify the pair and the side."""

import numpy as np

PAD, START, END = 0, 2, 3


class PairsInMemory:
    """Has the lengths, ids and lines of a `TokenStore`."""

    def __init__(self, source, target, source_text=(), target_text=()):
        self.source, self.target = source, target
        self.source_lengths = np.array([len(ids) for ids in source], np.uint32)
        self.target_lengths = np.array([len(ids) for ids in target], np.uint32)
        self.source_text, self.target_text = source_text, target_text

    def __len__(self):
        return len(self.source)

    def source_ids(self, pairs):
        return np.array([i for pair in pairs for i in self.source[pair]], np.int32)

    def target_ids(self, pairs):
        return np.array([i for pair in pairs for i in self.target[pair]], np.int32)

    def source_lines(self, pairs):
        return [self.source_text[pair] for pair in pairs]

    def target_lines(self, pairs):
        return [self.target_text[pair] for pair in pairs]


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
