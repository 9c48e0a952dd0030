"""Reads the files of `torch.save` without PyTorch, and without executing anything in them.

Such a file is a pickle, and a pickle names the functions that build its objects. Here only three
names have a meaning: tensors, their storages and `OrderedDict`. Each other class becomes an
`Inert`, which keeps its attributes and does nothing. So no code of the file runs.

The formats are those of PyTorch: a ZIP archive since version 1.6, and several pickles before.
"""

from __future__ import annotations

import collections
import functools
import io
import itertools
import math
import pickle
import zipfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from keras_transformer.runs.checkpoints import reading

_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_MAX_RATIO = 8  # unpacked to packed bytes, and tensors to storages: tied weights share one
_MAX_TUPLE = 1000  # parts of a tuple and of the tuples in it
MAX_DEPTH = 100  # levels of collections in collections
_MAX_PARTS = 10**7  # all lists and dictionaries together
_DTYPES: dict[str, np.dtype[Any]] = {
    "FloatStorage": np.dtype("<f4"),
    "DoubleStorage": np.dtype("<f8"),
    "HalfStorage": np.dtype("<f2"),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
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


class _Unpickler(pickle._Unpickler):
    """Makes arrays of tensors from the bytes of storages. Without these, it finds their types.

    It is the unpickler in Python, which can count the parts of tuples. A tuple can contain another
    one many times, and this one a third one. The key of a dictionary has a hash, and a hash visits
    each of them every time.
    """

    dispatch = dict(pickle._Unpickler.dispatch)

    def __init__(self, file: BinaryIO, storages: Mapping[str, Any] | None = None):
        super().__init__(file)
        self._storages = storages
        self._left = _MAX_RATIO * sum(map(len, (storages or {}).values()))  # bytes for tensors
        self.tuples: dict[int, tuple[int, Any]] = {}  # id → number of parts, and the tuple
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
        if kind != "storage" or not isinstance(dtype, np.dtype) or not isinstance(key, str | int):
            name = dtype.__name__ if isinstance(dtype, type) else type(dtype).__name__
            raise pickle.UnpicklingError(f"a storage of the type {name:.60}")
        self.types[str(key)] = dtype
        return np.frombuffer(b"" if self._storages is None else self._storages[str(key)], dtype)

    def _tensor(self, storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> Any:
        if self._storages is None:
            return None
        if not isinstance(storage, np.ndarray):
            raise pickle.UnpicklingError("a tensor without a storage")
        size = storage.itemsize
        self._left -= math.prod(shape) * size
        if self._left < 0:
            raise pickle.UnpicklingError("tensors that are much larger than their storages")
        # NumPy checks that the array is inside the storage.
        return np.ndarray(
            shape, storage.dtype, storage, offset * size, [stride * size for stride in strides]
        )


def _load_tuple(load: Callable[[Any], None], unpickler: Any) -> None:
    """Makes a tuple, and refuses it if it has too many parts."""
    load(unpickler)
    made = unpickler.stack[-1]
    parts = 1 + sum(unpickler.tuples.get(id(part), (1, None))[0] for part in made)
    if parts > _MAX_TUPLE:
        raise pickle.UnpicklingError("a tuple with too many parts")
    unpickler.tuples[id(made)] = parts, made  # its id stays in use


for _code in map(ord, (pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3)):
    _load = _Unpickler.dispatch[_code]
    _Unpickler.dispatch[_code] = functools.partial(_load_tuple, _load)
# Files of PyTorch have protocol 2, which lacks these codes. The first makes an array before it
# reads the content. The second makes frozensets: comparing nested ones can take exponential time.
del _Unpickler.dispatch[pickle.BYTEARRAY8[0]], _Unpickler.dispatch[pickle.FROZENSET[0]]


def check_expanded_size(content: Any, size: int) -> None:
    """Raises a `ValueError` for content with far more parts than a file of `size` bytes can have.

    Each part counts as often as it is referenced: nested references to the same list stand for
    billions of parts, and take that long to print or to compare.
    """
    left, level = min(10 * size + 10_000, _MAX_PARTS), [content]
    for _ in range(MAX_DEPTH):
        parts = [*map(_parts, level)]
        left -= sum(map(len, parts))
        if left < 0:
            break
        level = [*itertools.chain.from_iterable(parts)]
        if not level:
            return
    raise ValueError("it has too many references to the same parts, or too many levels")


def _parts(content: Any) -> Collection[Any]:
    """Returns the parts of a list, a dictionary, an `Inert` or a node of YAML."""
    content = vars(content) if isinstance(content, Inert) else getattr(content, "value", content)
    if isinstance(content, dict):
        return content.items()
    return content if isinstance(content, list | tuple | set | frozenset) else ()


def check_archive(archive: zipfile.ZipFile, size: int) -> None:
    """Raises a `ValueError` if an archive of `size` bytes unpacks to far more.

    Weights can barely be compressed, and neither PyTorch nor Marian compresses them.
    """
    unpacked = sum(info.file_size for info in archive.infolist())
    if unpacked > _MAX_RATIO * size:
        raise ValueError(f"it has {size:,} bytes, but they would unpack to {unpacked:,}")


def read_torch_file(path: Path) -> Any:
    """Returns the content of a file of `torch.save`, with NumPy arrays as tensors."""
    with reading(path, "a file of PyTorch"), path.open("rb") as file:
        is_archive = zipfile.is_zipfile(file)
        file.seek(0)
        content, size = _read_archive(file) if is_archive else _read_legacy(file)
        check_expanded_size(content, size)
        return content


def _read_archive(file: BinaryIO) -> tuple[Any, int]:
    """Returns the object and the size of its pickle, without the storages."""
    with zipfile.ZipFile(file) as archive:
        check_archive(archive, file.seek(0, io.SEEK_END))
        files = {name: archive.read(name) for name in archive.namelist()}
    [pickled] = [name for name in files if name.endswith("/data.pkl")]
    folder = f"{pickled.removesuffix('data.pkl')}data/"
    storages = {name.removeprefix(folder): content for name, content in files.items()}
    return _Unpickler(io.BytesIO(files[pickled]), storages).load(), len(files[pickled])


def _read_legacy(file: BinaryIO) -> tuple[Any, int]:
    """Reads a mark, two facts, the object, the keys of the storages, and the storages.

    Returns the object and the size of its pickle.
    """
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
    return _Unpickler(file, storages).load(), file.tell() - start
