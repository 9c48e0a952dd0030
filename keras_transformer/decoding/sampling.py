"""Greedy search, and sampling from the distribution of the model."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from keras_transformer.decoding.beam_search import length_penalty
from keras_transformer.decoding.interface import NEG_INF, SearchInputs, SearchResult, is_reachable
from keras_transformer.decoding.search_loop import Histories, SearchLoop, map_tensors, write_step
from keras_transformer.decoding.symbols import SymbolState


class _SampleState(NamedTuple):
    position: tf.Tensor  # int32 []: number of tokens of each open output
    tokens: tf.Tensor  # int32 [batch, K]: last token of each output
    is_open: tf.Tensor  # bool [batch, K]
    log_probs: tf.Tensor  # float32 [batch, K]
    lengths: tf.Tensor  # int32 [batch, K]
    finished: tf.Tensor  # bool [batch, K]
    histories: Histories
    symbols: SymbolState | None
    cache: Any  # belongs to the decoder


class Sampling(SearchLoop):
    """Draws `n_best` outputs of each sentence, or finds one by greedy search.

    Without `sample`, or at temperature 0, each token is the most likely one.

    The random numbers of a sentence are a function of the seed, the position, the number of the
    sample and the sentence's `sample_offsets`. A sentence gets the same outputs in any batch.
    """

    def best(self, hypotheses: Any, inputs: SearchInputs) -> SearchResult:
        (log_probs, lengths, finished, histories), config = hypotheses, self._config
        valid = is_reachable(log_probs)
        histories = Histories(
            _where(valid, histories.ids, self._ids.pad),
            *map_tensors(lambda field: _where(valid, field, 0), tuple(histories[1:])),
        )
        scores = log_probs / length_penalty(
            lengths, tf.expand_dims(inputs.alpha, -1), config.length_penalty_formula
        )
        result = SearchResult(
            scores=tf.where(valid, scores, NEG_INF),
            lengths=tf.where(valid, lengths, 0),
            finished=finished,
            log_probs=tf.where(valid, log_probs, NEG_INF),
            **histories._asdict(),
        )
        if config.n_best == 1:
            return result
        _, order = tf.math.top_k(result.scores, config.n_best)
        return map_tensors(lambda field: tf.gather(field, order, batch_dims=1), result)

    def _first_state(self, inputs: SearchInputs) -> _SampleState:
        shape = [tf.shape(inputs.max_lengths)[0], self._rows]
        return _SampleState(
            position=tf.constant(0),
            tokens=tf.fill(shape, self._ids.start),
            is_open=tf.broadcast_to(tf.expand_dims(inputs.max_lengths > 0, -1), shape),
            log_probs=tf.zeros(shape),
            lengths=tf.fill(shape, 0),
            finished=tf.fill(shape, False),
            histories=self._first_histories(inputs),
            symbols=self._first_symbols(inputs),
            cache=self._decoder.init_cache(),
        )

    def _is_open(self, state: _SampleState) -> tf.Tensor:
        return tf.reduce_any(state.is_open, axis=1)

    def _hypotheses(self, state: _SampleState) -> tuple[Any, ...]:
        return state.log_probs, state.lengths, state.finished, state.histories

    def _step(self, state: _SampleState, inputs: SearchInputs) -> _SampleState:
        next_tokens, cache, attention = self._next_tokens(state, inputs)
        if self._config.sample and self._config.temperature > 0:
            columns = self._sample(next_tokens.log_probs, state.position, inputs.sample_offsets)
            token_log_probs = tf.gather(next_tokens.log_probs, columns, batch_dims=1)
        else:
            best, columns = next_tokens.top(1)
            columns = tf.gather(columns, tf.argmax(best, axis=1), batch_dims=1)
            token_log_probs = tf.reduce_max(best, axis=1)
        model_log_probs = tf.gather(next_tokens.model_log_probs, columns, batch_dims=1)
        # --> [batch, K]
        tokens, token_log_probs, model_log_probs = (
            tf.reshape(values, [-1, self._rows])
            for values in (next_tokens.ids(columns), token_log_probs, model_log_probs)
        )
        next_step = Histories(tokens, model_log_probs)
        if attention is not None:
            alignment = tf.argmax(attention, axis=-1, output_type=tf.int32)
            next_step = next_step._replace(alignment=alignment, attention=attention)
        # If no token is possible, as in a broken model, the output becomes invalid.
        goes_on = state.is_open & is_reachable(token_log_probs)
        ended = tokens == self._ids.end
        length = state.position + 1
        log_probs = tf.where(goes_on, state.log_probs + token_log_probs, NEG_INF)
        may_go_on = length < tf.expand_dims(inputs.max_lengths, -1)
        return _SampleState(
            position=length,
            tokens=tf.where(goes_on, tokens, self._ids.pad),
            is_open=goes_on & ~ended & may_go_on,
            log_probs=tf.where(state.is_open, log_probs, state.log_probs),
            lengths=tf.where(goes_on, length, state.lengths),
            finished=state.finished | (goes_on & ended),
            histories=write_step(state.histories, state.position, next_step, goes_on),
            symbols=self._next_symbols(state.symbols, tokens, length),
            cache=cache,
        )

    def _sample(self, log_probs: tf.Tensor, position: tf.Tensor, offsets: tf.Tensor) -> tf.Tensor:
        """Draws a column of the float32 scores `[R, V]` for each of R = batch * K rows."""
        config = self._config
        vocab = tf.shape(log_probs)[1]
        count = tf.minimum(config.top_k, vocab) if config.top_k else vocab
        # --> [R, count]
        log_probs, tokens = tf.math.top_k(log_probs, count)
        temperature = max(config.temperature, 1e-30)  # a smaller float32 may be rounded to 0
        scores = (log_probs - log_probs[:, :1]) / temperature
        # Forbidden tokens have the probability 0 at any temperature.
        probs = tf.nn.softmax(tf.where(is_reachable(log_probs), scores, -float("inf")))
        if config.top_p < 1:
            before = tf.cumsum(probs, axis=-1, exclusive=True)
            probs = tf.where(before < config.top_p, probs, 0.0)  # keeps the most likely token
        # All sentences use the same numbers, shifted by their offsets.
        drawn = tf.expand_dims(offsets, 1) + _uniform(config.seed, position, self._rows)
        # --> [R, 1]
        drawn = tf.reshape(tf.math.floormod(drawn, 1.0), [-1, 1])
        cumulative = tf.cumsum(probs, axis=-1)
        # --> [R]
        passed = tf.reduce_sum(tf.cast(cumulative <= drawn * cumulative[:, -1:], tf.int32), axis=-1)
        possible = tf.reduce_sum(tf.cast(probs > 0, tf.int32), axis=-1)
        drawn_column = tf.minimum(passed, tf.maximum(possible - 1, 0))
        return tf.gather(tokens, drawn_column, batch_dims=1)


def offsets(ids: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Returns a hash of the ids of each sentence as a number from 0 to 1, float32 `[batch]`.

    Both arguments are `[batch, source]`. The mask is True for the ids that count.
    """
    positions = tf.range(tf.shape(ids)[1], dtype=tf.int64)
    hashes = _mixed(_mixed(tf.cast(ids, tf.int64)) + positions)
    total = tf.reduce_sum(tf.where(mask, hashes, 0), axis=1)
    return tf.cast(tf.bitwise.right_shift(_mixed(total), 8), tf.float32) / 2**24


