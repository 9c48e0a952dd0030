"""The loop that beam search and sampling share, and the tensors that both update."""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from keras_transformer.config import DecodingConfig
from keras_transformer.decoding.constraints import Constraints
from keras_transformer.decoding.interface import (
    NEG_INF,
    SearchDecoder,
    SearchInputs,
    SearchResult,
    SpecialIds,
    TokenConstraint,
    is_reachable,
    rows_per_sentence,
)
from keras_transformer.decoding.next_token import log_normalizer, top_k
from keras_transformer.decoding.symbols import SymbolState
from keras_transformer.errors import InputError


class Histories(NamedTuple):
    """The values that each decode step adds to K hypotheses of each sentence."""

    ids: tf.Tensor  # int32 [batch, K, length]
    token_log_probs: tf.Tensor | None = None  # float32 [batch, K, length]
    alignment: tf.Tensor | None = None  # int32 [batch, K, length]
    attention: tf.Tensor | None = None  # float32 [batch, K, length, source]


class NextTokens(NamedTuple):
    """The log-probabilities of the next token of R = batch * K rows."""

    log_probs: tf.Tensor  # float32 [R, C]: rules applied, `NEG_INF` for forbidden tokens
    model_log_probs: tf.Tensor  # float32 [R, C]
    tokens: tf.Tensor | None  # int32 [C]: the token of each column; None if they are all V tokens
    # Returns, for a count, float32 and int32 [R, any]: the log-probabilities and the columns of at
    # least that number of the best tokens, best first, with some forbidden tokens in between.
    top: Callable[[int], tuple[tf.Tensor, tf.Tensor]]

    def ids(self, columns: tf.Tensor) -> tf.Tensor:
        """Returns the tokens of some columns, both int32 of any shape."""
        return columns if self.tokens is None else tf.gather(self.tokens, columns)


