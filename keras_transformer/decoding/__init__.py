"""Search for the best outputs of a decoder: `search` is the entry point.

Uses TensorFlow only: nothing here knows tokenizers or files, and only `cached_decoder` knows
models. The length penalty is in `beam_search`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import tensorflow as tf

from keras_transformer.config import DecodingConfig
from keras_transformer.decoding.beam_search import BeamSearch
from keras_transformer.decoding.constraints import Constraints
from keras_transformer.decoding.interface import (
    NEG_INF,
    SearchDecoder,
    SearchInputs,
    SearchResult,
    SpecialIds,
    StepDecoder,
    StepFn,
    SymbolIds,
    TokenConstraint,
)
from keras_transformer.decoding.sampling import Sampling
from keras_transformer.decoding.search_loop import map_tensors

__all__ = [
    "NEG_INF",
    "SearchDecoder",
    "SearchInputs",
    "SearchResult",
    "SpecialIds",
    "StepDecoder",
    "StepFn",
    "SymbolIds",
    "TokenConstraint",
    "search",
]


def search(
    decoder: SearchDecoder,
    inputs: SearchInputs,
    config: DecodingConfig,
    ids: SpecialIds,
    outputs: Collection[str] = (),
    *,
    banned: Sequence[Sequence[int]] = (),
    constraint: TokenConstraint | None = None,
    max_steps: int | None = None,
) -> SearchResult:
    """Returns the best outputs of each sentence, by beam search, greedy search or sampling.

    The pad, start and unknown ids are never generated. They are excluded after the softmax, so that
    scores consist of the model's own log-probabilities.

    Args:
        decoder: the model, with K hypotheses of each sentence: `config.beam_size`, or
            `config.n_best` for sampling.
        inputs: tensors of the sentences.
        config: the algorithm and its options. Its text field `banned` is not used.
        ids: the special ids. With `symbols`, `inputs` need `symbol_counts`.
        outputs: optional fields of the result: "token_log_probs", "alignment" and "attention".
            The last two need a `source_mask`.
        banned: phrases, as ids, that no output contains.
        constraint: a rule that all outputs obey.
        max_steps: static upper bound on the steps. It must be at least the longest of
            `max_lengths`.

    Raises:
        InputError: for a ban of every token, ids outside the vocabulary, or inputs that do not
            fit the configuration.

    Example:
        A model that always gives token 3, the end token, the probability 0.2.

        >>> logits = tf.math.log([[0.0, 0.0, 0.0, 0.2, 0.8]])
        >>> decoder = StepDecoder(
        ...     lambda ids, position, cache: (tf.repeat(logits, len(ids), axis=0), cache, None),
        ...     cache=(), vocab_size=5, rows_per_sentence=4,
        ... )
        >>> result = search(
        ...     decoder,
        ...     SearchInputs(max_lengths=tf.constant([2])),
        ...     DecodingConfig(beam_size=4, n_best=2),
        ...     SpecialIds(start=2, end=3, pad=0),
        ... )
        >>> result.ids.numpy().tolist()
        [[[4, 4], [3, 0]]]
        >>> tf.exp(result.log_probs).numpy().round(2)
        array([[0.64, 0.2 ]], dtype=float32)
    """
    if constraint is not None:  # it decides where an output may end
        config = dataclasses.replace(config, min_length=0)
    constraints = Constraints(config, ids, decoder.vocab_size, banned)
    compacts = inputs.length_limit is None
    algorithm = BeamSearch if config.beam_size > 1 and not config.sample else Sampling
    loop = algorithm(decoder, config, ids, outputs, constraints, constraint, max_steps, compacts)
    inputs = _with_defaults(inputs, config, ids, decoder.vocab_size)
    result = loop.best(loop.run(inputs), inputs)
    if config.repetition_penalty != 1:  # the search used penalized log-probabilities
        log_probs = tf.reduce_sum(result.token_log_probs, axis=-1)
        log_probs = tf.where(result.lengths > 0, log_probs, result.log_probs)
        result = result._replace(log_probs=log_probs)
    return result._replace(
        token_log_probs=result.token_log_probs if "token_log_probs" in outputs else None,
        attention=result.attention if "attention" in outputs else None,
    )


def _with_defaults(
    inputs: SearchInputs, config: DecodingConfig, ids: SpecialIds, vocab_size: int
) -> SearchInputs:
    """Returns inputs of the right types, with all defaults filled in.

    `prefix`, `source_mask`, `constraint_inputs` and `symbol_counts` stay None if they are not
    given. The prefix becomes int32 `[batch, length_limit]`, -1 from its end on. It begins with the
    first tokens, if these are given.
    """
    max_lengths = tf.maximum(tf.cast(inputs.max_lengths, tf.int32), 0)
    length_limit = inputs.length_limit
    if length_limit is None:
        # At least 1, even for an empty batch: nothing can be scattered to an empty tensor.
        length_limit = tf.maximum(tf.reduce_max(max_lengths), 1)
    prefix, source_mask = inputs.prefix, inputs.source_mask
    alpha = config.length_penalty if inputs.alpha is None else inputs.alpha
    zeros = tf.zeros(tf.shape(max_lengths))
    offsets = zeros if inputs.sample_offsets is None else inputs.sample_offsets
    first = None if inputs.first is None else tf.cast(inputs.first, tf.int32)
    if first is not None:
        column = tf.expand_dims(first, 1)
        prefix = column if prefix is None else tf.concat([column, prefix], axis=1)
    if prefix is not None:
        prefix = tf.cast(prefix, tf.int32)
        special = tf.constant([*ids.excluded, ids.end])
        # --> [batch, any, special ids] --> [batch, any]
        is_special = tf.reduce_any(tf.expand_dims(prefix, -1) == special, axis=-1)
        is_ordinary = (prefix >= 0) & (prefix < vocab_size) & ~is_special
        is_ordinary = tf.cumsum(tf.cast(~is_ordinary, tf.int32), axis=1) == 0
        prefix = tf.where(is_ordinary, prefix, -1)[:, :length_limit]
        rows, width = tf.unstack(tf.shape(prefix))
        # With a tensor as a length, tf.pad would leave no dimension static.
        prefix = tf.concat([prefix, tf.fill([rows, length_limit - width], -1)], axis=1)
    return SearchInputs(
        max_lengths=tf.minimum(max_lengths, length_limit),
        prefix=prefix,
        first=first,
        source_mask=None if source_mask is None else tf.cast(source_mask, tf.bool),
        alpha=tf.cast(alpha, tf.float32),
        sample_offsets=tf.cast(offsets, tf.float32),
        constraint_inputs=map_tensors(tf.convert_to_tensor, inputs.constraint_inputs),
        symbol_counts=inputs.symbol_counts,
        length_limit=length_limit,
    )
