"""The rule that makes the search return trees: which symbols may come next."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from keras_transformer.errors import InputError


@dataclasses.dataclass(frozen=True)
class TreeConstraint:
    """A `decoding.TokenConstraint` that only allows trees.

    A token may come if a tree can continue with it, given the number of leaves of its sentence
    and the maximum number of tokens:

    * a leaf or an opening bracket, while leaves are missing;
    * a closing bracket, if the innermost open bracket is not empty;
    * the end token, if all brackets are closed and no leaf is missing.

    No other token may come, and labels are not checked. If the leaves exceed the maximum, the
    output consists of leaves.

    A prefix must be the beginning of a tree. Bans can leave a tree without a next token, and
    its sentence without a result.

    Attributes:
        opening, closing, leaves: ids of the tokens of each kind.
        end: id of the end token.
        vocab_size: number of tokens.
    """

    opening: Sequence[int]
    closing: Sequence[int]
    leaves: Sequence[int]
    end: int
    vocab_size: int

    def allowed_tokens(
        self,
        inputs: tf.Tensor | None,
        histories: tf.Tensor,
        length: tf.Tensor,
        max_lengths: tf.Tensor,
    ) -> tf.Tensor:
        """Returns the tokens that may come next, bool `[rows, vocab]`.

        Args:
            inputs: int32 `[rows]`, the number of leaves of the whole tree.
            histories: int32 `[rows, longest]`, the ids of the beginning of a tree.
            length: int32 scalar, the number of ids that each history has.
            max_lengths: int32 `[rows]`, the maximum number of tokens, including the end token.
        """
        if inputs is None:
            raise InputError(
                "Trees need the number of leaves of each sentence. Pass it as constraint_inputs."
            )
        # --> [vocab]
        opens, closes, is_leaf, ends = (
            tf.reduce_any(tf.one_hot(list(ids), self.vocab_size, True, False), axis=0)
            for ids in (self.opening, self.closing, self.leaves, [self.end])
        )
        depth_change = tf.cast(opens, tf.int32) - tf.cast(closes, tf.int32)
        is_written = tf.range(tf.shape(histories)[1]) < length
        # --> [rows]
        depth, num_written = (
            tf.reduce_sum(tf.where(is_written, tf.gather(each, histories), 0), axis=1)
            for each in (depth_change, tf.cast(is_leaf, tf.int32))
        )
        last = tf.gather(histories, tf.maximum(length - 1, 0), axis=1)
        is_empty = tf.gather(opens, last) & (length > 0)  # the innermost open bracket
        missing = tf.cast(inputs, tf.int32) - num_written
        # Tokens left after all leaves, closing brackets and the end token. A bracket takes two.
        spare = max_lengths - length - missing - depth - 1
        may_write_leaf = missing > 0
        may_open = may_write_leaf & (spare >= 2)
        may_close = (depth > 0) & ~is_empty
        may_end = (depth == 0) & (missing == 0)
        # --> [rows, vocab]
        return (
            (may_write_leaf[:, None] & is_leaf)
            | (may_open[:, None] & opens)
            | (may_close[:, None] & closes)
            | (may_end[:, None] & ends)
        )
