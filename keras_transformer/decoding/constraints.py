"""Constraints on the next token: banned phrases, repeated n-grams, repetition, a custom rule.

They change the log-probabilities after the softmax. So the log-probabilities of allowed tokens are
not renormalized.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from keras_transformer.decoding.interface import NEG_INF, SearchConfig


class PartialOutputs(NamedTuple):
    """The open hypotheses, one per row, R rows."""

    ids: tf.Tensor  # int32 [R, longest]: ignore the values from `length` on
    length: tf.Tensor  # int32 []: number of tokens of each hypothesis
    forced: tf.Tensor | None = None  # int32 [R]: the next token of the prefix, or -1 after it
    # Both for a `TokenConstraint`:
    max_lengths: tf.Tensor | None = None  # int32 [R]
    constraint_inputs: Any = None  # nested tensors [R, ...]


class Constraints:
    """The constraints of a search on the next token."""

    def __init__(self, config: SearchConfig, vocab_size: int):
        self._repetition_penalty = config.decoding.repetition_penalty
        self._no_repeat_ngram = config.decoding.no_repeat_ngram
        self._token_constraint = config.constraint
        self._vocab_size = vocab_size
        banned = config.banned or ()
        known = [tuple(p) for p in banned if p and all(0 <= i < vocab_size for i in p)]
        self._tokens = sorted({phrase[0] for phrase in known if len(phrase) == 1})
        self._phrases = sorted({phrase for phrase in known if len(phrase) > 1})

    @property
    def is_active(self) -> bool:
        """True if `apply` changes anything."""
        return bool(
            self._repetition_penalty != 1
            or self._no_repeat_ngram
            or self._tokens
            or self._phrases
            or self._token_constraint is not None
        )

    def apply(
        self,
        log_probs: tf.Tensor,
        outputs: PartialOutputs,
        scored_tokens: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Returns the log-probabilities of the next token, `NEG_INF` for forbidden tokens."""

        def scored(mask: tf.Tensor) -> tf.Tensor:
            # [rows, vocab] --> [rows, C]
            return mask if scored_tokens is None else tf.gather(mask, scored_tokens, axis=1)

        histories, length = outputs.ids, outputs.length
        if self._repetition_penalty != 1:
            is_token = tf.range(tf.shape(histories)[1]) < length
            # --> [R, longest]
            is_token = tf.broadcast_to(is_token, tf.shape(histories))
            repeated = scored(self._tokens_at(histories, is_token))
            log_probs = tf.where(repeated, log_probs * self._repetition_penalty, log_probs)
        forbidden = []  # each bool [R, vocab] or [1, vocab]
        if self._tokens:
            forbidden.append(tf.reduce_any(tf.one_hot(self._tokens, self._vocab_size) > 0, 0)[None])
        forbidden.extend(
            self._completes_phrase(histories, length, phrase) for phrase in self._phrases
        )
        if self._no_repeat_ngram:
            forbidden.append(self._completes_ngram(histories, length))
        if self._token_constraint is not None:
            forbidden.append(
                ~self._token_constraint.allowed_tokens(
                    outputs.constraint_inputs, histories, length, outputs.max_lengths
                )
            )
        for mask in forbidden:
            log_probs = tf.where(scored(mask), NEG_INF, log_probs)
        return log_probs

    def _completes_phrase(
        self, histories: tf.Tensor, length: tf.Tensor, phrase: Sequence[int]
    ) -> tf.Tensor:
        """Marks the last token of `phrase`, bool `[R, vocab]`, in rows that end with the rest."""
        prefix_length = len(phrase) - 1
        # The padding of outputs that are shorter than the phrase, -1, is not a token.
        padded = tf.pad(histories, [[0, 0], [prefix_length, 0]], constant_values=-1)
        last = tf.gather(padded, length + tf.range(prefix_length), axis=1)
        # --> [R]
        ends_with_prefix = tf.reduce_all(last == tf.constant(phrase[:-1]), axis=-1)
        token = tf.one_hot(phrase[-1], self._vocab_size, True, False)
        # --> [R, vocab]
        return tf.expand_dims(ends_with_prefix, -1) & token

    def _completes_ngram(self, histories: tf.Tensor, length: tf.Tensor) -> tf.Tensor:
        """Marks the tokens, bool `[R, vocab]`, that would repeat an n-gram of the history."""
        n = self._no_repeat_ngram
        longest = tf.shape(histories)[1]
        places = tf.range(longest)
        # A place repeats if the n - 1 tokens before it are the last n - 1 of the history.
        same = tf.fill(tf.shape(histories), True)
        for back in range(1, n):
            before = tf.pad(histories, [[0, 0], [back, 0]])[:, :longest]
            last = tf.gather(histories, tf.maximum(length - back, 0), axis=1)
            same &= before == tf.expand_dims(last, 1)
        same &= (places >= n - 1) & (places < length)
        return self._tokens_at(histories, same)

    def _tokens_at(self, histories: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
        """Marks the tokens, bool `[R, vocab]`, at `places`, bool `[R, longest]`."""
        rows = tf.shape(histories)[0]
        row = tf.broadcast_to(tf.expand_dims(tf.range(rows), 1), tf.shape(histories))
        # --> [R, longest, 2]
        indices = tf.stack([row, tf.clip_by_value(histories, 0, self._vocab_size - 1)], axis=-1)
        # --> [R, vocab]
        counts = tf.scatter_nd(indices, tf.cast(places, tf.float32), [rows, self._vocab_size])
        return counts > 0
