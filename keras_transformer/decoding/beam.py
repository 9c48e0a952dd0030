"""Beam search with the paper's length penalty (section 6.1), as a TensorFlow graph.

The search is made of stock ops of fixed shapes, so that the same code runs
eagerly, in a `tf.function`, in a SavedModel on a server without XLA, and inside
`jit_compile=True`.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import tensorflow as tf

from keras_transformer.config import DecodingConfig
from keras_transformer.decoding.candidates import Next
from keras_transformer.decoding.constraints import Constraints
from keras_transformer.decoding.penalties import coverage_penalty, length_penalty
from keras_transformer.decoding.result import (
    NOTHING,
    FollowFn,
    KeepFn,
    SearchResult,
    SpecialIds,
    StepFn,
    exists,
)
from keras_transformer.decoding.search_loop import search_loop
from keras_transformer.errors import InputError

# What grows with the hypotheses, by name, float32 or int32 [batch, beam, length, ...]
Histories = dict[str, tf.Tensor]


class _Complete(NamedTuple):
    """Complete hypotheses of each sentence, best first."""

    scores: tf.Tensor  # float32 [batch, beam]
    log_probs: tf.Tensor  # float32 [batch, beam]
    lengths: tf.Tensor  # int32 [batch, beam]
    finished: tf.Tensor  # bool [batch, beam]
    histories: Histories


class _State(NamedTuple):
    position: tf.Tensor  # int32 []: tokens that each open hypothesis has
    tokens: tf.Tensor  # int32 [batch, beam]: last token of each open hypothesis
    log_probs: tf.Tensor  # float32 [batch, beam]: of the open hypotheses
    coverage: list[tf.Tensor]  # float32 [batch, beam, source]: attention so far, if it counts
    histories: Histories  # of the open hypotheses
    complete: _Complete
    cache: Any  # the model's


class _Inputs(NamedTuple):
    """What a search is given of each sentence; a list is empty where there is none."""

    max_lengths: tf.Tensor  # int32 [batch]
    longest_penalty: tf.Tensor  # float32 [batch]: the length penalty of the longest output
    alpha: list[tf.Tensor]  # float32 [batch]: of the length penalty
    prefix: list[tf.Tensor]  # int32 [batch, length]
    source_mask: list[tf.Tensor]  # bool [batch, source]
    leaves: list[tf.Tensor]  # int32 [batch]: of each tree


class _Candidates(NamedTuple):
    """Continuations of a sentence's open hypotheses by one token."""

    ranks: tf.Tensor  # float32 [batch, candidates]: by which they are chosen, best first
    log_probs: tf.Tensor  # float32 [batch, candidates]: of the whole hypothesis
    tokens: tf.Tensor  # int32 [batch, candidates]
    token_log_probs: tf.Tensor  # float32 [batch, candidates]: the model's own
    parents: tf.Tensor  # int32 [batch, candidates]: index into the beam


def follow_rows(cache: Any, parents: tf.Tensor) -> Any:
    """Returns the rows `[batch * beam, ...]` of `parents` int32 `[batch, beam]`, of all tensors."""
    first_rows = tf.range(tf.shape(parents)[0]) * parents.shape[1]
    rows = tf.reshape(tf.expand_dims(first_rows, -1) + parents, [-1])
    return tf.nest.map_structure(lambda each: tf.gather(each, rows), cache)


def keep_rows(cache: Any, sentences: tf.Tensor, beam: int) -> Any:
    """Returns the rows `[batch * beam, ...]` of `sentences` int32 `[few]`, of all tensors."""
    rows = tf.reshape(tf.expand_dims(sentences * beam, -1) + tf.range(beam), [-1])
    return tf.nest.map_structure(lambda each: tf.gather(each, rows), cache)


