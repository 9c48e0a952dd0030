"""TF Serving's protocol buffers, and their tensors as arrays, without TensorFlow.

The package tensorflow-serving-api imports only messages from TensorFlow. But `import tensorflow`
takes seconds and 500 MB, which a server of LiteRT models does not need. Import the messages from
this module, so that they are loaded without the rest of TensorFlow.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np


@contextlib.contextmanager
def _only_messages() -> Iterator[None]:
    """Lets `tensorflow.core` be imported inside the block without `tensorflow/__init__.py`."""
    spec = None if "tensorflow" in sys.modules else importlib.util.find_spec("tensorflow")
    if spec is None:
        yield
        return
    package = types.ModuleType("tensorflow")
    package.__path__ = list(spec.submodule_search_locations or ())
    sys.modules["tensorflow"] = package
    try:
        yield
    finally:
        del sys.modules["tensorflow"]  # a later import loads all of it


with _only_messages():
    from tensorflow.core.framework import tensor_pb2, tensor_shape_pb2, types_pb2
    from tensorflow.core.protobuf import meta_graph_pb2
    from tensorflow_serving.apis import (
        get_model_metadata_pb2,
        get_model_status_pb2,
        model_service_pb2_grpc,
        predict_pb2,
        prediction_log_pb2,
        prediction_service_pb2_grpc,
    )

__all__ = [
    "array_of",
    "dtype_name",
    "dtype_of",
    "get_model_metadata_pb2",
    "get_model_status_pb2",
    "is_compatible",
    "meta_graph_pb2",
    "model_service_pb2_grpc",
    "predict_pb2",
    "prediction_log_pb2",
    "prediction_service_pb2_grpc",
    "shape_text",
    "tensor_info",
    "tensor_of",
]

# NumPy's name of each dtype that requests may have → the field of its values in a TensorProto.
_FIELDS = {
    "bool": "bool_val", "float32": "float_val", "float64": "double_val", "float16": "half_val",
    "int8": "int_val", "int16": "int_val", "int32": "int_val", "int64": "int64_val",
    "uint8": "int_val", "uint16": "int_val", "uint32": "uint32_val", "uint64": "uint64_val",
    "object": "string_val",
}  # fmt: skip
_OTHER_NAMES = {"float32": "float", "float64": "double", "float16": "half", "object": "string"}
_ENUMS = {name: f"DT_{_OTHER_NAMES.get(name, name).upper()}" for name in _FIELDS}
_DTYPES = {types_pb2.DataType.Value(enum): np.dtype(name) for name, enum in _ENUMS.items()}


def dtype_of(enum: int) -> np.dtype:
    """Returns the NumPy dtype of a value of `DataType`; strings are objects.

    Raises:
        TypeError: for a dtype that requests cannot have.
    """
    if enum not in _DTYPES:
        known = enum in types_pb2.DataType.values()
        name = types_pb2.DataType.Name(enum)[3:].lower() if known else str(enum)
        raise TypeError(f"the dtype {name} is not supported")
    return _DTYPES[enum]


def dtype_name(dtype: np.dtype | int) -> str:
    """Returns TensorFlow's name of a NumPy dtype or of a value of `DataType`."""
    if isinstance(dtype, int):
        dtype = dtype_of(dtype)
    return "string" if dtype.kind == "O" else str(dtype.name)


def is_compatible(shape: Any, sizes: Sequence[int]) -> bool:
    """Returns whether an array has a shape that a TensorShapeProto allows."""
    if shape.unknown_rank:
        return True
    wanted = [dimension.size for dimension in shape.dim]
    return len(wanted) == len(sizes) and all(
        one in (-1, other) for one, other in zip(wanted, sizes, strict=True)
    )


def shape_text(shape: Any) -> str:
    """Returns a TensorShapeProto as text, such as (None, 3)."""
    if shape.unknown_rank:
        return "any shape"
    return str(tuple(None if each.size < 0 else each.size for each in shape.dim))


def tensor_info(dtype: Any, *sizes: int | None) -> Any:
    """Returns the TensorInfo of an input or output whose first dimension is the batch.

    Args:
        dtype: NumPy's dtype; object for strings.
        *sizes: the other sizes; None for a size that varies.
    """
    dims = [{"size": -1 if size is None else size} for size in (None, *sizes)]
    enum = types_pb2.DataType.Value(_ENUMS[np.dtype(dtype).name])
    return meta_graph_pb2.TensorInfo(
        dtype=enum, tensor_shape=tensor_shape_pb2.TensorShapeProto(dim=dims)
    )


def array_of(tensor: Any) -> np.ndarray:
    """Returns the array of a TensorProto; strings are bytes in an array of objects.

    If there are fewer values than the shape needs, the last one is repeated.

    Raises:
        TypeError: for a dtype that requests cannot have.
        ValueError, OverflowError: for a damaged tensor.
    """
    dtype = dtype_of(tensor.dtype)
    shape = [dimension.size for dimension in tensor.tensor_shape.dim]
    count = math.prod(shape)
    if tensor.tensor_content:
        return np.frombuffer(tensor.tensor_content, dtype).reshape(shape).copy()
    values = getattr(tensor, _FIELDS[dtype.name])
    stored = np.dtype(np.uint16) if dtype == np.float16 else dtype  # the bits of a float16
    if len(values) > count:
        raise ValueError(f"{len(values):,} values do not fit the shape {shape}")
    array = np.array(list(values), stored)
    if len(array) < count:
        array = np.zeros(count, dtype) if not len(array) else np.pad(
            array, (0, count - len(array)), "edge"
        )  # fmt: skip
    return array.view(dtype).reshape(shape) if dtype == np.float16 else array.reshape(shape)


def tensor_of(array: np.ndarray) -> Any:
    """Returns an array as a TensorProto."""
    tensor = tensor_pb2.TensorProto(
        dtype=types_pb2.DataType.Value(_ENUMS[array.dtype.name]),
        tensor_shape={"dim": [{"size": size} for size in array.shape]},
    )
    if array.dtype.kind == "O":
        tensor.string_val.extend(array.ravel().tolist())
    else:
        tensor.tensor_content = np.ascontiguousarray(array).tobytes()
    return tensor
