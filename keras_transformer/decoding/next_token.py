"""The log-probabilities of the next token of each hypothesis, and the best of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.decoding.constraints import Constraints, PartialOutputs
from keras_transformer.decoding.interface import NEG_INF, SpecialIds, is_valid

# From this vocabulary size on, top-k only looks into the groups with the largest maxima.
_MIN_SIZE_FOR_GROUPS = 2048


class _Groups(NamedTuple):
    """Scores in groups, of which most searches only read the maximum."""

    values: tf.Tensor  # float32 [R, groups, width], padded with minus infinity
    maxima: tf.Tensor  # float32 [R, groups]
    size: int  # number of scores, V

    @classmethod
    def of(cls, values: tf.Tensor) -> _Groups | None:
        """Returns the groups of float32 `[R, V]`, or None if V is unknown or small."""
        size = values.shape[-1]
        if size is None or size < _MIN_SIZE_FOR_GROUPS:
            return None
        width = next((w for w in range(64, 160) if size % w == 0), 100)
        if size % width:
            padding = [[0, 0], [0, -size % width]]
            values = tf.pad(values, padding, constant_values=-float("inf"))
        # XNNPACK copies a float tensor to reshape it. LiteRT itself does not copy integers.
        bits = tf.reshape(tf.bitcast(values, tf.int32), [-1, -(-size // width), width])
        groups = tf.bitcast(bits, tf.float32)
        return cls(groups, tf.reduce_max(groups, axis=-1), size)

    def split(self, penalties: tf.Tensor | np.ndarray) -> tf.Tensor | np.ndarray:
        """Returns float32 `[V]` in the same groups `[groups, width]`, padded with zeros."""
        count, width = self.values.shape[1:]
        lib = np if isinstance(penalties, np.ndarray) else tf
        return lib.reshape(lib.pad(penalties, [[0, count * width - self.size]]), [count, width])


class _Unconstrained(NamedTuple):
    """The scores of a search without constraints, which may only forbid a few tokens."""

    scores: tf.Tensor  # float32 [R, V]
    groups: _Groups | None  # of the scores
    log_normalizer: tf.Tensor  # float32 [R, 1]; log_probs = scores - log_normalizer
    penalties: tf.Tensor | np.ndarray  # float32 [V]: NEG_INF for forbidden tokens, 0 for others
    most_forbidden: int  # number of tokens with a penalty, or more


class NextTokenScores(NamedTuple):
    """Log-probabilities of the next token of each row.

    Attributes:
        log_probs: float32 `[R, C]`, with all constraints applied; `NEG_INF` for forbidden tokens.
            The search adds them up.
        model_log_probs: float32 `[R, C]`, before constraints are applied.
        tokens: int32 `[C]`, the token of each column; None if the columns are all tokens, V.
        unconstrained: what `top` needs, if it need not read all `log_probs`.
    """

    log_probs: tf.Tensor
    model_log_probs: tf.Tensor
    tokens: tf.Tensor | None = None
    unconstrained: _Unconstrained | None = None

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
        """Applies all constraints to the scores of the model."""
        scores = tf.cast(scores, tf.float32)
        groups = _Groups.of(scores)
        normalizer = tf.zeros([1, 1]) if are_log_probs else _log_normalizer(scores, groups)
        log_probs = model_log_probs = scores - normalizer
        is_constrained = constraints is not None and constraints.is_active
        if constraints is not None and is_constrained:
            log_probs = constraints.apply(log_probs, outputs, scored_tokens)
        tokens = scored_tokens
        if tokens is None:
            size = scores.shape[1]
            tokens = tf.range(tf.shape(scores)[1]) if size is None else np.arange(size)
        penalties = _penalties(tokens, ids)
        if min_length > 1:
            is_early = (tokens == ids.end) & (outputs.length + 1 < min_length)
            penalties = tf.where(is_early, NEG_INF, penalties)
        log_probs += penalties
        if outputs.forced is not None:
            forced = tf.expand_dims(outputs.forced, 1)  # --> [R, 1]
            only_forced = tf.where(tokens == forced, model_log_probs, NEG_INF)
            log_probs = tf.where(forced < 0, log_probs, only_forced)
        unconstrained = None
        if not is_constrained and outputs.forced is None and scored_tokens is None:
            most = len(ids.excluded) + (min_length > 1)
            unconstrained = _Unconstrained(scores, groups, normalizer, penalties, most)
        return cls(log_probs, model_log_probs, scored_tokens, unconstrained)

    def top(self, count: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the log-probabilities and the columns of the `count` best tokens of each row.

        Both are `[R, count]`, or `[R, V]` for a smaller vocabulary. Forbidden tokens come last,
        with `NEG_INF`.
        """
        if self.unconstrained is not None:
            scores, groups, normalizer, penalties, most = self.unconstrained
            best, columns = top_k(scores, count, groups, penalties, most)
            log_probs = best - normalizer
        else:
            # A decoder scores enough tokens. A constant number keeps all later shapes constant.
            find = top_k if self.tokens is None else tf.math.top_k
            log_probs, columns = find(self.log_probs, count)
        # The log-probabilities of a broken model are NaN.
        return tf.where(is_valid(log_probs), log_probs, NEG_INF), columns

    def ids(self, columns: tf.Tensor) -> tf.Tensor:
        """Returns the tokens of some columns, both int32 of any shape."""
        return columns if self.tokens is None else tf.gather(self.tokens, columns)


