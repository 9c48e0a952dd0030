"""Beam search with the paper's length penalty (section 6.1), as a TensorFlow graph.

The penalty is that of Wu et al. 2016 (arXiv:1609.08144, equation 14, without
the coverage term): a hypothesis of `length` tokens, its end token counted, has
the score `log P / ((5 + length) / 6) ** alpha`.

The search is made of stock ops of fixed shapes, so that the same code runs
eagerly, in a `tf.function`, in a SavedModel on a server without XLA, and inside
`jit_compile=True`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from keras_transformer.config import DecodingConfig

# (ids int32 [batch * beam], position int32 [], cache) →
# (logits float [batch * beam, vocab], cache, cross-attention or None)
StepFn = Callable[[tf.Tensor, tf.Tensor, Any], tuple[tf.Tensor, Any, Any]]

# Log-probability and score of what does not exist, as in a place that no hypothesis fills.
# Finite, because an infinity minus an infinity is no number; nothing real comes below half of it.
NOTHING = -1e9


class SearchResult(NamedTuple):
    """The best hypotheses of each sentence, best first.

    A place that no hypothesis fills (a vocabulary too small for `n_best`
    different ones) has the score -1e9, the length 0, and is not finished.
    """

    ids: tf.Tensor  # int32 [batch, n_best, length]: no start id; the pad id beyond `lengths`
    scores: tf.Tensor  # float32 [batch, n_best]: log P / length penalty
    lengths: tf.Tensor  # int32 [batch, n_best]: tokens, the end token included
    finished: tf.Tensor  # bool [batch, n_best]: ends with the end token


class _State(NamedTuple):
    position: tf.Tensor  # int32 []: tokens that each open hypothesis has
    tokens: tf.Tensor  # int32 [batch, beam]: last token of each open hypothesis
    log_probs: tf.Tensor  # float32 [batch, beam]: of the open hypotheses, best first
    ids: tf.Tensor  # int32 [batch, beam, length]: the open hypotheses
    results: SearchResult  # [batch, beam, ...]: complete hypotheses, best first
    cache: Any  # nested structure of tensors [batch * beam, ...]: the model's


def length_penalty(length: tf.Tensor, alpha: float) -> tf.Tensor:
    """Returns `((5 + length) / 6) ** alpha` as float32, in the shape of `length`."""
    return tf.pow((5.0 + tf.cast(length, tf.float32)) / 6.0, alpha)


def beam_search(
    step_fn: StepFn,
    cache: Any,
    max_lengths: tf.Tensor,
    config: DecodingConfig,
    *,
    start_id: int,
    end_id: int,
    pad_id: int,
    length_limit: int | tf.Tensor | None = None,
) -> SearchResult:
    """Returns the `config.n_best` best outputs found for each sentence.

    Each step takes the best 2K continuations of a sentence's K open hypotheses
    and keeps K open and K complete ones; a finished one is never extended. With
    K = 1 it takes the best continuation alone, which is greedy search.

    A hypothesis that reaches its sentence's maximum without the end token is
    scored as it stands and marked unfinished. A sentence ends as soon as, and
    not before, no open hypothesis can still enter its `n_best` results; from
    then on it does not change, so other sentences of the batch cannot matter.

    The pad and start ids are never generated. They are excluded after the
    softmax, so that scores are made of the model's own log-probabilities.

    Args:
        step_fn: one step of the decoder. `(ids, position, cache)`, where ids
            int32 `[batch * beam]` are the tokens at `position` (int32 scalar),
            the start id at 0, → `(logits, cache, cross_attention)`, where logits
            `[batch * beam, vocab]`, of any float type, are of the next tokens.
        cache: nested structure of tensors `[batch * beam, ...]`, rows of one
            sentence adjacent. Each step returns the same shapes, but for dimensions
            that are unknown and may grow; rows follow their hypotheses. What a
            beam's hypotheses share need not be here.
        max_lengths: int32 `[batch]`, the most tokens of each sentence's output,
            the end token included. With 0 (or less) the one hypothesis is the
            empty, unfinished one, which has the score 0: a row that fills a
            batch and costs no steps. The batch may be empty.
        config: beam size, length penalty and number of results.
        start_id: the decoder's first input.
        end_id: ends a hypothesis; may be the same as `start_id` or `pad_id`.
        pad_id: fills `ids` beyond `lengths`.
        length_limit: the last dimension of the result's `ids`; longer
            `max_lengths` are lowered to it. By default the longest of
            `max_lengths`. Under `jit_compile=True` it must be an int, as every
            shape must be static there.

    Returns:
        A `SearchResult`.
    """
    beam = config.beam_size
    max_lengths = tf.maximum(tf.cast(max_lengths, tf.int32), 0)
    if length_limit is None:
        length_limit = tf.maximum(tf.reduce_max(max_lengths), 0)  # of an empty batch: 0
    max_lengths = tf.minimum(max_lengths, length_limit)
    excluded = {start_id, pad_id} - {end_id}

    def is_open(state: _State) -> tf.Tensor:
        # All are complete at their maximum, so this comes to an end.
        return tf.reduce_any(_exists(state.log_probs))

    def step(state: _State) -> tuple[_State]:
        ids = tf.reshape(state.tokens, [-1])
        logits, cache, _ = step_fn(ids, state.position, state.cache)
        log_probs, parents, tokens = _best_continuations(logits, state.log_probs, excluded)
        length = state.position + 1
        histories = tf.where(
            tf.range(length_limit) == state.position,
            tf.expand_dims(tokens, -1),
            tf.gather(state.ids, parents, batch_dims=1),
        )
        # --> [batch, candidate, length]
        ended = tokens == end_id
        complete = ended | (length >= tf.expand_dims(max_lengths, -1))

        scores = log_probs / length_penalty(length, config.length_penalty)
        # Minus infinity is below the empty places, which therefore stay empty.
        scores = tf.where(_exists(log_probs) & complete, scores, -float("inf"))
        candidates = SearchResult(histories, scores, tf.fill(tf.shape(scores), length), ended)
        results = _best_results(state.results, candidates)

        log_probs = tf.where(_exists(log_probs) & ~complete, log_probs, NOTHING)
        log_probs, kept = tf.math.top_k(log_probs, beam)
        tokens, ids, parents = _take((tokens, histories, parents), kept)
        log_probs = _end_decided(log_probs, results.scores, max_lengths, config)
        if beam > 1:
            cache = _follow(cache, parents)
        return (_State(length, tokens, log_probs, ids, results, cache),)

    state = _initial_state(cache, max_lengths, length_limit, beam, start_id, pad_id)
    (state,) = tf.while_loop(is_open, step, (state,))
    return SearchResult(*(field[:, : config.n_best] for field in state.results))


def _exists(log_probs: tf.Tensor) -> tf.Tensor:
    """Returns where log-probabilities are real; a NaN is not, so a broken model ends at once."""
    return log_probs > NOTHING / 2


def _initial_state(
    cache: Any,
    max_lengths: tf.Tensor,
    length_limit: int | tf.Tensor,
    beam: int,
    start_id: int,
    pad_id: int,
) -> _State:
    batch = tf.shape(max_lengths)[0]
    is_first = tf.fill([batch, 1], True)
    is_first = tf.concat([is_first, tf.fill([batch, beam - 1], False)], axis=-1)
    # All beams begin as the same empty hypothesis: but one they do not exist.
    # Where no token is allowed, the empty hypothesis is already complete.
    is_empty = tf.expand_dims(max_lengths == 0, -1)
    no_ids = tf.fill([batch, beam, length_limit], pad_id)
    return _State(
        position=tf.constant(0),
        tokens=tf.fill([batch, beam], start_id),
        log_probs=tf.where(is_first & ~is_empty, 0.0, NOTHING),
        ids=no_ids,
        results=SearchResult(
            ids=no_ids,
            scores=tf.where(is_first & is_empty, 0.0, NOTHING),
            lengths=tf.fill([batch, beam], 0),
            finished=tf.fill([batch, beam], False),
        ),
        cache=cache,
    )


def _best_continuations(
    logits: tf.Tensor, log_probs: tf.Tensor, excluded: set[int]
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the best extensions of each sentence's open hypotheses by one token.

    Of 2K, at most K end, so that K open ones remain; greedy search needs one.

    Args:
        logits: float `[batch * beam, vocab]`, of the next token.
        log_probs: float32 `[batch, beam]`, of the open hypotheses.
        excluded: ids that are never generated.

    Returns:
        log-probability float32, parent (an index into the beam) int32 and token
        int32, each `[batch, 2 * beam]` (greedy: `[batch, 1]`), best first.
    """
    batch, beam = tf.shape(log_probs)[0], log_probs.shape[1]
    count = 2 * beam if beam > 1 else 1
    vocab = tf.shape(logits)[-1]
    next_log_probs = tf.nn.log_softmax(tf.cast(logits, tf.float32))
    for excluded_id in sorted(excluded):
        next_log_probs += tf.one_hot(excluded_id, vocab, on_value=NOTHING, off_value=0.0)
    # First within each hypothesis: on a CPU faster than among all of beam * vocab.
    count_each = tf.minimum(count, vocab)
    next_log_probs, tokens = tf.math.top_k(next_log_probs, count_each)
    # --> [batch, beam, count_each]
    next_log_probs = tf.reshape(next_log_probs, [batch, beam, count_each])
    totals = tf.expand_dims(log_probs, -1) + next_log_probs
    # --> [batch, beam * count_each]
    totals = tf.reshape(totals, [batch, beam * count_each])
    tokens = tf.reshape(tokens, [batch, beam * count_each])
    # --> [batch, count]
    totals, indices = tf.math.top_k(totals, count)
    return totals, indices // count_each, tf.gather(tokens, indices, batch_dims=1)


