"""Parallel text in: pairs of lines as bytes, aligned or refused.

Lines end at LF alone. Other readers drop every CR or split at it, which
shifts one side of a corpus against the other.
"""

from __future__ import annotations

import codecs
import dataclasses
import gzip
import itertools
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Protocol, cast

from keras_transformer.errors import InputError


class Corpus(Protocol):
    """Pairs of sentences that can be read more than once, in the same order."""

    @property
    def name(self) -> str:
        """Where the pairs come from; pair i is told to the user as line i of it."""
        ...

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields (source, target), each UTF-8."""
        ...


@dataclasses.dataclass(frozen=True)
class ParallelFiles:
    """A corpus of two files whose lines of the same number translate each other."""

    source: Path
    target: Path

    @property
    def name(self) -> str:
        """Both paths."""
        return f"{self.source} + {self.target}"

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields the lines of both files, pair by pair.

        Raises:
            InputError: for what `read_lines` refuses, or different numbers of lines.
        """
        sources, targets = read_lines(self.source), read_lines(self.target)
        for number, (source, target) in enumerate(itertools.zip_longest(sources, targets)):
            if source is None or target is None:
                longer = number + 1 + sum(1 for _ in (targets if source is None else sources))
                counts = (number, longer) if source is None else (longer, number)
                raise InputError(
                    f"{self.source} has {counts[0]} lines and {self.target} has {counts[1]}; "
                    "expected the same number"
                )
            yield source, target


def read_text(path: str | Path) -> list[str]:
    """Returns all lines of a file as text; refuses what `read_lines` does."""
    return [line.decode() for line in read_lines(Path(path))]


def parallel_files(
    sources: Sequence[str | Path], targets: Sequence[str | Path]
) -> list[ParallelFiles]:
    """Pairs source files with target files, in order.

    Raises:
        InputError: for different numbers of files, or one that is missing or no regular file.
    """
    if len(sources) != len(targets):
        raise InputError(
            f"there are {len(sources)} source files and {len(targets)} target files; "
            "expected the same number"
        )
    for path in (*sources, *targets):
        if not Path(path).is_file():  # a pipe could be read only once
            state = "is no regular file" if Path(path).exists() else "is missing"
            raise InputError(f"{path} {state}; expected a text file, one sentence a line")
    return [ParallelFiles(Path(s), Path(t)) for s, t in zip(sources, targets, strict=True)]


def read_lines(path: Path) -> Iterator[bytes]:
    """Yields the lines of a UTF-8 file, `.gz` or not, without their ends and the file's BOM.

    Raises:
        InputError: for a file that is missing, unreadable or empty, and for a
            line that holds bytes that are no UTF-8, or a NUL.
    """
    number = 0
    try:
        with _open(path) as file:
            offset = 0
            for number, raw in enumerate(file, start=1):
                _check(path, number, offset, raw)
                offset += len(raw)
                if number == 1:
                    raw = raw.removeprefix(codecs.BOM_UTF8)
                yield raw.removesuffix(b"\n").removesuffix(b"\r")
    except FileNotFoundError:
        raise InputError(f"{path} is missing; expected a text file, one sentence a line") from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(
            f"{path} cannot be read after line {number} ({error}); expected a text file"
        ) from error
    if number == 0:
        raise InputError(f"{path} is empty; expected one sentence a line")


def _open(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _check(path: Path, number: int, offset: int, raw: bytes) -> None:
    if b"\0" in raw:
        place = offset + raw.index(b"\0")
        raise InputError(f"{path}, line {number}: NUL at byte offset {place}; expected UTF-8 text")
    if not raw.isascii():
        try:
            raw.decode()
        except UnicodeDecodeError as error:
            raise InputError(
                f"{path}, line {number}: byte 0x{raw[error.start]:02x} at byte offset "
                f"{offset + error.start} is not UTF-8 ({error.reason}); expected UTF-8 text"
            ) from None
