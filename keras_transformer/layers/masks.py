"""Boolean attention masks, True for "may be attended to", and blocks of restricted attention."""

from __future__ import annotations

import dataclasses
from typing import Any

from keras import ops

from keras_transformer.layers.base import integer_ids


def padding_mask(ids: Any, pad_id: int) -> Any:
    """Marks the real tokens of `ids` (any integer dtype, `[B, S]`) as bool `[B, S]`.

    Example:
    >>> padding_mask(ops.array([[5, 3, 0]]), pad_id=0).numpy().tolist()
    [[True, True, False]]
    """
    return ops.not_equal(integer_ids(ids), pad_id)


def position_mask(
    query_positions: Any, key_positions: Any, causal: bool = False, window: int | None = None
) -> Any:
    """Returns which keys a query may attend to according to their positions.

    Args:
        query_positions: int `[T]`.
        key_positions: int `[S]`.
        causal: forbid later positions (paper, section 3.2.3).
        window: r of restricted self-attention (section 4): positions at a
            distance of at most r // 2.

    Returns:
        bool `[T, S]`, or None if nothing is forbidden.

    Example:
    >>> position_mask(ops.arange(2), ops.arange(2), causal=True).numpy().tolist()
    [[True, False], [True, True]]
    """
    if not causal and window is None:
        return None
    distance = query_positions[:, None] - key_positions[None, :]
    mask = ops.greater_equal(distance, 0) if causal else None
    if window is None:
        return mask
    return both(mask, ops.less_equal(ops.abs(distance), window // 2))


def both(mask: Any, other: Any) -> Any:
    """Returns where both masks are True; None stands for a mask that forbids nothing."""
    if mask is None or other is None:
        return other if mask is None else mask
    return ops.logical_and(mask, other)


# Matrix products of smaller blocks do not keep a core busy.
_MIN_BLOCK_SIZE = 64


@dataclasses.dataclass(frozen=True)
class Blocks:
    """A sequence in blocks of equal size, which attend to their own and neighbouring keys.

    Sizes are ints if the length of the sequence is an int, otherwise int scalar tensors.
    """

    count: Any
    size: Any
    before: Any
    after: Any

    @classmethod
    def of_window(cls, length: Any, window: int | None, causal: bool) -> Blocks | None:
        """Splits `length` positions that attend to a distance of at most `window` // 2.

        Returns None without a window, or if one block is enough. If there are several blocks, each
        has at least `window` // 2 positions. A block has at most `window` + 1 positions (or
        `_MIN_BLOCK_SIZE` + 1), so that a query is compared with at most about twice the keys that
        it may attend to.
        """
        # A symbolic length is neither an int nor a tensor: JAX, when only shapes are computed.
        if window is None or not (isinstance(length, int) or ops.is_tensor(length)):
            return None
        count = length // (max(window, _MIN_BLOCK_SIZE) + 1) + 1
        if isinstance(count, int) and count == 1:
            return None
        size = -(-length // count)
        smaller = min if isinstance(length, int) else ops.minimum
        reach = smaller(window // 2, length - size)  # 0 for a single block
        return cls(count, size, reach, 0 if causal else reach)

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
        ends = blocks[:, :-1, self.size - self.before :]
        parts = [ops.pad(ends, ((0, 0), (1, 0), (0, 0), (0, 0))), blocks]
        if not isinstance(self.after, int) or self.after > 0:
            begins = blocks[:, 1:, : self.after]
            parts.append(ops.pad(begins, ((0, 0), (0, 1), (0, 0), (0, 0))))
        seen = ops.concatenate(parts, axis=2)  # --> [batch, block, entry, width]
        return ops.reshape(seen, (batch * self.count, self.seen, width))
