"""What a training step of an encoder-decoder costs on paper: operations and bytes of its products.

Only real tokens count: padding is work that a good batching avoids.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

Lengths = npt.NDArray[np.integer]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The fields of `ModelConfig` that decide the cost of a step, under the same names."""

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
        """Width of all heads' keys and values together."""
        return self.num_heads * (self.key_dim + self.value_dim)

    def weight_products(self, source: int, target: int) -> list[tuple[int, int, int]]:
        """The products with weights in a forward pass, as (rows, inputs, outputs).

        Args:
            source: tokens of all source sentences.
            target: tokens of all target sentences.
        """
        d, keys, values = (
            self.d_model,
            self.num_heads * self.key_dim,
            self.num_heads * self.value_dim,
        )

        def attention(queries: int, memory: int) -> list[tuple[int, int, int]]:
            return [(queries, d, keys), (memory, d, keys + values), (queries, values, d)]

        def feed_forward(rows: int) -> list[tuple[int, int, int]]:
            return [(rows, d, self.d_ff), (rows, self.d_ff, d)]

        encoder = attention(source, source) + feed_forward(source)
        decoder = attention(target, target) + attention(target, source) + feed_forward(target)
        output = [(target, d, self.target_vocab_size)]
        return encoder * self.num_encoder_layers + decoder * self.num_decoder_layers + output

    def attended(self, source: Lengths, target: Lengths) -> list[tuple[int, int, int]]:
        """(queries, keys, pairs of them) of each attention, summed over the sentences."""
        source, target = source.astype(np.int64), target.astype(np.int64)
        s, t = int(source.sum()), int(target.sum())
        encoder = (s, s, int((source * source).sum()))
        causal = (t, t, int((target * (target + 1) // 2).sum()))  # no one sees the future
        cross = (t, s, int((target * source).sum()))
        return [encoder] * self.num_encoder_layers + [causal, cross] * self.num_decoder_layers


def training_flop(sizes: Sizes, source: Lengths, target: Lengths) -> float:
    """Floating-point operations of a step's matrix products; backward is twice the forward.

    Args:
        sizes: the model's.
        source: int[sentences], their tokens, end id included.
        target: likewise, of the translations.
    """
    products = sizes.weight_products(int(source.sum()), int(target.sum()))
    multiplications = sum(rows * inputs * outputs for rows, inputs, outputs in products)
    multiplications += sum(
        pairs * sizes.heads_dim for _, _, pairs in sizes.attended(source, target)
    )
    return 3 * 2.0 * multiplications


def training_bytes(
    sizes: Sizes, source: Lengths, target: Lengths, width: int, num_parameters: int
) -> float:
    """Bytes that a step moves if each product reads its operands and writes its result once.

    Each of the two backward products of a product touches the same three arrays.
    Adam reads weight, gradient and two moments in float32, and writes all but the gradient,
    which the step has written before.

    Args:
        sizes: the model's.
        source: int[sentences], their tokens, end id included.
        target: likewise, of the translations.
        width: bytes of a value in the compute dtype.
        num_parameters: of the model.
    """
    products = sizes.weight_products(int(source.sum()), int(target.sum()))
    values = sum(rows * (inputs + outputs) + inputs * outputs for rows, inputs, outputs in products)
    values += sum(
        (queries + keys) * sizes.heads_dim + 2 * pairs * sizes.num_heads
        for queries, keys, pairs in sizes.attended(source, target)
    )
    return 3.0 * width * values + 8 * 4.0 * num_parameters
