"""Several corpora in one training: at each step, a batch of one of them.

Which one is a pure function of the step, so that a run of any mixture can be
entered at any step, as one of a single corpus can.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from keras_transformer.data.batching.batches import Batch, Batches, CorpusBatches, common_shapes
from keras_transformer.data.batching.subword_sampling import SubwordSampler
from keras_transformer.data.batching.token_pairs import TokenPairs
from keras_transformer.errors import InputError

_EXAMPLE = "expected a number for each corpus, as in --mix=a:2,b:1"


def parse_mix(mix: str, names: Sequence[str]) -> list[Fraction]:
    """Reads weights such as "a:2,b:1", in the order of `names`.

    Raises:
        InputError: for an entry that cannot be read, a weight of 0 or less, names that
            are not those of the corpora, or corpora that share a name.
    """
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise InputError(
            f"--mix cannot tell the corpora called {doubled[0]} apart; expected data directories "
            "whose last parts differ"
        )
    weights: dict[str, Fraction] = {}
    for entry in mix.split(","):
        name, _, number = entry.strip().rpartition(":")
        if name in weights:
            raise InputError(f"--mix={mix} gives {name} twice; {_EXAMPLE}")
        try:
            if "e" in number.lower() and not 1e-99 < float(number) < 1e99:
                raise ValueError  # exact, it would have as many digits
            weights[name] = Fraction(number)
        except (ValueError, ZeroDivisionError):
            raise InputError(f"--mix={mix}: {entry.strip()!r} has no weight; {_EXAMPLE}") from None
        if weights[name] <= 0:
            raise InputError(f"--mix={mix}: the weight of {name} is {number}; expected above 0")
    if set(weights) != set(names):
        raise InputError(
            f"--mix={mix} is of {', '.join(weights)}; expected one weight for each of "
            f"{', '.join(names)}"
        )
    return [weights[name] for name in names]


class MixedBatches(Batches):
    """Batches of several corpora in turns, by shares that hold at every step.

    Each corpus has passes of its own: all of its pairs once, before any comes again. Its
    steps come as evenly as its share allows. `steps_per_epoch` is as many as
    the corpora's epochs have together; without weights it holds one pass over each.
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
        weights: Sequence[Fraction] | None = None,
        temperature: float = 1.0,
    ) -> None:
        """Plans the epochs of all corpora, in shapes that they share.

        Args:
            stores: the corpora.
            batch_tokens: target positions a batch has, about, over all replicas.
            seed: at least 0; another seed gives other epochs. None gives all epochs the same
                order.
            pad_id: fills up sentences and rows.
            start_id: precedes each target sentence in the decoder's input.
            sampler: segments sentences anew in every epoch; None takes the stores' ids.
            weights: of each corpus, above 0: the shares of the steps. By default shares
                follow from sizes, counted in batches, so that all pairs come equally often.
            temperature: without weights, shares are sizes to the power of its inverse;
                at least 1. The larger it is, the more often come the pairs of small corpora.

        Raises:
            InputError: as for `CorpusBatches`, or a temperature below 1.
        """
        if not 1 <= temperature < math.inf:
            raise InputError(f"the temperature of the mixture is {temperature}; expected 1 or more")
        sizes = [int(store.target_lengths.sum(dtype=np.int64)) for store in stores]
        shares = weights or [_tempered(max(size, 1), temperature) for size in sizes]
        shapes = common_shapes(
            stores, batch_tokens, sampler,
            [float(share / max(size, 1)) for share, size in zip(shares, sizes, strict=True)],
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
        """Returns how many of what each corpus's own epoch has so many come in an epoch of all."""
        found = Fraction()
        for weight, count, corpus in zip(self._weights, counts, self.corpora, strict=True):
            steps = Fraction(self.steps_per_epoch * weight, sum(self._weights))
            found += steps * count / corpus.steps_per_epoch
        return found

    def batch(self, step: int, part: int = 0, parts: int = 1) -> Batch:
        """Returns the batch of a step; see `Batches.batch`."""
        if step < 0:
            raise InputError(f"step {step} has no batch; expected at least 0")
        corpus, own_step = place_of_step(step, self._weights)
        return self.corpora[corpus].batch(own_step, part, parts)


def _tempered(size: int, temperature: float) -> Fraction:
    # Exact for the sizes themselves, whose steps then end with an epoch of every corpus.
    return Fraction(size) if temperature == 1 else Fraction(size ** (1 / temperature))


def _whole(weights: Sequence[Fraction]) -> list[int]:
    """Returns the weights in whole numbers."""
    denominator = math.lcm(*(weight.denominator for weight in weights))
    return [int(weight * denominator) for weight in weights]


def place_of_step(step: int, weights: Sequence[int]) -> tuple[int, int]:
    """Returns the corpus whose turn a step is, and which of its own steps, from 0.

    The j-th step of a corpus with weight w is due at (j + 1/2) / w, and steps come in the
    order in which they are due (as seats are given by the method of Sainte-Laguë). So in any
    number of steps each corpus has its share of them, but for a step or so.
    """
    total, count = sum(weights), len(weights)
    # All that is due until steps - count / 2 have passed: at most `step`, and hardly fewer.
    passed = max(2 * step - count, 0)
    taken = [(passed * weight + total) // (2 * total) for weight in weights]
    common = math.lcm(*weights)
    intervals = [common // weight for weight in weights]
    while True:
        corpus = min(range(count), key=lambda i: (2 * taken[i] + 1) * intervals[i])
        if sum(taken) == step:
            return corpus, taken[corpus]
        taken[corpus] += 1
