"""The loop that beam search and sampling share, and the tensors that both update."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import tensorflow as tf

from keras_transformer.decoding.constraints import Constraints, PartialOutputs
from keras_transformer.decoding.interface import (
    RequestedOutputs,
    SearchConfig,
    SearchDecoder,
    SearchInputs,
    SearchResult,
    SpecialIds,
)
from keras_transformer.decoding.next_token import NextTokenScores
from keras_transformer.errors import InputError

# A named tuple with the fields `position` (int32 scalar), `tokens` (int32 [batch, K], the last
# token of each hypothesis), `histories` and `cache`. All other tensors are [batch, ...].
State = TypeVar("State", bound=Any)
Hypotheses = TypeVar("Hypotheses", bound=Any)  # nested tensors [batch, ...]


class Histories(NamedTuple):
    """The values that each decode step adds to K hypotheses of each sentence."""

    ids: tf.Tensor  # int32 [batch, K, length]
    token_log_probs: tf.Tensor | None = None  # float32 [batch, K, length]
    alignment: tf.Tensor | None = None  # int32 [batch, K, length]
    attention: tf.Tensor | None = None  # float32 [batch, K, length, source]

    def needs_attention(self) -> bool:
        """True if a decode step has to return its attention."""
        return self.alignment is not None or self.attention is not None


class SearchLoop(abc.ABC, Generic[State, Hypotheses]):
    """Decodes until no sentence is open."""

    def __init__(
        self,
        decoder: SearchDecoder,
        config: SearchConfig,
        ids: SpecialIds,
        outputs: RequestedOutputs,
    ):
        self._decoder = decoder
        self._settings = config
        self._config = config.decoding
        self._rows = config.rows_per_sentence
        self._ids = ids
        self._outputs = outputs
        self._constraints = Constraints(config, decoder.vocab_size)

    @abc.abstractmethod
    def search(self, inputs: SearchInputs) -> SearchResult:
        """Returns the `n_best` best outputs of each sentence."""

    @abc.abstractmethod
    def _first_state(self, inputs: SearchInputs) -> State:
        """Returns the state before position 0."""

    @abc.abstractmethod
    def _step(self, state: State, inputs: SearchInputs) -> State:
        """Decodes one position."""

    @abc.abstractmethod
    def _is_open(self, state: State) -> tf.Tensor:
        """Returns True for sentences that need more steps, bool `[batch]`."""

    @abc.abstractmethod
    def _hypotheses(self, state: State) -> Hypotheses:
        """Returns the hypotheses, which become the results."""

    def _run(self, inputs: SearchInputs) -> Hypotheses:
        """Returns the hypotheses of all sentences after their last step.

        When at most three quarters of the sentences are open, the others leave the batch
        (batch compaction). Sentences end at very different lengths, and the cost of a step is
        proportional to its rows. Compaction copies the caches, which costs about one step.
        """
        max_steps = self._settings.max_steps
        state = self._first_state(inputs)
        compaction, block = self._settings.batch_compaction, self._settings.cache_block
        if compaction is None:
            compaction = not isinstance(inputs.length_limit, int)
        inputs = inputs._replace(length_limit=None)  # an int would become a tensor in a loop

        def steps(
            state: State, inputs: SearchInputs, max_open: Any, count: int | None = max_steps
        ) -> State:
            """Takes at most `count` steps while more than `max_open` sentences are open."""
            return _while_loop(
                lambda state: tf.reduce_sum(tf.cast(self._is_open(state), tf.int32)) > max_open,
                lambda state: self._step(state, inputs),
                state,
                maximum_iterations=count,
            )

        if not compaction:
            return self._hypotheses(steps(state, inputs, 0))

        def steps_and_compaction(carried: tuple[Any, ...]) -> tuple[Any, ...]:
            origin, state, inputs, results = carried
            if block is not None:
                cache = self._decoder.extend_cache(state.cache, state.position)
                state = state._replace(cache=cache)
            state = steps(state, inputs, 3 * tf.size(origin) // 4, block or max_steps)
            places = tf.expand_dims(origin, 1)
            results = map_tensors(
                lambda all_, these: tf.tensor_scatter_nd_update(all_, places, these),
                results,
                self._hypotheses(state),
            )
            still_open = tf.cast(tf.where(self._is_open(state))[:, 0], tf.int32)
            return (
                tf.gather(origin, still_open),
                *self._drop_finished(state, inputs, still_open),
                results,
            )

        results = self._hypotheses(state)
        origin = tf.range(tf.shape(inputs.max_lengths)[0])  # index in the whole batch
        *_, results = _while_loop(
            lambda carried: tf.size(carried[0]) > 0,
            steps_and_compaction,
            (origin, state, inputs, results),
            shape_invariant=_with_unknown_batch,
            # Each but the first starts with open sentences only, and takes at least one step.
            maximum_iterations=None if max_steps is None else max_steps + 1,
        )
        return results

    def _drop_finished(
        self, state: State, inputs: SearchInputs, still_open: tf.Tensor
    ) -> tuple[State, SearchInputs]:
        """Returns the rows of the open sentences, int32 `[open]`."""
        cache = self._decoder.select_rows(state.cache, still_open)
        tensors, inputs = map_tensors(
            # A scalar is the same for all sentences.
            lambda each: tf.gather(each, still_open) if each.shape.rank else each,
            (state._replace(cache=None), inputs),
        )
        return tensors._replace(cache=cache), inputs

    def _next_token_scores(
        self, state: State, inputs: SearchInputs
    ) -> tuple[NextTokenScores, Any, tf.Tensor | None]:
        """Calls the decoder.

        Returns:
            The scores of the next tokens of R = batch * K rows, the new cache, and the attention
            float32 `[batch, K, source]`, or None if nothing needs it.
        """
        # --> [R]
        tokens = tf.reshape(state.tokens, [-1])
        scores, cache, attention = self._decoder.step(tokens, state.position, state.cache)
        forced, max_lengths, constraint_inputs = None, None, None
        if inputs.prefix is not None:
            forced = tf.repeat(tf.gather(inputs.prefix, state.position, axis=1), self._rows)
        if self._settings.constraint is not None:
            max_lengths, constraint_inputs = map_tensors(
                lambda each: tf.repeat(each, self._rows, axis=0),
                (inputs.max_lengths, inputs.constraint_inputs),
            )
        # --> [R, length]
        ids = tf.reshape(state.histories.ids, [-1, tf.shape(state.histories.ids)[2]])
        next_tokens = NextTokenScores.from_model(
            scores,
            PartialOutputs(ids, state.position, forced, max_lengths, constraint_inputs),
            self._ids,
            self._constraints,
            self._settings.min_length,
            self._decoder.returns_log_probs,
            self._decoder.scored_tokens,
        )
        if not (state.histories.needs_attention() or self._config.coverage_penalty):
            return next_tokens, cache, None
        if attention is None:
            raise InputError(
                "The decoder returns no attention, which a coverage penalty, alignments and "
                "attention need. Turn them off, or use a decoder with attention."
            )
        # --> [batch, K, source]. The batch size is given, because XLA cannot infer it from -1.
        shape = [tf.shape(state.tokens)[0], self._rows, tf.shape(attention)[-1]]
        return next_tokens, cache, tf.reshape(tf.cast(attention, tf.float32), shape)

    def _first_histories(self, inputs: SearchInputs, with_attention: bool) -> Histories:
        """Returns empty histories, of attention too if `with_attention`."""
        shape = [tf.shape(inputs.max_lengths)[0], self._rows, inputs.length_limit]
        source_mask, outputs = inputs.source_mask, self._outputs
        # With a repetition penalty, log P is the sum of these.
        needs_log_probs = outputs.token_log_probs or self._config.repetition_penalty != 1
        histories = Histories(
            ids=tf.fill(shape, self._ids.pad),
            token_log_probs=tf.zeros(shape) if needs_log_probs else None,
        )
        if source_mask is None:
            return histories
        source = tf.shape(source_mask)[1]
        return histories._replace(
            alignment=tf.zeros(shape, tf.int32) if outputs.alignment else None,
            attention=tf.zeros([*shape, source]) if with_attention else None,
        )


def write(
    histories: Histories, values: Histories, position: tf.Tensor, rows: tf.Tensor | None = None
) -> Histories:
    """Returns histories with new values at `position`."""
    is_here = tf.range(tf.shape(histories.ids)[2]) == position
    if rows is None:
        is_here = is_here[None, None]
    else:
        is_here &= tf.expand_dims(rows, -1)

    def written(history: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
        # --> [batch, K, length, ...] (or [1, 1, length, ...])
        mask = is_here if len(history.shape) == 3 else tf.expand_dims(is_here, -1)
        return tf.where(mask, tf.expand_dims(value, 2), history)

    return map_tensors(written, histories, values)


def map_tensors(function: Callable[..., tf.Tensor], first: Any, *others: Any) -> Any:
    """Calls `tf.nest.map_structure`, and keeps each None of the first structure."""
    return tf.nest.map_structure(
        lambda each, *rest: None if each is None else function(each, *rest), first, *others
    )


def _while_loop(
    condition: Callable[[Any], tf.Tensor],
    body: Callable[[Any], Any],
    start: Any,
    shape_invariant: Callable[[tf.Tensor], tf.TensorShape] | None = None,
    maximum_iterations: int | None = None,
) -> Any:
    """Calls `tf.while_loop` with one structure. Its optional fields may be None."""

    def tensors(structure: Any) -> list[tf.Tensor]:
        return [each for each in tf.nest.flatten(structure) if each is not None]

    def structure(tensors: Sequence[tf.Tensor]) -> Any:
        remaining = iter(tensors)
        fields = [each if each is None else next(remaining) for each in tf.nest.flatten(start)]
        return tf.nest.pack_sequence_as(start, fields)

    first = tensors(start)
    last = tf.while_loop(
        lambda *each: condition(structure(each)),
        lambda *each: tensors(body(structure(each))),
        first,
        shape_invariants=shape_invariant and [shape_invariant(each) for each in first],
        maximum_iterations=maximum_iterations,
    )
    return structure(last)


def _with_unknown_batch(tensor: tf.Tensor) -> tf.TensorShape:
    return tf.TensorShape([None, *tensor.shape[1:]]) if tensor.shape.rank else tensor.shape
