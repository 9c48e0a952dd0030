"""Reads text files as bytes. Lines end only at LF, and error messages name the line.

Other readers remove CR or split lines at it, which shifts one side of a corpus.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from keras_transformer.errors import InputError, needs_extra

BOM = codecs.BOM_UTF8
# Invalid UTF-8, or very unlikely text.
_FIRST_BYTES = {
    ".gz": rb"\x1f\x8b", ".bz2": rb"BZh[1-9]1AY&SY", ".xz": rb"\xfd7zXZ\x00",
    ".zst": rb"\x28\xb5\x2f\xfd",
}  # fmt: skip
_MAX_LINE = 2**28  # bytes; files with longer lines are not text


class Block(NamedTuple):
    """Consecutive lines of a corpus, unchanged, each with its LF.

    Attributes:
        names: name of the file of each side, for messages.
        line: number of the first line, from 1.
        offsets: position in the file of each side, in bytes.
        texts: text of each side, with the same number of lines, or one text with both sides.
        sha256: by file name, SHA-256 in hex of the text up to the end of the block.
    """

    names: tuple[str, ...]
    line: int
    offsets: tuple[int, ...]
    texts: tuple[bytes, ...]
    sha256: Mapping[str, str]


def open_binary(path: Path) -> IO[bytes]:
    """Opens a file to read its bytes. Compressed files (gzip, bzip2, xz, zstd) are decompressed.

    They are recognized by their name or by their first bytes.
    """
    kind = path.suffix
    if kind not in _FIRST_BYTES:
        with path.open("rb") as file:
            first = file.read(10)
        kind = next((kind for kind, magic in _FIRST_BYTES.items() if re.match(magic, first)), "")
    openers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    if kind == ".zst":
        with needs_extra("zstd", f"{path}, which is compressed by Zstandard,"):
            from backports import zstd  # the module of Python 3.14's library
        openers[kind] = zstd.open
    return cast(IO[bytes], openers.get(kind, open)(path, "rb"))


def reading_errors() -> tuple[type[Exception], ...]:
    """Returns the exceptions that reading a file from `open_binary` may raise."""
    errors = (OSError, EOFError, zlib.error, lzma.LZMAError)
    try:
        from backports import zstd
    except ImportError:  # then no such file was opened
        return errors
    return (*errors, zstd.ZstdError)


def read_text(path: str | Path) -> list[str]:
    """Returns all lines of a file as text. Raises the errors of `read_lines`."""
    return [line.decode() for line in read_lines(Path(path))]


def decode_lines(data: bytes, name: str | Path, first_line: int = 1, offset: int = 0) -> list[str]:
    """Splits UTF-8 text into lines, without their ends (LF or CR LF) and the BOM."""
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
    """Yields the lines of a UTF-8 file, which may be compressed, without line ends and BOM."""
    offset = 0
    for number, raw in enumerate(raw_lines(path), start=1):
        check_line(path, number, offset, raw)
        offset += len(raw)
        if number == 1:
            raw = raw.removeprefix(BOM)
        yield raw.removesuffix(b"\n").removesuffix(b"\r")


def check_line(path: str | Path, number: int, offset: int, raw: bytes) -> None:
    """Raises `InputError`, with line number and offset, for a line with NUL or invalid UTF-8."""
    if b"\0" in raw:
        position = offset + raw.index(b"\0")
        raise InputError(
            f"{path}, line {number}: NUL at byte offset {position}. The file must be UTF-8 text."
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


def raw_lines(path: Path) -> Iterator[bytes]:
    """Yields the lines of a file, unchanged, each with LF. The file may be compressed."""
    number = 0
    try:
        with open_binary(path) as file:
            while line := file.readline(_MAX_LINE + 1):
                number += 1
                if len(line) > _MAX_LINE:
                    raise InputError(
                        f"{path}, line {number} has more than {_MAX_LINE:,} bytes. Put one "
                        "sentence on each line."
                    )
                yield line if line.endswith(b"\n") else line + b"\n"
    except reading_errors() as error:
        if isinstance(error, FileNotFoundError):
            raise InputError(f"{path} is missing.") from error
        raise InputError(f"{path} cannot be read after line {number} ({error}).") from error
    if number == 0:
        raise InputError(f"{path} is empty. It must have one sentence per line.")


def require_file(path: str | Path) -> Path:
    """Returns the path; raises `InputError` if it is not a regular file."""
    try:
        is_file, exists = Path(path).is_file(), Path(path).exists()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from error
    if not is_file:  # a pipe could be read only once
        state = "is not a regular file" if exists else "is missing"
        raise InputError(f"{path} {state}. It must be a text file with one sentence per line.")
    return Path(path)


def split_columns(name: str, number: int, line: bytes) -> tuple[bytes, bytes]:
    """Returns the two columns of line `number` of the file `name`."""
    columns = line.split(b"\t")
    if len(columns) != 2:
        shown = ", ".join(repr(column[:40].decode("utf-8", "replace")) for column in columns[:9])
        raise InputError(
            f"{name}, line {number} has {len(columns)} columns ({shown}). It must have 2: a "
            "sentence, a tab, and its translation. Otherwise choose two columns by number or by "
            "their name in the first line, as in --tsv_columns=1,2 or --tsv_columns=en,de."
        )
    return columns[0], columns[1]
