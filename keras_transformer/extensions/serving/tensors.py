"""Inputs and outputs of signatures, and their JSON as in TF Serving's REST API.

Three errors that TF Serving ignores are refused: invalid UTF-8, data after the object, and unknown
inputs.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from keras_transformer.inference.tags import add_missing_tag

Arrays = dict[str, np.ndarray]
_MAX_ERROR_BYTES = 1000
_MANY_DIGITS = 2**16  # numbers converted to text at once; each takes 128 bytes

# TensorFlow's names of dtypes. Strings are bytes in arrays of objects.
DTYPES: dict[str, Any] = {
    "DT_STRING": object, "DT_BOOL": np.bool_, "DT_FLOAT": np.float32, "DT_DOUBLE": np.float64,
    "DT_INT8": np.int8, "DT_INT16": np.int16, "DT_INT32": np.int32, "DT_INT64": np.int64,
    "DT_UINT8": np.uint8, "DT_UINT16": np.uint16, "DT_UINT32": np.uint32, "DT_UINT64": np.uint64,
}  # fmt: skip
_NAMES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}

# Inputs that JSON may omit or give as null, by signature: the values that mean "as exported".
_AS_EXPORTED: dict[str, dict[str, Any]] = {
    "translate": {"max_length": 0, "length_penalty": math.nan, "prefix": ""}
}
_SOURCES = ("text", "source")  # the inputs with source text, in all signatures


class RequestError(Exception):
    """An error that is sent to the client, with its HTTP status."""

    def __init__(self, status: int, message: str):
        # A name in the message may be as long as the request, and contain surrogates.
        data = message.encode("utf-8", "backslashreplace")
        if len(data) > _MAX_ERROR_BYTES:
            data = data[:_MAX_ERROR_BYTES] + "…".encode()
        super().__init__(data.decode("utf-8", "ignore"))
        self.status = status


class Tensor(NamedTuple):
    """An input or output of a signature."""

    dtype: Any  # NumPy dtype; object for strings
    shape: tuple[int, ...]  # -1 for any size


class Signature(NamedTuple):
    """The inputs and outputs of a signature."""

    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]


def signature_fields(signatures: Mapping[str, Signature]) -> dict[str, Any]:
    """Returns the JSON of signatures, as in the metadata of TF Serving."""

    def infos(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        return {
            name: {
                "dtype": _NAMES[np.dtype(tensor.dtype)],
                "tensor_shape": {
                    "dim": [{"size": str(size), "name": ""} for size in tensor.shape],
                    "unknown_rank": False,
                },
                "name": name,
            }
            for name, tensor in tensors.items()
        }

    return {
        name: {
            "inputs": infos(signature.inputs),
            "outputs": infos(signature.outputs),
            "method_name": "tensorflow/serving/predict",
        }
        for name, signature in signatures.items()
    }


def read_document(body: bytes) -> dict[str, Any]:
    """Returns the JSON object of a request."""
    try:
        document = json.loads(body.decode("utf-8-sig"))
    except ValueError as error:
        _refuse(f"JSON Parse error: {error}")
    except RecursionError:
        _refuse("JSON Parse error: the body is nested too deep")
    if not isinstance(document, dict):
        _refuse(f"JSON Value: {_shown(document)} Is not object")
    if not isinstance(document.get("signature_name", ""), str):
        _refuse(f"signature_name is {_shown(document['signature_name'])}, but it must be a string.")
    return document


def read_inputs(document: Mapping[str, Any], expected: Mapping[str, Tensor]) -> Arrays:
    """Returns the inputs of a request in the row or the column format.

    In requests for the signature `translate`, an option that is null or omitted has the value that
    means "as exported". So has a null of an option that the signature lacks, such as `beam_size`.
    """
    if ("instances" in document) == ("inputs" in document):
        _refuse(
            "The request has both or neither of 'inputs' and 'instances'. Send exactly one of them."
        )
    known = _AS_EXPORTED.get(document.get("signature_name", ""), {})
    defaults = {name: value for name, value in known.items() if name in expected}
    required = [name for name in expected if name not in defaults]
    if "instances" in document:
        columns = _columns(document["instances"], required, defaults)
    elif _is_named(document["inputs"]):
        columns = _without_nulls(document["inputs"], defaults)
    elif len(required) == 1:
        columns = {required[0]: document["inputs"]}
    else:
        _refuse(
            f"inputs is {_shown(document['inputs'])}, but it must be an object with "
            f"{_names(expected)}."
        )
    if not set(required) <= set(columns) <= set(expected):
        _refuse(f"The inputs are {_names(columns)}, but they must be {_names(expected)}.")
    if defaults:
        columns = _with_defaults(columns, columns[required[0]], defaults)
    inputs = {name: _array(columns[name], name, tensor) for name, tensor in expected.items()}
    if len({len(array) for array in inputs.values()}) > 1:
        rows = ", ".join(f"{len(array):,} of {key}" for key, array in sorted(inputs.items()))
        _refuse(f"The inputs have different numbers of rows ({rows}).")
    return inputs


def add_source_tag(inputs: Arrays, tag: str, symbols: Sequence[str] | None) -> Arrays:
    """Returns inputs with a tag in each source text that has none."""
    tagged = dict(inputs)
    for name in set(_SOURCES) & set(inputs):
        texts = [text.decode("utf-8", "surrogateescape") for text in inputs[name]]
        texts = [add_missing_tag(text, tag, symbols) for text in texts]
        tagged[name] = np.array([text.encode("utf-8", "surrogateescape") for text in texts], object)
    return tagged


def write_outputs(outputs: Arrays, by_row: bool) -> bytes:
    """Returns the body of an answer, in the row format ("predictions") or the column format."""
    columns = {name: _values(array, name) for name, array in outputs.items()}
    only = next(iter(columns.values())) if len(columns) == 1 else None
    answer: dict[str, Any]
    if not by_row:
        answer = {"outputs": columns if only is None else only}
    elif only is not None:
        answer = {"predictions": only}
    else:
        instances = zip(*columns.values(), strict=True)
        answer = {"predictions": [dict(zip(columns, row, strict=True)) for row in instances]}
    return json.dumps(answer, ensure_ascii=False).encode()  # with NaN and Infinity


def _columns(
    instances: Any, required: list[str], defaults: Mapping[str, Any]
) -> dict[str, list[Any]]:
    """Converts rows, which are values or objects with the same keys, to a list per input."""
    if not isinstance(instances, list) or not instances:
        _refuse(f"instances is {_shown(instances)}, but it must be a list with at least one value.")
    names = [*required, *defaults]
    if not _is_named(instances[0]):
        if len(required) > 1:
            _refuse(
                f"instances is a plain list, but it must be a list of objects with {_names(names)}."
            )
        return {required[0]: instances}
    rows = []
    for number, instance in enumerate(instances):
        row = _without_nulls(instance, defaults) if _is_named(instance) else {}
        if not set(required) <= set(row) <= set(names):
            _refuse(
                f"The inputs are {_shown(instance)} in instances[{number}], but they must be "
                f"{_names(names)}."
            )
        rows.append({**defaults, **row})
    return {name: [row[name] for row in rows] for name in names}


def _without_nulls(columns: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the inputs. Drops null inputs if the signature has defaults."""
    return {name: value for name, value in columns.items() if not defaults or value is not None}


