"""The rule that an output has the symbols of its source, such as those of protected spans.

- Each symbol occurs exactly as often as in the source.
- The end of a pair follows its begin, and closes the pair that was opened last.
- The end token follows the last symbol.
- If there is only room for the symbols that are missing and the end token, nothing else is allowed.

There is always a token that the rule allows. Other rules, such as banned n-grams, do not apply to
symbols, so that they cannot exclude the last one that is allowed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.decoding.interface import NEG_INF, SymbolIds


class SymbolState(NamedTuple):
    """The symbols that K hypotheses of each sentence still need.

    The last dimension of both tensors is the end token, then the N symbols.
    """

    missing: tf.Tensor  # int32 [batch, K, 1 + N]: how often each token must still be generated
    # int32 [batch, K, 1 + N]: 0 for the end token and for the end of a pair before its begin, 1 for
    # symbols that may be anywhere. The later a pair was opened, the higher is the level of its end.
    levels: tf.Tensor


class SymbolRule:
    """The rule for the symbols of a target vocabulary.

    Attributes:
        tokens: the symbols, int32 `[N]`.
        classes: int32 `[V]`, 0 for ordinary tokens, 1 for the end token, and 2 to N + 1 for the
            symbols.
    """

    def __init__(self, symbols: SymbolIds, end_id: int, vocab_size: int):
        self.tokens = np.array(symbols.tokens, np.int32)
        self._num_pairs = symbols.num_pairs
        self._needed = np.array([end_id, *symbols.tokens], np.int32)
        # The token that opens the pair of a needed token, or -1.
        self._begins = np.full_like(self._needed, -1)
        self._begins[-self._num_pairs :] = self.tokens[-2 * self._num_pairs : -self._num_pairs]
        self.classes = np.zeros(vocab_size, np.int32)
        self.classes[self._needed] = np.arange(1, len(self._needed) + 1)

    def first_state(self, counts: tf.Tensor, rows: int) -> SymbolState:
        """Returns the state of K = `rows` empty hypotheses for int32 `[batch, N]` symbols."""
        end, anywhere = tf.ones_like(counts[:, :1]), tf.ones_like(counts[:, : -self._num_pairs])
        # An end without a begin may be anywhere.
        ends = tf.cast(counts[:, -2 * self._num_pairs : -self._num_pairs] == 0, tf.int32)
        missing = tf.concat([end, counts], axis=1)
        levels = tf.concat([0 * end, anywhere, ends], axis=1)
        all_rows = tf.zeros([rows, 1], tf.int32)  # some LiteRT runtimes lack BROADCAST_TO
        return SymbolState(missing[:, None] + all_rows, levels[:, None] + all_rows)

    def next_state(self, state: SymbolState, tokens: tf.Tensor, length: tf.Tensor) -> SymbolState:
        """Returns the state after int32 `[batch, K]` tokens, the last of `length` tokens."""
        tokens = tf.expand_dims(tokens, -1)
        generated = tf.cast(tokens == self._needed, tf.int32)
        return SymbolState(
            missing=tf.maximum(state.missing - generated, 0),  # a prefix may have too many
            levels=tf.where(tokens == self._begins, length + 1, state.levels),
        )

    def penalties(self, state: SymbolState, length: tf.Tensor, max_lengths: tf.Tensor) -> tf.Tensor:
        """Returns 0 for allowed next tokens and `NEG_INF` for others, float32 `[R, 2 + N]`.

        The columns are the `classes`. Hypotheses have `length` tokens, and may have `max_lengths`,
        int32 `[batch]`.
        """
        # The highest level is 0, that of the end token, if nothing else is missing.
        levels = tf.where(state.missing > 0, state.levels, -1)
        is_allowed = (levels == 1) | (levels == tf.reduce_max(levels, axis=-1, keepdims=True))
        num_missing = tf.reduce_sum(state.missing, axis=-1, keepdims=True)
        # Without symbols, the last token may be any.
        room = tf.maximum(max_lengths - length - 1, 1)
        fits = num_missing <= tf.reshape(room, [-1, 1, 1])
        penalties = tf.where(tf.concat([fits, is_allowed], axis=-1), 0.0, NEG_INF)
        return tf.reshape(penalties, [-1, penalties.shape[-1]])