class BeamSearch:
    """Beam search over a step function.

    Each step takes the best 2K continuations of a sentence's K open hypotheses,
    of which K that have not ended stay open. One that has ended counts among the
    best K alone (an end that is but the last resort would win by being short), and
    the best K complete ones are kept; a finished one is never extended.

    A hypothesis that reaches its sentence's maximum without the end token is
    scored as it stands and marked unfinished. A sentence ends as soon as, and
    not before, no open hypothesis can still enter its `n_best` results; from
    then on it does not change, so other sentences of the batch cannot matter.

    Args:
        step_fn: one step of the decoder. `(ids, position, cache)`, where ids
            int32 `[batch * beam]` are the tokens at `position` (int32 scalar),
            the start id at 0, → `(logits, cache, attention)`, where logits
            `[batch * beam, vocab]`, of any float type, are of the next tokens, and
            attention float `[batch * beam, source]` is what each source token got, or None.
        config: how to search.
        ids: of the tokens with a meaning.
        constraints: what an output may contain; by default anything.
        follow: moves the cache with its hypotheses; by default all its tensors
            `[batch * beam, ...]` row by row.
        keep: takes the cache of some sentences; by default as `follow`.
        details: also return log-probabilities of tokens, and their alignment.
        attention: also return the attention that alignments are made of, `details` or not.
        max_steps: a bound that the graph holds to; see `search_loop`.
        normalized: whether the logits are log-probabilities already.
    """

    def __init__(
        self,
        step_fn: StepFn,
        config: DecodingConfig,
        ids: SpecialIds,
        *,
        constraints: Constraints | None = None,
        follow: FollowFn = follow_rows,
        keep: KeepFn | None = None,
        details: bool = False,
        attention: bool = False,
        max_steps: int | None = None,
        shrink: bool = True,
        normalized: bool = False,
    ):
        self._step_fn = step_fn
        self._config = config
        self._beam = config.beam_size
        self._ids = ids
        self._constraints = constraints
        self._follow = follow
        self._keep = keep or functools.partial(keep_rows, beam=config.beam_size)
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
        alpha: tf.Tensor | None = None,
        leaves: tf.Tensor | None = None,
    ) -> SearchResult:
        """Returns the `n_best` best outputs found for each sentence.

        Args:
            cache: whatever the step function takes and returns, in the same shapes but
                for dimensions that are unknown and may grow.
            max_lengths: int32 `[batch]`, the most tokens of each sentence's output,
                from 0 to `length_limit`. With 0 the one hypothesis is the empty, unfinished
                one, which has the score 0: a row that fills a batch and costs no steps.
            length_limit: the last dimension of the result's `ids`.
            prefix: int32 `[batch, length_limit]`, tokens that the outputs begin with, -1
                behind them.
            source_mask: bool `[batch, source]`, True for real tokens; needed for
                a coverage penalty, for alignment and for attention.
            alpha: float32 `[batch]`, at least 0, of each sentence's length penalty; by
                default the configuration's.
            leaves: int32 `[batch]`, how many the tree of each sentence has, where outputs are
                trees.
        """
        inputs = _Inputs(
            max_lengths,
            length_penalty(max_lengths, self._config.length_penalty if alpha is None else alpha),
            [] if alpha is None else [alpha],
            [] if prefix is None else [prefix],
            [] if source_mask is None else [source_mask],
            [] if leaves is None else [leaves],
        )
        complete = search_loop(
            self._step,
            # All are complete at their maximum, so this comes to an end.
            lambda state: tf.reduce_any(exists(state.log_probs), axis=1),
            lambda state: state.complete,
            self._kept,
            self._first_state(cache, inputs, length_limit),
            inputs,
            shrink=self._shrink,
            max_steps=self._max_steps,
        )
        return self._result(complete)

    def _step(self, state: _State, inputs: _Inputs) -> _State:
        length = state.position + 1
        ids = tf.reshape(state.tokens, [-1])
        logits, cache, attention = self._step_fn(ids, state.position, state.cache)
        new = self._candidates(logits, state, inputs)
        histories, coverage = self._extended(state, new, attention)
        scores = new.log_probs / self._length_penalty(length, inputs)
        for attention_so_far, source_mask in zip(coverage, inputs.source_mask, strict=False):
            beta = self._config.coverage_penalty
            scores += coverage_penalty(attention_so_far, source_mask, beta)
        is_real, ended = exists(new.log_probs), new.tokens == self._ids.end
        is_complete = ended | (length >= tf.expand_dims(inputs.max_lengths, -1))
        ends = _Complete(
            # Minus infinity is below the empty places, which therefore stay empty.
            scores=tf.where(is_real & is_complete, scores, -float("inf")),
            log_probs=new.log_probs,
            lengths=tf.fill(tf.shape(scores), length),
            finished=ended,
            histories=histories,
        )
        complete = _best_complete(state.complete, ends)
        remains = is_real & ~is_complete
        _, kept = tf.math.top_k(tf.where(remains, new.ranks, NOTHING), self._beam)
        open_ones = (tf.where(remains, new.log_probs, NOTHING), new.tokens, new.parents)
        log_probs, tokens, parents = _take(open_ones, kept)
        coverage, histories = _take((coverage, histories), kept)
        log_probs = self._end_decided(log_probs, complete.scores, inputs.longest_penalty)
        cache = self._follow(cache, parents)
        return _State(length, tokens, log_probs, coverage, histories, complete, cache)

    def _length_penalty(self, length: tf.Tensor, inputs: _Inputs) -> tf.Tensor:
        for alpha in inputs.alpha:  # --> [batch, 1]
            return length_penalty(length, tf.expand_dims(alpha, 1))
        return length_penalty(length, self._config.length_penalty)

    def _kept(self, state: _State, inputs: _Inputs, sentences: tf.Tensor) -> tuple[_State, _Inputs]:
        """Returns the state and the inputs of some sentences, int32 `[few]`."""
        cache = self._keep(state.cache, sentences)
        tensors = state._replace(position=(), cache=())
        tensors, inputs = tf.nest.map_structure(
            lambda each: tf.gather(each, sentences), (tensors, inputs)
        )
        return tensors._replace(position=state.position, cache=cache), inputs

    def _first_state(
        self,
        cache: Any,
        inputs: _Inputs,
        length_limit: int | tf.Tensor,
    ) -> _State:
        beam, batch = self._beam, tf.shape(inputs.max_lengths)[0]
        is_first = tf.broadcast_to(tf.range(beam) == 0, [batch, beam])
        # All beams begin as the same empty hypothesis: but one they do not exist.
        # Where no token is allowed, the empty hypothesis is already complete.
        is_empty = tf.expand_dims(inputs.max_lengths <= 0, -1)
        shape = [batch, beam, length_limit]
        histories = {"ids": tf.fill(shape, self._ids.pad)}
        if self._details or self._config.repetition_penalty != 1:
            histories["token_log_probs"] = tf.zeros(shape)
        coverage = []
        for source_mask in inputs.source_mask:
            source = tf.shape(source_mask)[1]
            if self._details:
                histories["alignment"] = tf.zeros(shape, tf.int32)
            if self._attention:
                histories["attention"] = tf.zeros([*shape, source])
            if self._config.coverage_penalty:
                coverage = [tf.zeros([batch, beam, source])]
        return _State(
            position=tf.constant(0),
            tokens=tf.fill([batch, beam], self._ids.start),
            log_probs=tf.where(is_first & ~is_empty, 0.0, NOTHING),
            coverage=coverage,
            histories=histories,
            complete=_Complete(
                scores=tf.where(is_first & is_empty, 0.0, NOTHING),
                log_probs=tf.where(is_first & is_empty, 0.0, NOTHING),
                lengths=tf.fill([batch, beam], 0),
                finished=tf.fill([batch, beam], False),
                histories=histories,
            ),
            cache=cache,
        )

    def _candidates(self, logits: tf.Tensor, state: _State, inputs: _Inputs) -> _Candidates:
        """Returns the best 2K continuations of each sentence: at most K end, so K stay open."""
        beam, length_limit = self._beam, tf.shape(state.histories["ids"])[2]
        forced = None
        for prefix in inputs.prefix:
            forced = tf.repeat(tf.gather(prefix, state.position, axis=1), beam)
        leaves = [tf.repeat(each, beam) for each in inputs.leaves]
        best = Next(
            logits,
            tf.reshape(state.histories["ids"], [-1, length_limit]),
            state.position,
            self._ids,
            min_length=self._config.min_length,
            constraints=self._constraints,
            forced=forced,
            normalized=self._normalized,
            leaves=leaves[0] if leaves else None,
            max_lengths=tf.repeat(inputs.max_lengths, beam),
        ).best(2 * beam)
        each = best.tokens.shape[1] or tf.shape(best.tokens)[1]  # static wherever it can be
        count = beam * (min(2, each) if isinstance(each, int) else tf.minimum(2, each))
        log_probs = tf.reshape(best.log_probs, [-1, beam, each])
        log_probs = tf.reshape(log_probs + tf.expand_dims(state.log_probs, -1), [-1, beam * each])
        ranks = log_probs
        if self._config.diversity_penalty:
            siblings = tf.cumsum(tf.cast(exists(best.log_probs), tf.float32), 1, exclusive=True)
            ranks -= self._config.diversity_penalty * tf.reshape(siblings, [-1, beam * each])
        ranks, chosen = tf.math.top_k(ranks, count)
        tokens, own = (tf.reshape(t, [-1, beam * each]) for t in (best.tokens, best.own))
        if self._config.diversity_penalty:
            log_probs = _take(log_probs, chosen)
        else:
            log_probs = ranks
        if "token_log_probs" in state.histories:
            own = _take(own, chosen)
        return _Candidates(ranks, log_probs, _take(tokens, chosen), own, chosen // each)

    def _extended(
        self, state: _State, new: _Candidates, attention: tf.Tensor | None
    ) -> tuple[Histories, list[tf.Tensor]]:
        """Returns the histories and the coverage of the candidates."""
        values: dict[str, tf.Tensor] = {"ids": new.tokens, "token_log_probs": new.token_log_probs}
        if "alignment" in state.histories or "attention" in state.histories or state.coverage:
            if attention is None:
                raise InputError(
                    "the step function returns no attention; expected some for a coverage penalty, "
                    "and for details where there is a source mask"
                )
            source = tf.shape(attention)[-1]
            # The batch by its number: a loop of known shapes needs to know it.
            shape = [tf.shape(new.parents)[0], self._beam, source]
            attention = tf.reshape(tf.cast(attention, tf.float32), shape)
            values["attention"] = _take(attention, new.parents)
            values["alignment"] = tf.argmax(values["attention"], -1, output_type=tf.int32)
        coverage = [_take(so_far, new.parents) + values["attention"] for so_far in state.coverage]
        histories = {
            name: write(_take(history, new.parents), values[name], state.position)
            for name, history in state.histories.items()
        }
        return histories, coverage

    def _end_decided(
        self, log_probs: tf.Tensor, scores: tf.Tensor, longest_penalty: tf.Tensor
    ) -> tf.Tensor:
        """Returns the open hypotheses' log-probabilities, none left in sentences that have ended.

        A hypothesis only loses probability as it grows, the length penalty only
        grows, and that of coverage is at most 0: no score of its extensions can
        exceed its log-probability so far, divided by the penalty of the longest
        output. When even the best open hypothesis cannot exceed the last of the
        results asked for, the sentence's results are final.

        Args:
            log_probs: float32 `[batch, beam]`, of the open hypotheses.
            scores: float32 `[batch, beam]`, of the complete ones, best first.
            longest_penalty: float32 `[batch]`.
        """
        bound = tf.reduce_max(log_probs, axis=-1) / longest_penalty
        undecided = bound > scores[:, self._config.n_best - 1]
        return tf.where(tf.expand_dims(undecided, -1), log_probs, NOTHING)

    def _result(self, complete: _Complete) -> SearchResult:
        complete = tf.nest.map_structure(lambda each: each[:, : self._config.n_best], complete)
        histories = complete.histories
        token_log_probs = histories.get("token_log_probs")
        log_probs = complete.log_probs
        if self._config.repetition_penalty != 1:  # what ranked them is not the model's own
            log_probs = tf.where(
                complete.lengths > 0, tf.reduce_sum(token_log_probs, axis=-1), log_probs
            )
        return SearchResult(
            histories["ids"],
            complete.scores,
            complete.lengths,
            complete.finished,
            log_probs,
            token_log_probs if self._details else None,
            histories.get("alignment"),
            histories.get("attention"),
        )


def _best_complete(complete: _Complete, ends: _Complete) -> _Complete:
    """Returns the best of the complete hypotheses and of the first of `ends`, as many as before."""
    places = complete.scores.shape[1]
    both = tf.nest.map_structure(
        lambda old, new: tf.concat([old, new[:, :places]], axis=1), complete, ends
    )
    scores, kept = tf.math.top_k(both.scores, places)
    rest = _take((both.log_probs, both.lengths, both.finished, both.histories), kept)
    return _Complete(scores, *rest)


def _take(structure: Any, indices: tf.Tensor) -> Any:
    """Returns each tensor `[batch, many, ...]` at `indices` `[batch, few]` of its sentence."""
    return tf.nest.map_structure(lambda each: tf.gather(each, indices, batch_dims=1), structure)


def write(history: tf.Tensor, values: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
    """Returns a history `[batch, beam, length, ...]` with `values` `[batch, beam, ...]` in it."""
    here = tf.range(tf.shape(history)[2]) == position
    here = tf.reshape(here, [-1] + [1] * (len(history.shape) - 3))
    return tf.where(here, tf.expand_dims(values, 2), history)