def _with_defaults(
    columns: Mapping[str, Any], required: Any, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the columns with a default for each row of an option that is missing or null."""
    rows = len(required) if isinstance(required, list) else 0
    result = dict(columns)
    for name, value in defaults.items():
        column = columns.get(name, [value] * rows)
        is_list = isinstance(column, list)
        result[name] = [value if v is None else v for v in column] if is_list else column
    return result


def _array(value: Any, name: str, tensor: Tensor) -> np.ndarray:
    """Converts nested lists to an array."""
    shape, first = [], value
    while isinstance(first, list):
        shape.append(len(first))
        first = first[0] if first else None
    # Checked first, because the lists may be nested too deep for recursion.
    if len(shape) != len(tensor.shape) or any(
        wanted not in (-1, size) for wanted, size in zip(tensor.shape, shape, strict=True)
    ):
        expected = str(tuple(None if size < 0 else size for size in tensor.shape))
        _refuse(f"The input {name} has the shape {shape}, but it must have {expected}.")
    dtype = np.dtype(tensor.dtype)
    convert = _converter(dtype)
    values = []
    for label, leaf in _leaves(value, shape, name):
        try:
            values.append(convert(leaf))
        except (TypeError, ValueError, OverflowError):
            expected = "string" if dtype.kind == "O" else dtype.name
            _refuse(f"{label} is {_shown(leaf)}, but it must be {expected}.")
    result = np.empty(len(values), dtype)
    result[:] = values
    return result.reshape(shape)


def _leaves(value: Any, shape: list[int], label: str) -> Iterator[tuple[str, Any]]:
    """Yields the values of nested lists and their labels. Lists must have equal sizes."""
    if not shape:
        yield label, value
    elif not isinstance(value, list) or len(value) != shape[0]:
        _refuse(f"{label} is {_shown(value)}, but it must be a list of {shape[0]} values.")
    else:
        for index, item in enumerate(value):
            yield from _leaves(item, shape[1:], f"{label}[{index}]")


def _converter(dtype: np.dtype) -> Callable[[Any], Any]:
    """Returns a function that converts JSON values to a dtype."""
    if dtype.kind == "O":
        return _string
    if dtype.kind == "b":
        return lambda value: _of_type(value, bool)
    if dtype.kind == "f":
        return lambda value: float(_of_type(value, int, float))
    return lambda value: np.array(_of_type(value, int), dtype)  # beyond its limits: OverflowError


def _of_type(value: Any, *types: type) -> Any:
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise TypeError
    return value


def _string(value: Any) -> bytes:
    if _is_base64(value):
        encoded = value["b64"]
        return base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    return _of_type(value, str).encode()  # a lone surrogate raises ValueError


def _is_base64(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"b64"} and isinstance(value["b64"], str)


def _is_named(value: Any) -> bool:
    return isinstance(value, dict) and not _is_base64(value)


def _values(array: np.ndarray, name: str) -> Any:
    """Returns an array as nested lists for JSON. Outputs named `*_bytes` become base64."""
    if array.dtype.kind == "O":
        return map_objects(_base64 if name.endswith("_bytes") else _text, array).tolist()
    if array.dtype == np.float32:  # writes 0.1, not 0.10000000149011612
        if array.ndim > 1 and array.size > _MANY_DIGITS:
            return [_values(part, name) for part in array]
        return array.astype(str).astype(float).tolist()
    return array.tolist()


def map_objects(function: Callable[[Any], Any], array: np.ndarray) -> np.ndarray:
    """Applies a function to each value of an array of objects."""
    result = np.empty(array.size, object)
    result[:] = [function(value) for value in array.flat]
    return result.reshape(array.shape)


def _base64(value: bytes) -> dict[str, str]:
    return {"b64": binascii.b2a_base64(value, newline=False).decode()}


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _names(names: Any) -> str:
    return ", ".join(sorted(names)) or "none"


def _shown(value: Any) -> str:
    # Only the first characters are encoded, because the value may be too deep for recursion.
    text = "".join(itertools.islice(json.JSONEncoder().iterencode(value), 61))
    return text if len(text) <= 60 else f"{text[:60]}..."


def _refuse(sentence: str) -> NoReturn:
    raise RequestError(400, sentence)
