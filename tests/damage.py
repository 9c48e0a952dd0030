"""Damages the files of a copy, as full disks, broken copies and old disks do."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path


def empty(file: Path) -> None:
    file.write_bytes(b"")


def cut(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def flip(file: Path) -> None:
    """Changes a bit at the beginning, in the middle and at the end."""
    content = bytearray(file.read_bytes())
    for index in (0, len(content) // 2, len(content) - 1):
        content[index] ^= 1
    file.write_bytes(content)


def delete(file: Path) -> None:
    file.unlink()


DAMAGES: tuple[Callable[[Path], None], ...] = (empty, cut, flip, delete)


def files_of(folder: Path) -> list[str]:
    """Returns the names of all files relative to a folder."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [path.relative_to(folder).as_posix() for path in paths]


def at_random(file: Path, end: int | None = None) -> Iterator[None]:
    """Damages a file 40 times, each time another copy of the original.

    Args:
        file: the file, which stays damaged.
        end: changed bytes are before this index; None for the whole file.
    """
    original = file.read_bytes()
    choice = random.Random(1)
    for _ in range(40):
        content = bytearray(original)
        for _ in range(choice.choice([1, 3, 30])):
            content[choice.randrange(len(content[:end]))] = choice.randrange(256)
        if choice.random() < 0.3:
            del content[choice.randrange(len(content)) :]
        file.write_bytes(content)
        yield


def replace(file: Path, old: str, new: str) -> None:
    """Replaces a part of a text file."""
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")
