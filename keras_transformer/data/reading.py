"""Reads text files as bytes. Lines end only at LF, and error messages name the line.

Other readers remove CR or split lines at it, which shifts one side of a corpus.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import os
import re
import sys
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from keras_transformer.errors import InputError, needs_extra, require

BOM = codecs.BOM_UTF8
# The first bytes of compressed files: invalid UTF-8, or very unlikely text.
_OPENERS = {
    rb"\x1f\x8b": gzip.open, rb"BZh[1-9]1AY&SY": bz2.open, rb"\xfd7zXZ\x00": lzma.open,
}  # fmt: skip
_ZSTANDARD = b"\x28\xb5\x2f\xfd"
_ZIP = b"PK\x03\x04"
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_MAX_LINE = 2**28  # bytes; files with longer lines are not text


class Block(NamedTuple):
    """Consecutive lines of a corpus, unchanged, each with its LF.

    Attributes:
        names: name of the file of each side, for messages.
        line: number of the first line, from 1.
        texts: text of each side, with the same number of lines, or one text with both sides.
        sha256: by file name, SHA-256 in hex of the text up to the end of the block.
    """

    names: tuple[str, ...]
    line: int
    texts: tuple[bytes, ...]
    sha256: Mapping[str, str]

    def __str__(self) -> str:
        last = self.line + self.texts[0].count(b"\n") - 1
        return f"lines {self.line:,} to {last:,} of {' and '.join(self.names)}"


def open_binary(path: Path) -> io.BufferedReader:
    """Opens a file to read its bytes. Compressed files (gzip, bzip2, xz, zstd, and ZIP archives of
    one file) are recognized by their first bytes, and decompressed.
    """
    with path.open("rb") as file:
        first = file.read(10)
    if first.startswith(_ZSTANDARD):
        with needs_extra("zstd", f"{path}, which is compressed by Zstandard,"):
            from backports import zstd  # the module of Python 3.14's library
        return cast(io.BufferedReader, zstd.open(path, "rb"))
    if first.startswith(_ZIP):
        archive = zipfile.ZipFile(path)
        names = [member.filename for member in archive.infolist() if not member.is_dir()]
        require(
            len(names) == 1 and not archive.getinfo(names[0]).flag_bits & 1,
            f"{path} is a ZIP archive with {len(names)} files ({', '.join(names)[:200]}), or has a "
            "password. Unpack it, and give the files with the text.",
        )
        try:
            return cast(io.BufferedReader, archive.open(names[0]))
        except RuntimeError as error:  # another encryption, or a method such as Deflate64
            raise zipfile.BadZipFile(f"{error} Unpack it") from error
    openers: Iterator[Any] = (_OPENERS[magic] for magic in _OPENERS if re.match(magic, first))
    return cast(io.BufferedReader, next(openers, open)(path, "rb"))


def reading_errors() -> tuple[type[Exception], ...]:
    """Returns the exceptions that reading a file from `open_binary` may raise."""
    errors = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, UnicodeError)
    zstd = sys.modules.get("backports.zstd")  # it is imported if such a file was opened
    return (*errors, zstd.ZstdError) if zstd else errors


def read_text(path: str | Path) -> list[str]:
    """Returns all lines of a file as text. Raises the errors of `read_lines`."""
    return [line.decode() for line in read_lines(Path(path))]


def decode_lines(data: bytes, name: str | Path, first_line: int = 1) -> list[str]:
    """Splits UTF-8 text into lines, without their ends (LF or CR LF) and the BOM."""
    return [line.decode() for line in _checked(io.BytesIO(data), name, first_line)]


def read_lines(path: Path) -> Iterator[bytes]:
    """Yields the lines of a UTF-8 file, which may be compressed, without line ends and BOM."""
    return _checked(raw_lines(path), path)


def _checked(lines: Iterable[bytes], name: str | Path, first_line: int = 1) -> Iterator[bytes]:
    for number, line in enumerate(lines, start=first_line):
        check_line(name, number, line)
        if number == 1:
            line = line.removeprefix(BOM)
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def check_line(path: str | Path, number: int, line: bytes) -> None:
    """Raises `InputError` for a line with NUL or invalid UTF-8."""
    if b"\0" in line:
        raise InputError(
            f"{path}, line {number}: byte {line.index(0) + 1} is NUL, as in binary files, in "
            "archives, and in UTF-16 without a byte order mark. Use UTF-8 without NUL."
        )
    if not line.isascii():
        try:
            line.decode()
        except UnicodeDecodeError as error:
            raise InputError(
                f"{path}, line {number}: byte {error.start + 1}, 0x{line[error.start]:02x}, is not "
                f"valid UTF-8 ({error.reason}). Convert the text to UTF-8, or set "
                "on_bad_utf8 when you prepare it."
            ) from None


def raw_lines(path: Path) -> Iterator[bytes]:
    """Yields the lines of a file, unchanged, each with LF. The file may be compressed.

    UTF-16 with a byte order mark becomes UTF-8.
    """
    number, returns = 0, 0
    try:
        with open_binary(path) as file:
            lines = iter(lambda: file.readline(_MAX_LINE + 1), b"")
            if file.peek(2).startswith(_UTF16):
                text = io.TextIOWrapper(file, "utf-16", newline="\n")
                lines = (line.encode() for line in iter(lambda: text.readline(_MAX_LINE + 1), ""))
            for line in lines:
                number += 1
                if len(line) > _MAX_LINE:
                    raise InputError(
                        f"{path}, line {number} has more than {_MAX_LINE:,} bytes. Put one "
                        "sentence on each line."
                    )
                yield line if line.endswith(b"\n") else line + b"\n"
                returns = line.rstrip().count(b"\r") if number == 1 else 0
    except reading_errors() as error:
        if isinstance(error, FileNotFoundError):
            raise InputError(f"{path} is missing.") from error
        raise InputError(f"{path} cannot be read after line {number} ({error}).") from error
    require(number > 0, f"{path} is empty. It needs at least one line.")
    require(
        not returns,
        f"{path} has no line feed, but {returns:,} carriage returns. Convert its line ends with: "
        "tr '\\r' '\\n' <OLD >NEW",
    )


def require_file(path: str | Path) -> Path:
    """Returns the path; raises `InputError` if it is not a regular file."""
    require(
        os.path.isfile(path),  # a pipe could be read only once
        f"{path} is missing, or is not a regular file. It must be a text file with one sentence "
        "per line.",
    )
    return Path(path)


def split_columns(
    name: str, number: int, line: bytes, chosen: tuple[int, int] | None = None
) -> tuple[bytes, bytes]:
    """Returns the two columns of line `number` of the file `name`, or two that were `chosen`."""
    columns = line.split(b"\t")
    first, second = chosen or (0, 1)
    if max(first, second) >= len(columns) or (chosen is None and len(columns) > 2):
        shown = ", ".join(repr(column[:40].decode("utf-8", "replace")) for column in columns[:9])
        needed = f"at least {max(chosen) + 1}" if chosen else "2: a sentence and its translation"
        raise InputError(
            f"{name}, line {number} has {len(columns)} columns ({shown}). It must have {needed}. "
            "Repair the line, or choose two columns by number or by their name in the first line, "
            "as in tsv_columns=1,2 or tsv_columns=en,de. For a CSV file or a table with quoted "
            "columns, as spreadsheets save them, add tsv_quoted."
        )
    return columns[first], columns[second]
