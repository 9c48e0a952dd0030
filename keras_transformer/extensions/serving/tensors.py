"""Inputs and outputs of signatures, and their JSON as in TF Serving's REST API.

Three errors that TF Serving ignores are refused: invalid UTF-8, data after the object, and unknown
inputs.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from keras_transformer.inference.tags import add_missing_tags

Arrays = dict[str, np.ndarray]
_MAX_ERROR_BYTES = 1000
# Limit of JSON values in memory: each has a bracket, comma or quote, and takes up to 64 bytes.
_MAX_STRUCTURE = 2**20
_PART_VALUES = 2**14  # values that are converted to JSON at once
_ENCODER = json.JSONEncoder(ensure_ascii=False)

# TensorFlow's names of dtypes. Strings are bytes in arrays of objects.
DTYPES: dict[str, Any] = {
    "DT_STRING": object, "DT_BOOL": np.bool_, "DT_FLOAT": np.float32, "DT_DOUBLE": np.float64,
    "DT_INT8": np.int8, "DT_INT16": np.int16, "DT_INT32": np.int32, "DT_INT64": np.int64,
    "DT_UINT8": np.uint8, "DT_UINT16": np.uint16, "DT_UINT32": np.uint32, "DT_UINT64": np.uint64,
}  # fmt: skip
_NAMES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}

# Options of `text`, which JSON may omit or give as null: the values that mean "as exported".
_AS_EXPORTED: dict[str, Any] = {"max_length": 0, "length_penalty": math.nan, "prefix": ""}
_SOURCES = ("text", "source")  # the inputs with source text, in all signatures


class RequestError(Exception):
    """An error that is sent to the client, with its HTTP status, and when to try again for 429."""

    def __init__(self, status: int, message: str, retry_seconds: int = 1):
        # A name in the message may be as long as the request, and contain surrogates.
        data = message.encode("utf-8", "backslashreplace")[:_MAX_ERROR_BYTES]
        super().__init__(data.decode("utf-8", "ignore"))
        self.status, self.retry_seconds = status, retry_seconds


class Tensor(NamedTuple):
    """An input or output of a signature."""

    dtype: Any  # NumPy dtype; object for strings
    shape: tuple[int, ...]  # -1 for any size


class Signature(NamedTuple):
    """The inputs and outputs of a signature, and its function, which is thread-safe."""

    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    call: Callable[[Mapping[str, Any]], Arrays]


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


def read_document(body: bytes | bytearray) -> dict[str, Any]:
    """Returns the JSON object of a request."""
    structure = sum(body.count(character) for character in b'[{,"')
    if structure > _MAX_STRUCTURE:
        _refuse(
            f"The body has {structure:,} brackets, commas and quotes, but the limit is "
            f"{_MAX_STRUCTURE:,}. Divide it into several requests."
        )
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


def read_inputs(
    document: Mapping[str, Any], expected: Mapping[str, Tensor], max_rows: float = math.inf
) -> Arrays:
    """Returns the inputs of a request in the row or the column format.

    A null is a missing input. Missing options of `text` get the value that means "as exported".
    """
    if ("instances" in document) == ("inputs" in document):
        _refuse("The request has both or neither of 'inputs' and 'instances'. Send one of them.")
    optional = {n: v for n, v in _AS_EXPORTED.items() if "text" in expected and n in expected}
    required = expected.keys() - optional.keys()

    def check(given: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Returns the inputs that are not null, or refuses missing and unknown ones."""
        found = {name: value for name, value in given.items() if value is not None}
        if not required <= found.keys() <= expected.keys():
            _refuse(f"The inputs are {_names(found)}{where}, but they must be {_names(expected)}.")
        return found

    value = document.get("inputs", document.get("instances"))
    given_columns = value.values() if isinstance(value, dict) else [value]
    rows_given = max((len(c) for c in given_columns if isinstance(c, list)), default=1)
    if not 1 <= rows_given <= max_rows:
        _refuse(f"The request has {rows_given:,} rows. It must have 1 to {max_rows:,}.")
    if "instances" in document and not isinstance(value, list):
        _refuse(f"instances is {_shown(value)}, but it must be a list.")
    if "instances" in document and _is_named(value[0]):
        rows = [
            check(row if _is_named(row) else {}, f" in instances[{number}]")
            for number, row in enumerate(value)
        ]
        columns: dict[str, Any] = {name: [row.get(name) for row in rows] for name in expected}
    elif "inputs" in document and _is_named(value):
        columns = check(value, "")
    elif len(required) == 1:
        columns = dict.fromkeys(required, value)
    else:
        _refuse(f"The inputs have no names, but they must be {_names(expected)}.")
    for name, default in optional.items():
        texts = columns["text"]
        column = columns.get(name, [None] * len(texts) if isinstance(texts, list) else None)
        if isinstance(column, list):
            columns[name] = [default if item is None else item for item in column]
    inputs = {name: _array(columns[name], name, tensor) for name, tensor in expected.items()}
    if len({len(array) for array in inputs.values()}) > 1:
        counts = ", ".join(f"{len(array):,} of {key}" for key, array in sorted(inputs.items()))
        _refuse(f"The inputs have different numbers of rows ({counts}).")
    return inputs


