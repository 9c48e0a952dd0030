"""What every kind of search takes and returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

# (ids int32 [batch * beam], position int32 [], cache) → (logits float [batch * beam, vocab],
# cache, cross-attention float [batch * beam, source length] or None)
StepFn = Callable[[tf.Tensor, tf.Tensor, Any], tuple[tf.Tensor, Any, Any]]

# (cache, parents int32 [batch, beam]) → the cache of the hypotheses that follow these parents
FollowFn = Callable[[Any, tf.Tensor], Any]

# (cache, sentences int32 [few]) → the cache of these sentences alone
KeepFn = Callable[[Any, tf.Tensor], Any]

# Log-probability and score of what does not exist, as in a place that no hypothesis fills.
# Finite, because an infinity minus an infinity is no number; nothing real comes below half of it.
NOTHING = -1e9


class SpecialIds(NamedTuple):
    """Ids with a meaning of their own; the start and pad ids are never generated."""

    start: int  # the decoder's first input
    end: int  # ends a hypothesis; may be the same as the start or pad id
    pad: int  # fills ids beyond a hypothesis's length

    @property
    def excluded(self) -> list[int]:
        """The ids that are never generated."""
        return sorted({self.start, self.pad} - {self.end})


class SearchResult(NamedTuple):
    """The best hypotheses of each sentence, best first.

    A place that no hypothesis fills (a vocabulary too small for `n_best`
    different ones) has the score -1e9, the length 0, and is not finished.
    """

    ids: tf.Tensor  # int32 [batch, n_best, length]: no start id; the pad id beyond `lengths`
    scores: tf.Tensor  # float32 [batch, n_best]: by which they are ranked, penalties applied
    lengths: tf.Tensor  # int32 [batch, n_best]: tokens, the end token included
    finished: tf.Tensor  # bool [batch, n_best]: ends with the end token
    log_probs: tf.Tensor  # float32 [batch, n_best]: log P of the whole, before any penalty
    token_log_probs: tf.Tensor | None = None  # float32 [batch, n_best, length], on request
    # int32 [batch, n_best, length], on request: the source place that most attention went to
    alignment: tf.Tensor | None = None
    attention: tf.Tensor | None = None  # float32 [batch, n_best, length, source], on request


def exists(log_probs: tf.Tensor) -> tf.Tensor:
    """Returns where log-probabilities are real; a NaN is not, so a broken model ends at once."""
    return log_probs > NOTHING / 2
