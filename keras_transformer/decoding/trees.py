"""Outputs that are trees: brackets around as many leaves as a sentence has words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf


class Trees(NamedTuple):
    """The ids of the tokens that trees are written with.

    A token may come where a tree of its sentence's leaves, in at most its maximum of tokens, can go
    on with it: a leaf or an opening bracket while leaves are missing, a closing bracket where one
    is open that holds something, the end token where none is open and no leaf is missing. Tokens
    of no kind may not come, and nothing is said of labels. Where leaves alone exceed the maximum,
    they are all that comes.
    """

    opening: Sequence[int]
    closing: Sequence[int]
    leaves: Sequence[int]

    def permitted(
        self,
        counts: tf.Tensor,
        max_lengths: tf.Tensor,
        histories: tf.Tensor,
        length: tf.Tensor,
        vocab_size: int,
        end: int,
    ) -> tf.Tensor:
        """Marks the tokens that may come next, bool `[rows, vocab]`.

        Args:
            counts: int32 `[rows]`, of leaves that the whole tree has.
            max_lengths: int32 `[rows]`, the most tokens of an output, the end token included.
            histories: int32 `[rows, longest]`, ids so far, of the beginning of such a tree; what
                lies behind `length` is nothing.
            length: int32 scalar.
            vocab_size: number of tokens.
            end: id of the end token.
        """
        opens, closes, stands, ends = (
            tf.reduce_any(tf.one_hot(list(ids), vocab_size, True, False), axis=0)
            for ids in (self.opening, self.closing, self.leaves, [end])
        )
        change = tf.cast(opens, tf.int32) - tf.cast(closes, tf.int32)  # of the depth
        is_written = tf.range(tf.shape(histories)[1]) < length
        depth, written = (
            tf.reduce_sum(tf.where(is_written, tf.gather(each, histories), 0), axis=1)
            for each in (change, tf.cast(stands, tf.int32))
        )
        last = tf.gather(histories, tf.maximum(length - 1, 0), axis=1)
        is_empty = tf.gather(opens, last) & (length > 0)  # what was opened last
        missing = counts - written
        # Tokens beyond what leaves, closing brackets and the end need; opening one takes two.
        spare = max_lengths - length - missing - depth - 1
        may_stand = missing > 0
        may_open = may_stand & (spare >= 2)
        may_close = (depth > 0) & ~is_empty
        may_end = (depth == 0) & (missing == 0)
        # --> [rows, vocab]
        return (
            (may_stand[:, None] & stands)
            | (may_open[:, None] & opens)
            | (may_close[:, None] & closes)
            | (may_end[:, None] & ends)
        )
