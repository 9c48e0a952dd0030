"""Beam search with the paper's length penalty (section 6.1), as a TensorFlow graph.

    score = log P / ((5 + length) / 6) ** alpha

The penalty is from GNMT (Wu et al., 2016, arXiv:1609.08144, equation 14). It can also be
length ** alpha. The search uses stock ops of fixed shapes. The same code runs eagerly,
in a `tf.function`, in a SavedModel on a server without XLA, and with `jit_compile=True`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from keras_transformer.config import LengthPenaltyFormula
from keras_transformer.decoding.interface import NEG_INF, SearchInputs, SearchResult, is_reachable
from keras_transformer.decoding.search_loop import Histories, SearchLoop, map_tensors, write_step
from keras_transformer.decoding.symbols import SymbolState


def length_penalty(
    length: int | tf.Tensor, alpha: float | tf.Tensor, formula: LengthPenaltyFormula
) -> tf.Tensor:
    """Returns the divisor of log-probabilities, float32, in the broadcast shape of both arguments.

    It is at least 1 for outputs of one or more tokens, and grows with the length.
    """
    length = tf.cast(length, tf.float32)
    # The empty output of a sentence that takes no step has the length 0 and the score 0.
    base = tf.maximum(length, 1.0) if formula == "power" else (5.0 + length) / 6.0
    return tf.pow(base, alpha)


class _BeamState(NamedTuple):
    position: tf.Tensor  # int32 []: number of tokens of each open hypothesis
    tokens: tf.Tensor  # int32 [batch, beam]: last token of each open hypothesis
    log_probs: tf.Tensor  # float32 [batch, beam]: log P of each open hypothesis
    histories: Histories  # the open hypotheses
    symbols: SymbolState | None  # the symbols that the open hypotheses need
    complete: SearchResult  # complete hypotheses, `[batch, beam, ...]`, best first
    longest_penalty: tf.Tensor  # float32 [batch]: length penalty at `max_lengths`; constant
    cache: Any  # belongs to the decoder


class BeamSearch(SearchLoop):
    """Beam search over K open hypotheses of each sentence.

    Each step takes the best 2K continuations of the open hypotheses. The best K that have not
    ended stay open. A continuation that has ended counts only if it is among the best K:
    otherwise an unlikely end could win by being short. The best K complete hypotheses are kept,
    and a finished one is never extended.

    A hypothesis that reaches the maximum length without the end token is scored as it stands,
    and marked as unfinished. A sentence ends as soon as no open hypothesis can enter its
    `n_best` results, or with `early_stopping` as soon as it has K complete hypotheses. After that,
    its results no longer change, so they do not depend on the rest of the batch. With
    `early_stopping="marian"`, a sentence with C complete hypotheses takes only the best K - C
    continuations.
    """

    def _first_state(self, inputs: SearchInputs) -> _BeamState:
        beam, batch = self._rows, tf.shape(inputs.max_lengths)[0]
        # All hypotheses start as the same empty one, so only the first is valid. If no token is
        # allowed, the empty hypothesis is already complete.
        is_first = tf.broadcast_to(tf.range(beam) == 0, [batch, beam])
        is_empty = tf.expand_dims(inputs.max_lengths <= 0, -1)
        histories = self._first_histories(inputs)
        return _BeamState(
            position=tf.constant(0),
            tokens=tf.fill([batch, beam], self._ids.start),
            log_probs=tf.where(is_first & ~is_empty, 0.0, NEG_INF),
            histories=histories,
            symbols=self._first_symbols(inputs),
            complete=SearchResult(
                scores=tf.where(is_first & is_empty, 0.0, NEG_INF),
                log_probs=tf.where(is_first & is_empty, 0.0, NEG_INF),
                lengths=tf.fill([batch, beam], 0),
                finished=tf.fill([batch, beam], False),
                **histories._asdict(),
            ),
            longest_penalty=self._length_penalty(inputs.max_lengths, inputs.alpha),
            cache=self._decoder.init_cache(),
        )

    def _length_penalty(self, length: tf.Tensor, alpha: tf.Tensor) -> tf.Tensor:
        return length_penalty(length, alpha, self._config.length_penalty_formula)

    def _is_open(self, state: _BeamState) -> tf.Tensor:
        return tf.reduce_any(is_reachable(state.log_probs), axis=1)

    def _hypotheses(self, state: _BeamState) -> SearchResult:
        return state.complete

    def best(self, hypotheses: SearchResult, inputs: SearchInputs) -> SearchResult:
        return map_tensors(lambda tensor: tensor[:, : self._config.n_best], hypotheses)

    def _step(self, state: _BeamState, inputs: SearchInputs) -> _BeamState:
        config, beam, length = self._config, self._rows, state.position + 1
        next_tokens, cache, attention = self._next_tokens(state, inputs)

        # The best C = 2K continuations of each sentence, best first. At most K of them end. Of one
        # hypothesis, at most K open continuations and its end are among them.
        # --> [batch * beam, width]
        log_probs, columns = next_tokens.top(beam + 1)
        width = columns.shape[1] or tf.shape(columns)[1]  # static if possible
        count = beam * (min(2, width) if isinstance(width, int) else tf.minimum(2, width))
        # --> [batch, beam, width] --> [batch, beam * width]
        log_probs = tf.reshape(log_probs, [-1, beam, width]) + tf.expand_dims(state.log_probs, -1)
        # --> [batch, C]
        log_probs, chosen = tf.math.top_k(tf.reshape(log_probs, [-1, beam * width]), count)
        if config.early_stopping == "marian":  # each complete hypothesis narrows the beam
            num_complete = tf.reduce_sum(tf.cast(is_reachable(state.complete.scores), tf.int32), 1)
            is_inside = tf.range(count) < tf.expand_dims(beam - num_complete, 1)
            log_probs = tf.where(is_inside, log_probs, NEG_INF)
        columns = _take(tf.reshape(columns, [-1, beam * width]), chosen)
        tokens, parents = next_tokens.ids(columns), chosen // width

        next_step = Histories(tokens)
        if state.histories.token_log_probs is not None:
            # LiteRT would know the shape of a reshape to one row per sentence only when it runs.
            rows = beam * tf.expand_dims(tf.range(tf.shape(parents)[0]), 1) + parents
            indices = tf.stack([rows, columns], axis=-1)
            token_log_probs = tf.gather_nd(next_tokens.model_log_probs, indices)
            next_step = next_step._replace(token_log_probs=token_log_probs)
        if attention is not None:
            # --> [batch, C] and [batch, C, source]
            alignment = _take(tf.argmax(attention, -1, output_type=tf.int32), parents)
            attention = _take(attention, parents)
            next_step = next_step._replace(alignment=alignment, attention=attention)
        histories = write_step(_take(state.histories, parents), state.position, next_step)

        # --> [batch, C]
        scores = log_probs / self._length_penalty(length, tf.expand_dims(inputs.alpha, -1))
        valid, ended = is_reachable(log_probs), tokens == self._ids.end
        is_complete = ended | (length >= tf.expand_dims(inputs.max_lengths, -1))
        complete = _best_complete(
            state.complete,
            SearchResult(
                # Empty entries have the score NEG_INF. Minus infinity is lower, so that an invalid
                # candidate never replaces an empty entry.
                scores=tf.where(valid & is_complete, scores, -float("inf")),
                log_probs=log_probs,
                lengths=tf.fill(tf.shape(scores), length),
                finished=ended,
                **histories._asdict(),
            ),
        )
        stays_open = valid & ~is_complete
        # --> [batch, beam]
        log_probs, kept = tf.math.top_k(tf.where(stays_open, log_probs, NEG_INF), beam)
        tokens, parents, histories = _take((tokens, parents, histories), kept)
        return _BeamState(
            position=length,
            tokens=tokens,
            log_probs=self._close_decided(log_probs, complete.scores, state.longest_penalty),
            histories=histories,
            symbols=self._next_symbols(_take(state.symbols, parents), tokens, length),
            complete=complete,
            longest_penalty=state.longest_penalty,
            cache=self._decoder.reorder_cache(cache, parents),
        )

    def _close_decided(
        self, log_probs: tf.Tensor, scores: tf.Tensor, longest_penalty: tf.Tensor
    ) -> tf.Tensor:
        """Closes all hypotheses of the sentences whose results can no longer change.

        A hypothesis only loses probability as it grows, and the length penalty only grows. So the
        log-probability of a hypothesis, divided by the length penalty of the longest output, bounds
        the scores of all its extensions. The results of a sentence are final if this bound does not
        exceed the score of the last one. With early stopping, they are also final when all K
        entries have a complete hypothesis.
        Returns `NEG_INF` for closed hypotheses, and the log-probabilities of all others.
        """
        bound = tf.reduce_max(log_probs, axis=-1) / longest_penalty
        undecided = bound > scores[:, self._config.n_best - 1]
        if self._config.early_stopping:
            undecided &= ~is_reachable(scores[:, -1])  # the last entry is empty
        return tf.where(tf.expand_dims(undecided, -1), log_probs, NEG_INF)


def _best_complete(complete: SearchResult, ends: SearchResult) -> SearchResult:
    """Returns the best K of the complete hypotheses and the first K of `ends`."""
    beam = complete.scores.shape[1]
    # --> [batch, 2 * beam, ...]
    both = map_tensors(lambda old, new: tf.concat([old, new[:, :beam]], axis=1), complete, ends)
    # --> [batch, beam, ...]
    scores, chosen = tf.math.top_k(both.scores, beam)
    return _take(both._replace(scores=None), chosen)._replace(scores=scores)


def _take(structure: Any, indices: tf.Tensor) -> Any:
    """Selects rows of each tensor `[batch, rows, ...]` by `indices`, int32 `[batch, selected]`."""
    return map_tensors(lambda tensor: tf.gather(tensor, indices, batch_dims=1), structure)
