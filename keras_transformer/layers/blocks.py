"""Sequences cut into blocks, for restricted self-attention (paper, section 4)."""

from __future__ import annotations

import dataclasses
from typing import Any

from keras import ops

# Smaller blocks give more matrix products, each too small to keep a core busy.
_LEAST_SIZE = 64


@dataclasses.dataclass(frozen=True)
class Blocks:
    """A sequence cut into blocks of equal size, each attending to its own and neighbouring keys.

    Sizes are ints if the length of the sequence is an int, otherwise int scalar tensors.

    Args:
        count: number of blocks, N.
        size: positions of a block, b; the last block is padded.
        before: positions before a block that its queries may attend to.
        after: positions after a block that its queries may attend to.
    """

    count: Any
    size: Any
    before: Any
    after: Any

    @classmethod
    def of_window(cls, length: Any, window: int, causal: bool) -> Blocks:
        """Cuts `length` positions, each attending to a distance of at most `window` // 2.

        If there are several blocks, each has at least `window` // 2 and at most `window` + 1
        positions (or `_LEAST_SIZE` + 1), so that a query is compared with at most about twice as
        many keys as it may attend to.
        """
        most = max(window, _LEAST_SIZE)
        count = length // (most + 1) + 1
        size = -(-length // count)
        # A single block has no neighbours.
        reach = _lesser(window // 2, length - size)
        return cls(count, size, reach, 0 if causal else reach)

    @property
    def is_one(self) -> bool:
        """True if the sequence is known to be a single block."""
        return isinstance(self.count, int) and self.count == 1

    @property
    def seen(self) -> Any:
        """The number of keys that the queries of a block are compared with."""
        return self.before + self.size + self.after

    def fill(self, sequences: Any) -> Any:
        """Pads `[B, T, D]` with zeros to `[B, N * b, D]`."""
        missing = self.count * self.size - ops.shape(sequences)[1]
        return ops.pad(sequences, ((0, 0), (0, missing), (0, 0)))

    def with_neighbours(self, sequences: Any) -> Any:
        """Cuts `[B, N * b, D]` into blocks with their neighbouring positions.

        Returns:
            `[B * N, before + b + after, D]`, with zeros outside the sequence.
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
