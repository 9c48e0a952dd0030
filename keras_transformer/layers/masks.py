"""Boolean attention masks; True means "may be attended to"."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.base import BaseLayer, integer_ids


def padding_mask(ids: Any, pad_id: int) -> Any:
    """Marks the real tokens of `ids` (any integer dtype, `[B, S]`) as bool `[B, S]`.

    Raises:
        ValueError: for ragged ids.

    Example:
    >>> padding_mask(keras.ops.array([[5, 3, 0]]), pad_id=0).numpy().tolist()
    [[True, True, False]]
    """
    return ops.not_equal(integer_ids(ids), pad_id)


def position_mask(
    query_positions: Any, key_positions: Any, causal: bool = False, window: int | None = None
) -> Any:
    """Returns which keys a query may attend to according to their positions.

    Args:
        query_positions: int `[T]`.
        key_positions: int `[S]`.
        causal: forbid later positions (paper, section 3.2.3).
        window: r of restricted self-attention (section 4): positions at a
            distance of at most r // 2.

    Returns:
        bool `[T, S]`, or None if nothing is forbidden.

    Example:
    >>> position_mask(keras.ops.arange(2), keras.ops.arange(2), causal=True).numpy().tolist()
    [[True, False], [True, True]]
    """
    if not causal and window is None:
        return None
    distance = query_positions[:, None] - key_positions[None, :]
    mask = None
    if causal:
        mask = ops.greater_equal(distance, 0)
    if window is not None:
        near = ops.less_equal(ops.abs(distance), window // 2)
        mask = near if mask is None else ops.logical_and(mask, near)
    return mask


@keras.saving.register_keras_serializable(package="keras_transformer")
class PaddingMask(BaseLayer):
    """Computes `padding_mask` in functional models: int `[B, S]` to bool `[B, S]`.

    Args:
        pad_id: id of the padding.

    Example:
    >>> PaddingMask()(keras.ops.array([[5, 3, 0]])).numpy().tolist()
    [[True, True, False]]
    """

    def __init__(self, pad_id: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.pad_id = pad_id

    def call(self, ids: Any) -> Any:
        return padding_mask(ids, self.pad_id)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return tuple(input_shape)