def _uniform(seed: int, position: tf.Tensor, count: int) -> tf.Tensor:
    """Returns float32 `[count]` in [0, 1), a hash of seed and position.

    TensorFlow's stateless generators give different numbers with and without XLA.
    """
    mixed = _mixed(tf.constant(seed % 2**32, tf.int64))
    mixed = _mixed(mixed + tf.cast(position, tf.int64))
    mixed = _mixed(mixed + tf.range(count, dtype=tf.int64))
    return tf.cast(tf.bitwise.right_shift(mixed, 8), tf.float32) / 2**24


def _mixed(number: tf.Tensor) -> tf.Tensor:
    """Returns a hash of the lower 32 bits of `number`, int64 (Wellons's "lowbias32")."""
    mask = 2**32 - 1
    number = tf.bitwise.bitwise_and(number, mask)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        number = tf.bitwise.bitwise_xor(number, tf.bitwise.right_shift(number, shift))
        number = tf.bitwise.bitwise_and(number * factor, mask)
    return number


def _where(valid: tf.Tensor, field: tf.Tensor, other: float) -> tf.Tensor:
    """Returns `field` `[batch, K, ...]` where `valid`, bool `[batch, K]`, and otherwise `other`."""
    for _ in field.shape[2:]:
        valid = tf.expand_dims(valid, -1)
    return tf.where(valid, field, tf.cast(other, field.dtype))
