"""Replacements of single `keras.ops` calls that make decoding faster on a CPU.

A decode step of a few sentences consists of many small operations with a fixed cost. Savings were
measured with the preset `small` in float32, beam 4, 30 steps, TensorFlow's graph executor and two
CPU cores (benchmarks/results/decoding.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras import ops


def shape_for_reshape(inputs: Any) -> tuple[Any, ...]:
    """Returns the shape of `inputs` for `ops.reshape`, with -1 for a single unknown dimension.

    `ops.shape` would add operations to the graph that compute the unknown dimension. This saves
    9 % of a search at batch size 1, and 7 % at batch size 32.
    """
    shape = tuple(inputs.shape)
    if shape.count(None) == 1:
        return tuple(-1 if size is None else size for size in shape)
    return tuple(ops.shape(inputs))


def multiply_rows(product: Callable[[Any], Any], inputs: Any) -> Any:
    """Calls a product of rows `[R, d_in]` for inputs `[..., d_in]`.

    On TensorFlow, `ops.matmul` of more than two dimensions is a `tensordot`, with about ten
    operations that compute shapes. LiteRT keeps them, too. Rows instead of `tensordot` in all
    layers save 6 % of a search at batch size 1, and 2 % at batch size 32. The layers that multiply
    several times reshape their inputs to rows themselves, once.
    """
    if len(inputs.shape) == 2:
        return product(inputs)
    rows = product(ops.reshape(inputs, (-1, inputs.shape[-1])))
    return ops.reshape(rows, (*shape_for_reshape(inputs)[:-1], rows.shape[-1]))


def swap_heads(inputs: Any) -> Any:
    """Swaps the axes 1 and 2 of `[B, T, H, D]`, slice by slice in a decode step.

    oneDNN's transpose, which TensorFlow uses on a CPU, has a fixed cost of about 30 µs for some
    shapes; a few slices take 7 µs. This saves 4 % of a search at batch size 1, and 5 % at batch
    size 32.
    """
    # In a decode step of the graph executor, the number of hypotheses is known and the batch size
    # is not. In training neither is known; with XLA and LiteRT both are.
    batch, length, num_heads, dim = inputs.shape
    if batch is not None or length is None or num_heads is None:
        return ops.transpose(inputs, (0, 2, 1, 3))
    if 1 in (length, num_heads):
        return ops.reshape(inputs, (-1, num_heads, length, dim))
    if length <= num_heads:
        return ops.stack(ops.unstack(inputs, axis=1), axis=2)
    return ops.stack(ops.unstack(inputs, axis=2), axis=1)
