"""The log-probabilities of the next token of each hypothesis, and the best of them."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from keras_transformer.decoding.constraints import Constraints, PartialOutputs
from keras_transformer.decoding.interface import NEG_INF, SpecialIds, is_valid

# From this vocabulary size on, top-k only looks into the groups with the largest maxima.
_MIN_SIZE_FOR_GROUPS = 2048


class NextTokenScores(NamedTuple):
    """Log-probabilities of the next token of each row.

    Attributes:
        log_probs: float32 `[R, C]`, with all constraints applied; `NEG_INF` for forbidden tokens.
            The search adds them up.
        model_log_probs: float32 `[R, C]`, before constraints are applied.
        tokens: int32 `[C]`, the token of each column; None if the columns are all tokens, V.

    Example:
    >>> outputs = PartialOutputs(ids=tf.zeros([1, 1], tf.int32), length=tf.constant(0))
    >>> scores = NextTokenScores.from_model(
    ...     tf.zeros([1, 4]), outputs, SpecialIds(start=2, end=3, pad=0)
    ... )
    >>> tf.exp(scores.log_probs).numpy(), tf.exp(scores.model_log_probs).numpy()
    (array([[0.  , 0.25, 0.  , 0.25]], dtype=float32),
     array([[0.25, 0.25, 0.25, 0.25]], dtype=float32))
    """

    log_probs: tf.Tensor
    model_log_probs: tf.Tensor
    tokens: tf.Tensor | None = None

    @classmethod
    def from_model(
        cls,
        scores: tf.Tensor,
        outputs: PartialOutputs,
        ids: SpecialIds,
        constraints: Constraints | None = None,
        min_length: int = 0,
        are_log_probs: bool = False,
        scored_tokens: tf.Tensor | None = None,
    ) -> NextTokenScores:
        """Applies all constraints to the scores of the model.

        Args:
            scores: any float type `[R, C]`, logits or log-probabilities.
            outputs: the hypotheses so far. A forced token overrides all other rules.
            ids: the start, pad and unknown ids are never generated.
            constraints: rules for the next token.
            min_length: minimum number of tokens of an output, including the end token.
            are_log_probs: True if the scores are log-probabilities.
            scored_tokens: int32 `[C]`, the tokens of the scores; None for all, V.
        """
        scores = tf.cast(scores, tf.float32)
        log_probs = model_log_probs = scores if are_log_probs else log_softmax(scores)
        if constraints is not None and constraints.is_active:
            log_probs = constraints.apply(log_probs, outputs, scored_tokens)
        tokens = tf.range(tf.shape(scores)[1]) if scored_tokens is None else scored_tokens
        forbidden = tf.reduce_any([tokens == excluded for excluded in ids.excluded], axis=0)
        if min_length > 1:
            forbidden |= (tokens == ids.end) & (outputs.length + 1 < min_length)
        log_probs += tf.where(forbidden, NEG_INF, 0.0)
        if outputs.forced is not None:
            forced = tf.expand_dims(outputs.forced, 1)  # --> [R, 1]
            only_forced = tf.where(tokens == forced, model_log_probs, NEG_INF)
            log_probs = tf.where(forced < 0, log_probs, only_forced)
        return cls(log_probs, model_log_probs, scored_tokens)

    def top(self, count: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the log-probabilities and the columns of the `count` best tokens of each row.

        Both are `[R, count]`, or `[R, V]` for a smaller vocabulary. Forbidden tokens come last,
        with `NEG_INF`.
        """
        # A decoder scores enough tokens. A constant number keeps all later shapes constant.
        find = top_k if self.tokens is None else tf.math.top_k
        log_probs, columns = find(self.log_probs, count)
        # The log-probabilities of a broken model are NaN.
        return tf.where(is_valid(log_probs), log_probs, NEG_INF), columns

    def ids(self, columns: tf.Tensor) -> tf.Tensor:
        """Returns the tokens of some columns, both int32 of any shape."""
        return columns if self.tokens is None else tf.gather(self.tokens, columns)


def log_softmax(logits: tf.Tensor) -> tf.Tensor:
    """Returns log-probabilities `[rows, V]` of logits `[rows, V]`, both float32.

    LiteRT has no fast kernel for `tf.nn.log_softmax`, but has one for softmax. This saves 13 % of
    an int8 search there.

    Example:
    >>> log_softmax(tf.zeros([1, 4])).numpy().round(3)
    array([[-1.386, -1.386, -1.386, -1.386]], dtype=float32)
    """
    # log sum exp(logits) is the largest logit minus its log-probability. The largest of V
    # probabilities cannot underflow.
    max_prob = tf.reduce_max(tf.nn.softmax(logits), axis=-1, keepdims=True)
    max_logit = tf.reduce_max(logits, axis=-1, keepdims=True)
    return logits - (max_logit - tf.math.log(max_prob))


def top_k(values: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the same as `tf.math.top_k` for two dimensions, faster if the last one is large.

    The last dimension is split into groups. The `count` best values lie in the `count` groups
    with the largest maxima, so only one pass reads all values.

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
    if size < _MIN_SIZE_FOR_GROUPS or num_groups < 2 * count:  # groups would save nothing
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
    # Padding comes last, so it is selected only in a row of NaNs.
    return top_values, tf.minimum(group * width + places % width, size - 1)
