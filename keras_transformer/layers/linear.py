"""A linear map of vectors, as one product of two matrices."""

from __future__ import annotations

from typing import Any

from keras import ops


def shape_for_reshape(inputs: Any) -> tuple[Any, ...]:
    """The shape of `inputs`, as `ops.reshape` needs it.

    Where a single dimension is unknown it is -1: nothing has to be computed at every call.
    """
    shape = tuple(inputs.shape)
    if shape.count(None) == 1:
        return tuple(-1 if size is None else size for size in shape)
    return tuple(ops.shape(inputs))


def linear(
    inputs: Any, kernel: Any, bias: Any = None, leading: tuple[Any, ...] | None = None
) -> Any:
    """`[..., d_in]` times `[d_in, d_out]`, plus a bias `[d_out]`, in the dtype of `inputs`.

    What `ops.matmul` gives; but that computes with shapes at every call where they are
    unknown, a dozen small operations beside the product, and a step of the search at
    batch 1 would consist of little else.

    Args:
        inputs: `[..., d_in]`.
        kernel: `[d_in, d_out]`.
        bias: `[d_out]`.
        leading: of the output's shape all dimensions but the last, where they are known from
            another tensor; by default those of `inputs`.
    """
    rows = inputs if len(inputs.shape) == 2 else ops.reshape(inputs, (-1, inputs.shape[-1]))
    outputs = ops.matmul(rows, kernel)
    if bias is not None:
        outputs = outputs + bias
    if leading is None:
        if len(inputs.shape) == 2:
            return outputs
        leading = shape_for_reshape(inputs)[:-1]
    return ops.reshape(outputs, (*leading, kernel.shape[-1]))