def _array(value: Any, name: str, tensor: Tensor) -> np.ndarray:
    """Converts nested lists to an array. NumPy looks into them only as deep as 64 levels."""
    try:
        items = np.array(value, object)
        is_valid = all(
            size in (-1, found) for size, found in zip(tensor.shape, items.shape, strict=True)
        )
    except ValueError:  # another rank, or rows of different lengths
        is_valid = False
    if not is_valid:
        _refuse(f"{name} is {_shown(value)}, but it must have the shape {tensor.shape}.")
    dtype = np.dtype(tensor.dtype)
    result = np.empty(items.size, dtype)
    for index, item in enumerate(items.flat):
        try:
            result[index] = _string(item) if dtype.kind == "O" else _number(item, dtype)
        except (TypeError, ValueError, OverflowError):
            expected = "string" if dtype.kind == "O" else dtype.name
            _refuse(f"{name} has {_shown(item)}, but it must be {expected}.")
    return result.reshape(items.shape)


def _number(value: Any, dtype: np.dtype) -> Any:
    types = (bool,) if dtype.kind == "b" else (int, float) if dtype.kind == "f" else (int,)
    if not isinstance(value, types) or isinstance(value, bool) != (dtype.kind == "b"):
        raise TypeError
    return value


def _string(value: Any) -> bytes:
    if _is_base64(value):
        encoded = value["b64"]
        return base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    if not isinstance(value, str):
        raise TypeError
    return value.encode()  # a lone surrogate raises ValueError


def _is_base64(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"b64"} and isinstance(value["b64"], str)


def _is_named(value: Any) -> bool:
    return isinstance(value, dict) and not _is_base64(value)


def add_source_tag(inputs: Arrays, tag: str, symbols: Sequence[str] | None) -> Arrays:
    """Returns inputs with a tag in each source text that has none."""
    tagged = dict(inputs)
    for name in set(_SOURCES) & set(inputs):
        tagged[name] = add_missing_tags(inputs[name], tag, symbols)
    return tagged


def write_outputs(outputs: Arrays, by_row: bool) -> bytes:
    """Returns the body of an answer, in the row format ("predictions") or the column format.

    It is converted in parts, so that other threads can run in between and little memory is needed.
    """
    if len(outputs) == 1:  # a single output has no name
        [(name, array)] = outputs.items()
        content = _json(array, name)
    elif by_row:
        rows = range(len(next(iter(outputs.values()))))
        # With the `...`, a row of a vector is an array, too.
        columns = ({name: array[row, ...] for name, array in outputs.items()} for row in rows)
        content = _sequence("[]", map(_object, columns))
    else:
        content = _object(outputs)
    start = '{"predictions": ' if by_row else '{"outputs": '
    return b"".join(part.encode() for part in itertools.chain([start], content, "}"))


def _object(outputs: Arrays) -> Iterator[str]:
    fields = ([f"{_ENCODER.encode(n)}: ", *_json(array, n)] for n, array in outputs.items())
    return _sequence("{}", fields)


def _json(array: np.ndarray, name: str) -> Iterator[str]:
    """Yields the JSON of an array, which may contain NaN and Infinity."""
    if array.ndim > 1 and array.size > _PART_VALUES:
        yield from _sequence("[]", (_json(part, name) for part in array))
    else:
        yield _ENCODER.encode(_values(array, name))


def _sequence(brackets: str, items: Iterable[Iterable[str]]) -> Iterator[str]:
    yield brackets[0]
    for index, item in enumerate(items):
        yield ", " if index else ""
        yield from item
    yield brackets[1]


def _values(array: np.ndarray, name: str) -> Any:
    """Returns an array as nested lists for JSON. Outputs named `*_bytes` become base64."""
    if array.dtype == object and name.endswith("_bytes"):
        return map_objects(lambda v: {"b64": base64.b64encode(v).decode()}, array).tolist()
    if array.dtype == object:
        return map_objects(lambda v: v.decode("utf-8", "replace"), array).tolist()
    if array.dtype == np.float32:  # writes 0.1, not 0.10000000149011612
        return array.astype(str).astype(float).tolist()
    return array.tolist()


def map_objects(function: Callable[[Any], Any], array: np.ndarray) -> np.ndarray:
    """Applies a function to each value of an array of objects."""
    result = np.empty(array.size, object)
    result[:] = [function(value) for value in array.flat]
    return result.reshape(array.shape)


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _shown(value: Any) -> str:
    # Only the first characters are encoded, because the value may be too deep for recursion.
    text = "".join(itertools.islice(json.JSONEncoder().iterencode(value), 61))
    return text if len(text) <= 60 else f"{text[:60]}..."


def _refuse(sentence: str) -> NoReturn:
    raise RequestError(400, sentence)