def _penalties(tokens: tf.Tensor | np.ndarray, ids: SpecialIds) -> tf.Tensor | np.ndarray:
    """Returns `NEG_INF` for tokens that are never generated and 0 for others, float32 `[C]`.

    For an array it returns an array, because LiteRT's converter does not compute all constants.
    """
    if isinstance(tokens, np.ndarray):
        return np.where(np.isin(tokens, ids.excluded), NEG_INF, 0.0).astype(np.float32)
    is_excluded = tf.reduce_any([tokens == excluded for excluded in ids.excluded], axis=0)
    return tf.where(is_excluded, NEG_INF, 0.0)


def log_softmax(logits: tf.Tensor) -> tf.Tensor:
    """Returns log-probabilities `[rows, V]` of logits `[rows, V]`, both float32."""
    return logits - _log_normalizer(logits, None)


def _log_normalizer(logits: tf.Tensor, groups: _Groups | None) -> tf.Tensor:
    """Returns log sum exp(logits) of each row, float32 `[R, 1]`.

    LiteRT has fast kernels for these operations, but none for `tf.nn.log_softmax`.
    """
    largest = tf.reduce_max(logits if groups is None else groups.maxima, axis=-1, keepdims=True)
    exponentials = tf.exp(logits - largest)
    return largest + tf.math.log(tf.reduce_sum(exponentials, axis=-1, keepdims=True))


def top_k(
    values: tf.Tensor,
    count: int,
    groups: _Groups | None = None,
    penalties: tf.Tensor | np.ndarray | None = None,
    most_penalties: int = 0,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the same as `tf.math.top_k` for two dimensions, faster if the last one is large.

    The last dimension is split into groups. The `count` best values lie in the `count` groups
    with the largest maxima, so only one pass reads all values. A penalty can make one more group
    necessary.

    Returns:
        The best values of each row, best first, and their indices, int32. Equal values are in
        the order of their indices.
    """
    groups = groups or _Groups.of(values)
    num_read = count + most_penalties  # groups
    if groups is None or groups.values.shape[1] < 2 * num_read:  # groups would save nothing
        if penalties is not None:
            values += penalties
        size = values.shape[-1]
        if size is None:
            return tf.math.top_k(values, tf.minimum(count, tf.shape(values)[-1]))
        return tf.math.top_k(values, min(count, size))
    width = groups.values.shape[2]
    _, best = tf.math.top_k(groups.maxima, num_read)
    # --> [rows, num_read]
    best = tf.sort(best, axis=-1)  # keeps equal values in the order of their indices
    # --> [rows, num_read, width]
    candidates = tf.gather(groups.values, best, batch_dims=1)
    if penalties is not None:
        candidates += tf.gather(groups.split(penalties), best)
    # --> [rows, count]
    top_values, places = tf.math.top_k(tf.reshape(candidates, [-1, num_read * width]), count)
    group = tf.gather(best, places // width, batch_dims=1)
    # Padding comes last, so it is selected only in a row of NaNs.
    return top_values, tf.minimum(group * width + places % width, groups.size - 1)
