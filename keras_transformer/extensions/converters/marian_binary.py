"""Reads Marian's binary models (`.bin`), such as those that Firefox downloads.

A file has a version, a header for each weight, their names, their shapes, padding, and their
values, all in little-endian order. Nothing in a file is executed. Each size is compared with the
bytes that are left before it is used.
"""

from __future__ import annotations

import io
import math
import sys
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from keras_transformer.errors import InputError
from keras_transformer.runs.checkpoints import reading

_VERSION = 1
_HEADER = np.dtype([("name", "<u8"), ("type", "<u8"), ("rank", "<u8"), ("size", "<u8")])
_MAX_RANK = 4
_PADDING = 256  # Marian fills up the values of a weight to a multiple of it
_BLOCK = 16  # rows and columns that Marian transposes together
_INTGEMM8 = (0x10001, 0x4101)  # in Marian, and in Firefox's fork of it
_INT8 = 0x101  # of the configuration, which is a text
_TYPES: dict[int, np.dtype[Any]] = {
    _INT8: np.dtype("i1"),
    0x404: np.dtype("<f4"),
    **dict.fromkeys(_INTGEMM8, np.dtype("i1")),
}
# Types for one kind of CPU, or with other numbers.
_UNSUPPORTED = {
    0x402: "float16",
    0x802: "packed16",
    0x1801: "packed8avx2",
    0x2801: "packed8avx512",
    0x4102: "intgemm16",
    0x10002: "intgemm16",
    0x11001: "intgemm8avx2",
    0x11002: "intgemm16avx2",
    0x12001: "intgemm8avx512",
    0x12002: "intgemm16avx512",
    0x13001: "intgemm8avx512vnni",
    0x14002: "intgemm16sse2",
    0x18001: "intgemm8ssse3",
}


def _take(file: BinaryIO, field: str, count: int, dtype: npt.DTypeLike = "u1") -> npt.NDArray[Any]:
    """Returns the next `count` values of a file."""
    size = count * np.dtype(dtype).itemsize
    content = file.read(min(size, sys.maxsize))  # a damaged file may have any size
    if len(content) < size:
        raise ValueError(f"{field} has {size:,} bytes, but only {len(content):,} are left")
    return np.frombuffer(content, dtype, count)


def _number(file: BinaryIO, field: str) -> int:
    """Returns the next number of 64 bits."""
    return int(_take(file, field, 1, "<u8")[0])


def read_binary_model(file: Path) -> dict[str, npt.NDArray[Any]]:
    """Returns the weights by name: matrices of int8 as float32, and the configuration as int8.

    A matrix of int8 is followed by the multiplier that it was quantized with.
    """
    with reading(file, "a binary model of Marian"):
        content = io.BytesIO(file.read_bytes())
        if (version := _number(content, "the version")) != _VERSION:
            raise ValueError(f"its version is {version}, and not {_VERSION}")
        headers = _take(content, "the headers", _number(content, "the number of weights"), _HEADER)
        fields = [dict(zip(_HEADER.names or (), map(int, row), strict=True)) for row in headers]
        names = [
            _take(content, "a name", field["name"]).tobytes().rstrip(b"\0").decode()
            for field in fields
        ]
        shapes = []
        for name, field in zip(names, fields, strict=True):
            if field["rank"] > _MAX_RANK:
                raise ValueError(f"{name} has {field['rank']:,} dimensions")
            shapes.append(_take(content, f"the shape of {name}", field["rank"], "<i4").tolist())
        _take(content, "the padding", _number(content, "the size of the padding"))
        weights: dict[str, npt.NDArray[Any]] = {}
        for name, shape, field in zip(names, shapes, fields, strict=True):
            if name in weights:
                raise ValueError(f"it has {name} twice")
            code = field["type"]
            is_text = name.startswith("special:")
            if code not in _TYPES or (code == _INT8) != is_text:
                raise InputError(
                    f"{file}: the weight {name} has the type {_UNSUPPORTED.get(code, hex(code))}. "
                    "Only float32 and intgemm8 can be converted. Convert the .npz model, or make "
                    "a file with `marian-conv --gemm-type intgemm8`."
                )
            values = io.BytesIO(_take(content, name, field["size"]).data)
            weights[name] = _weight(name, shape, code, values)
        if rest := content.read():
            raise ValueError(f"{len(rest):,} bytes follow the last weight")
    return weights


def _weight(name: str, shape: list[int], code: int, content: BinaryIO) -> npt.NDArray[Any]:
    """Returns a weight of a shape and a type from its bytes."""
    if min(shape, default=1) < 1:
        raise ValueError(f"{name} has the shape {shape}")
    values = _take(content, name, math.prod(shape), _TYPES[code])
    if code not in _INTGEMM8:
        weight = values.reshape(shape)
    else:
        [multiplier] = _take(content, f"the multiplier of {name}", 1, "<f4")
        if not 127 / np.finfo(np.float32).max < multiplier < math.inf:
            raise ValueError(f"{name} has the multiplier {multiplier}")
        if "Wemb" not in name:  # other matrices are transposed, but not their shapes
            if any(size % _BLOCK for size in shape):
                raise ValueError(
                    f"{name} has the shape {shape}, but Marian transposes only multiples of "
                    f"{_BLOCK} correctly"
                )
            values = values.reshape(shape[::-1]).T
        weight = values.reshape(shape) * (np.float32(1) / multiplier)
    if len(rest := content.read()) > _PADDING:
        raise ValueError(f"{name} has {len(rest):,} bytes more than its shape {shape} needs")
    return weight
