"""Reads text files as bytes. Lines end only at LF, and error messages name the place.

Other readers remove CR or split lines at it, which shifts one side of a corpus.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import hashlib
import lzma
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import numpy as np

from keras_transformer.errors import InputError, needs_extra

BOM = codecs.BOM_UTF8
_CHUNK = 2**20
# Invalid UTF-8, or very unlikely text.
_FIRST_BYTES = {
    ".gz": rb"\x1f\x8b", ".bz2": rb"BZh[1-9]1AY&SY", ".xz": rb"\xfd7zXZ\x00",
    ".zst": rb"\x28\xb5\x2f\xfd",
}  # fmt: skip
_MAX_LINE = 2**28  # bytes; files with longer lines are not text


def open_binary(path: Path) -> IO[bytes]:
    r"""Opens a file to read its bytes. Compressed files (gzip, bzip2, xz, zstd) are decompressed.

    They are recognized by their name or by their first bytes.

    Raises:
        InputError: if the package that decompresses it is missing.

    Example:
    >>> with open_binary(Path("train.en")) as file:
    ...     file.readline()
    b'a small dog runs over the green field\n'
    """
    kind = path.suffix
    if kind not in _FIRST_BYTES:
        with path.open("rb") as file:
            first = file.read(10)
        kind = next((kind for kind, magic in _FIRST_BYTES.items() if re.match(magic, first)), "")
    match kind:
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
    """Returns the exceptions that reading a file from `open_binary` may raise.

    Example:
    >>> OSError in reading_errors()
    True
    """
    errors = (OSError, EOFError, zlib.error, lzma.LZMAError)
    try:
        from backports import zstd
    except ImportError:  # then no such file was opened
        return errors
    return (*errors, zstd.ZstdError)


def read_text(path: str | Path) -> list[str]:
    """Returns all lines of a file as text. Raises the errors of `read_lines`.

    Example:
    >>> len(read_text("train.en"))
    3
    """
    return [line.decode() for line in read_lines(Path(path))]


def decode_lines(data: bytes, name: str | Path, first_line: int = 1, offset: int = 0) -> list[str]:
    r"""Splits UTF-8 text into lines, without their ends (LF or CR LF) and the BOM.

    Args:
        data: whole lines of a file, or all of it.
        name: the file, for messages.
        first_line: number of the first line of `data` in the file.
        offset: byte offset of `data` in the file.

    Raises:
        InputError: for a line with a NUL or invalid UTF-8.

    Example:
    >>> decode_lines(b"one\r\ntwo", "input.en")
    ['one', 'two']
    """
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()  # after the end of the last line
    for number, line in enumerate(lines, start=first_line):
        check_line(name, number, offset, line)
        offset += len(line) + 1
    if first_line == 1 and lines:
        lines[0] = lines[0].removeprefix(BOM)
    return [line.removesuffix(b"\r").decode() for line in lines]


def read_lines(path: Path) -> Iterator[bytes]:
    """Yields the lines of a UTF-8 file, which may be compressed, without line ends and BOM.

    Raises:
        InputError: for a file that is missing, unreadable or empty, and for a line with invalid
            UTF-8 or NUL.

    Example:
    >>> next(read_lines(Path("train.en")))
    b'a small dog runs over the green field'
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
        raise InputError(f"{path} is empty. It must have one sentence per line.")


def check_line(path: str | Path, number: int, offset: int, raw: bytes) -> None:
    r"""Raises `InputError`, with line number and offset, for a line with NUL or invalid UTF-8.

    Args:
        path: the file, for the message.
        number: number of the line, from 1.
        offset: byte offset of the line in the file.
        raw: the line.

    Example:
    >>> check_line("a.en", number=3, offset=20, raw=b"a\0")
    Traceback (most recent call last):
    keras_transformer.errors.InputError: a.en, line 3: NUL at byte offset 21. ...
    """
    if b"\0" in raw:
        place = offset + raw.index(b"\0")
        raise InputError(
            f"{path}, line {number}: NUL at byte offset {place}. The file must be UTF-8 text."
        )
    if not raw.isascii():
        try:
            raw.decode()
        except UnicodeDecodeError as error:
            raise InputError(
                f"{path}, line {number}: byte 0x{raw[error.start]:02x} at byte offset "
                f"{offset + error.start} is not valid UTF-8 ({error.reason}). Convert the text to "
                "UTF-8 (for keras-transformer prepare, see also --on_bad_utf8)."
            ) from None


class LineReader:
    r"""Reads many lines of a file at a time, unchanged, and computes its SHA-256.

    Attributes:
        path: the file, which may be compressed (`.gz`, `.bz2`, `.xz`, `.zst`).
        lines: number of lines taken so far.
        offset: byte offset of the next line in the (decompressed) text.

    Example:
    >>> reader = LineReader(Path("train.en"))
    >>> reader.take(reader.ahead(lines=2, max_bytes=1000)).count(b"\n"), reader.lines
    (2, 2)
    >>> reader.close()
    """

    def __init__(self, path: Path) -> None:
        """Opens the file.

        Raises:
            InputError: if the file is missing or cannot be read. Every method may raise it.
        """
        self.path = path
        self.lines = 0
        self.offset = 0
        self._digest = hashlib.sha256()
        self._buffer = b""
        self._ends = np.zeros(0, np.int64)  # end of each line in the buffer, after its LF
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
        """SHA-256 in hex of the file, or of the decompressed text."""
        return self._digest.hexdigest()

    def ahead(self, lines: int, max_bytes: int) -> int:
        """Returns how many of the next `lines` lines fit into `max_bytes` together.

        It is at least 1, but 0 at the end of the file.
        """
        while not self._at_end and len(self._ends) < lines and len(self._buffer) <= max_bytes:
            self._fill()
        while not self._at_end and not len(self._ends):
            self._fill()
        fitting = int(np.searchsorted(self._ends[:lines], max_bytes, side="right"))
        return max(fitting, min(1, len(self._ends)))

    def take(self, lines: int) -> bytes:
        """Returns the next lines with their LFs, at most the number from `ahead`."""
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
                chunk = b"\n"  # the last line had no LF
        found = np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n"))
        self._ends = np.concatenate([self._ends, found + (len(self._buffer) + 1)])
        self._buffer += chunk
        if not len(self._ends) and len(self._buffer) > _MAX_LINE:
            raise InputError(
                f"{self.path}, line {self.lines + 1} has more than {_MAX_LINE:,} bytes. Put one "
                "sentence on each line."
            )


def _unreadable(path: Path, lines: int, error: Exception) -> InputError:
    if isinstance(error, FileNotFoundError):
        return InputError(f"{path} is missing.")
    return InputError(f"{path} cannot be read after line {lines} ({error}).")
