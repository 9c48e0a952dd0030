"""Text files in, as bytes: lines end at LF alone, and every defect names its place.

Other readers drop every CR or split at it, which shifts one side of a corpus
against the other.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import hashlib
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import numpy as np

from keras_transformer.errors import InputError, needs_extra

BOM = codecs.BOM_UTF8
_CHUNK = 2**20
_MAX_LINE = 2**28  # bytes; what has longer ones is no text


def open_binary(path: Path) -> IO[bytes]:
    """Opens a file to read its bytes, decompressed where its name ends as of one that is packed.

    Raises:
        InputError: where the package is missing that decompresses it.
    """
    match path.suffix:
        case ".gz":
            return cast(IO[bytes], gzip.open(path))
        case ".bz2":
            return cast(IO[bytes], bz2.open(path))
        case ".xz":
            return cast(IO[bytes], lzma.open(path))
        case ".zst":
            with needs_extra("zstd", f"{path}, which is compressed by Zstandard,"):
                from backports import zstd  # the module of Python 3.14's library
            return cast(IO[bytes], zstd.open(path))
    return path.open("rb")


def reading_errors() -> tuple[type[Exception], ...]:
    """Returns what reading such a file may raise."""
    errors = (OSError, EOFError, zlib.error, lzma.LZMAError)
    try:
        from backports import zstd
    except ImportError:  # then no such file was opened
        return errors
    return (*errors, zstd.ZstdError)


def read_text(path: str | Path) -> list[str]:
    """Returns all lines of a file as text; refuses what `read_lines` does."""
    return [line.decode() for line in read_lines(Path(path))]


def read_lines(path: Path) -> Iterator[bytes]:
    """Yields the lines of a UTF-8 file, compressed or not, without their ends and the file's BOM.

    Raises:
        InputError: for a file that is missing, unreadable or empty, and for a
            line that holds bytes that are no UTF-8, or a NUL.
    """
    number = 0
    try:
        with open_binary(path) as file:
            offset = 0
            for number, raw in enumerate(file, start=1):
                check_line(path, number, offset, raw)
                offset += len(raw)
                if number == 1:
                    raw = raw.removeprefix(BOM)
                yield raw.removesuffix(b"\n").removesuffix(b"\r")
    except reading_errors() as error:
        raise _unreadable(path, number, error) from error
    if number == 0:
        raise InputError(f"{path} is empty; expected one sentence a line")


def check_line(path: str | Path, number: int, offset: int, raw: bytes) -> None:
    """Raises `InputError` for a line (its number and offset told) with NUL or what is no UTF-8."""
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


class LineReader:
    """Reads a file's lines many at a time, as they stand in it, and its SHA-256.

    Attributes:
        path: of the file, which may be compressed (`.gz`, `.bz2`, `.xz`, `.zst`).
        lines: how many lines were taken so far.
        offset: the byte, of the text, where the next one begins.
    """

    def __init__(self, path: Path) -> None:
        """Opens the file.

        Raises:
            InputError: where it is missing or cannot be read, here and by every method.
        """
        self.path = path
        self.lines = 0
        self.offset = 0
        self._digest = hashlib.sha256()
        self._buffer = b""
        self._ends = np.zeros(0, np.int64)  # of the lines in the buffer, after their LF
        self._at_end = False
        try:
            self._file = open_binary(path)
        except reading_errors() as error:
            raise _unreadable(path, 0, error) from error

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    @property
    def sha256(self) -> str:
        """Of the text that was read, in hex: the file's own where it is not compressed."""
        return self._digest.hexdigest()

    def ahead(self, lines: int, max_bytes: int) -> int:
        """Returns how many of the next `lines` lines have `max_bytes` together; at least one.

        0 at the end of the file.
        """
        while not self._at_end and len(self._ends) < lines and len(self._buffer) <= max_bytes:
            self._fill()
        while not self._at_end and not len(self._ends):
            self._fill()
        fitting = int(np.searchsorted(self._ends[:lines], max_bytes, side="right"))
        return max(fitting, min(1, len(self._ends)))

    def take(self, lines: int) -> bytes:
        """Returns the next lines, as many as `ahead` has told of at most, each with its LF."""
        if not lines:
            return b""
        end = int(self._ends[lines - 1])
        taken, self._buffer = self._buffer[:end], self._buffer[end:]
        self._ends = self._ends[lines:] - end
        self.lines += lines
        self.offset += end
        return taken

    def _fill(self) -> None:
        try:
            chunk = self._file.read(max(_CHUNK, len(self._buffer)))
        except reading_errors() as error:
            raise _unreadable(self.path, self.lines + len(self._ends), error) from error
        self._digest.update(chunk)
        if not chunk:
            self._at_end = True
            if len(self._buffer) > (self._ends[-1] if len(self._ends) else 0):
                chunk = b"\n"  # of a last line that has none
        found = np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n"))
        self._ends = np.concatenate([self._ends, found + (len(self._buffer) + 1)])
        self._buffer += chunk
        if not len(self._ends) and len(self._buffer) > _MAX_LINE:
            raise InputError(
                f"{self.path}, line {self.lines + 1} has more than {_MAX_LINE:,} bytes; expected "
                "one sentence a line"
            )


def _unreadable(path: Path, lines: int, error: Exception) -> InputError:
    if isinstance(error, FileNotFoundError):
        return InputError(f"{path} is missing; expected a text file, one sentence a line")
    return InputError(f"{path} cannot be read after line {lines} ({error}); expected a text file")
