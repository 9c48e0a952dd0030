"""Positional encodings (paper, section 3.5)."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.layers.base import BaseLayer


@keras.saving.register_keras_serializable(package="keras_transformer")
class SinusoidalPositions(BaseLayer):
    """Computes PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(pos / 10000^(2i/d)).

    The dtype is float32 under any policy, because bfloat16 cannot represent all integers above 256.

    Args:
        d_model: width of the encoding; even.
        layout: "interleaved" for alternating sines and cosines, as in the paper, or "halves" for
            all sines first.

    Call arguments:
        positions: int `[T]`.

    Returns:
        float32 `[T, d_model]`.

    Raises:
        ValueError: for a `d_model` that is odd or below 2, or an unknown layout.

    Example:
    >>> tuple(SinusoidalPositions(d_model=8)(keras.ops.arange(5)).shape)
    (5, 8)
    """

    def __init__(self, d_model: int, layout: str = "interleaved", **kwargs: Any):
        super().__init__(**kwargs)
        if d_model < 2 or d_model % 2:
            raise ValueError(f"d_model is {d_model}, but it must be an even number.")
        if layout not in ("interleaved", "halves"):
            raise ValueError(f"layout is {layout!r}. Choose interleaved or halves.")
        self.d_model = d_model
        self.layout = layout
        # A float32 product position * frequency has a relative error of up to 2^-24, which is
        # too much at position 5,000. So each frequency is split into its 10 leading bits and a
        # small rest. The product of 10 bits with a position below 16,384 is exact.
        frequencies = 10_000.0 ** (-np.arange(0, d_model, 2, dtype=np.float64) / d_model)
        mantissa, exponent = np.frexp(frequencies)
        self._coarse = np.ldexp(np.floor(mantissa * 2**10) / 2**10, exponent)
        self._fine = frequencies - self._coarse

    def call(self, positions: Any) -> Any:
        position = ops.cast(positions, "float32")[:, None]
        coarse = position * ops.convert_to_tensor(self._coarse, "float32")
        fine = position * ops.convert_to_tensor(self._fine, "float32")
        # sin(a + b) and cos(a + b), where a is exact and b is small.
        sine = ops.sin(coarse) * ops.cos(fine) + ops.cos(coarse) * ops.sin(fine)
        cosine = ops.cos(coarse) * ops.cos(fine) - ops.sin(coarse) * ops.sin(fine)
        if self.layout == "halves":
            return ops.concatenate([sine, cosine], axis=-1)
        pairs = ops.stack([sine, cosine], axis=-1)  # --> [T, d_model / 2, 2]
        return ops.reshape(pairs, (-1, self.d_model))

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (*input_shape, self.d_model)


@keras.saving.register_keras_serializable(package="keras_transformer")
class LearnedPositions(BaseLayer):
    """Looks up a learned vector for each position (paper, section 3.5 and Table 3, row E).

    Args:
        d_model: width of the encoding.
        max_positions: number of vectors; later positions get the last vector.

    Call arguments:
        positions: int `[T]`.

    Returns:
        float32 `[T, d_model]`.

    Example:
    >>> tuple(LearnedPositions(d_model=8, max_positions=100)(keras.ops.arange(5)).shape)
    (5, 8)
    """

    def __init__(self, d_model: int, max_positions: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.d_model = d_model
        self.max_positions = max_positions

    def build(self, input_shape: Any) -> None:
        self.embeddings = self.add_weight(
            shape=(self.max_positions, self.d_model),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
            name="embeddings",
            autocast=False,
        )

    def call(self, positions: Any) -> Any:
        known = ops.minimum(positions, self.max_positions - 1)
        return ops.cast(ops.take(self.embeddings, known, axis=0), "float32")

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (*input_shape, self.d_model)
