"""Search for the best outputs of a decoder: `search` is the entry point.

Uses TensorFlow only: nothing here knows tokenizers or files, and only `cached_decoder` knows
models. The length penalty is in `beam_search`.
"""

from __future__ import annotations

import tensorflow as tf

from keras_transformer.decoding.beam_search import BeamSearch
from keras_transformer.decoding.interface import (
    NEG_INF,
    RequestedOutputs,
    SearchConfig,
    SearchDecoder,
    SearchInputs,
    SearchResult,
    SpecialIds,
    StepDecoder,
    StepFn,
    TokenConstraint,
)
from keras_transformer.decoding.sampling import Sampling
from keras_transformer.errors import InputError

__all__ = [
    "NEG_INF",
    "SearchDecoder",
    "RequestedOutputs",
    "SearchConfig",
    "SearchInputs",
    "SearchResult",
    "SpecialIds",
    "StepDecoder",
    "StepFn",
    "TokenConstraint",
    "search",
]


def search(
    decoder: SearchDecoder,
    inputs: SearchInputs,
    config: SearchConfig,
    ids: SpecialIds,
    outputs: RequestedOutputs = RequestedOutputs(),  # noqa: B008  immutable
) -> SearchResult:
    """Returns the best outputs of each sentence, by beam search, greedy search or sampling.

    The pad, start and unknown ids are never generated. They are excluded after the softmax, so that
    scores consist of the model's own log-probabilities.

    Args:
        decoder: the model, with `config.rows_per_sentence` hypotheses of each sentence.
        inputs: tensors of the sentences.
        config: how to search.
        ids: the special ids.
        outputs: optional fields of the result.

    Raises:
        InputError: for a ban of every token, ids outside the vocabulary, or inputs that do not
            fit the configuration.

    Example:
        A model that always gives token 3, the end token, the probability 0.2.

        >>> from keras_transformer.config import DecodingConfig
        >>> logits = tf.math.log([[0.0, 0.0, 0.0, 0.2, 0.8]])
        >>> decoder = StepDecoder(
        ...     lambda ids, position, cache: (tf.repeat(logits, len(ids), axis=0), cache, None),
        ...     cache=(), vocab_size=5, rows_per_sentence=4,
        ... )
        >>> result = search(
        ...     decoder,
        ...     SearchInputs(max_lengths=tf.constant([2])),
        ...     SearchConfig(DecodingConfig(beam_size=4, n_best=2)),
        ...     SpecialIds(start=2, end=3, pad=0),
        ... )
        >>> result.ids.numpy().tolist()
        [[[4, 4], [3, 0]]]
        >>> tf.exp(result.log_probs).numpy().round(2)
        array([[0.64, 0.2 ]], dtype=float32)
    """
    for name, value in ids._asdict().items():
        if value is not None and not 0 <= value < decoder.vocab_size:
            raise InputError(
                f"The {name} id is {value}, but the vocabulary has only {decoder.vocab_size} ids."
            )
    _check_banned(config, ids, decoder.vocab_size)
    compacts = inputs.length_limit is None
    inputs = _with_defaults(inputs, config, ids, decoder.vocab_size)
    is_beam = config.decoding.beam_size > 1 and not config.decoding.sample
    algorithm = BeamSearch if is_beam else Sampling
    return algorithm(decoder, config, ids, outputs, compacts).search(inputs)


def _check_banned(config: SearchConfig, ids: SpecialIds, vocab_size: int) -> None:
    banned = config.banned or ()
    for phrase in banned:
        for token in phrase:
            if not 0 <= token < vocab_size:
                raise InputError(
                    f"The banned phrase {list(phrase)} contains {token}, which is not an id below "
                    f"{vocab_size}."
                )
    tokens = {phrase[0] for phrase in banned if len(phrase) == 1}
    if tokens >= set(range(vocab_size)) - set(ids.excluded):
        raise InputError("Every token is banned, so there is no possible output.")


def _with_defaults(
    inputs: SearchInputs, config: SearchConfig, ids: SpecialIds, vocab_size: int
) -> SearchInputs:
    """Returns inputs of the right types, with all defaults filled in.

    `prefix`, `source_mask` and `constraint_inputs` stay None if they are not given. The prefix
    becomes int32 `[batch, length_limit]`.
    """
    penalty = config.decoding.coverage_penalty
    if penalty and inputs.source_mask is None:
        raise InputError(
            f"decoding.coverage_penalty is {penalty}, but there is no source mask. Pass the mask "
            "of the source tokens."
        )
    if config.constraint is None and inputs.constraint_inputs is not None:
        raise InputError("There are constraint_inputs, but no constraint. Pass both, or neither.")
    max_lengths = tf.maximum(tf.cast(inputs.max_lengths, tf.int32), 0)
    length_limit = inputs.length_limit
    if length_limit is None:
        # At least 1, even for an empty batch: nothing can be scattered to an empty tensor.
        length_limit = tf.maximum(tf.reduce_max(max_lengths), 1)
    max_lengths = tf.minimum(max_lengths, length_limit)
    prefix, source_mask = inputs.prefix, inputs.source_mask
    if prefix is not None:
        prefix = tf.convert_to_tensor(prefix)
        if not prefix.shape.is_compatible_with([max_lengths.shape[0], None]):
            raise InputError(
                f"The prefix has the shape {tuple(prefix.shape)}, but it needs one row for each of "
                f"the {max_lengths.shape[0]} sentences."
            )
        prefix = _ordinary(prefix, ids, vocab_size, length_limit)
    alpha = config.decoding.length_penalty if inputs.alpha is None else inputs.alpha
    offsets = inputs.sample_offsets
    offsets = tf.zeros(tf.shape(max_lengths)) if offsets is None else offsets
    return SearchInputs(
        max_lengths=max_lengths,
        prefix=prefix,
        source_mask=None if source_mask is None else tf.cast(source_mask, tf.bool),
        alpha=tf.cast(alpha, tf.float32),
        sample_offsets=tf.cast(offsets, tf.float32),
        constraint_inputs=tf.nest.map_structure(
            lambda each: None if each is None else tf.convert_to_tensor(each),
            inputs.constraint_inputs,
        ),
        length_limit=length_limit,
    )


def _ordinary(
    prefix: tf.Tensor, ids: SpecialIds, vocab_size: int, length_limit: int | tf.Tensor
) -> tf.Tensor:
    """Returns the prefix as int32 `[batch, length_limit]`, -1 from its end on."""
    prefix, special = (
        tf.cast(prefix, tf.int32),
        tf.constant(sorted({each for each in ids if each is not None})),
    )
    is_ordinary = (prefix >= 0) & (prefix < vocab_size)
    # --> [batch, any, special ids] --> [batch, any]
    is_ordinary &= tf.reduce_all(tf.expand_dims(prefix, -1) != special, axis=-1)
    is_ordinary = tf.math.cumprod(tf.cast(is_ordinary, tf.int32), axis=1) > 0
    prefix = tf.where(is_ordinary, prefix, -1)[:, :length_limit]
    rows, width = tf.unstack(tf.shape(prefix))
    # Concatenated, because tf.pad with a tensor's length would leave no dimension static.
    return tf.concat([prefix, tf.fill([rows, length_limit - width], -1)], axis=1)
