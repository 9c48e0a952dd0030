"""Rules for the next token: special ids, banned phrases, n-grams, repetition, prefixes.

They change the log-probabilities after the softmax. So the log-probabilities of allowed tokens are
not renormalized.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_transformer.config import DecodingConfig
from keras_transformer.decoding.interface import NEG_INF, SpecialIds
from keras_transformer.decoding.symbols import SymbolRule
from keras_transformer.errors import InputError


class Constraints:
    """The tokens that a search may not generate, apart from a `TokenConstraint`.

    `banned` are phrases, as ids, that no output contains.

    Attributes:
        symbols: the rule of symbols, or None. `penalties` and `apply` exclude all symbols.
        only_exclude: True if `penalties` are the only rule, besides that of symbols.
        static_penalties: float32 `[V]`, `NEG_INF` for tokens that are excluded in each step.
    """

    def __init__(
        self,
        config: DecodingConfig,
        ids: SpecialIds,
        vocab_size: int,
        banned: Sequence[Sequence[int]] = (),
    ):
        tokens = {*ids.excluded, ids.end}.union(*banned)
        if unknown := [token for token in sorted(tokens) if not 0 <= token < vocab_size]:
            raise InputError(
                f"The special ids and the banned phrases contain {unknown}, but ids are at least 0 "
                f"and below {vocab_size}."
            )
        excluded = {*ids.excluded, *(phrase[0] for phrase in banned if len(phrase) == 1)}
        self.symbols = SymbolRule(ids.symbols, ids.end, vocab_size) if ids.symbols else None
        excluded.update(ids.symbols.tokens if ids.symbols else ())
        self._phrases = sorted({tuple(phrase) for phrase in banned if len(phrase) > 1})
        if len(excluded) == vocab_size:
            raise InputError("Every token is banned, so there is no possible output.")
        self.static_penalties = np.zeros(vocab_size, np.float32)
        self.static_penalties[[*excluded]] = NEG_INF
        self._end, self._min_length = ids.end, config.min_length
        self._repetition_penalty = config.repetition_penalty
        self._no_repeat_ngram = config.no_repeat_ngram
        self._vocab_size = vocab_size
        has_bans = bool(self._phrases or self._no_repeat_ngram)
        self.only_exclude = self._repetition_penalty == 1 and not has_bans

    def penalties(self, tokens: tf.Tensor, length: tf.Tensor) -> tf.Tensor:
        """Returns `NEG_INF` for excluded tokens, and 0 for others.

        Excluded tokens are never generated, or end an output before its minimum length.
        """
        penalties = tf.gather(self.static_penalties, tokens)
        if self._min_length > 1:
            is_early = (tokens == self._end) & (length + 1 < self._min_length)
            penalties = tf.where(is_early, NEG_INF, penalties)
        return penalties

    def apply(
        self,
        log_probs: tf.Tensor,
        tokens: tf.Tensor | None,
        histories: tf.Tensor,
        length: tf.Tensor,
    ) -> tf.Tensor:
        """Returns the log-probabilities of the next token, `NEG_INF` for forbidden tokens.

        The log-probabilities are float32 `[R, C]`, for all V tokens or for the tokens int32 `[C]`.
        The histories are int32 `[R, longest]`, and their values from position `length` on are
        ignored.
        """

        def scored(mask: tf.Tensor) -> tf.Tensor:
            # [rows, V] --> [rows, C]
            return mask if tokens is None else tf.gather(mask, tokens, axis=1)

        if self._repetition_penalty != 1:
            is_token = tf.range(tf.shape(histories)[1]) < length
            # --> [R, longest]
            is_token = tf.broadcast_to(is_token, tf.shape(histories))
            repeated = scored(self._tokens_at(histories, is_token))
            log_probs = tf.where(repeated, log_probs * self._repetition_penalty, log_probs)
        forbidden = []  # bool [R, V]
        for phrase in self._phrases:
            forbidden.append(self._completes_phrase(histories, length, phrase))
        if self._no_repeat_ngram:
            forbidden.append(self._completes_ngram(histories, length))
        for mask in forbidden:
            log_probs = tf.where(scored(mask), NEG_INF, log_probs)
        columns = tf.range(log_probs.shape[1] or tf.shape(log_probs)[1])
        return log_probs + self.penalties(columns if tokens is None else tokens, length)

    def _completes_phrase(
        self, histories: tf.Tensor, length: tf.Tensor, phrase: Sequence[int]
    ) -> tf.Tensor:
        """Marks the last token of `phrase`, bool `[R, V]`, in rows that end with the rest."""
        prefix_length = len(phrase) - 1
        # The padding of outputs that are shorter than the phrase, -1, is not a token.
        padded = tf.pad(histories, [[0, 0], [prefix_length, 0]], constant_values=-1)
        last = tf.gather(padded, length + tf.range(prefix_length), axis=1)
        # --> [R]
        ends_with_prefix = tf.reduce_all(last == tf.constant(phrase[:-1]), axis=-1)
        token = tf.one_hot(phrase[-1], self._vocab_size, True, False)
        # --> [R, V]
        return tf.expand_dims(ends_with_prefix, -1) & token

    def _completes_ngram(self, histories: tf.Tensor, length: tf.Tensor) -> tf.Tensor:
        """Marks the tokens, bool `[R, V]`, that would repeat an n-gram of the history."""
        n = self._no_repeat_ngram
        longest = tf.shape(histories)[1]
        positions = tf.range(longest)
        # A token repeats if the n - 1 tokens before it are the last n - 1 of the history.
        same = tf.fill(tf.shape(histories), True)
        for back in range(1, n):
            before = tf.pad(histories, [[0, 0], [back, 0]])[:, :longest]
            last = tf.gather(histories, tf.maximum(length - back, 0), axis=1)
            same &= before == tf.expand_dims(last, 1)
        same &= (positions >= n - 1) & (positions < length)
        return self._tokens_at(histories, same)

    def _tokens_at(self, histories: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        """Marks the tokens, bool `[R, V]`, at `positions`, bool `[R, longest]`."""
        rows = tf.shape(histories)[0]
        row = tf.broadcast_to(tf.expand_dims(tf.range(rows), 1), tf.shape(histories))
        # --> [R, longest, 2]
        indices = tf.stack([row, tf.clip_by_value(histories, 0, self._vocab_size - 1)], axis=-1)
        # --> [R, V]
        counts = tf.scatter_nd(indices, tf.cast(positions, tf.float32), [rows, self._vocab_size])
        return counts > 0
