"""Sentences of a batch's rows, and how they are drawn where segmentations are sampled."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from keras_transformer.data.batching.permutation import Keys
from keras_transformer.data.batching.repack import regroup
from keras_transformer.data.batching.subword_sampling import SubwordSampler
from keras_transformer.data.batching.token_pairs import IntArray, Lengths, TokenArray, TokenPairs


class Sentences(NamedTuple):
    """The sentences of some rows, one after another, and the length of each."""

    source_ids: TokenArray
    source_lengths: Lengths
    target_ids: TokenArray
    target_lengths: Lengths

    def rows(self, begin: int, end: int) -> Sentences:
        """Returns those of some rows."""
        return Sentences(
            _part(self.source_ids, self.source_lengths, begin, end),
            self.source_lengths[begin:end],
            _part(self.target_ids, self.target_lengths, begin, end),
            self.target_lengths[begin:end],
        )


class Drawn(NamedTuple):
    """Pairs of sentences, each side in as many arrays as there are pairs."""

    source: list[TokenArray]
    target: list[TokenArray]

    def of(self, pairs: Iterable[int]) -> Sentences:
        """Returns those of some pairs."""
        pairs = list(pairs)
        source, target = (_joined([side[pair] for pair in pairs]) for side in self)
        return Sentences(*source, *target)


def draw(
    sampler: SubwordSampler, store: TokenPairs, pairs: IntArray, keys: Keys, bounds: IntArray
) -> tuple[IntArray, Drawn]:
    """Draws segmentations of N pairs, and finds each of them one of N rows that has room for it.

    Args:
        sampler: draws.
        store: holds the pairs.
        pairs: int64[N].
        keys: uint64[N], what decides of each segmentation; it is only drawn again where no
            row has room for it.
        bounds: int64[N, 2], the S and T of each row; row i has room for the best
            segmentation of pair i.

    Returns:
        int64[N], the row of each pair, and their sentences, pair by pair.
    """
    draws = (sampler.source_ids, sampler.target_ids)
    drawn = Drawn(*(_split(*side(store, pairs, keys)) for side in draws))
    lengths = np.array([[len(ids) for ids in side] for side in drawn]).T
    best = np.stack([store.source_lengths[pairs], store.target_lengths[pairs]], axis=1)
    row_of, too_long = regroup(bounds, lengths, best.astype(np.int64))
    for side, again_of in enumerate(draws):
        longest = bounds[row_of, side]
        again = np.flatnonzero(too_long & (lengths[:, side] > longest))
        if len(again):
            shorter = _split(*again_of(store, pairs[again], keys[again], longest[again]))
            for pair, ids in zip(again.tolist(), shorter, strict=True):
                drawn[side][pair] = ids
    return row_of, drawn


def _split(ids: TokenArray, lengths: Lengths) -> list[TokenArray]:
    """Returns the ids of each sentence."""
    ends = np.cumsum(lengths, dtype=np.int64).tolist()
    return [ids[begin:end] for begin, end in itertools.pairwise([0, *ends])]


def _joined(sentences: Sequence[TokenArray]) -> tuple[TokenArray, Lengths]:
    """Returns the ids of all sentences, and how many each has."""
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
    return np.concatenate([np.zeros(0, np.int32), *sentences]), lengths


def _part(ids: TokenArray, lengths: Lengths, begin: int, end: int) -> TokenArray:
    """Returns the ids of some of the sentences."""
    first = int(lengths[:begin].sum())
    return ids[first : first + int(lengths[begin:end].sum())]
