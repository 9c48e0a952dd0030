"""Trains on several corpora: each step has a batch of one of them.

The corpus of a step is a pure function of its number, so training can resume at any step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from keras_transformer.data.batches import (
    Batch,
    Batches,
    CorpusBatches,
    Shape,
    common_shapes,
)
from keras_transformer.data.bucketing import MAX_SHAPES
from keras_transformer.data.subword_sampling import SubwordSampler
from keras_transformer.data.token_pairs import TokenPairs
from keras_transformer.errors import InputError

_EXAMPLE = "Give a number for each corpus, as in --mix=a:2,b:1."


def parse_mix(mix: str, names: Sequence[str]) -> list[Fraction]:
    """Reads weights such as "a:2,b:1", in the order of `names`.

    Args:
        mix: a weight for each corpus, "NAME:NUMBER,NAME:NUMBER".
        names: names of the corpora.

    Raises:
        InputError: for an entry that cannot be read, a weight of 0 or less, unknown or missing
            names, or corpora that share a name.

    Example:
    >>> parse_mix("news:2,talks:0.5", ["talks", "news"])
    [Fraction(1, 2), Fraction(2, 1)]
    """
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise InputError(
            f"Two corpora are called {doubled[0]}, so --mix cannot distinguish them. Use data "
            "directories with different names."
        )
    weights: dict[str, Fraction] = {}
    for entry in mix.split(","):
        name, _, number = entry.strip().rpartition(":")
        if name in weights:
            raise InputError(f"--mix={mix} gives {name} twice. {_EXAMPLE}")
        try:
            if "e" in number.lower() and not 1e-99 < float(number) < 1e99:
                raise ValueError  # the exact number would be too long
            weights[name] = Fraction(number)
        except (ValueError, ZeroDivisionError):
            raise InputError(f"--mix={mix}: {entry.strip()!r} lacks a weight. {_EXAMPLE}") from None
        if weights[name] <= 0:
            raise InputError(
                f"--mix={mix}: the weight of {name} is {number}, but it must be above 0."
            )
    if set(weights) != set(names):
        raise InputError(
            f"--mix={mix} names {', '.join(weights)}, but it needs one weight for each of "
            f"{', '.join(names)}."
        )
    return [weights[name] for name in names]


class MixedBatches(Batches):
    """Batches of several corpora in turns, with given shares at every step.

    Each corpus has separate epochs: no pair is repeated before all pairs have been used. The steps
    of a corpus are spread evenly. `steps_per_epoch` is the number of steps of one epoch of every
    corpus. If there are no weights, an epoch contains each corpus once.

    Example:
    >>> from keras_transformer.data.token_store import TokenStore
    >>> stores = [TokenStore("build/data/train"), TokenStore("build/data/valid")]
    >>> batches = MixedBatches(stores, 4096, seed=1, pad_id=0, start_id=2)
    >>> inputs, labels = batches.batch(step=0)
    >>> inputs["target_ids"].shape == labels.shape
    True
    """

    def __init__(
        self,
        stores: Sequence[TokenPairs],
        batch_tokens: int,
        seed: int | None,
        pad_id: int,
        start_id: int,
        sampler: SubwordSampler | None = None,
        *,
        shares: Sequence[Fraction] | float = 1.0,
        max_shapes: int = MAX_SHAPES,
    ) -> None:
        """Plans the epochs of all corpora, with common shapes.

        Args:
            stores: the corpora.
            batch_tokens: approximate target positions of a batch, over all replicas.
            seed: seed of the order, at least 0. None gives all epochs the same order.
            pad_id: id of padding.
            start_id: id before each target sentence in the decoder's input.
            sampler: draws new segmentations in every epoch; None uses the ids of the stores.
            shares: share of the steps of each corpus, above 0. Or a temperature of at least 1: then
                shares are the sizes in batches to the power of 1 / temperature. By default, all
                pairs have the same frequency. A larger temperature raises the share of small
                corpora.
            max_shapes: largest number of shapes.

        Raises:
            InputError: as in `CorpusBatches`, or for a temperature below 1.
        """
        weights, temperature = (None, shares) if isinstance(shares, float | int) else (shares, 1.0)
        if not 1 <= temperature < math.inf:
            raise InputError(
                f"The temperature of the mixture is {temperature}, but it must be at least 1."
            )
        sizes = [int(store.target_lengths.sum(dtype=np.int64)) for store in stores]
        by_tokens = weights or [_tempered(max(size, 1), temperature) for size in sizes]
        shapes = common_shapes(
            stores, batch_tokens, sampler,
            [float(share / max(size, 1)) for share, size in zip(by_tokens, sizes, strict=True)],
            max_shapes,
        )  # fmt: skip
        self.corpora = [
            CorpusBatches(
                store, batch_tokens, seed, pad_id, start_id, sampler,
                shapes=shapes, number=number,
            )
            for number, store in enumerate(stores)
        ]  # fmt: skip
        sizes = [corpus.steps_per_epoch for corpus in self.corpora]
        self._weights = _whole(weights or [_tempered(size, temperature) for size in sizes])
        self.shapes = tuple(sorted({shape for corpus in self.corpora for shape in corpus.shapes}))
        self.steps_per_epoch = sum(sizes)
        self.filler_rows = round(self._in_an_epoch([c.filler_rows for c in self.corpora]))
        tokens = self._in_an_epoch([corpus.tokens for corpus in self.corpora])
        positions = self._in_an_epoch([corpus.positions for corpus in self.corpora])
        self.padding_share = float(1 - tokens / positions)

    def _in_an_epoch(self, counts: Sequence[int]) -> Fraction:
        """Returns the sum of counts over an epoch of all corpora, from the counts in an epoch of
        each.
        """
        found = Fraction()
        for weight, count, corpus in zip(self._weights, counts, self.corpora, strict=True):
            steps = Fraction(self.steps_per_epoch * weight, sum(self._weights))
            found += steps * count / corpus.steps_per_epoch
        return found

    def shape(self, step: int) -> Shape:
        """Returns the shape of a step; see `Batches.shape`."""
        corpus, own_step = self._place(step)
        return corpus.shape(own_step)

    def batch(self, step: int, part: int = 0, parts: int = 1) -> Batch:
        """Returns the batch of a step; see `Batches.batch`."""
        corpus, own_step = self._place(step)
        return corpus.batch(own_step, part, parts)

    def _place(self, step: int) -> tuple[CorpusBatches, int]:
        if step < 0:
            raise InputError(f"The step is {step}, but it must be at least 0.")
        corpus, own_step = place_of_step(step, self._weights)
        return self.corpora[corpus], own_step


def _tempered(size: int, temperature: float) -> Fraction:
    # At temperature 1 the shares are exact, so all corpora end an epoch at the same step.
    return Fraction(size) if temperature == 1 else Fraction(size ** (1 / temperature))


def _whole(weights: Sequence[Fraction]) -> list[int]:
    """Returns weights of the same proportions that are whole numbers."""
    denominator = math.lcm(*(weight.denominator for weight in weights))
    return [int(weight * denominator) for weight in weights]


def place_of_step(step: int, weights: Sequence[int]) -> tuple[int, int]:
    """Returns the corpus of a step, and the number of the step in this corpus, from 0.

    Step j of a corpus with weight w is due at time (j + 1/2) / w, and steps are sorted by this time
    (Sainte-Laguë method). After any number of steps, each corpus has its share, up to about one
    step.

    Args:
        step: number of the step over all corpora, from 0.
        weights: weight of each corpus, whole numbers above 0.

    Example:
    >>> [place_of_step(step, [2, 1]) for step in range(3)]
    [(0, 0), (1, 0), (0, 1)]
    """
    total, count = sum(weights), len(weights)
    # Start from the steps that are certainly taken: at most `step`, and only a few less.
    passed = max(2 * step - count, 0)
    taken = [(passed * weight + total) // (2 * total) for weight in weights]
    common = math.lcm(*weights)
    intervals = [common // weight for weight in weights]
    while True:
        corpus = min(range(count), key=lambda i: (2 * taken[i] + 1) * intervals[i])
        if sum(taken) == step:
            return corpus, taken[corpus]
        taken[corpus] += 1