class SearchLoop(abc.ABC):
    """Decodes until no sentence is open.

    A state is a named tuple with the fields `position` (int32 scalar), `tokens` (int32
    `[batch, K]`, the last token of each hypothesis), `histories`, `symbols` and `cache`. All other
    tensors are `[batch, ...]`. If `compacts` is True, finished sentences leave the batch.
    """

    def __init__(
        self,
        decoder: SearchDecoder,
        config: DecodingConfig,
        ids: SpecialIds,
        outputs: Collection[str],
        constraints: Constraints,
        constraint: TokenConstraint | None,
        max_steps: int | None,
        compacts: bool,
    ):
        self._decoder = decoder
        self._config = config
        self._rows = rows_per_sentence(config)
        self._ids = ids
        self._outputs = outputs
        self._constraints = constraints
        self._constraint = constraint
        self._max_steps = max_steps
        self._compacts = compacts

    @abc.abstractmethod
    def _first_state(self, inputs: SearchInputs) -> Any:
        """Returns the state before position 0."""

    @abc.abstractmethod
    def _step(self, state: Any, inputs: SearchInputs) -> Any:
        """Decodes one position."""

    @abc.abstractmethod
    def _is_open(self, state: Any) -> tf.Tensor:
        """Returns True for sentences that need more steps, bool `[batch]`."""

    @abc.abstractmethod
    def _hypotheses(self, state: Any) -> Any:
        """Returns the hypotheses, which become the results: nested tensors `[batch, ...]`."""

    @abc.abstractmethod
    def best(self, hypotheses: Any, inputs: SearchInputs) -> SearchResult:
        """Returns the `n_best` best hypotheses, best first."""

    def run(self, inputs: SearchInputs) -> Any:
        """Returns the hypotheses of all sentences after their last step.

        When at most three quarters of the sentences are open, the others leave the batch
        (batch compaction). Sentences end at very different lengths, and the cost of a step is
        proportional to its rows. Compaction copies the caches, which costs about one step.
        """
        max_steps, steps_per_round = self._max_steps, self._decoder.steps_per_round
        state = self._first_state(inputs)
        # An int would become a tensor in a loop, and only the first state needs the counts.
        inputs = inputs._replace(length_limit=None, symbol_counts=None)

        def steps(state: Any, inputs: SearchInputs, max_open: Any, count: int | None) -> Any:
            """Takes at most `count` steps while more than `max_open` sentences are open."""
            return _while_loop(
                lambda state: tf.reduce_sum(tf.cast(self._is_open(state), tf.int32)) > max_open,
                lambda state: self._step(state, inputs),
                state,
                maximum_iterations=count,
            )

        if not self._compacts:
            return self._hypotheses(steps(state, inputs, 0, max_steps))

        def steps_and_compaction(carried: tuple[Any, ...]) -> tuple[Any, ...]:
            origin, state, inputs, results = carried
            if steps_per_round is not None:
                cache = self._decoder.begin_round(state.cache, state.position)
                state = state._replace(cache=cache)
            state = steps(state, inputs, 3 * tf.size(origin) // 4, steps_per_round or max_steps)
            rows = tf.expand_dims(origin, 1)
            results = map_tensors(
                lambda all_, these: tf.tensor_scatter_nd_update(all_, rows, these),
                results,
                self._hypotheses(state),
            )
            still_open = tf.cast(tf.where(self._is_open(state))[:, 0], tf.int32)
            cache = self._decoder.select_rows(state.cache, still_open)
            origin, state, inputs = map_tensors(
                # A scalar is the same for all sentences.
                lambda tensor: tf.gather(tensor, still_open) if tensor.shape.rank else tensor,
                (origin, state._replace(cache=None), inputs),
            )
            return origin, state._replace(cache=cache), inputs, results

        results = self._hypotheses(state)
        origin = tf.range(tf.shape(inputs.max_lengths)[0])  # index in the whole batch
        *_, results = _while_loop(
            lambda carried: tf.size(carried[0]) > 0,
            steps_and_compaction,
            (origin, state, inputs, results),
            shape_invariant=_with_unknown_batch,
            # Every round after the first starts with open sentences, so it takes at least one step.
            maximum_iterations=None if max_steps is None else max_steps + 1,
        )
        return results

    def _next_tokens(
        self, state: Any, inputs: SearchInputs
    ) -> tuple[NextTokens, Any, tf.Tensor | None]:
        """Returns the next tokens, the new cache, and the attention.

        The rules of the configuration, of the caller, of symbols and of the prefix are applied, in
        this order. A graph computes the `log_probs` of all tokens only if something reads them. The
        attention is float32 `[batch, K, source]`, or None if nothing needs it.
        """
        # --> [R]
        last = tf.reshape(state.tokens, [-1])
        scores, cache, attention = self._decoder.step(last, state.position, state.cache)
        scores = tf.cast(scores, tf.float32)
        tokens, length, rules = self._decoder.scored_tokens, state.position, self._constraints
        symbols = rules.symbols
        is_normalized = self._decoder.returns_log_probs
        normalizer = tf.zeros([1, 1]) if is_normalized else log_normalizer(scores)
        model_log_probs = scores - normalizer
        # --> [R, length]
        ids = tf.reshape(state.histories.ids, [-1, tf.shape(state.histories.ids)[2]])

        def rows(tensor: tf.Tensor) -> tf.Tensor:
            return tf.repeat(tensor, self._rows, axis=0)

        log_probs = rules.apply(model_log_probs, tokens, ids, length)
        if self._constraint is not None:
            own_inputs = map_tensors(rows, inputs.constraint_inputs)
            max_lengths = rows(inputs.max_lengths)
            allowed = self._constraint.allowed_tokens(own_inputs, ids, length, max_lengths)
            if tokens is not None:
                allowed = tf.gather(allowed, tokens, axis=1)
            log_probs = tf.where(allowed, log_probs, NEG_INF)
        if symbols is not None:
            penalties = symbols.penalties(state.symbols, length, inputs.max_lengths)
            classes = symbols.classes if tokens is None else tf.gather(symbols.classes, tokens)
            log_probs = tf.where(classes > 1, model_log_probs, log_probs)
            log_probs += tf.gather(penalties, classes, axis=1)
        if inputs.prefix is not None:
            # --> [R, 1]
            forced = tf.expand_dims(rows(tf.gather(inputs.prefix, length, axis=1)), 1)
            columns = tf.range(tf.shape(scores)[1]) if tokens is None else tokens
            if inputs.first is not None:
                is_given = (length == 0) & (forced >= 0)
                model_log_probs = tf.where(is_given, 0.0, model_log_probs)
            only_forced = tf.where(columns == forced, model_log_probs, NEG_INF)
            log_probs = tf.where(forced < 0, log_probs, only_forced)
        only_excludes = rules.only_exclude and self._constraint is None and tokens is None

        def top(count: int) -> tuple[tf.Tensor, tf.Tensor]:
            if only_excludes:  # reads the scores once, and computes only a few log-probabilities
                # One more, because a minimum length may exclude the end token.
                best, columns = top_k(scores, count + 1, rules.static_penalties)
                best += rules.penalties(columns, length)
                if symbols is not None:  # they may be forced, however improbable they are
                    # --> [R, N]
                    symbol_columns = symbols.tokens + 0 * columns[:, :1]
                    columns = tf.concat([columns, symbol_columns], axis=1)
                    best = tf.concat([best, tf.gather(scores, symbols.tokens, axis=1)], axis=1)
                    classes = tf.gather(symbols.classes, columns)
                    best += tf.gather(penalties, classes, batch_dims=1)
                    best, order = top_k(best, count)
                    columns = tf.gather(columns, order, batch_dims=1)
                best -= normalizer
                if inputs.prefix is not None:
                    own = tf.gather(scores, tf.maximum(forced, 0), batch_dims=1) - normalizer
                    own = own if inputs.first is None else tf.where(is_given, 0.0, own)
                    is_own = tf.range(best.shape[1] or tf.shape(best)[1]) == 0
                    best = tf.where(forced < 0, best, tf.where(is_own, own, NEG_INF))
                    columns = tf.where(forced < 0, columns, forced)
            else:
                # A decoder scores enough tokens. A constant number keeps all shapes constant.
                best, columns = (tf.math.top_k if tokens is not None else top_k)(log_probs, count)
            # The log-probabilities of a broken model are NaN.
            return tf.where(is_reachable(best), best, NEG_INF), columns

        next_tokens = NextTokens(log_probs, model_log_probs, tokens, top)
        return next_tokens, cache, self._needed_attention(attention, state)

    def _needed_attention(self, attention: tf.Tensor | None, state: Any) -> tf.Tensor | None:
        """Returns float32 `[batch, K, source]`, or None if nothing needs the attention."""
        histories = state.histories
        if histories.alignment is None and histories.attention is None:
            return None
        if attention is None:
            raise InputError(
                "The decoder returns no attention, which alignments and attention need. Turn "
                "them off, or use a decoder with attention."
            )
        # The batch size is given, because XLA cannot infer it from -1.
        shape = [tf.shape(state.tokens)[0], self._rows, tf.shape(attention)[-1]]
        return tf.reshape(tf.cast(attention, tf.float32), shape)

    def _first_symbols(self, inputs: SearchInputs) -> SymbolState | None:
        """Returns the symbols that empty hypotheses need, or None without a rule of symbols."""
        rule = self._constraints.symbols
        return None if rule is None else rule.first_state(inputs.symbol_counts, self._rows)

    def _next_symbols(self, symbols: Any, tokens: tf.Tensor, length: tf.Tensor) -> Any:
        """Returns the symbols that hypotheses need after int32 `tokens` `[batch, K]`, or None."""
        rule = self._constraints.symbols
        return None if rule is None else rule.next_state(symbols, tokens, length)

    def _first_histories(self, inputs: SearchInputs) -> Histories:
        """Returns empty histories, with the fields that the outputs need."""
        shape = [tf.shape(inputs.max_lengths)[0], self._rows, inputs.length_limit]
        # With a repetition penalty, log P is the sum of these.
        is_penalized = self._config.repetition_penalty != 1
        needs_log_probs = is_penalized or "token_log_probs" in self._outputs
        histories = Histories(
            ids=tf.fill(shape, self._ids.pad),
            token_log_probs=tf.zeros(shape) if needs_log_probs else None,
        )
        if inputs.source_mask is None:
            return histories
        source = tf.shape(inputs.source_mask)[1]
        return histories._replace(
            alignment=tf.zeros(shape, tf.int32) if "alignment" in self._outputs else None,
            attention=tf.zeros([*shape, source]) if "attention" in self._outputs else None,
        )


def write_step(
    histories: Histories,
    position: tf.Tensor,
    next_step: Histories,
    rows: tf.Tensor | None = None,
) -> Histories:
    """Returns histories with the values of a step `[batch, K, ...]` at `position`.

    `rows`, bool `[batch, K]`, are the hypotheses that change; None for all.
    """
    is_here = tf.range(tf.shape(histories.ids)[2]) == position
    is_here = is_here[None, None] if rows is None else is_here & tf.expand_dims(rows, -1)

    def written(history: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
        # --> [batch, K, length, ...] (or [1, 1, length, ...])
        mask = is_here if len(history.shape) == 3 else tf.expand_dims(is_here, -1)
        return tf.where(mask, tf.expand_dims(value, 2), history)

    return map_tensors(written, histories, next_step)


def map_tensors(function: Callable[..., tf.Tensor], first: Any, *others: Any) -> Any:
    """Calls `tf.nest.map_structure`, and keeps each None of the first structure."""
    return tf.nest.map_structure(
        lambda tensor, *rest: None if tensor is None else function(tensor, *rest), first, *others
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
        return [leaf for leaf in tf.nest.flatten(structure) if leaf is not None]

    def structure(tensors: Sequence[tf.Tensor]) -> Any:
        remaining = iter(tensors)
        fields = [None if leaf is None else next(remaining) for leaf in tf.nest.flatten(start)]
        return tf.nest.pack_sequence_as(start, fields)

    first = tensors(start)
    last = tf.while_loop(
        lambda *values: condition(structure(values)),
        lambda *values: tensors(body(structure(values))),
        first,
        shape_invariants=shape_invariant and [shape_invariant(tensor) for tensor in first],
        maximum_iterations=maximum_iterations,
    )
    return structure(last)


def _with_unknown_batch(tensor: tf.Tensor) -> tf.TensorShape:
    return tf.TensorShape([None, *tensor.shape[1:]]) if tensor.shape.rank else tensor.shape
