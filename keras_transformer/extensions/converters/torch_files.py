"""Reads the files of `torch.save` without PyTorch, and without executing anything in them.

Such a file is a pickle, and a pickle names the functions that build its objects. Here only three
names have a meaning: tensors, their storages and `OrderedDict`. Each other class becomes an
`Inert`, which keeps its attributes and does nothing. So no code of the file runs.

The formats are those of PyTorch: a ZIP archive since version 1.6, and several pickles before.
"""

from __future__ import annotations

import collections
import io
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.runs.checkpoints import reading

_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_BFLOAT16 = np.dtype("<u2")  # the upper half of a float32
_DTYPES: dict[str, np.dtype[Any]] = {
    "FloatStorage": np.dtype("<f4"),
    "DoubleStorage": np.dtype("<f8"),
    "HalfStorage": np.dtype("<f2"),
    "BFloat16Storage": _BFLOAT16,
    "LongStorage": np.dtype("<i8"),
    "IntStorage": np.dtype("<i4"),
    "ShortStorage": np.dtype("<i2"),
    "CharStorage": np.dtype("i1"),
    "ByteStorage": np.dtype("u1"),
    "BoolStorage": np.dtype("?"),
}


class Inert:
    """An object of a class that is not known. It has the attributes of the original object."""

    def __init__(self, *args: Any, **kwargs: Any):
        """Ignores all arguments."""

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


class _Unpickler(pickle.Unpickler):
    """Makes arrays of tensors from the bytes of storages. Without these, it finds their types."""

    def __init__(self, file: BinaryIO, storages: Mapping[str, Any] | None = None):
        super().__init__(file)
        self._storages = storages
        self.types: dict[str, np.dtype[Any]] = {}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self._tensor
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return lambda tensor, *_: tensor
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        return type(name, (Inert,), {})

    def persistent_load(self, pid: Any) -> np.ndarray:
        """Returns a storage as an array `[values]`."""
        kind, dtype, key = pid[:3]
        if kind != "storage" or not isinstance(dtype, np.dtype):
            raise pickle.UnpicklingError(f"a storage of the type {dtype!r:.60}")
        self.types[str(key)] = dtype
        return np.frombuffer(b"" if self._storages is None else self._storages[str(key)], dtype)

    def _tensor(self, storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> Any:
        if self._storages is None:
            return None
        if not isinstance(storage, np.ndarray):
            raise pickle.UnpicklingError("a tensor without a storage")
        size = storage.itemsize
        # NumPy checks that the array is inside the storage.
        array: np.ndarray = np.ndarray(
            shape, storage.dtype, storage, offset * size, [stride * size for stride in strides]
        )
        if array.dtype == _BFLOAT16:
            return (array.astype(np.uint32) << 16).view(np.float32)
        return array


def read_torch_file(path: Path) -> Any:
    """Returns the content of a file of `torch.save`, with NumPy arrays as tensors."""
    try:
        with reading(path, "a file of PyTorch"), path.open("rb") as file:
            is_archive = zipfile.is_zipfile(file)
            file.seek(0)
            return _read_archive(file) if is_archive else _read_legacy(file)
    except MemoryError:  # also for a damaged length
        raise InputError(f"{path} needs more memory than there is, or it is damaged.") from None


def _read_archive(file: BinaryIO) -> Any:
    with zipfile.ZipFile(file) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    [pickled] = [name for name in files if name.endswith("/data.pkl")]
    folder = f"{pickled.removesuffix('data.pkl')}data/"
    storages = {name.removeprefix(folder): content for name, content in files.items()}
    return _Unpickler(io.BytesIO(files[pickled]), storages).load()


def _read_legacy(file: BinaryIO) -> Any:
    """Reads a mark, two facts, the object, the keys of the storages, and the storages."""
    magic, _, _ = (_Unpickler(file).load() for _ in range(3))
    if magic != _LEGACY_MAGIC:
        raise ValueError("it lacks the mark of PyTorch")
    start = file.tell()
    first = _Unpickler(file)  # the storages follow, and their sizes depend on their types
    first.load()
    keys = _Unpickler(file).load()
    storages = {}
    rest = memoryview(file.read())
    for key in keys:  # each storage: the number of its values, and the values
        end = 8 + int.from_bytes(rest[:8], "little") * first.types[key].itemsize
        storages[key], rest = rest[8:end], rest[end:]
    file.seek(start)
    return _Unpickler(file, storages).load()
