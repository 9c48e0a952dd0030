"""Arrays of requests and answers, from and to JSON, and from protocol buffers.

JSON is that of TF Serving's REST API (its `json_tensor.cc`), but three mistakes are
refused that it lets pass: text that is no UTF-8, anything after the object, and inputs
that the signature does not have.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import grpc
import numpy as np
import tensorflow as tf

from keras_transformer.serving.server.batching import Arrays, RequestError

_MANY_DIGITS = 2**16  # numbers that are written as text at once, which has 128 bytes of each


def read_document(body: bytes) -> dict[str, Any]:
    """Returns the object that the body of a request is.

    Raises:
        RequestError: for what is no JSON, or no object, or whose `signature_name` is no string.
    """
    try:
        document = json.loads(body.decode("utf-8-sig"))
    except ValueError as error:
        _refuse(f"JSON Parse error: {error}")
    except RecursionError:
        _refuse("JSON Parse error: the body is nested too deep; expected lists of an input's rank")
    if not isinstance(document, dict):
        _refuse(f"JSON Value: {_shown(document)} Is not object")
    if not isinstance(document.get("signature_name", ""), str):
        _refuse(f"signature_name is {_shown(document['signature_name'])}; expected a string")
    return document


def read_inputs(document: Mapping[str, Any], expected: Mapping[str, Any]) -> Arrays:
    """Returns the inputs of a request, of either format.

    Args:
        document: what `read_document` has returned.
        expected: TensorInfo by name, of the signature.

    Raises:
        RequestError: for values that are not what the signature takes.
    """
    if ("instances" in document) == ("inputs" in document):
        _refuse("the request has both or neither of 'inputs' and 'instances'; expected one of them")
    if "instances" in document:
        columns = _columns(document["instances"], list(expected))
    elif _is_named(document["inputs"]):
        columns = document["inputs"]
    elif len(expected) == 1:
        columns = dict.fromkeys(expected, document["inputs"])
    else:
        _refuse(f"inputs is {_shown(document['inputs'])}; expected an object of {_names(expected)}")
    if set(columns) != set(expected):
        _refuse(f"the inputs are {_names(columns)}; expected {_names(expected)}")
    return {name: _array(columns[name], name, info) for name, info in expected.items()}


def write_outputs(outputs: Arrays, by_row: bool) -> bytes:
    """Returns the body of an answer, in the format of the request.

    Raises:
        RequestError: for outputs of different numbers of rows, in rows.
    """
    rows = {array.shape[:1] for array in outputs.values()}
    if by_row and (len(rows) > 1 or () in rows):
        _refuse("the outputs have different numbers of rows; expected a request by 'inputs'")
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
    return json.dumps(answer, ensure_ascii=False).encode()  # NaN and Infinity as TF Serving's


def read_tensors(tensors: Mapping[str, Any], max_bytes: int) -> Arrays:
    """Returns arrays of TensorProtos; strings are bytes in arrays of objects.

    Args:
        tensors: of one request, by name.
        max_bytes: most bytes of them all, of which a string has those of its pointer, too.

    Raises:
        RequestError: for a damaged one, or where they have more bytes than that; a shape
            alone can claim any number.
    """
    arrays = {}
    total = 0
    for name, proto in tensors.items():
        problem = None
        try:
            dtype = tf.dtypes.as_dtype(proto.dtype)
            sizes = [dimension.size for dimension in proto.tensor_shape.dim]
            count, strings = math.prod(sizes), len(proto.string_val)
            if min(sizes, default=0) < 0:
                problem = f"input {name} has the shape {sizes}; expected no size below 0"
            elif dtype == tf.string and strings != count:  # one would be repeated for all
                problem = f"input {name} has the shape {sizes} and {strings:,} strings; expected as"
                problem += f" many of one as of the other, {count:,}"
            else:
                total += count * np.dtype(dtype.as_numpy_dtype).itemsize
                total += sum(map(len, proto.string_val))
                if total <= max_bytes:
                    arrays[name] = tf.make_ndarray(proto)
                else:
                    problem = f"input {name} has the shape {sizes}, which makes {total:,} bytes of "
                    problem += f"inputs; expected at most {max_bytes:,} in a request"
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
            problem = f"input {name} is no tensor ({error})"
        if problem is not None:
            _refuse(problem)
    return arrays


def _columns(instances: Any, names: list[str]) -> dict[str, list[Any]]:
    """Turns rows, plain ones or objects with the same keys, into a list for each input."""
    if not isinstance(instances, list) or not instances:
        _refuse(f"instances is {_shown(instances)}; expected a list with at least one value")
    if not _is_named(instances[0]):
        if len(names) > 1:
            _refuse(f"instances is a plain list; expected a list of objects of {_names(names)}")
        return {names[0]: instances}
    for number, instance in enumerate(instances):
        if not _is_named(instance) or set(instance) != set(names):
            _refuse(f"instances[{number}] is {_shown(instance)}; expected {_names(names)}")
    return {name: [instance[name] for instance in instances] for name in names}


def _array(value: Any, name: str, info: Any) -> np.ndarray:
    """Returns the array that nested lists are."""
    shape, first = [], value
    while isinstance(first, list):
        shape.append(len(first))
        first = first[0] if first else None
    # Before the rest is looked at: how deep it may be.
    if not tf.TensorShape(info.tensor_shape).is_compatible_with(shape) or len(shape) > 8:
        expected = tf.TensorShape(info.tensor_shape)
        _refuse(f"input {name} has the shape {shape}; expected {expected}")
    dtype = tf.dtypes.as_dtype(info.dtype)
    convert = _converter(dtype)
    values = []
    for place, leaf in _leaves(value, shape, name):
        try:
            values.append(convert(leaf))
        except (TypeError, ValueError, OverflowError):
            _refuse(f"{place} is {_shown(leaf)}; expected {dtype.name}")
    result = np.empty(len(values), dtype.as_numpy_dtype)
    result[:] = values
    return result.reshape(shape)


def _leaves(value: Any, shape: list[int], place: str) -> Iterator[tuple[str, Any]]:
    """Yields what nested lists hold, and where; all lists of one depth must be of one size."""
    if not shape:
        yield place, value
    elif not isinstance(value, list) or len(value) != shape[0]:
        _refuse(f"{place} is {_shown(value)}; expected a list of {shape[0]} values")
    else:
        for index, each in enumerate(value):
            yield from _leaves(each, shape[1:], f"{place}[{index}]")


def _converter(dtype: tf.DType) -> Callable[[Any], Any]:
    """Returns a function from a value of JSON to one of a dtype."""
    if dtype == tf.string:
        return _string
    if dtype == tf.bool:
        return lambda value: _of_type(value, bool)
    if dtype in (tf.float32, tf.float64):
        return lambda value: float(_of_type(value, int, float))
    if dtype.is_integer:
        limits = np.iinfo(dtype.as_numpy_dtype)

        def integer(value: Any) -> Any:
            if not limits.min <= _of_type(value, int) <= limits.max:
                raise OverflowError
            return value

        return integer
    raise RequestError(
        grpc.StatusCode.UNIMPLEMENTED, f"JSON does not go into {dtype.name}; expected gRPC"
    )


def _of_type(value: Any, *types: type) -> Any:
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise TypeError
    return value


def _string(value: Any) -> bytes:
    if _is_base64(value):
        encoded = value["b64"]
        return base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    return _of_type(value, str).encode()  # half of a surrogate pair is a ValueError


def _is_base64(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"b64"} and isinstance(value["b64"], str)


def _is_named(value: Any) -> bool:
    return isinstance(value, dict) and not _is_base64(value)


def _values(array: np.ndarray, name: str) -> Any:
    """Returns an array as nested lists for JSON; what ends with `_bytes` in base64."""
    if array.dtype == object:
        write = _base64 if name.endswith("_bytes") else _text
        result = np.empty(array.size, object)
        result[:] = [write(value) for value in array.flat]
        return result.reshape(array.shape).tolist()
    if array.dtype == np.float32:  # its own digits: 0.1, not 0.10000000149011612
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
    # Piece by piece, each of a character at least: what is read can be too deep to be written.
    text = "".join(itertools.islice(json.JSONEncoder().iterencode(value), 61))
    return text if len(text) <= 60 else f"{text[:60]}..."


def _refuse(sentence: str) -> NoReturn:
    raise RequestError(grpc.StatusCode.INVALID_ARGUMENT, sentence)
