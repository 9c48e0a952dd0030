"""Converts requests and answers between arrays, JSON and protocol buffers.

The JSON format is the same as in TF Serving's REST API (`json_tensor.cc`). But three errors that TF
Serving ignores are refused: invalid UTF-8, data after the object, and unknown inputs.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import grpc
import numpy as np

from keras_transformer.extensions.serving.server import protos
from keras_transformer.extensions.serving.server.batching import (
    Arrays,
    RequestError,
)
from keras_transformer.inference.tags import add_missing_tag

_MANY_DIGITS = 2**16  # numbers converted to text at once; each takes 128 bytes

# Inputs that JSON may omit or give as null, by signature: the values that mean "as exported".
_AS_EXPORTED: dict[str, dict[str, Any]] = {
    "translate": {"max_length": 0, "length_penalty": math.nan, "prefix": ""}
}

_SOURCES = ("text", "source")  # the inputs with source text, in all signatures


def read_document(body: bytes) -> dict[str, Any]:
    """Returns the JSON object of a request.

    Raises:
        RequestError: for invalid JSON, another type, or a `signature_name` that is not a string.
    """
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


def read_inputs(document: Mapping[str, Any], expected: Mapping[str, Any]) -> Arrays:
    """Returns the inputs of a request in the row or the column format.

    In requests for the signature `translate`, an option that is null or omitted has the value that
    means "as exported". So has a null of an option that the signature lacks, such as `beam_size`.

    Args:
        document: the object from `read_document`.
        expected: TensorInfo of the signature by name.

    Raises:
        RequestError: for inputs that do not match the signature.
    """
    if ("instances" in document) == ("inputs" in document):
        _refuse(
            "The request has both or neither of 'inputs' and 'instances'. Send exactly one of them."
        )
    defaults = {
        name: value
        for name, value in _AS_EXPORTED.get(document.get("signature_name", ""), {}).items()
        if name in expected
    }
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
    return {name: _array(columns[name], name, info) for name, info in expected.items()}


def add_source_tag(inputs: Arrays, tag: str, symbols: Sequence[str] | None) -> Arrays:
    """Returns checked inputs with a tag in each source text that has none.

    Args:
        inputs: arrays by name.
        tag: the tag.
        symbols: the symbols of the model, as in `inference.tags.split_tags`.

    Example:
    >>> add_source_tag({"text": np.array([b"a", b"<2fr> b"], object)}, "<2de>", None)
    {'text': array([b'<2de> a', b'<2fr> b'], dtype=object)}
    """
    tagged = dict(inputs)
    for name in set(_SOURCES) & set(inputs):
        texts = [text.decode("utf-8", "surrogateescape") for text in inputs[name]]
        texts = [add_missing_tag(text, tag, symbols) for text in texts]
        tagged[name] = np.array([text.encode("utf-8", "surrogateescape") for text in texts], object)
    return tagged


def write_outputs(outputs: Arrays, by_row: bool) -> bytes:
    """Returns the body of an answer.

    Args:
        outputs: arrays by name.
        by_row: use the row format ("predictions") instead of the column format ("outputs").

    Raises:
        RequestError: for outputs with different numbers of rows in the row format.
    """
    rows = {array.shape[:1] for array in outputs.values()}
    if by_row and (len(rows) > 1 or () in rows):
        _refuse("The outputs have different numbers of rows. Send the request with 'inputs'.")
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


def read_tensors(tensors: Mapping[str, Any], max_bytes: int) -> Arrays:
    """Converts TensorProtos to arrays; strings are bytes in arrays of objects.

    Args:
        tensors: the tensors of a request by name.
        max_bytes: maximum bytes of all arrays. A string counts with its pointer.

    Raises:
        RequestError: for damaged tensors, or too many bytes, which a shape can claim without data.
    """
    arrays = {}
    total = 0
    for name, proto in tensors.items():
        problem = None
        try:
            dtype = protos.dtype_of(proto.dtype)
            sizes = [dimension.size for dimension in proto.tensor_shape.dim]
            count, strings = math.prod(sizes), len(proto.string_val)
            if min(sizes, default=0) < 0:
                problem = f"Input {name} has the shape {sizes}, with a size below 0."
            elif dtype.kind == "O" and strings != count:  # TensorFlow would repeat a single string
                problem = f"Input {name} has the shape {sizes} and {strings:,} strings, "
                problem += f"but the shape needs {count:,}."
            else:
                total += count * dtype.itemsize
                total += sum(map(len, proto.string_val))
                if total <= max_bytes:
                    arrays[name] = protos.array_of(proto)
                else:
                    problem = f"Input {name} has the shape {sizes}, which brings the request to "
                    problem += f"{total:,} bytes. At most {max_bytes:,} are allowed."
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
            problem = f"Input {name} is not a valid tensor: {error}."
        if problem is not None:
            _refuse(problem)
    return arrays


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
            _refuse(f"instances[{number}] is {_shown(instance)}, but it must be {_names(names)}.")
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


def _array(value: Any, name: str, info: Any) -> np.ndarray:
    """Converts nested lists to an array."""
    shape, first = [], value
    while isinstance(first, list):
        shape.append(len(first))
        first = first[0] if first else None
    # Checked first, because the lists may be nested too deep for recursion.
    if not protos.is_compatible(info.tensor_shape, shape) or len(shape) > 8:
        expected = protos.shape_text(info.tensor_shape)
        _refuse(f"The input {name} has the shape {shape}, but it must have {expected}.")
    try:
        dtype = protos.dtype_of(info.dtype)
    except TypeError as error:
        raise RequestError(
            grpc.StatusCode.UNIMPLEMENTED, f"JSON cannot hold the input {name}: {error}. Use gRPC."
        ) from error
    convert = _converter(dtype)
    values = []
    for place, leaf in _leaves(value, shape, name):
        try:
            values.append(convert(leaf))
        except (TypeError, ValueError, OverflowError):
            _refuse(f"{place} is {_shown(leaf)}, but it must be {protos.dtype_name(dtype)}.")
    result = np.empty(len(values), dtype)
    result[:] = values
    return result.reshape(shape)


def _leaves(value: Any, shape: list[int], place: str) -> Iterator[tuple[str, Any]]:
    """Yields the values of nested lists and their places. Lists must have equal sizes."""
    if not shape:
        yield place, value
    elif not isinstance(value, list) or len(value) != shape[0]:
        _refuse(f"{place} is {_shown(value)}, but it must be a list of {shape[0]} values.")
    else:
        for index, each in enumerate(value):
            yield from _leaves(each, shape[1:], f"{place}[{index}]")


def _converter(dtype: np.dtype) -> Callable[[Any], Any]:
    """Returns a function that converts JSON values to a dtype."""
    if dtype.kind == "O":
        return _string
    if dtype.kind == "b":
        return lambda value: _of_type(value, bool)
    if dtype.kind == "f":
        return lambda value: float(_of_type(value, int, float))
    limits = np.iinfo(dtype)

    def integer(value: Any) -> Any:
        if not limits.min <= _of_type(value, int) <= limits.max:
            raise OverflowError
        return value

    return integer


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
        write = _base64 if name.endswith("_bytes") else _text
        result = np.empty(array.size, object)
        result[:] = [write(value) for value in array.flat]
        return result.reshape(array.shape).tolist()
    if array.dtype == np.float32:  # writes 0.1, not 0.10000000149011612
        if array.ndim > 1 and array.size > _MANY_DIGITS:
            return [_values(part, name) for part in array]
        return array.astype(str).astype(float).tolist()
    return array.tolist()


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
    raise RequestError(grpc.StatusCode.INVALID_ARGUMENT, sentence)
