"""Corpora: pairs of sentences in files of several formats.

An extension adds a format by the entry point group `keras_transformer.corpora`.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from keras_transformer.data.reading import raw_lines, read_lines, require_file, split_columns
from keras_transformer.errors import InputError, require

__all__ = ["Corpus", "CorpusReader", "ParallelFiles", "TsvFile", "parallel_files"]

FloatArray: TypeAlias = npt.NDArray[np.float64]
_END = 200  # lines at either end of files that differ; those of one end fit
_FIRST = 100  # lines of a spreadsheet that show its separator
_MAX_ROW = 100  # lines of a row of a spreadsheet
_MAX_COLUMN = 2**28  # characters; with more, a quotation mark is missing


class Corpus(Protocol):
    r"""Pairs of sentences that can be read more than once, in the same order.

    Example:
    >>> class Greetings:
    ...     name = "greetings"
    ...     def pairs(self):
    ...         yield b"Good morning.", b"Guten Morgen."
    >>> list(Greetings().pairs())
    [(b'Good morning.', b'Guten Morgen.')]
    """

    @property
    def name(self) -> str:
        """The source of the pairs. Messages call pair i line i."""
        ...

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields (source, target), each UTF-8 without NUL. A line feed inside becomes a space.

        NUL is refused. `PrepareOptions.on_bad_utf8` decides about invalid UTF-8, unless the corpus
        refuses it, as `TsvFile` with `columns` does. A pair that cannot be read is an `InputError`
        with its line, or `(b"", b"")`, which is counted as empty.
        """
        ...


class CorpusReader(Protocol):
    r"""Reads corpora of another format; the entry point `keras_transformer.corpora` is an instance.

    The command `prepare` then has the flags --NAME and --valid_NAME for locations, where NAME is
    the name of the entry point, and a flag for each field of the options.

    Attributes:
        options: a dataclass. Each field has a default and its help, as in
            `field(default=None, metadata={"help": "source language, as in de"})`. Types are `str`,
            `bool`, or `str | None`. Readers may share a field.
        help: the help of --NAME, such as "translation memories".

    Example:
    >>> class Greetings:
    ...     name = "greetings"
    ...     def pairs(self):
    ...         yield b"Good morning.", b"Guten Morgen."
    >>> @dataclasses.dataclass(frozen=True)
    ... class GreetingsOptions:
    ...     politeness: str = dataclasses.field(default="high", metadata={"help": "high or low"})
    >>> class GreetingsReader:
    ...     options, help = GreetingsOptions, "collections of greetings"
    ...     def read(self, location, options):
    ...         return [Greetings()]
    >>> [corpus.name for corpus in GreetingsReader().read("x", GreetingsOptions())]
    ['greetings']
    """

    options: type
    help: str

    def read(self, location: str, options: Any) -> Sequence[Corpus]:
        """Returns the corpora at a location, such as a path, without reading sentences."""
        ...


