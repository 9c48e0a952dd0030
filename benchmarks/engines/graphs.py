"""Graph functions of token ids, compiled by XLA or not, for the engines that use TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sentence_batches
import tensorflow as tf


def of_ids(search: Callable[[tf.Tensor], Any], compiled: bool) -> Callable[..., Any]:
    """Returns a graph function of ids int32 `[rows, length]`, compiled for each shape if asked."""
    any_shape = [tf.TensorSpec([None, None], tf.int32)]
    signature = None if compiled else any_shape
    return tf.function(search, input_signature=signature, autograph=False, jit_compile=compiled)


def input_of(
    compiled: bool, pad_id: int
) -> tuple[Callable[[sentence_batches.Ids], tf.Tensor], Callable[[tf.Tensor], Any] | None]:
    """Returns the functions `prepare` and `shape_of` of `tasks.decode_ids`."""

    def prepare(ids: sentence_batches.Ids) -> tf.Tensor:
        return tf.constant(sentence_batches.widen(ids, pad_id) if compiled else ids)

    return prepare, (lambda source_ids: tuple(source_ids.shape)) if compiled else None
