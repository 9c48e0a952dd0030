"""The best next tokens of each hypothesis, found in few passes over the scores."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from keras_transformer.decoding.constraints import Constraints, PartialOutputs
from keras_transformer.decoding.interface import NEG_INF, SpecialIds, is_valid

# From this vocabulary size on, top-k only looks into the groups with the largest maxima.
_MIN_SIZE_FOR_GROUPS = 2048


class TopTokens(NamedTuple):
    """The best next tokens of each row, best first; equal ones are in the order of their ids.

    Forbidden tokens can stand between them. Their `log_probs` are `NEG_INF`.
    """

    tokens: tf.Tensor  # int32 [R, count]
    log_probs: tf.Tensor  # float32 [R, count]: summed by the search, constraints applied
    model_log_probs: tf.Tensor  # float32 [R, count]: of the model, without constraints


class NextTokenScores:
    """The distribution of the next token of each row, with all constraints applied.

    Args:
        scores: any float type `[R, vocab]`, logits or log-probabilities.
        outputs: the hypotheses so far. A forced token comes regardless of all other rules.
        ids: the start and pad ids are never generated.
        constraints: rules for the next token.
        min_length: the end token may not come before this many tokens, itself included.
        are_log_probs: True if the scores are log-probabilities.
    """

    def __init__(
        self,
        scores: tf.Tensor,
        outputs: PartialOutputs,
        ids: SpecialIds,
        constraints: Constraints | None = None,
        min_length: int = 0,
        are_log_probs: bool = False,
    ):
        self._scores = tf.cast(scores, tf.float32)
        self._ids = ids
        self._forced = outputs.forced
        self._may_end = outputs.length + 1 >= min_length if min_length > 1 else None
        if are_log_probs:
            self._max_score = self._max_log_prob = tf.zeros([tf.shape(scores)[0], 1])
        else:
            # log Σ exp(logits) = largest logit - its log-probability. This takes one pass over
            # the softmax, and the largest of V probabilities cannot underflow.
            self._max_score = tf.reduce_max(self._scores, axis=-1, keepdims=True)
            max_prob = tf.reduce_max(tf.nn.softmax(self._scores), axis=-1, keepdims=True)
            self._max_log_prob = tf.math.log(max_prob)
        self._constrained: tf.Tensor | None = None  # float32 [R, vocab], log-probabilities
        if constraints is not None and constraints.is_active:
            self._constrained = constraints.apply(self._log_probs(self._scores), outputs)

    def top(self, count: int) -> TopTokens:
        """Returns at least the `count` best tokens of each row, or all of a small vocabulary."""
        count += len(self._ids.excluded) + (self._may_end is not None)
        # --> [R, count]
        if self._constrained is None:
            values, tokens = top_k(self._scores, count)
            log_probs = self._log_probs(values)
        else:
            log_probs, tokens = top_k(self._constrained, count)
        # NaNs have no order, and would displace other hypotheses.
        log_probs = tf.where(self._may_come(tokens) & is_valid(log_probs), log_probs, NEG_INF)
        model_log_probs = log_probs
        if self._constrained is not None:
            model_log_probs = self._log_probs(tf.gather(self._scores, tokens, batch_dims=1))
        if self._forced is not None:
            forced = tf.expand_dims(self._forced, 1)  # --> [R, 1]
            only = tf.expand_dims(self.model_log_probs_of(tf.maximum(self._forced, 0)), 1)
            # --> [R, count]: the forced token first, nothing after it
            only = tf.where(tf.range(tf.shape(tokens)[1]) == 0, only, NEG_INF)
            tokens = tf.where(forced >= 0, forced, tokens)
            log_probs = tf.where(forced >= 0, only, log_probs)
            model_log_probs = tf.where(forced >= 0, only, model_log_probs)
        return TopTokens(tokens, log_probs, model_log_probs)

    def all(self) -> tf.Tensor:
        """Returns the log-probabilities of all tokens, float32 `[R, vocab]`."""
        log_probs = self._constrained
        if log_probs is None:
            log_probs = self._log_probs(self._scores)
        tokens = tf.range(tf.shape(log_probs)[1])
        log_probs = tf.where(self._may_come(tokens) & is_valid(log_probs), log_probs, NEG_INF)
        if self._forced is None:
            return log_probs
        forced = tf.expand_dims(self._forced, 1)  # --> [R, 1]
        only = tf.where(tokens == forced, self._log_probs(self._scores), NEG_INF)
        return tf.where(forced < 0, log_probs, only)

    def model_log_probs_of(self, tokens: tf.Tensor) -> tf.Tensor:
        """Returns the model's log-probabilities of one token per row, float32 `[R]`.

        Args:
            tokens: int32 `[R]`.
        """
        # --> [R, 1]
        chosen = tf.gather(self._scores, tf.expand_dims(tokens, 1), batch_dims=1)
        return self._log_probs(chosen)[:, 0]

    def _log_probs(self, scores: tf.Tensor) -> tf.Tensor:
        # In this order, large logits lose no precision.
        return (scores - self._max_score) + self._max_log_prob

    def _may_come(self, tokens: tf.Tensor) -> tf.Tensor:
        """Returns False for ids that are never generated, and for an early end token."""
        allowed = tf.constant(True)
        for excluded in self._ids.excluded:
            allowed &= tokens != excluded
        if self._may_end is not None:
            allowed &= (tokens != self._ids.end) | self._may_end
        return allowed


def top_k(values: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns what `tf.math.top_k` does for two dimensions, faster if the last one is large.

    The last dimension is split into groups. The `count` best values lie in the `count` groups
    with the largest maxima, so that only one pass sees all values.

    Args:
        values: float `[rows, size]`.
        count: number of values; larger ones are lowered to `size`.

    Returns:
        The best values of each row, best first, and their indices, int32. Equal values are in
        the order of their indices.

    Example:
        >>> values, indices = top_k(tf.constant([[1.0, 5.0, 3.0]]), 2)
        >>> values.numpy().tolist(), indices.numpy().tolist()
        ([[5.0, 3.0]], [[1, 2]])
    """
    size = values.shape[-1]
    if size is None:
        return tf.math.top_k(values, tf.minimum(count, tf.shape(values)[-1]))
    width = next((w for w in range(64, 160) if size % w == 0), 100)
    num_groups = -(-size // width)
    if size < _MIN_SIZE_FOR_GROUPS or num_groups < 2 * count:  # would look into most groups
        return tf.math.top_k(values, min(count, size))
    if size % width:
        values = tf.pad(values, [[0, 0], [0, -size % width]], constant_values=-float("inf"))
    # --> [rows, num_groups, width]
    groups = tf.reshape(values, [-1, num_groups, width])
    # --> [rows, count]
    _, best = tf.math.top_k(tf.reduce_max(groups, axis=-1), count)
    best = tf.sort(best, axis=-1)  # keeps equal values in the order of their indices
    # --> [rows, count * width]
    candidates = tf.reshape(tf.gather(groups, best, batch_dims=1), [-1, count * width])
    # --> [rows, count]
    top_values, places = tf.math.top_k(candidates, count)
    group = tf.gather(best, places // width, batch_dims=1)
    # Padding comes last, and is only among the best of a row of NaNs.
    return top_values, tf.minimum(group * width + places % width, size - 1)