@dataclasses.dataclass(frozen=True)
class ParallelFiles:
    """A corpus of two files with one sentence per line. Line i translates line i."""

    source: Path
    target: Path

    @property
    def name(self) -> str:
        """Both paths."""
        return f"{self.source} + {self.target}"

    @property
    def paths(self) -> tuple[Path, Path]:
        """Both paths."""
        return self.source, self.target

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields the lines of both files, pair by pair."""
        return self.rows(read_lines)

    def rows(self, read: Callable[[Path], Iterator[bytes]]) -> Iterator[tuple[bytes, bytes]]:
        """Yields the lines of both files, read by a function. Both must have the same number."""
        for source, target in itertools.zip_longest(*map(read, self.paths)):
            if source is None or target is None:
                raise self._misaligned()
            yield source, target

    def _misaligned(self) -> InputError:
        """Returns the error of files with different numbers of lines. It names the first misfit."""
        sides = [np.log([len(line) for line in raw_lines(path)]) for path in self.paths]
        line = _first_misfit(*sorted(sides, key=len))
        return InputError(
            f"{self.source} has {len(sides[0]):,} lines, but {self.target} has {len(sides[1]):,}. "
            f"By their lengths, the lines cease to fit near line {line:,}: look there for lines "
            "that only one of the files has."
        )


def _first_misfit(shorter: FloatArray, longer: FloatArray) -> int:
    """Returns the first line, from 1, from which lines no longer fit by the logarithms of their
    lengths: a sentence and its translation have similar lengths (Gale and Church, 1993).
    """
    count = len(shorter)
    shorter = shorter + np.median(longer[:count] - shorter)
    misfit, of_end = np.abs(longer[:count] - shorter), np.abs(longer[-count:] - shorter)
    unrelated = np.abs(np.random.default_rng(0).permutation(shorter) - shorter).mean()
    fitting = min(misfit[:_END].mean(), of_end[-_END:].mean())
    return int(np.argmin(np.cumsum([0, *(misfit - (fitting + unrelated) / 2)]))) + 1


@dataclasses.dataclass(frozen=True)
class TsvFile:
    r"""A corpus of two columns of a file whose columns are separated by TABs.

    Pair i is line i, or line i + 1 if the first line has the names of the columns.

    Attributes:
        path: the file, which may be compressed.
        columns: source and target column: numbers from 1, or names in the first line. None for a
            file with only two columns.
        quoted: reads the file of a spreadsheet: quotation marks around a column are removed, and
            doubled ones inside it are one. The separator is the TAB, semicolon or comma that
            gives most of the first rows two columns. Empty lines are skipped.

    Example:
    >>> _ = Path("a.tsv").write_text("id\ten\tde\n7\tA dog.\tEin Hund.\n")
    >>> list(TsvFile(Path("a.tsv"), ("en", "de")).pairs())
    [(b'A dog.', b'Ein Hund.')]
    """

    path: Path
    columns: tuple[str, str] | None = None
    quoted: bool = False

    @property
    def name(self) -> str:
        """The path."""
        return str(self.path)

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields the two columns."""
        lines = self._unquoted() if self.quoted else enumerate(read_lines(self.path), start=1)
        chosen = None
        if self.columns is not None:
            source, target = self.columns
            if all(column.isdecimal() and int(column) > 0 for column in self.columns):
                chosen = int(source) - 1, int(target) - 1
            else:
                names = next(lines, (0, b""))[1].decode().split("\t")
                for column in self.columns:
                    require(
                        column in names,
                        f"{self.path} has no column {column!r}. The names in its first line are "
                        f"{', '.join(names)}. Use two of them, or numbers from 1.",
                    )
                chosen = names.index(source), names.index(target)
        for number, line in lines:
            yield split_columns(self.name, number, line, chosen)

    def _unquoted(self) -> Iterator[tuple[int, bytes]]:
        """Yields the rows, with a TAB between two columns, and the number of their first line.

        A line break in a column is a space.
        """
        csv.field_size_limit(_MAX_COLUMN)
        texts = map(bytes.decode, read_lines(self.path))
        lines = (text.rstrip("\r").replace("\r", " ") + "\n" for text in texts)
        first = [*itertools.islice(lines, _FIRST)]
        reader = csv.reader(itertools.chain(first, lines), delimiter=_separator(first), strict=True)
        number = 1
        try:
            for row in reader:
                if reader.line_num - number >= _MAX_ROW:
                    raise csv.Error(f"a row of more than {_MAX_ROW} lines")
                if len(row) > 1 or "".join(row).strip():
                    columns = (column.replace("\t", " ").splitlines() for column in row)
                    yield number, "\t".join(map(" ".join, columns)).encode()
                number = reader.line_num + 1
        except csv.Error as error:
            raise InputError(
                f"{self.path}, line {reader.line_num}: the row that begins in line {number} cannot "
                f"be read ({error}). A column that begins with a quotation mark must end with one, "
                "and those inside it must be doubled. For a file with other quotation marks, omit "
                "tsv_quoted."
            ) from None


def _separator(lines: Sequence[str]) -> str:
    """Returns the separator that gives most rows at least two columns."""

    def share(separator: str) -> float:
        rows = csv.reader(lines, delimiter=separator)
        return float(np.mean([len(row) > 1 for row in rows]))

    return max("\t;,", key=share)


def parallel_files(
    sources: Sequence[str | Path], targets: Sequence[str | Path]
) -> list[ParallelFiles]:
    """Pairs source files with target files, in order."""
    require(
        len(sources) == len(targets),
        f"There are {len(sources)} source files but {len(targets)} target files. Give one target "
        "file for each source file.",
    )
    return [
        ParallelFiles(require_file(source), require_file(target))
        for source, target in zip(sources, targets, strict=True)
    ]
