"""Token pairs in memory. The ids identify the pair and the side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from keras_transformer.data.subwords import Lengths, TokenArray
from keras_transformer.data.token_store import IntArray
from keras_transformer.text.vocabulary import Vocabulary

PAD, START, END = 0, 2, 3


class PairsInMemory:
    """Has the lengths, ids and lines of a `TokenStore`."""

    def __init__(self, source: Sequence[Sequence[int]], target: Sequence[Sequence[int]]) -> None:
        self.source, self.target = source, target
        self.source_lengths = np.array([len(ids) for ids in source], np.uint32)
        self.target_lengths = np.array([len(ids) for ids in target], np.uint32)
        self.source_text = [b""] * len(source)
        self.target_text = [b""] * len(target)

    def __len__(self) -> int:
        return len(self.source)

    def source_ids(self, pairs: IntArray) -> TokenArray:
        return _joined([self.source[pair] for pair in pairs])

    def target_ids(self, pairs: IntArray) -> TokenArray:
        return _joined([self.target[pair] for pair in pairs])

    def source_lines(self, pairs: IntArray) -> list[bytes]:
        return [self.source_text[pair] for pair in pairs]

    def target_lines(self, pairs: IntArray) -> list[bytes]:
        return [self.target_text[pair] for pair in pairs]


def _joined(sentences: Sequence[Sequence[int]]) -> TokenArray:
    return np.array([i for ids in sentences for i in ids], np.int32)


def of_lengths(source_lengths: Lengths, target_lengths: Lengths) -> PairsInMemory:
    """Sentences of the given lengths. The source ids of pair i are 10 + 2 i, then END."""
    return PairsInMemory(
        [[10 + 2 * pair] * (int(n) - 1) + [END] for pair, n in enumerate(source_lengths)],
        [[11 + 2 * pair] * (int(n) - 1) + [END] for pair, n in enumerate(target_lengths)],
    )


def like_text(pairs: int, seed: int = 0) -> PairsInMemory:
    """Lengths like in captions: a skewed distribution, and correlated sides."""
    random = np.random.default_rng(seed)
    source = 3 + random.gamma(8.0, 1.8, pairs)
    target = source * random.normal(1.05, 0.15, pairs) + random.normal(0, 1, pairs)
    return of_lengths(source.astype(int), np.maximum(target, 2).astype(int))


def encoded(
    vocabulary: Vocabulary, source: Sequence[bytes], target: Sequence[bytes]
) -> PairsInMemory:
    """The pairs of the given lines."""
    pairs = PairsInMemory(vocabulary.encode_source(source), vocabulary.encode_target(target))
    pairs.source_text, pairs.target_text = list(source), list(target)
    return pairs
