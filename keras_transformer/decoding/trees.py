"""Outputs that are trees: brackets around as many leaves as a sentence has words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf


class Trees(NamedTuple):
    """What each token does in a tree, and how many leaves each tree has.

    A token may come where a tree of at most the sentence's maximum of tokens can go on with it: a
    leaf or an opening bracket while leaves are missing, a closing bracket where one is open that
    holds something, the end token where none is open and no leaf is missing. A token that does
    nothing may not come, and nothing is said of labels. Where the leaves alone exceed the maximum,
    they are all that comes.
    """

    opening: Sequence[int]  # ids
    closing: Sequence[int]
    leaves: Sequence[int]
    counts: tf.Tensor  # int32 [batch]: of leaves; any number of them, but some, where it is -1

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
            counts: int32 `[rows]`, those of the rows' sentences.
            max_lengths: int32 `[rows]`, the most tokens of an output, the end token included.
            histories: int32 `[rows, longest]`, ids so far; what lies behind `length` is nothing.
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
        any_number = counts < 0
        missing = tf.where(
            any_number, tf.cast(is_empty | (written == 0), tf.int32), counts - written
        )
        # Tokens beyond what leaves, closing brackets and the end need.
        spare = max_lengths - length - missing - depth - 1
        may_stand = (missing > 0) | (any_number & (spare >= 1))
        # It needs another one that closes it, and a leaf.
        may_open = ((missing > 0) & (spare >= 2)) | (any_number & (spare >= 3))
        may_close = (depth > 0) & ~is_empty
        may_end = (depth == 0) & (missing == 0)
        # --> [rows, vocab]
        return (
            (may_stand[:, None] & stands)
            | (may_open[:, None] & opens)
            | (may_close[:, None] & closes)
            | (may_end[:, None] & ends)
        )
