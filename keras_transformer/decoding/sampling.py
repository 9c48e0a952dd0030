"""One hypothesis at a time: greedy search, and outputs drawn from the model's distribution."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import tensorflow as tf

from keras_transformer.config import DecodingConfig
from keras_transformer.decoding.beam import keep_rows
from keras_transformer.decoding.candidates import Continuations, Next
from keras_transformer.decoding.constraints import Constraints
from keras_transformer.decoding.penalties import coverage_penalty, length_penalty
from keras_transformer.decoding.result import (
    NOTHING,
    KeepFn,
    SearchResult,
    SpecialIds,
    StepFn,
    exists,
)
from keras_transformer.decoding.search_loop import search_loop


class _State(NamedTuple):
    position: tf.Tensor  # int32 []: tokens that each open output has
    tokens: tf.Tensor  # int32 [rows]: the last of each
    is_open: tf.Tensor  # bool [rows]
    log_probs: tf.Tensor  # float32 [rows]: what is added up, constraints applied
    lengths: tf.Tensor  # int32 [rows]
    finished: tf.Tensor  # bool [rows]
    histories: dict[str, tf.Tensor]  # by name, [rows, length, ...]: what grows with an output
    cache: Any  # the model's


class _Inputs(NamedTuple):
    """What is given of each output; a list is empty where there is none."""

    max_lengths: tf.Tensor  # int32 [rows]
    numbers: tf.Tensor  # float32 [batch]
    prefix: list[tf.Tensor]  # int32 [rows, length]
    leaves: list[tf.Tensor]  # int32 [rows]: of each tree


class _Found(NamedTuple):
    """What a state is left with at the end, `[rows, ...]`."""

    log_probs: tf.Tensor
    lengths: tf.Tensor
    finished: tf.Tensor
    histories: dict[str, tf.Tensor]

    @classmethod
    def of(cls, state: _State) -> _Found:
        return cls(state.log_probs, state.lengths, state.finished, state.histories)


class Sampling:
    """Draws `n_best` outputs of each sentence, or finds one by greedy search.

    The random numbers of a sentence are a function of the seed, the position, the sample
    and of the sentence's own number alone: it gets the same outputs in any batch.

    Args:
        step_fn, config, ids, constraints, keep, details, attention, max_steps, normalized: as
            `BeamSearch`'s, where the beam is of `n_best` outputs that go on by themselves. Without
            `config.sample`, or at temperature 0, each token is the likeliest.
    """

    def __init__(
        self,
        step_fn: StepFn,
        config: DecodingConfig,
        ids: SpecialIds,
        *,
        constraints: Constraints | None = None,
        keep: KeepFn | None = None,
        details: bool = False,
        attention: bool = False,
        max_steps: int | None = None,
        shrink: bool = True,
        normalized: bool = False,
    ):
        self._step_fn = step_fn
        self._config = config
        self._keep = keep or functools.partial(keep_rows, beam=config.n_best)
        self._greedy = not config.sample or config.temperature == 0
        self._ids = ids
        self._constraints = constraints
        self._details = details
        self._attention = attention
        self._max_steps = max_steps
        self._shrink = shrink
        self._normalized = normalized

    def search(
        self,
        cache: Any,
        max_lengths: tf.Tensor,
        length_limit: int | tf.Tensor,
        prefix: tf.Tensor | None = None,
        source_mask: tf.Tensor | None = None,
        numbers: tf.Tensor | None = None,
        alpha: tf.Tensor | None = None,
        leaves: tf.Tensor | None = None,
    ) -> SearchResult:
        """Returns `n_best` outputs of each sentence, best first.

        Args:
            cache, max_lengths, length_limit, prefix, source_mask, alpha, leaves: as
                `BeamSearch.search`'s.
            numbers: float32 `[batch]` from 0 to 1, as made of each sentence's text, that let
                different sentences draw different numbers; by default all draw the same.
        """
        count, batch = self._config.n_best, tf.shape(max_lengths)[0]
        inputs = _Inputs(
            max_lengths=tf.repeat(max_lengths, count),
            numbers=tf.zeros([batch]) if numbers is None else tf.cast(numbers, tf.float32),
            prefix=[] if prefix is None else [tf.repeat(prefix, count, axis=0)],
            leaves=[] if leaves is None else [tf.repeat(leaves, count)],
        )
        found = search_loop(
            self._step,
            lambda state: tf.reduce_any(self._by_sentence(state.is_open), axis=1),
            # A sentence's outputs side by side, as what a sentence is left with.
            lambda state: tf.nest.map_structure(self._by_sentence, _Found.of(state)),
            self._kept,
            self._first_state(cache, inputs, length_limit, source_mask),
            inputs,
            shrink=self._shrink,
            max_steps=self._max_steps,
        )
        alpha = self._config.length_penalty if alpha is None else tf.repeat(alpha, count)
        return self._result(found, batch, source_mask, alpha)

    def _by_sentence(self, rows: tf.Tensor) -> tf.Tensor:
        """From `[batch * n_best, ...]` to `[batch, n_best, ...]`."""
        # The number of sentences, not -1, which is anything where there are no elements.
        count = self._config.n_best
        shape = [[tf.shape(rows)[0] // count, count], tf.shape(rows)[1:]]
        return tf.ensure_shape(
            tf.reshape(rows, tf.concat(shape, axis=0)), [None, count, *rows.shape[1:]]
        )

    def _step(self, state: _State, inputs: _Inputs) -> _State:
        logits, cache, attention = self._step_fn(state.tokens, state.position, state.cache)
        forced = [tf.gather(prefix, state.position, axis=1) for prefix in inputs.prefix]
        distribution = Next(
            logits,
            state.histories["ids"],
            state.position,
            self._ids,
            min_length=self._config.min_length,
            constraints=self._constraints,
            forced=forced[0] if forced else None,
            normalized=self._normalized,
            leaves=inputs.leaves[0] if inputs.leaves else None,
            max_lengths=inputs.max_lengths,
        )
        if self._greedy:
            chosen = _likeliest(distribution)
        else:
            chosen = self._drawn(distribution, state.position, inputs.numbers)
        return self._next_state(state, chosen, cache, attention, inputs.max_lengths)

    def _kept(self, state: _State, inputs: _Inputs, sentences: tf.Tensor) -> tuple[_State, _Inputs]:
        """Returns the state and the inputs of some sentences, int32 `[few]`."""
        cache, numbers = self._keep(state.cache, sentences), tf.gather(inputs.numbers, sentences)
        rows, inputs = keep_rows(
            (state._replace(position=(), cache=()), inputs._replace(numbers=())),
            sentences,
            self._config.n_best,
        )
        return (
            rows._replace(position=state.position, cache=cache),
            inputs._replace(numbers=numbers),
        )

    def _first_state(
        self,
        cache: Any,
        inputs: _Inputs,
        length_limit: int | tf.Tensor,
        source_mask: tf.Tensor | None,
    ) -> _State:
        rows = tf.shape(inputs.max_lengths)[0]
        shape = [rows, length_limit]
        histories = {"ids": tf.fill(shape, self._ids.pad)}
        if self._details or self._config.repetition_penalty != 1:
            histories["token_log_probs"] = tf.zeros(shape)
        if source_mask is not None and self._details:
            histories["alignment"] = tf.zeros(shape, tf.int32)
        if source_mask is not None and (self._attention or self._config.coverage_penalty):
            histories["attention"] = tf.zeros([*shape, tf.shape(source_mask)[1]])
        return _State(
            position=tf.constant(0),
            tokens=tf.fill([rows], self._ids.start),
            is_open=inputs.max_lengths > 0,
            log_probs=tf.zeros([rows]),
            lengths=tf.fill([rows], 0),
            finished=tf.fill([rows], False),
            histories=histories,
            cache=cache,
        )

    def _next_state(
        self,
        state: _State,
        chosen: Continuations,
        cache: Any,
        attention: tf.Tensor | None,
        max_lengths: tf.Tensor,
    ) -> _State:
        # Where no token is possible, as in a broken model, the output comes to nothing.
        here = state.is_open & exists(chosen.log_probs)
        ended = chosen.tokens == self._ids.end
        length = state.position + 1
        log_probs = tf.where(here, state.log_probs + chosen.log_probs, NOTHING)

        values = {"ids": chosen.tokens, "token_log_probs": chosen.own}
        if attention is not None:
            values["attention"] = tf.cast(attention, tf.float32)
            values["alignment"] = tf.argmax(attention, axis=-1, output_type=tf.int32)
        at = tf.range(tf.shape(state.histories["ids"])[1]) == state.position
        at &= tf.expand_dims(here, 1)
        histories = {
            name: tf.where(
                at if len(history.shape) == 2 else tf.expand_dims(at, -1),
                tf.expand_dims(values[name], 1),
                history,
            )
            for name, history in state.histories.items()
        }
        return _State(
            position=length,
            tokens=tf.where(here, chosen.tokens, self._ids.pad),
            is_open=here & ~ended & (length < max_lengths),
            log_probs=tf.where(state.is_open, log_probs, state.log_probs),
            lengths=tf.where(here, length, state.lengths),
            finished=state.finished | (here & ended),
            histories=histories,
            cache=cache,
        )

    def _drawn(self, distribution: Next, position: tf.Tensor, numbers: tf.Tensor) -> Continuations:
        """Returns a token of each row, drawn with the numbers float32 `[batch]`."""
        log_probs = distribution.all()
        vocab = tf.shape(log_probs)[1]
        count = tf.minimum(self._config.top_k, vocab) if self._config.top_k else vocab
        log_probs, tokens = tf.math.top_k(log_probs, count)
        temperature = max(self._config.temperature, 1e-30)  # a smaller float32 may be taken for 0
        scores = (log_probs - log_probs[:, :1]) / temperature
        # What is forbidden stays so at the highest temperature.
        probs = tf.nn.softmax(tf.where(exists(log_probs), scores, -float("inf")))
        if self._config.top_p < 1:
            before = tf.cumsum(probs, axis=-1, exclusive=True)
            probs = tf.where(before < self._config.top_p, probs, 0.0)  # the likeliest is kept
        drawn = _uniform(self._config.seed, position, self._config.n_best)
        # One number of each position and sample, turned by that of the sentence.
        drawn = tf.reshape(tf.math.floormod(tf.expand_dims(numbers, 1) + drawn, 1.0), [-1, 1])
        cumulative = tf.cumsum(probs, axis=-1)
        passed = tf.reduce_sum(tf.cast(cumulative <= drawn * cumulative[:, -1:], tf.int32), axis=-1)
        kept = tf.reduce_sum(tf.cast(probs > 0, tf.int32), axis=-1)
        place = tf.minimum(passed, tf.maximum(kept - 1, 0))
        tokens, log_probs = (tf.gather(each, place, batch_dims=1) for each in (tokens, log_probs))
        return Continuations(tokens, log_probs, distribution.of(tokens))

    def _result(
        self,
        state: _Found,
        batch: tf.Tensor,
        source_mask: tf.Tensor | None,
        alpha: float | tf.Tensor,
    ) -> SearchResult:
        state = tf.nest.map_structure(
            lambda each: tf.reshape(each, tf.concat([[-1], tf.shape(each)[2:]], 0)), state
        )
        config, found = self._config, exists(state.log_probs)
        histories = {
            name: _where(found, history, self._ids.pad if name == "ids" else 0)
            for name, history in state.histories.items()
        }
        scores = state.log_probs / length_penalty(state.lengths, alpha)
        if config.coverage_penalty:  # of a greedy search, one output a sentence
            coverage = tf.reduce_sum(histories["attention"], axis=1, keepdims=True)
            scores += coverage_penalty(coverage, source_mask, config.coverage_penalty)[:, 0]
        log_probs = state.log_probs
        if config.repetition_penalty != 1:  # what decided is not the model's own
            log_probs = tf.reduce_sum(histories["token_log_probs"], axis=-1)
        result = {
            "ids": histories["ids"],
            "scores": tf.where(found, scores, NOTHING),
            "lengths": tf.where(found, state.lengths, 0),
            "finished": state.finished,
            "log_probs": tf.where(found, log_probs, NOTHING),
        }
        if self._details:
            result["token_log_probs"] = histories["token_log_probs"]
        for name in ("alignment", *(["attention"] if self._attention else [])):
            if name in histories:
                result[name] = histories[name]
        # --> [batch, n_best, ...]
        for name, field in result.items():
            shape = tf.concat([[batch, config.n_best], tf.shape(field)[1:]], 0)
            result[name] = tf.reshape(field, shape)
        if config.n_best > 1:
            _, order = tf.math.top_k(result["scores"], config.n_best)
            result = {name: tf.gather(f, order, batch_dims=1) for name, f in result.items()}
        return SearchResult(**result)


def _likeliest(distribution: Next) -> Continuations:
    """Returns the best token of each row, of equal ones the first."""
    best = distribution.best(1)
    place = tf.argmax(best.log_probs, axis=-1)  # tokens that may not come can stand before it
    return Continuations(*(tf.gather(field, place, batch_dims=1) for field in best))


def _uniform(seed: int, position: tf.Tensor, count: int) -> tf.Tensor:
    """Returns numbers float32 `[count]`, at least 0 and less than 1, a hash of seed and position.

    TensorFlow's stateless generators give other numbers under XLA than without.
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


def _where(rows: tf.Tensor, field: tf.Tensor, other: float) -> tf.Tensor:
    """Returns `field` `[rows, ...]` where `rows`, bool `[rows]`, is True, and else `other`."""
    rows = tf.reshape(rows, [-1] + [1] * (len(field.shape) - 1))
    return tf.where(rows, field, tf.cast(other, field.dtype))
