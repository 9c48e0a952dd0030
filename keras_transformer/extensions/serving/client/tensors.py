"""Inputs and outputs of signatures, as arrays and as JSON."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.errors import InputError

_DTYPES: dict[str, Any] = {
    "DT_STRING": object,
    "DT_BOOL": np.bool_,
    "DT_FLOAT": np.float32,
    "DT_DOUBLE": np.float64,
    "DT_INT8": np.int8,
    "DT_INT16": np.int16,
    "DT_INT32": np.int32,
    "DT_INT64": np.int64,
    "DT_UINT8": np.uint8,
    "DT_UINT16": np.uint16,
    "DT_UINT32": np.uint32,
    "DT_UINT64": np.uint64,
}


class Tensor(NamedTuple):
    """An input or output of a signature."""

    dtype: Any  # NumPy dtype; object for strings
    shape: tuple[int, ...]  # -1 for any size


class Signature(NamedTuple):
    """The inputs and outputs of a signature."""

    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]


def signatures_of(fields: Mapping[str, Any]) -> dict[str, Signature]:
    """Reads signatures from JSON: `{signature: {"inputs": {name: TensorInfo}, "outputs": ...}}`."""

    def tensors(infos: Mapping[str, Any]) -> dict[str, Tensor]:
        return {
            name: Tensor(
                _DTYPES.get(info["dtype"]),
                tuple(
                    int(dim.get("size", 0)) for dim in info.get("tensor_shape", {}).get("dim", ())
                ),
            )
            for name, info in infos.items()
        }

    return {
        name: Signature(tensors(signature["inputs"]), tensors(signature["outputs"]))
        for name, signature in fields.items()
        if signature.get("inputs")  # without the initialization of the model
    }


def input_array(name: str, value: Any, dtype: Any) -> np.ndarray:
    """Returns an input as an array of at least one dimension.

    Raises:
        InputError: for values of another dtype, or lists of different lengths.
    """
    try:
        if dtype is object:
            array = _each(_bytes, np.asarray(value, object))
        else:
            given = np.asarray(value)
            array = given.astype(dtype, casting="same_kind")
            if array.dtype.kind in "iu" and np.any(array != given):
                raise ValueError(f"{given[array != given].flat[0]} does not fit")
        if not array.ndim:
            raise ValueError("it has no batch dimension")
    except (TypeError, ValueError) as error:
        expected = "strings" if dtype is object else f"values of {np.dtype(dtype).name}"
        raise InputError(
            f"The input {name} cannot be sent ({error}). It must be {expected}."
        ) from error
    return array


def _each(function: Callable[[Any], Any], array: np.ndarray) -> np.ndarray:
    """Applies a function to each value of an array of objects."""
    result = np.empty(array.size, object)
    result[:] = [function(value) for value in array.flat]
    return result.reshape(array.shape)


def _bytes(text: Any) -> bytes:
    if not isinstance(text, (str, bytes)):
        raise TypeError(f"{text!r} is not text")
    return text.encode() if isinstance(text, str) else bytes(text)


def json_values(array: np.ndarray) -> Any:
    """Returns an array as nested lists for JSON. Invalid UTF-8 becomes base64."""
    if array.dtype != object:
        return array.tolist()
    return _each(_json_text, array).tolist()


def _json_text(text: bytes) -> Any:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(text).decode()}


def from_json(value: Any, dtype: Any) -> np.ndarray:
    """Returns the array of an output."""
    array = np.asarray(value, dtype)
    return _each(_text_bytes, array) if dtype is object else array


def _text_bytes(text: Any) -> bytes:
    return base64.b64decode(text["b64"]) if isinstance(text, dict) else text.encode()
