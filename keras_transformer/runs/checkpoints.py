"""One checkpoint on disk: sets of arrays and the facts about them, whole or not at all.

    weights.npz, ...  arrays, addressed by the path of their variable
    checkpoint.json   facts, the CRC-32 of every file beside it, and its own

A checkpoint is written atomically (`atomic_path`), so it is complete even if the
process or the machine stops. Reading detects any byte that has changed since.
There is no pickle and no code.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt

from keras_transformer.errors import InputError
from keras_transformer.runs.atomic import atomic_path

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

_FACTS = "checkpoint.json"
_CHANGED = "its checksum is not the one it was written with"


class Damaged(InputError):
    """What is on disk is not what was written there."""


def write_checkpoint(path: Path, facts: Mapping[str, Any], arrays: Mapping[str, Arrays]) -> None:
    """Writes a checkpoint, in place of the one that is there.

    Args:
        path: its directory.
        facts: anything that JSON can hold; "files" and "crc32" are added.
        arrays: sets of arrays by name; a set is written as NAME.npz.

    Raises:
        OSError: where it cannot be written; nothing is left of it then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as partial:
        partial.mkdir()
        files = {
            f"{name}.npz": _write_arrays(partial / f"{name}.npz", each)
            for name, each in arrays.items()
        }
        (partial / _FACTS).write_bytes(_sealed({**facts, "files": files}))


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Arrays]]:
    """Returns the facts and the sets of arrays that `write_checkpoint` was given.

    Raises:
        Damaged: where any of it is missing or has changed.
        InputError: where reading it is not permitted.
    """
    facts = read_facts(path)
    names = [file.removesuffix(".npz") for file in facts["files"]]
    return facts, {name: read_arrays(path, name) for name in names}


def read_facts(path: Path) -> dict[str, Any]:
    """Returns the facts alone, and as "files" the CRC-32 of every file; raises as above."""
    file = path / _FACTS
    with reading(file, "the facts about a checkpoint"):
        content = file.read_bytes()
        facts = dict(json.loads(content))
        facts.pop("crc32", None)
        if _sealed(facts) != content:  # the whole text, blanks and all
            raise ValueError(_CHANGED)
    return facts


def read_arrays(path: Path, name: str) -> Arrays:
    """Returns one set of arrays; raises as above."""
    files = read_facts(path)["files"]
    with reading(path / f"{name}.npz", "arrays"), open(path / f"{name}.npz", "rb") as file:
        if _crc32(file) != files[f"{name}.npz"]:
            raise ValueError(_CHANGED)
        file.seek(0)
        with np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}


def set_aside(path: Path) -> Path:
    """Gives a damaged checkpoint another name, `damaged-NAME-1` or the next, and returns it."""
    names = (path.with_name(f"damaged-{path.name}-{number}") for number in itertools.count(1))
    aside = next(name for name in names if not name.exists())
    with contextlib.suppress(FileNotFoundError):  # another worker of the run may be the first
        path.rename(aside)
    return aside


@contextlib.contextmanager
def reading(file: Path, what: str) -> Iterator[None]:
    """Turns whatever is wrong with a file that is read into an error that names it.

    Raises:
        Damaged: where the block fails.
        InputError: where reading the file is not permitted.
    """
    try:
        yield
    except (InputError, MemoryError):
        raise
    except PermissionError as error:  # nothing is wrong with the file
        raise InputError(f"{file} cannot be read ({error.strerror}); expected permission") from None
    except Exception as error:  # JSON and a zip file can be broken in a dozen ways
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise Damaged(
            f"{file} cannot be read as {what} ({reason}); expected it as it was written"
        ) from None


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns a full disk or a missing permission into an `InputError` that names the place."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror}); expected room and permission; "
            "the same command continues from the last checkpoint"
        ) from error


def _sealed(facts: Mapping[str, Any]) -> bytes:
    """Facts as JSON, their own CRC-32 last."""
    crc32 = zlib.crc32(json.dumps(facts).encode())
    return json.dumps({**facts, "crc32": crc32}, indent=2).encode() + b"\n"


class _Checksum:
    """A stream into a file that keeps the CRC-32 of what went through it."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self.crc32 = 0

    def write(self, data: bytes) -> int:
        self.crc32 = zlib.crc32(data, self.crc32)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def read(self, size: int = -1) -> bytes:
        raise OSError("only written")  # NumPy takes for a file what has this method


def _write_arrays(path: Path, arrays: Arrays) -> int:
    """Returns the file's CRC-32, taken on the way: big files are not read again."""
    with path.open("wb") as file:
        stream = _Checksum(file)
        # Through **: a name may hold "/", which makes folders inside the zip.
        np.savez(stream, allow_pickle=False, **arrays)
    return stream.crc32


def _crc32(file: BinaryIO) -> int:
    crc32 = 0
    while chunk := file.read(1 << 20):
        crc32 = zlib.crc32(chunk, crc32)
    return crc32
