"""Search over a step function `(ids, position, cache) → (logits, cache, cross-attention)`.

TensorFlow only: nothing here knows of layers, tokenizers or files. `search` is the way in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_transformer.config import DecodingConfig
from keras_transformer.decoding.beam import BeamSearch, follow_rows
from keras_transformer.decoding.constraints import Constraints
from keras_transformer.decoding.result import (
    NOTHING,
    FollowFn,
    KeepFn,
    SearchResult,
    SpecialIds,
    StepFn,
)
from keras_transformer.decoding.sampling import Sampling
from keras_transformer.decoding.trees import Trees
from keras_transformer.errors import InputError

__all__ = [
    "NOTHING",
    "SearchResult",
    "SpecialIds",
    "StepFn",
    "Trees",
    "rows_per_sentence",
    "search",
]


def rows_per_sentence(config: DecodingConfig) -> int:
    """How many hypotheses of a sentence a step function is asked for at once."""
    return config.n_best if config.sample else config.beam_size


def search(
    step_fn: StepFn,
    cache: Any,
    max_lengths: tf.Tensor,
    config: DecodingConfig,
    ids: SpecialIds,
    vocab_size: int,
    *,
    prefix: tf.Tensor | None = None,
    banned: Sequence[Sequence[int]] = (),
    trees: Trees | None = None,
    leaves: tf.Tensor | None = None,
    source_mask: tf.Tensor | None = None,
    numbers: tf.Tensor | None = None,
    length_limit: int | tf.Tensor | None = None,
    follow: FollowFn = follow_rows,
    keep: KeepFn | None = None,
    alpha: tf.Tensor | None = None,
    max_steps: int | None = None,
    shrink: bool | None = None,
    details: bool = False,
    attention: bool = False,
    normalized: bool = False,
) -> SearchResult:
    """Returns the best outputs of each sentence, found or drawn as `config` says.

    The pad and start ids are never generated. They are excluded after the
    softmax, so that scores are made of the model's own log-probabilities.

    Args:
        step_fn: one step of the decoder, as `BeamSearch`'s; it is asked for
            `rows_per_sentence(config)` hypotheses of each sentence, side by side.
        cache: nested structure of tensors, which the step function takes and returns.
        max_lengths: int32 `[batch]`, the most tokens of each sentence's output, the end
            token included; 0 (or less) gives the empty output. The batch may be empty.
        config: how to search, but for its `banned`.
        ids: the start, end and pad ids.
        vocab_size: number of tokens.
        prefix: int32 `[batch, any]`, tokens that each output begins with, whatever the
            constraints; it ends before the first id that is no ordinary token. An output
            is not longer for it: `max_lengths` cuts it too.
        banned: phrases, as ids, that no output contains.
        trees: where outputs are trees, the tokens that they are written with. The configuration's
            `min_length` does not count then, and a `prefix` has to be the beginning of a tree;
            bans can leave a tree no way to go on, and its sentence without a result.
        leaves: int32 `[batch]`, how many each sentence's tree has; needed for `trees`.
        source_mask: bool `[batch, source]`; needed for a coverage penalty and attention.
        numbers: float32 `[batch]` from 0 to 1, of `Sampling`.
        length_limit: the last dimension of the result's `ids`, 1 or more; longer
            `max_lengths` are lowered to it. By default the longest of
            `max_lengths`. Under `jit_compile=True` it must be an int, as every
            shape must be static there.
        follow: moves the cache with its hypotheses; by default all its tensors, of shape
            `[rows, ...]`, row by row.
        keep: takes the cache of some sentences, when others have ended; by default as `follow`.
        alpha: float32 `[batch]`, at least 0, of each sentence's length penalty; by default
            `config.length_penalty`.
        max_steps: bound on the loop that the graph holds, at least the longest of
            `max_lengths`; by default it has none but these.
        shrink: whether sentences that have ended leave the batch; by default where
            `length_limit` is no int.
        details: also return `token_log_probs`, and with a `source_mask` `alignment`.
        attention: with a `source_mask`, also return the `attention` itself.
        normalized: whether the step function's logits are log-probabilities already, which
            are then taken as they are.

    Raises:
        InputError: for a ban of every token, ids that are none of the vocabulary's, a
            coverage penalty without a `source_mask`, or `trees` without `leaves`.
    """
    for name, value in ids._asdict().items():
        if not 0 <= value < vocab_size:
            raise InputError(
                f"the {name} id is {value}; expected one of the {vocab_size} ids of the vocabulary"
            )
    _check_banned(banned, ids, vocab_size)
    if config.coverage_penalty and source_mask is None:
        raise InputError(
            f"decoding.coverage_penalty is {config.coverage_penalty}, and there is no source mask; "
            "expected one, which says what is to be covered"
        )
    max_lengths = tf.maximum(tf.cast(max_lengths, tf.int32), 0)
    if length_limit is None:
        # At least 1, of an empty batch too: tensors without elements cannot be scattered to.
        length_limit = tf.maximum(tf.reduce_max(max_lengths), 1)
    max_lengths = tf.minimum(max_lengths, length_limit)
    if (trees is None) != (leaves is None):
        raise InputError("trees and leaves: one given; expected both, or neither")
    if leaves is not None:
        leaves = tf.cast(leaves, tf.int32)
        config = dataclasses.replace(config, min_length=0)
    if source_mask is not None:
        source_mask = tf.cast(source_mask, tf.bool)
    if alpha is not None:
        alpha = tf.cast(alpha, tf.float32)
    if prefix is not None:
        prefix = tf.convert_to_tensor(prefix)
        if not prefix.shape.is_compatible_with([max_lengths.shape[0], None]):
            raise InputError(
                f"the prefix has the shape {tuple(prefix.shape)}; expected a row of ids for each "
                f"of the {max_lengths.shape[0]} sentences"
            )
        prefix = _ordinary(prefix, ids, vocab_size, length_limit)
    arguments: dict[str, Any] = {
        "constraints": Constraints(config, banned, vocab_size, ids.end, trees),
        "details": details,
        "attention": attention,
        "max_steps": max_steps,
        "shrink": not isinstance(length_limit, int) if shrink is None else shrink,
        "normalized": normalized,
    }
    if config.sample or config.beam_size == 1:
        sampling = Sampling(step_fn, config, ids, keep=keep, **arguments)
        return sampling.search(
            cache, max_lengths, length_limit, prefix, source_mask, numbers, alpha, leaves
        )
    beam = BeamSearch(step_fn, config, ids, follow=follow, keep=keep, **arguments)
    return beam.search(cache, max_lengths, length_limit, prefix, source_mask, alpha, leaves)


def _check_banned(banned: Sequence[Sequence[int]], ids: SpecialIds, vocab_size: int) -> None:
    for phrase in banned:
        for token in phrase:
            if not 0 <= token < vocab_size:
                raise InputError(
                    f"{list(phrase)} is banned, and {token} is no id; expected ids below "
                    f"{vocab_size}"
                )
    alone = {phrase[0] for phrase in banned if len(phrase) == 1}
    if alone >= set(range(vocab_size)) - set(ids.excluded):
        raise InputError("every token is banned; expected some that an output may contain")


def _ordinary(
    prefix: tf.Tensor, ids: SpecialIds, vocab_size: int, length_limit: int | tf.Tensor
) -> tf.Tensor:
    """Returns the prefix as int32 `[batch, length_limit]`, -1 from its end on."""
    prefix, special = tf.cast(prefix, tf.int32), tf.constant(sorted({*ids}))
    ordinary = (prefix >= 0) & (prefix < vocab_size)
    ordinary &= tf.reduce_all(tf.expand_dims(prefix, -1) != special, axis=-1)
    ordinary = tf.math.cumprod(tf.cast(ordinary, tf.int32), axis=1) > 0
    prefix = tf.where(ordinary, prefix, -1)[:, :length_limit]
    rows, width = tf.unstack(tf.shape(prefix))
    # Concatenated, for padding of a tensor's length would leave no dimension static.
    return tf.concat([prefix, tf.fill([rows, length_limit - width], -1)], axis=1)