def _best_results(results: SearchResult, candidates: SearchResult) -> SearchResult:
    """Returns the best of both, as many as `results` has places for."""
    places = results.scores.shape[1]
    both = [tf.concat(fields, axis=1) for fields in zip(results, candidates, strict=True)]
    _, kept = tf.math.top_k(both[1], places)
    return SearchResult(*_take(both, kept))


def _end_decided(
    log_probs: tf.Tensor, scores: tf.Tensor, max_lengths: tf.Tensor, config: DecodingConfig
) -> tf.Tensor:
    """Returns the open hypotheses' log-probabilities, none left in sentences that have ended.

    A hypothesis only loses probability as it grows, and the penalty only grows:
    no score of its extensions can exceed its log-probability so far, divided by
    the penalty of the longest output. When even the best open hypothesis cannot
    exceed the last of the results asked for, the sentence's results are final.

    Args:
        log_probs: float32 `[batch, beam]`, of the open hypotheses, best first.
        scores: float32 `[batch, beam]`, of the complete ones, best first.
        max_lengths: int32 `[batch]`.
        config: length penalty and number of results.
    """
    bound = log_probs[:, 0] / length_penalty(max_lengths, config.length_penalty)
    undecided = bound > scores[:, config.n_best - 1]
    return tf.where(tf.expand_dims(undecided, -1), log_probs, NOTHING)


def _take(structure: Any, indices: tf.Tensor) -> Any:
    """Returns each tensor `[batch, many, ...]` at `indices` `[batch, few]` of its sentence."""
    return tf.nest.map_structure(lambda each: tf.gather(each, indices, batch_dims=1), structure)


def _follow(cache: Any, parents: tf.Tensor) -> Any:
    """Returns the cache's rows `[batch * beam, ...]` of `parents` int32 `[batch, beam]`."""
    first_rows = tf.range(tf.shape(parents)[0]) * parents.shape[1]
    rows = tf.reshape(tf.expand_dims(first_rows, -1) + parents, [-1])
    return tf.nest.map_structure(lambda each: tf.gather(each, rows), cache)
