"""What an output may contain: bans, no repeated n-grams, less of what it has already, trees.

All of it changes the log-probabilities of the next token, after the softmax, so that
those of the tokens left alone stay the model's own.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from keras_transformer.config import DecodingConfig
from keras_transformer.decoding.result import NOTHING
from keras_transformer.decoding.trees import Trees


class Constraints:
    """The constraints of a search on the tokens of an output.

    Args:
        config: its `repetition_penalty` and `no_repeat_ngram`; the phrases of `banned`
            come as ids.
        banned: phrases, each a sequence of one token or more that no output contains.
        vocab_size: number of tokens; ids outside of it ban nothing.
        end: id of the end token, needed for `trees`.
        trees: what outputs are, if they are trees.
    """

    def __init__(
        self,
        config: DecodingConfig,
        banned: Sequence[Sequence[int]],
        vocab_size: int,
        end: int = -1,
        trees: Trees | None = None,
    ):
        self._repetition = config.repetition_penalty
        self._ngram = config.no_repeat_ngram
        self._vocab_size = vocab_size
        self._end = end
        self._trees = trees
        known = [tuple(p) for p in banned if p and all(0 <= i < vocab_size for i in p)]
        self._tokens = sorted({phrase[0] for phrase in known if len(phrase) == 1})
        self._phrases = sorted({phrase for phrase in known if len(phrase) > 1})

    @property
    def any(self) -> bool:
        """Whether there are any."""
        banned = self._tokens or self._phrases
        return bool(self._repetition != 1 or self._ngram or banned or self._trees)

    def apply(
        self,
        log_probs: tf.Tensor,
        histories: tf.Tensor,
        length: tf.Tensor,
        leaves: tf.Tensor | None = None,
        max_lengths: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Returns the log-probabilities of the next token under the constraints.

        Args:
            log_probs: float32 `[rows, vocab]`.
            histories: int32 `[rows, longest]`, the tokens so far; what lies behind
                `length` is disregarded.
            length: int32 scalar, tokens that each history has.
            leaves: int32 `[rows]`, how many the tree of each has; needed for trees.
            max_lengths: int32 `[rows]`, the most tokens of each output; needed for trees.
        """
        if self._repetition != 1:
            seen = tf.sequence_mask(
                tf.fill([tf.shape(histories)[0]], length), tf.shape(histories)[1]
            )
            repeated = self._mark(histories, seen)
            log_probs = tf.where(repeated, log_probs * self._repetition, log_probs)
        forbidden = []
        if self._tokens:
            forbidden.append(tf.reduce_any(tf.one_hot(self._tokens, self._vocab_size) > 0, 0)[None])
        forbidden.extend(
            self._completes_phrase(histories, length, phrase) for phrase in self._phrases
        )
        if self._ngram:
            forbidden.append(self._completes_ngram(histories, length))
        if self._trees is not None:
            permitted = self._trees.permitted(
                leaves, max_lengths, histories, length, self._vocab_size, self._end
            )
            forbidden.append(~permitted)
        for mask in forbidden:
            log_probs = tf.where(mask, NOTHING, log_probs)
        return log_probs

    def _completes_phrase(
        self, histories: tf.Tensor, length: tf.Tensor, phrase: Sequence[int]
    ) -> tf.Tensor:
        """Marks the last token of `phrase`, bool `[rows, vocab]`, behind its others."""
        begun = len(phrase) - 1
        # Pads that no token equals stand before the output, where it is shorter than the phrase.
        padded = tf.pad(histories, [[0, 0], [begun, 0]], constant_values=-1)
        last = tf.gather(padded, length + tf.range(begun), axis=1)
        here = tf.reduce_all(last == tf.constant(phrase[:-1]), axis=-1)
        token = tf.one_hot(phrase[-1], self._vocab_size, True, False)
        return tf.expand_dims(here, -1) & token

    def _completes_ngram(self, histories: tf.Tensor, length: tf.Tensor) -> tf.Tensor:
        """Marks the tokens, bool `[rows, vocab]`, that would repeat an n-gram of the history."""
        n = self._ngram
        longest = tf.shape(histories)[1]
        places = tf.range(longest)
        # A place repeats if the n - 1 tokens before it are the last n - 1 of the history.
        same = tf.fill(tf.shape(histories), True)
        for back in range(1, n):
            before = tf.pad(histories, [[0, 0], [back, 0]])[:, :longest]
            last = tf.gather(histories, tf.maximum(length - back, 0), axis=1)
            same &= before == tf.expand_dims(last, 1)
        same &= (places >= n - 1) & (places < length)
        return self._mark(histories, same)

    def _mark(self, histories: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
        """Marks the tokens, bool `[rows, vocab]`, that stand at `places`, bool as `histories`."""
        rows = tf.shape(histories)[0]
        row = tf.broadcast_to(tf.expand_dims(tf.range(rows), 1), tf.shape(histories))
        indices = tf.stack([row, tf.clip_by_value(histories, 0, self._vocab_size - 1)], axis=-1)
        counts = tf.scatter_nd(indices, tf.cast(places, tf.float32), [rows, self._vocab_size])
        return counts > 0
