"""Cuts sequences into blocks, for restricted self-attention (paper, section 4)."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from typing import Any

from keras import ops

# Matrix products of smaller blocks do not keep a core busy.
_MIN_BLOCK_SIZE = 64

_is_enabled = contextvars.ContextVar("blocks", default=True)


@contextlib.contextmanager
def without_blocks() -> Iterator[None]:
    """Makes attention windows ordinary masks in this thread, also for graphs that are traced.

    The number and the size of blocks depend on the length. LiteRT knows them only when it runs,
    and then plans the memory of all operations again.

    Example:
    >>> with without_blocks():
    ...     Blocks.are_enabled()
    False
    """
    token = _is_enabled.set(False)
    try:
        yield
    finally:
        _is_enabled.reset(token)


@dataclasses.dataclass(frozen=True)
class Blocks:
    """A sequence in blocks of equal size, which attend to their own and neighbouring keys.

    Sizes are ints if the length of the sequence is an int, otherwise int scalar tensors.

    Args:
        count: number of blocks, N.
        size: positions of a block, b; the last block is padded.
        before: positions before a block that its queries may attend to.
        after: positions after a block that its queries may attend to.

    Example:
    >>> blocks = Blocks.of_window(300, window=64, causal=True)
    >>> blocks.count, blocks.size, blocks.before, blocks.after
    (5, 60, 32, 0)
    """

    count: Any
    size: Any
    before: Any
    after: Any

    @classmethod
    def of_window(cls, length: Any, window: int, causal: bool) -> Blocks:
        """Splits `length` positions that attend to a distance of at most `window` // 2.

        If there are several blocks, each has at least `window` // 2 positions. A block has at most
        `window` + 1 positions (or `_MIN_BLOCK_SIZE` + 1), so that a query is compared with at most
        about twice the keys that it may attend to.
        """
        most = max(window, _MIN_BLOCK_SIZE)
        count = length // (most + 1) + 1
        size = -(-length // count)
        reach = window // 2
        if isinstance(length, int):
            reach = min(reach, length - size)  # 0 for a single block
        else:
            reach = ops.minimum(reach, length - size)
        return cls(count, size, reach, 0 if causal else reach)

    @staticmethod
    def are_enabled() -> bool:
        """False inside of `without_blocks`."""
        return _is_enabled.get()

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


def _is_zero(size: Any) -> bool:
    return isinstance(size, int) and size == 0
