"""A checkpoint on disk: sets of arrays and metadata, written atomically.

    weights.npz, ...  arrays by the path of their variable
    checkpoint.json   metadata, the CRC-32 of all other files, and its own CRC-32

A checkpoint is complete even if the process or the machine stops. Reading detects any changed byte.
The files contain no pickle and no code.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from keras_transformer.errors import InputError, one_line
from keras_transformer.runs.atomic import atomic_path

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

_METADATA = "checkpoint.json"
_CHANGED = "its checksum is not the one it was written with"


class Checkpoint(NamedTuple):
    """A whole checkpoint on disk."""

    step: int
    path: Path


class DamagedCheckpointError(InputError):
    """The files differ from those that were written."""


def write_checkpoint(path: Path, metadata: Mapping[str, Any], arrays: Mapping[str, Arrays]) -> None:
    """Writes a checkpoint, and replaces an existing one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as partial:
        partial.mkdir()
        files = {}
        for name, group in arrays.items():
            # A path may contain "/", which makes folders inside the zip.
            np.savez(partial / f"{name}.npz", allow_pickle=False, **group)
            files[f"{name}.npz"] = _crc32(partial / f"{name}.npz")
        (partial / _METADATA).write_bytes(_sealed({**metadata, "files": files}))


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Arrays]]:
    """Returns the metadata and the sets of arrays of a checkpoint."""
    metadata = read_metadata(path)
    names = [file.removesuffix(".npz") for file in metadata["files"]]
    return metadata, {name: read_arrays(path, name) for name in names}


def read_metadata(path: Path) -> dict[str, Any]:
    """Returns only the metadata, with the CRC-32 of every file as "files". Raises the errors of
    `read_checkpoint`.
    """
    file = path / _METADATA
    with reading(file, "the metadata of a checkpoint"):
        content = file.read_bytes()
        metadata = dict(json.loads(content))
        metadata.pop("crc32", None)
        if _sealed(metadata) != content:  # the whole text, including blanks
            raise ValueError(_CHANGED)
    return metadata


def read_arrays(path: Path, name: str) -> Arrays:
    """Returns one set of arrays. Raises the errors of `read_checkpoint`."""
    files, file = read_metadata(path)["files"], path / f"{name}.npz"
    with reading(file, "arrays"):
        if _crc32(file) != files[file.name]:
            raise ValueError(_CHANGED)
        with np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}


@contextlib.contextmanager
def reading(file: Path, what: str) -> Iterator[None]:
    """Turns any error of reading a file into an error that names the file."""
    try:
        yield
    except MemoryError:
        raise
    except InputError as error:
        raise error if str(file) in str(error) else InputError(f"{file}: {error}") from None
    except PermissionError as error:  # the file itself is intact
        raise InputError(f"{file} cannot be read ({error.strerror}).") from None
    except Exception as error:  # broken JSON and broken zip files raise a dozen types
        raise DamagedCheckpointError(
            f"{file} cannot be read as {what} ({one_line(error)}). It is damaged."
        ) from None


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns a full disk or a missing permission into an `InputError` that names the path."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror}). Check the free space and the "
            "permissions. Then the same command resumes from the last checkpoint."
        ) from error


def _sealed(metadata: Mapping[str, Any]) -> bytes:
    """Returns the metadata as JSON with their own CRC-32 at the end."""
    crc32 = zlib.crc32(json.dumps(metadata).encode())
    return json.dumps({**metadata, "crc32": crc32}, indent=2).encode() + b"\n"


def _crc32(file: Path) -> int:
    return zlib.crc32(np.memmap(file, np.uint8, "r").data)
