"""Counts the floating-point operations of a training step of an encoder-decoder.

Only real tokens count, because good batching avoids the work on padding.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

Lengths = npt.NDArray[np.integer]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The fields of `ModelConfig` that decide the cost of a step, with the same names."""

    num_encoder_layers: int
    num_decoder_layers: int
    d_model: int
    d_ff: int
    num_heads: int
    key_dim: int
    value_dim: int
    target_vocab_size: int

    @property
    def heads_dim(self) -> int:
        """Total width of the keys and values of all heads."""
        return self.num_heads * (self.key_dim + self.value_dim)

    def weight_products(self, source: int, target: int) -> list[tuple[int, int, int]]:
        """Returns the products with weights of a forward pass, as (rows, inputs, outputs).

        Args:
            source: number of tokens of all source sentences.
            target: number of tokens of all target sentences.
        """
        d, heads = self.d_model, self.num_heads
        keys, values = heads * self.key_dim, heads * self.value_dim

        def attention(queries: int, memory: int) -> list[tuple[int, int, int]]:
            return [(queries, d, keys), (memory, d, keys + values), (queries, values, d)]

        def feed_forward(rows: int) -> list[tuple[int, int, int]]:
            return [(rows, d, self.d_ff), (rows, self.d_ff, d)]

        encoder = attention(source, source) + feed_forward(source)
        decoder = attention(target, target) + attention(target, source) + feed_forward(target)
        output = [(target, d, self.target_vocab_size)]
        return encoder * self.num_encoder_layers + decoder * self.num_decoder_layers + output

    def attended(self, source: Lengths, target: Lengths) -> list[tuple[int, int, int]]:
        """Returns (queries, keys, pairs) of each attention layer, summed over the sentences."""
        source, target = source.astype(np.int64), target.astype(np.int64)
        s, t = int(source.sum()), int(target.sum())
        encoder = (s, s, int((source * source).sum()))
        causal = (t, t, int((target * (target + 1) // 2).sum()))  # the causal mask
        cross = (t, s, int((target * source).sum()))
        return [encoder] * self.num_encoder_layers + [causal, cross] * self.num_decoder_layers


def training_flop(sizes: Sizes, source: Lengths, target: Lengths) -> float:
    """Returns the floating-point operations of the matrix products of a training step.

    The backward pass has twice the operations of the forward pass.

    Args:
        sizes: sizes of the model.
        source: int[sentences], the number of tokens of each source, with its end id.
        target: int[sentences], the number of tokens of each target, with its end id.

    Example:
        >>> sizes = Sizes(1, 1, 2, 4, 1, 2, 2, target_vocab_size=3)
        >>> training_flop(sizes, np.array([1]), np.array([1]))
        588.0
    """
    products = sizes.weight_products(int(source.sum()), int(target.sum()))
    multiplications = sum(rows * inputs * outputs for rows, inputs, outputs in products)
    multiplications += sum(
        pairs * sizes.heads_dim for _, _, pairs in sizes.attended(source, target)
    )
    return 3 * 2.0 * multiplications
