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
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.runs.checkpoints import reading

_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_DTYPES: dict[str, np.dtype[Any]] = {
    "FloatStorage": np.dtype("<f4"),
    "DoubleStorage": np.dtype("<f8"),
    "HalfStorage": np.dtype("<f2"),
    "BFloat16Storage": np.dtype("<u2"),  # the upper half of a float32
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


class _StorageType(NamedTuple):
    name: str


class _Storage(NamedTuple):
    """The place of a storage: its values follow in another part of the file."""

    dtype_name: str
    key: str


class _Tensor(NamedTuple):
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def array(self, storages: dict[str, bytes]) -> np.ndarray:
        dtype = _DTYPES[self.storage.dtype_name]
        # NumPy checks that the array is inside the buffer.
        array = np.ndarray(
            self.shape,
            dtype,
            storages[self.storage.key],
            self.offset * dtype.itemsize,
            tuple(stride * dtype.itemsize for stride in self.strides),
        )
        if self.storage.dtype_name == "BFloat16Storage":
            return (array.astype(np.uint32) << 16).view(np.float32)
        return array


def _make_tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> _Tensor:
    if not isinstance(storage, _Storage):
        raise pickle.UnpicklingError("a tensor without a storage")
    return _Tensor(storage, int(offset), tuple(map(int, shape)), tuple(map(int, strides)))


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _make_tensor
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return lambda tensor, *_: tensor
        if module == "torch" and name in _DTYPES:
            return _StorageType(name)
        return type(name, (Inert,), {})

    def persistent_load(self, pid: Any) -> _Storage:
        kind, storage_type, key = pid[:3]
        if kind != "storage" or not isinstance(storage_type, _StorageType):
            raise pickle.UnpicklingError(f"a storage of the type {storage_type!r:.60}")
        return _Storage(storage_type.name, str(key))


def read_torch_file(path: Path) -> Any:
    """Returns the content of a file of `torch.save`, with NumPy arrays as tensors."""
    try:
        with reading(path, "a file of PyTorch"), path.open("rb") as file:
            if zipfile.is_zipfile(file):
                content, storages = _read_archive(file)
            else:
                file.seek(0)
                content, storages = _read_legacy(file)
            return _with_arrays(content, storages)
    except MemoryError:  # also for a damaged length
        raise InputError(f"{path} needs more memory than there is, or it is damaged.") from None


def _read_archive(file: BinaryIO) -> tuple[Any, dict[str, bytes]]:
    with zipfile.ZipFile(file) as archive:
        [pickled] = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        folder = f"{pickled.removesuffix('data.pkl')}data/"
        content = _Unpickler(io.BytesIO(archive.read(pickled))).load()
        storages = {
            name.removeprefix(folder): archive.read(name)
            for name in archive.namelist()
            if name.startswith(folder)
        }
    return content, storages


def _read_legacy(file: BinaryIO) -> tuple[Any, dict[str, bytes]]:
    magic, _, _, content, keys = (_Unpickler(file).load() for _ in range(5))
    if magic != _LEGACY_MAGIC:
        raise ValueError("it lacks the mark of PyTorch")
    sizes = _item_sizes(content)
    storages = {}
    rest = memoryview(file.read())
    for key in keys:  # each storage: the number of its values, and the values
        end = 8 + int.from_bytes(rest[:8], "little") * sizes[key]
        storages[key], rest = bytes(rest[8:end]), rest[end:]
    return content, storages


def _item_sizes(content: Any) -> dict[str, int]:
    """Returns the bytes of a value of each storage."""
    sizes: dict[str, int] = {}

    def visit(value: Any) -> None:
        if isinstance(value, _Tensor):
            sizes[value.storage.key] = _DTYPES[value.storage.dtype_name].itemsize
        else:
            for each in _parts(value):
                visit(each)

    visit(content)
    return sizes


def _parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, Inert):
        return list(vars(value).values())
    return list(value) if isinstance(value, (list, tuple)) else []


def _with_arrays(value: Any, storages: dict[str, bytes]) -> Any:
    """Returns a value with its tensors as arrays."""
    if isinstance(value, _Tensor):
        return value.array(storages)
    if isinstance(value, dict):
        return {key: _with_arrays(each, storages) for key, each in value.items()}
    if isinstance(value, Inert):
        vars(value).update({k: _with_arrays(v, storages) for k, v in vars(value).items()})
        return value
    if type(value) in (list, tuple):
        return type(value)(_with_arrays(each, storages) for each in value)
    return value
