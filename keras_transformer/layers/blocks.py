"""Sequences cut into blocks, for attention that sees no further than the block beside its own."""

from __future__ import annotations

import dataclasses
from typing import Any

from keras import ops

# Smaller blocks are more products, each too small to keep a core busy.
_LEAST_SIZE = 64


@dataclasses.dataclass(frozen=True)
class Blocks:
    """A sequence as blocks of one size, each with what its queries see of its neighbours.

    Sizes are ints where the sequence's length is one, otherwise int scalar tensors.

    Args:
        count: number of blocks, N.
        size: positions of a block, b; the last block is filled up.
        before: positions in front of a block that its queries may see.
        after: positions behind a block that its queries may see.
    """

    count: Any
    size: Any
    before: Any
    after: Any

    @classmethod
    def of_window(cls, length: Any, window: int, causal: bool) -> Blocks:
        """Cuts `length` positions where each sees those at a distance of at most `window` // 2.

        More than one block is at least `window` // 2 and at most `window` + 1 positions (or
        `_LEAST_SIZE` + 1), so that a query is compared with at most twice as many keys as it sees.
        """
        most = max(window, _LEAST_SIZE)
        count = length // (most + 1) + 1
        size = -(-length // count)
        # All that is outside a single block is nothing.
        reach = _lesser(window // 2, length - size)
        return cls(count, size, reach, 0 if causal else reach)

    @property
    def is_one(self) -> bool:
        """Whether the sequence is known to be a single block."""
        return isinstance(self.count, int) and self.count == 1

    @property
    def seen(self) -> Any:
        """Number of keys that the queries of a block are compared with."""
        return self.before + self.size + self.after

    def fill(self, sequences: Any) -> Any:
        """Fills `[B, T, D]` up with zeros, to `[B, N * b, D]`."""
        missing = self.count * self.size - ops.shape(sequences)[1]
        return ops.pad(sequences, ((0, 0), (0, missing), (0, 0)))

    def with_neighbours(self, sequences: Any) -> Any:
        """Cuts `[B, N * b, D]` into blocks and what they see around them.

        Returns:
            `[B * N, before + b + after, D]`; zeros where there is nothing to see.
        """
        batch, width = ops.shape(sequences)[0], sequences.shape[-1]
        blocks = ops.reshape(sequences, (batch, self.count, self.size, width))
        parts = [blocks]
        if not _is_zero(self.before):
            ends = blocks[:, :-1, self.size - self.before :]
            parts.insert(0, ops.pad(ends, ((0, 0), (1, 0), (0, 0), (0, 0))))
        if not _is_zero(self.after):
            begins = blocks[:, 1:, : self.after]
            parts.append(ops.pad(begins, ((0, 0), (0, 1), (0, 0), (0, 0))))
        seen = ops.concatenate(parts, axis=2)  # --> [batch, block, place, width]
        return ops.reshape(seen, (batch * self.count, self.seen, width))


def _lesser(one: int, other: Any) -> Any:
    return min(one, other) if isinstance(other, int) else ops.minimum(one, other)


def _is_zero(size: Any) -> bool:
    return isinstance(size, int) and size == 0
