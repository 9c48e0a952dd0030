"""Damages the files of a copy, as full disks, broken copies and old disks do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def empty(file: Path) -> None:
    file.write_bytes(b"")


def cut(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def flip(file: Path) -> None:
    """Changes a bit at the beginning, in the middle and at the end."""
    content = bytearray(file.read_bytes())
    for place in (0, len(content) // 2, len(content) - 1):
        content[place] ^= 1
    file.write_bytes(content)


def delete(file: Path) -> None:
    file.unlink()


DAMAGES: tuple[Callable[[Path], None], ...] = (empty, cut, flip, delete)


def files_of(folder: Path) -> list[str]:
    """Returns the names of all files relative to a folder."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [path.relative_to(folder).as_posix() for path in paths]
