"""The types of a search: its inputs, its results, and the decoder that it calls.

A decoder gets R rows at once. A row is one hypothesis. The K hypotheses of a sentence are adjacent,
so that R = batch * K, where K is `rows_per_sentence`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from keras_transformer.config import DecodingConfig

# Log-probability and score of an empty entry. It is finite, because the difference of two
# infinities is not a number. Real log-probabilities stay above half of it.
NEG_INF = -1e9

# (ids int32 [R], position int32 [], cache) → (scores float [R, vocab], cache,
# cross-attention float [R, source] or None)
StepFn = Callable[[tf.Tensor, tf.Tensor, Any], tuple[tf.Tensor, Any, tf.Tensor | None]]


def is_reachable(log_probs: tf.Tensor) -> tf.Tensor:
    """Returns True for real log-probabilities, and False for empty entries and for NaN."""
    return log_probs > NEG_INF / 2


def rows_per_sentence(config: DecodingConfig) -> int:
    """Returns the number of hypotheses of a sentence that are decoded at once, K."""
    return config.n_best if config.sample else config.beam_size


class SearchDecoder:
    """A model that scores the next token of every hypothesis, one position at a time.

    The search never looks into the cache, a nested structure of tensors of any shapes. The
    shapes stay the same from step to step, except for dimensions that are unknown in the graph.

    Attributes:
        vocab_size: number of tokens, V.
        returns_log_probs: True if the scores of `step` are log-probabilities, and False if they
            are logits.
        scored_tokens: the tokens that `step` scores, int32 `[C]`, at least 2 K; None for all V.
        steps_per_round: number of steps between two calls of `begin_round`; None to call it
            never. Rounds need a search without `length_limit`.

    Example:
    >>> decoder: SearchDecoder = StepDecoder(
    ...     lambda ids, position, cache: (tf.zeros([len(ids), 5]), cache, None),
    ...     cache=(), vocab_size=5, rows_per_sentence=4,
    ... )
    >>> scores, cache, attention = decoder.step(tf.constant([2, 2, 2, 2]), 0, decoder.init_cache())
    >>> scores.shape
    TensorShape([4, 5])
    """

    vocab_size: int
    returns_log_probs: bool = False
    scored_tokens: tf.Tensor | None = None
    steps_per_round: int | None = None

    def init_cache(self) -> Any:
        """Returns the cache before position 0."""
        raise NotImplementedError

    def step(
        self, ids: tf.Tensor, position: tf.Tensor, cache: Any
    ) -> tuple[tf.Tensor, Any, tf.Tensor | None]:
        """Decodes one position.

        Args:
            ids: int32 `[R]`, the token of each hypothesis at `position`; the start id at 0.
            position: int32 scalar.
            cache: the cache before this position.

        Returns:
            The scores of the next tokens, any float type `[R, V]`, or `[R, C]` for C
            `scored_tokens`. The cache after this position. The attention to each source token, any
            float type `[R, source]`, or None.
        """
        raise NotImplementedError

    def begin_round(self, cache: Any, position: tf.Tensor) -> Any:
        """Returns the cache for the next steps, which begin at `position`, an int32 scalar."""
        del position
        return cache

    def reorder_cache(self, cache: Any, parents: tf.Tensor) -> Any:
        """Returns the cache of new hypotheses that continue old ones.

        Args:
            cache: the cache of the old hypotheses.
            parents: int32 `[batch, K]`. Hypothesis k of sentence b continues the old hypothesis
                `parents[b, k]` of the same sentence.
        """
        raise NotImplementedError

    def select_rows(self, cache: Any, sentences: tf.Tensor) -> Any:
        """Returns the cache of the sentences that are still open.

        Args:
            cache: the cache of `[batch]` sentences.
            sentences: int32 `[open]`, indices in ascending order.
        """
        raise NotImplementedError


class StepDecoder(SearchDecoder):
    """A `SearchDecoder` made of a step function whose cached tensors all have the shape `[R, ...]`.

    Args:
        step: the step function, as `SearchDecoder.step`.
        cache: the cache before position 0.
        vocab_size: number of tokens.
        rows_per_sentence: hypotheses of each sentence, K.
        returns_log_probs: True if the scores are log-probabilities.
        scored_tokens: int32 `[C]`, the tokens of the scores, at least 2 K; None for all.

    Example:
        A model that always prefers token 4, and ends with token 3.

        >>> logits = tf.constant([[0.0, 0.0, 0.0, 1.0, 2.0]])
        >>> decoder = StepDecoder(
        ...     lambda ids, position, cache: (tf.repeat(logits, len(ids), axis=0), cache, None),
        ...     cache=(), vocab_size=5, rows_per_sentence=4,
        ... )
    """

    def __init__(
        self,
        step: StepFn,
        cache: Any,
        vocab_size: int,
        rows_per_sentence: int,
        returns_log_probs: bool = False,
        scored_tokens: tf.Tensor | None = None,
    ):
        self._step = step
        self._cache = cache
        self._rows = rows_per_sentence
        self.vocab_size = vocab_size
        self.returns_log_probs = returns_log_probs
        self.scored_tokens = scored_tokens

    def init_cache(self) -> Any:
        """Returns the cache before position 0."""
        return self._cache

    def step(
        self, ids: tf.Tensor, position: tf.Tensor, cache: Any
    ) -> tuple[tf.Tensor, Any, tf.Tensor | None]:
        """Calls the step function."""
        return self._step(ids, position, cache)

    def reorder_cache(self, cache: Any, parents: tf.Tensor) -> Any:
        """Returns the rows of `parents`, int32 `[batch, K]`."""
        return self._take(cache, tf.range(tf.shape(parents)[0]), parents)

    def select_rows(self, cache: Any, sentences: tf.Tensor) -> Any:
        """Returns the rows of `sentences`, int32 `[open]`."""
        return self._take(cache, sentences, tf.range(self._rows))

    def _take(self, cache: Any, sentences: tf.Tensor, hypotheses: tf.Tensor) -> Any:
        rows = tf.reshape(tf.expand_dims(sentences * self._rows, -1) + hypotheses, [-1])
        return tf.nest.map_structure(lambda tensor: tf.gather(tensor, rows), cache)


class TokenConstraint(Protocol):
    """A rule for outputs, which returns the tokens that may come next.

    The rule decides where an output may end: `DecodingConfig.min_length` is not applied. If the
    rule allows no token for a row, the hypothesis of that row is dropped.

    Example:
    >>> class OnlyEven:
    ...     def allowed_tokens(self, inputs, histories, length, max_lengths):
    ...         return tf.tile([[True, False]], [len(histories), 2])
    >>> OnlyEven().allowed_tokens(None, tf.zeros([1, 9], tf.int32), 0, None).numpy()
    array([[ True, False,  True, False]])
    """

    def allowed_tokens(
        self, inputs: Any, histories: tf.Tensor, length: tf.Tensor, max_lengths: tf.Tensor
    ) -> tf.Tensor:
        """Returns the tokens that may come next, bool `[R, V]`.

        Args:
            inputs: `SearchInputs.constraint_inputs`, each tensor repeated to `[R, ...]`.
            histories: int32 `[R, longest]`, the tokens of each hypothesis. Ignore the values from
                position `length` on.
            length: int32 scalar, the number of tokens that each hypothesis has.
            max_lengths: int32 `[R]`, the maximum number of tokens, including the end token.
        """


class SymbolIds(NamedTuple):
    """Target ids of symbols, which an output has exactly as often as its source.

    Pairs of symbols enclose a part of an output, and are nested like brackets.

    Example:
    >>> SymbolIds(tokens=[4, 5, 6, 7, 8], num_pairs=2).tokens[1:]  # 5 to 7, and 6 to 8
    [5, 6, 7, 8]
    """

    tokens: Sequence[int]  # single symbols, then the begins and then the ends of all pairs
    num_pairs: int  # at least 1


class SpecialIds(NamedTuple):
    """Ids with a special meaning. The start and pad ids are never generated.

    Example:
    >>> SpecialIds(start=2, end=3, pad=0, unknown=1).excluded
    [0, 1, 2]
    """

    start: int  # the decoder's first input
    end: int  # the last id of a hypothesis; it may equal the start or pad id
    pad: int  # the ids after the end of a hypothesis
    unknown: int | None = None  # this id is never generated; None: it is allowed or missing
    symbols: SymbolIds | None = None

    @property
    def excluded(self) -> list[int]:
        """The ids that are never generated."""
        ids = {self.start, self.pad, *([] if self.unknown is None else [self.unknown])}
        return sorted(ids - {self.end})


class SearchInputs(NamedTuple):
    """Tensors of a batch of sentences. `search` fills in the defaults.

    Example:
    >>> SearchInputs(max_lengths=tf.constant([20, 30])).prefix is None
    True
    """

    # int32 [batch]: the maximum number of tokens of each output, including the end token. A
    # sentence with 0 (or less) gets the empty output and takes no step. The batch may be empty.
    max_lengths: tf.Tensor
    # int32 [batch, any]: tokens that each output begins with, regardless of all constraints. A
    # prefix ends before the first id that is not an ordinary token. `max_lengths` truncates it.
    prefix: tf.Tensor | None = None
    # int32 [batch]: the first token of each output, before its prefix, such as its language. It is
    # a part of the input, so its log-probability is 0.
    first: tf.Tensor | None = None
    # bool [batch, source]: True for real tokens; needed for alignments and attention
    source_mask: tf.Tensor | None = None
    # float32 [batch]: exponent of the length penalty, at least 0; by default
    # `DecodingConfig.length_penalty`, as a scalar. The formula is in the configuration.
    alpha: tf.Tensor | None = None
    # float32 [batch], from 0 to 1: makes sentences draw different random numbers; by default 0
    sample_offsets: tf.Tensor | None = None
    # Nested tensors [batch, ...]: given to the constraint
    constraint_inputs: Any = None
    # int32 [batch, symbols]: how often each of the `SymbolIds` occurs in the source
    symbol_counts: tf.Tensor | None = None
    # int or int32 scalar, at least 1: the last dimension of `SearchResult.ids`. It also limits
    # `max_lengths`. By default it is the largest of them, and finished sentences leave the batch
    # (batch compaction). With a limit, all steps have the same shapes. XLA needs an int.
    length_limit: int | tf.Tensor | None = None


class SearchResult(NamedTuple):
    """The best hypotheses of each sentence, best first.

    If a sentence has fewer than `n_best` hypotheses, the last entries are empty. An empty entry
    has the score -1e9, the length 0, and is not finished.

    Example:
    >>> SearchResult._fields[:3]
    ('ids', 'scores', 'lengths')
    """

    ids: tf.Tensor  # int32 [batch, n_best, length]: no start id; the pad id beyond `lengths`
    scores: tf.Tensor  # float32 [batch, n_best]: penalties applied; results are sorted by them
    lengths: tf.Tensor  # int32 [batch, n_best]: number of tokens, including the end token
    finished: tf.Tensor  # bool [batch, n_best]: True if the last token is the end token
    log_probs: tf.Tensor  # float32 [batch, n_best]: log P of the whole, without penalties
    token_log_probs: tf.Tensor | None = None  # float32 [batch, n_best, length]
    # int32 [batch, n_best, length]: the source position that got most of the attention
    alignment: tf.Tensor | None = None
    attention: tf.Tensor | None = None  # float32 [batch, n_best, length, source]
