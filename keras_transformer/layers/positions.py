"""Positional encodings (paper, section 3.5)."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.layers.base import BaseLayer, integer_ids


class Positions(BaseLayer):
    """The base of layers that encode positions."""

    d_model: int | None

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.autocast = False  # positions must not be rounded to bfloat16

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        return previous_mask  # without it, keras.layers.Add would drop the mask of the embeddings

    def compute_output_shape(self, input_shape: Any) -> Any:
        positions = (1, input_shape[1]) if len(input_shape) == 3 else tuple(input_shape)
        return (*positions, self._width(input_shape))

    def _positions(self, inputs: Any) -> Any:
        """Returns given positions, int `[T]` or `[B, T]`; `[1, T]` for embeddings `[B, T, d]`."""
        if len(inputs.shape) < 3:
            return integer_ids(inputs)
        return ops.arange(ops.shape(inputs)[1])[None]

    def _width(self, input_shape: Any) -> int:
        if len(input_shape) not in (1, 2, 3):
            raise ValueError(
                f"The inputs have the shape {tuple(input_shape)}. They must be embeddings [B, T, "
                "d_model], or positions [T] or [B, T]."
            )
        width = input_shape[-1] if len(input_shape) == 3 else self.d_model
        if width is None:
            raise ValueError("d_model is None. Give it, or call the layer on embeddings.")
        if self.d_model not in (None, width):
            raise ValueError(
                f"d_model is {self.d_model}, but the embeddings have the width {width}."
            )
        return int(width)


@keras.saving.register_keras_serializable(package="keras_transformer")
class SinusoidalPositions(Positions):
    """Computes PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(pos / 10000^(2i/d)).

    The dtype is float32 under any policy, because bfloat16 cannot represent all integers above 256.

    Args:
        d_model: width of the encoding, even; the width of the inputs by default.
        layout: "interleaved" for alternating sines and cosines, as in the paper, or "halves" for
            all sines first.
        frequencies: "paper" for 10000^(-2i/d), or "tensor2tensor" for 10000^(-i/(d/2 - 1)), as in
            the authors' code, Marian, fairseq and OpenNMT-tf.
        first_position: added to all positions. OpenNMT-tf counts from 1 and fairseq from 2.

    Call arguments:
        inputs: embeddings `[B, T, d_model]`, whose positions are 0 to T - 1; or positions, int
            `[T]` or `[B, T]`.

    Returns:
        float32, to be added to the embeddings: `[1, T, d_model]` for embeddings; for positions, one
        vector for each, `[..., d_model]`.

    Example:
    >>> embedded = keras.ops.ones((2, 5, 8))
    >>> tuple((embedded + SinusoidalPositions()(embedded)).shape)
    (2, 5, 8)
    """

    def __init__(
        self,
        d_model: int | None = None,
        layout: str = "interleaved",
        frequencies: str = "paper",
        first_position: int = 0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if layout not in ("interleaved", "halves"):
            raise ValueError(f"layout is {layout!r}. Choose interleaved or halves.")
        if frequencies not in ("paper", "tensor2tensor"):
            raise ValueError(f"frequencies is {frequencies!r}. Choose paper or tensor2tensor.")
        self.d_model = d_model
        self.layout = layout
        self.frequencies = frequencies
        self.first_position = first_position
        if d_model is not None:
            self._split_frequencies(d_model)

    def _split_frequencies(self, d_model: int) -> None:
        if d_model < 2 or d_model % 2:
            raise ValueError(f"d_model is {d_model}, but it must be an even number.")
        # The exponents end at -1 + 2/d in the paper, and at -1 in Tensor2Tensor.
        steps = d_model / 2 if self.frequencies == "paper" else max(d_model / 2 - 1, 1)
        frequencies = 10_000.0 ** (-np.arange(d_model // 2, dtype=np.float64) / steps)
        # A float32 product position * frequency has a relative error of up to 2^-24, which is
        # too much at position 5,000. So each frequency is split into its 10 leading bits and a
        # small rest. The product of 10 bits with a position below 16,384 is exact.
        mantissa, exponent = np.frexp(frequencies)
        self._coarse = np.ldexp(np.floor(mantissa * 2**10) / 2**10, exponent)
        self._fine = frequencies - self._coarse

    def build(self, input_shape: Any) -> None:
        width = self._width(input_shape)
        if self.d_model is None:
            self._split_frequencies(width)

    def call(self, inputs: Any) -> Any:
        positions = self._positions(inputs)
        position = ops.cast(ops.reshape(positions, (-1, 1)) + self.first_position, "float32")
        coarse = position * ops.convert_to_tensor(self._coarse, "float32")
        fine = position * ops.convert_to_tensor(self._fine, "float32")
        # sin(a + b) and cos(a + b), where a is exact and b is small.
        sine = ops.sin(coarse) * ops.cos(fine) + ops.cos(coarse) * ops.sin(fine)
        cosine = ops.cos(coarse) * ops.cos(fine) - ops.sin(coarse) * ops.sin(fine)
        if self.layout == "halves":
            encoding = ops.concatenate([sine, cosine], axis=-1)
        else:
            encoding = ops.stack([sine, cosine], axis=-1)  # --> [..., d_model / 2, 2]
        return ops.reshape(encoding, (*ops.shape(positions)[:-1], -1, 2 * self._coarse.size))


@keras.saving.register_keras_serializable(package="keras_transformer")
class LearnedPositions(Positions):
    """Looks up a learned vector for each position (paper, section 3.5 and Table 3, row E).

    Args:
        max_positions: number of vectors; later positions get the last vector.
        d_model: width of the encoding; the width of the inputs by default.
        embeddings_initializer: the default has a standard deviation of 0.02.
        embeddings_regularizer: a loss that depends on the vectors.

    Call arguments:
        inputs: embeddings `[B, T, d_model]`, whose positions are 0 to T - 1; or positions, int
            `[T]` or `[B, T]`.

    Returns:
        float32, to be added to the embeddings: `[1, T, d_model]` for embeddings; for positions, one
        vector for each, `[..., d_model]`.

    Example:
    >>> embedded = keras.ops.ones((2, 5, 8))
    >>> tuple((embedded + LearnedPositions(max_positions=100)(embedded)).shape)
    (2, 5, 8)
    """

    def __init__(
        self,
        max_positions: int,
        d_model: int | None = None,
        embeddings_initializer: Any = None,
        embeddings_regularizer: Any = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.max_positions = max_positions
        self.d_model = d_model
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.embeddings_regularizer = keras.regularizers.get(embeddings_regularizer)

    def build(self, input_shape: Any) -> None:
        self.embeddings = self.add_weight(
            shape=(self.max_positions, self._width(input_shape)),
            initializer=self.embeddings_initializer or keras.initializers.RandomNormal(stddev=0.02),
            regularizer=self.embeddings_regularizer,
            name="embeddings",
            autocast=False,
        )

    def call(self, inputs: Any) -> Any:
        known = ops.minimum(self._positions(inputs), self.max_positions - 1)
        return ops.cast(ops.take(self.embeddings, known, axis=0), "float32")
