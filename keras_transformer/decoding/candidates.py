"""The best next tokens, found in few passes over the logits."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from keras_transformer.decoding.constraints import Constraints
from keras_transformer.decoding.result import NOTHING, SpecialIds, exists

# Above this vocabulary the best tokens are looked for in the groups with the best maxima.
_GROUPS_FROM = 2048


class Continuations(NamedTuple):
    """The best next tokens of each hypothesis, best first; equal ones by their ids.

    Between them stand the best of those that may not come, whose `log_probs` are NOTHING.
    """

    tokens: tf.Tensor  # int32 [rows, count]
    log_probs: tf.Tensor  # float32 [rows, count]: what a search adds up, constraints applied
    own: tf.Tensor  # float32 [rows, count]: the model's own log-probabilities


class Next:
    """The model's distribution of each hypothesis's next token, under the constraints.

    Args:
        logits: float `[rows, vocab]`.
        histories: int32 `[rows, longest]`, tokens so far.
        length: int32 scalar, tokens that each history has.
        ids: the start and pad ids are never generated.
        min_length: the end token may not come before, the end token counted.
        constraints: what else may not come.
        forced: int32 `[rows]`, a token that has to come, whatever else is said here; -1
            where there is none.
        normalized: whether the logits are log-probabilities already.
        leaves: int32 `[rows]`, how many the tree of each has; needed for trees.
        max_lengths: int32 `[rows]`, the most tokens of each output; needed for trees.
    """

    def __init__(
        self,
        logits: tf.Tensor,
        histories: tf.Tensor,
        length: tf.Tensor,
        ids: SpecialIds,
        min_length: int = 0,
        constraints: Constraints | None = None,
        forced: tf.Tensor | None = None,
        normalized: bool = False,
        leaves: tf.Tensor | None = None,
        max_lengths: tf.Tensor | None = None,
    ):
        self._logits = tf.cast(logits, tf.float32)
        self._ids = ids
        self._forced = forced
        self._ends = length + 1 >= min_length if min_length > 1 else None
        if normalized:
            self._best = self._top = tf.zeros([tf.shape(logits)[0], 1])
        else:
            # log Σ exp: a maximum's logit less its log-probability. One softmax is one pass;
            # a probability that is a maximum of V has not underflowed.
            best = tf.reduce_max(self._logits, axis=-1, keepdims=True)
            top = tf.reduce_max(tf.nn.softmax(self._logits), axis=-1, keepdims=True)
            self._best, self._top = best, tf.math.log(top)
        self._constrained: Any = None
        if constraints is not None and constraints.any:
            log_probs = self._normal(self._logits)
            self._constrained = constraints.apply(log_probs, histories, length, leaves, max_lengths)

    def best(self, count: int) -> Continuations:
        """At least the `count` best tokens of each row, fewer where the vocabulary is smaller."""
        excluded = len(self._ids.excluded) + (self._ends is not None)
        constrained = self._constrained is not None
        values, tokens = top_k(self._constrained if constrained else self._logits, count + excluded)
        log_probs = values if constrained else self._normal(values)
        # What is no number has no order, and would be in the way of other hypotheses.
        log_probs = tf.where(self._allowed(tokens) & exists(log_probs), log_probs, NOTHING)
        own = log_probs
        if constrained:
            own = self._normal(tf.gather(self._logits, tokens, batch_dims=1))
        if self._forced is not None:
            forced = tf.expand_dims(self._forced, 1)
            only = tf.expand_dims(self.of(tf.maximum(self._forced, 0)), 1)
            only = tf.where(tf.range(tf.shape(tokens)[1]) == 0, only, NOTHING)
            tokens = tf.where(forced >= 0, forced, tokens)
            log_probs, own = (tf.where(forced >= 0, only, each) for each in (log_probs, own))
        return Continuations(tokens, log_probs, own)

    def all(self) -> tf.Tensor:
        """The log-probabilities of all tokens, float32 `[rows, vocab]`, NOTHING where forbidden."""
        constrained = self._constrained is not None
        log_probs = self._constrained if constrained else self._normal(self._logits)
        tokens = tf.range(tf.shape(log_probs)[1])
        log_probs = tf.where(self._allowed(tokens) & exists(log_probs), log_probs, NOTHING)
        if self._forced is None:
            return log_probs
        forced = tf.expand_dims(self._forced, 1)
        own = self._normal(self._logits)
        return tf.where(forced < 0, log_probs, tf.where(tokens == forced, own, NOTHING))

    def of(self, tokens: tf.Tensor) -> tf.Tensor:
        """The model's own log-probabilities, float32 `[rows]`, of one token a row, int32."""
        chosen = tf.gather(self._logits, tf.expand_dims(tokens, 1), batch_dims=1)
        return self._normal(chosen)[:, 0]

    def _normal(self, logits: tf.Tensor) -> tf.Tensor:
        """Returns log-probabilities; the level of the logits goes first, and rounds nothing."""
        return (logits - self._best) + self._top

    def _allowed(self, tokens: tf.Tensor) -> tf.Tensor:
        allowed = tf.constant(True)
        for excluded in self._ids.excluded:
            allowed &= tokens != excluded
        if self._ends is not None:
            allowed &= (tokens != self._ids.end) | self._ends
        return allowed


def top_k(values: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor]:
    """`tf.math.top_k` over the last of two dimensions: at most `count`, equal ones by index.

    A large last dimension is cut into groups: the `count` best values lie in the `count`
    groups of the largest maxima, so that all but one pass is over these alone.
    """
    size = values.shape[-1]
    if size is None:
        return tf.math.top_k(values, tf.minimum(count, tf.shape(values)[-1]))
    width = next((w for w in range(64, 160) if size % w == 0), 100)
    num_groups = -(-size // width)
    if size < _GROUPS_FROM or num_groups < 2 * count:  # most groups would be looked into
        return tf.math.top_k(values, min(count, size))
    if size % width:
        values = tf.pad(values, [[0, 0], [0, -size % width]], constant_values=-float("inf"))
    groups = tf.reshape(values, [-1, num_groups, width])
    _, best = tf.math.top_k(tf.reduce_max(groups, axis=-1), count)
    best = tf.sort(best, axis=-1)  # so that equal values stay in the order of their indices
    found, places = tf.math.top_k(
        tf.reshape(tf.gather(groups, best, batch_dims=1), [-1, count * width]), count
    )
    group = tf.gather(best, places // width, batch_dims=1)
    # Padding comes last, and is among the best only of a row of NaNs.
    return found, tf.minimum(group * width + places % width, size - 1)
