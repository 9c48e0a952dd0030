"""Reads parallel text as blocks of raw lines.

A block is a sequence of pairs that is cleaned and encoded separately. The ends of blocks depend
only on the text, so they are the same everywhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from keras_transformer.data.misalignment import describe_misalignment
from keras_transformer.data.reading import LineReader, read_lines
from keras_transformer.errors import InputError

BLOCK_LINES = 2**16
BLOCK_BYTES = 2**23  # of a side; a longer line is a separate block


class Block(NamedTuple):
    r"""Consecutive lines of a corpus, unchanged, each with its LF.

    Attributes:
        names: name of the file of each side, for messages.
        line: number of the first line, from 1.
        offsets: position in the file of each side, in bytes.
        texts: text of each side, with the same number of lines, or one text with both sides.

    Example:
    >>> _ = Path("a.en").write_text("A dog.\nA cat.\n")
    >>> [block] = BlockReader(TextFile(Path("a.en")))
    >>> block.line, block.texts
    (1, (b'A dog.\nA cat.\n',))
    """

    names: tuple[str, ...]
    line: int
    offsets: tuple[int, ...]
    texts: tuple[bytes, ...]


class Corpus(Protocol):
    r"""Pairs of sentences that can be read more than once, in the same order.

    Example:
    >>> class Greetings:
    ...     name = "greetings"
    ...     def pairs(self):
    ...         yield b"Good morning.", b"Guten Morgen."
    >>> [block] = BlockReader(Greetings())
    >>> block.texts
    (b'Good morning.\n', b'Guten Morgen.\n')
    """

    @property
    def name(self) -> str:
        """The source of the pairs. Messages call pair i line i."""
        ...

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields (source, target), each UTF-8. A line feed inside a text becomes a space.

        `CleaningOptions.on_bad_utf8` only applies to files that this package reads as raw bytes.
        """
        ...


@dataclasses.dataclass(frozen=True)
class ParallelFiles:
    r"""A corpus of two files with one sentence per line. Line i translates line i.

    Example:
    >>> _ = Path("a.en").write_text("A dog.\n"), Path("a.de").write_text("Ein Hund.\n")
    >>> list(ParallelFiles(Path("a.en"), Path("a.de")).pairs())
    [(b'A dog.', b'Ein Hund.')]
    """

    source: Path
    target: Path

    @property
    def name(self) -> str:
        """Both paths."""
        return f"{self.source} + {self.target}"

    @property
    def paths(self) -> tuple[Path, ...]:
        """Both paths."""
        return self.source, self.target

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields the lines of both files, pair by pair.

        Raises:
            InputError: as in `read_lines`, or for different numbers of lines.
        """
        sources, targets = read_lines(self.source), read_lines(self.target)
        for number, (source, target) in enumerate(itertools.zip_longest(sources, targets)):
            if source is None or target is None:
                longer = number + 1 + sum(1 for _ in (targets if source is None else sources))
                raise _unequal(self, *((number, longer) if source is None else (longer, number)))
            yield source, target


@dataclasses.dataclass(frozen=True)
class TsvFile:
    r"""A corpus of a file whose lines are a sentence, a TAB, and its translation.

    Example:
    >>> _ = Path("a.tsv").write_text("A dog.\tEin Hund.\n")
    >>> list(TsvFile(Path("a.tsv")).pairs())
    [(b'A dog.', b'Ein Hund.')]
    """

    path: Path

    @property
    def name(self) -> str:
        """The path."""
        return str(self.path)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The path."""
        return (self.path,)

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields the two columns.

        Raises:
            InputError: as in `read_lines`, or for another number of columns.
        """
        for number, line in enumerate(read_lines(self.path), start=1):
            yield split_columns(self.name, number, line)


@dataclasses.dataclass(frozen=True)
class TsvColumns:
    r"""A corpus of two columns of a file whose columns are separated by TABs.

    Pair i is line i, or line i + 1 if the first line has the names of the columns. Invalid UTF-8
    is refused.

    Attributes:
        path: the file, which may be compressed.
        columns: source and target column: numbers from 1, or names in the first line.

    Example:
    >>> _ = Path("a.tsv").write_text("id\ten\tde\n7\tA dog.\tEin Hund.\n")
    >>> list(TsvColumns(Path("a.tsv"), ("en", "de")).pairs())
    [(b'A dog.', b'Ein Hund.')]
    """

    path: Path
    columns: tuple[str, str]

    @property
    def name(self) -> str:
        """The path."""
        return str(self.path)

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields the two columns.

        Raises:
            InputError: as in `read_lines`, or if a line or the header lacks a column.
        """
        lines = enumerate(read_lines(self.path), start=1)
        if all(column.isdecimal() and int(column) > 0 for column in self.columns):
            source, target = (int(column) - 1 for column in self.columns)
        else:
            _, header = next(lines)
            names = header.decode().split("\t")
            for column in self.columns:
                if column not in names:
                    raise InputError(
                        f"{self.path} has no column {column!r}. The names in its first line are "
                        f"{', '.join(names)}. Use two of them, or numbers from 1."
                    )
            source, target = map(names.index, self.columns)
        for number, line in lines:
            values = line.split(b"\t")
            if len(values) <= max(source, target):
                raise InputError(
                    f"{self.path}, line {number} has {len(values)} columns, but column "
                    f"{max(source, target) + 1} is needed. Repair the line, or choose other "
                    "columns."
                )
            yield values[source], values[target]


class Read(NamedTuple):
    r"""The data read from a corpus: pairs, and the SHA-256 of each file's text by its name.

    Example:
    >>> _ = Path("a.en").write_text("A dog.\n")
    >>> reader = BlockReader(TextFile(Path("a.en")))
    >>> _ = list(reader)
    >>> reader.read.pairs, list(reader.read.sha256)
    (1, ['a.en'])
    """

    pairs: int
    sha256: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class TextFile:
    """A file in one language; its blocks have one side.

    Example:
    >>> TextFile(Path("a.en")).paths == (Path("a.en"),)
    True
    """

    path: Path

    @property
    def paths(self) -> tuple[Path, ...]:
        """The path."""
        return (self.path,)


# These are read as raw bytes, which is fast. Other corpora only need `pairs()`.
_FILES = (ParallelFiles, TsvFile, TextFile)


def parallel_files(
    sources: Sequence[str | Path], targets: Sequence[str | Path]
) -> list[ParallelFiles]:
    r"""Pairs source files with target files, in order.

    Args:
        sources: paths of the source files.
        targets: paths of the target files.

    Raises:
        InputError: for different numbers of files, or a path that is not a regular file.

    Example:
    >>> _ = Path("a.en").write_text("A dog.\n"), Path("a.de").write_text("Ein Hund.\n")
    >>> [corpus] = parallel_files(["a.en"], ["a.de"])
    >>> corpus.name
    'a.en + a.de'
    """
    if len(sources) != len(targets):
        raise InputError(
            f"There are {len(sources)} source files but {len(targets)} target files. Give one "
            "target file for each source file."
        )
    return [
        ParallelFiles(require_file(source), require_file(target))
        for source, target in zip(sources, targets, strict=True)
    ]


def require_file(path: str | Path) -> Path:
    """Returns the path; raises `InputError` if it is not a regular file.

    Example:
    >>> require_file("train.en")
    PosixPath('train.en')
    """
    try:
        is_file, exists = Path(path).is_file(), Path(path).exists()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from error
    if not is_file:  # a pipe could be read only once
        state = "is not a regular file" if exists else "is missing"
        raise InputError(f"{path} {state}. It must be a text file with one sentence per line.")
    return Path(path)


def located(corpus: Corpus) -> Corpus:
    """Returns the corpus with absolute paths, so that a process in any directory can read it.

    Fields that are not paths, such as the files of a TFDS set, do not change.

    Example:
    >>> located(TextFile(Path("train.en"))).path.is_absolute()
    True
    """
    file: Any = corpus  # the protocol does not require a dataclass
    if not hasattr(file, "__dataclass_fields__"):
        return corpus
    values = {field.name: getattr(file, field.name) for field in dataclasses.fields(file)}
    relative = {name: _absolute(v) for name, v in values.items() if _absolute(v) != v}
    return dataclasses.replace(file, **relative) if relative else corpus


def _absolute(value: Any) -> Any:
    if isinstance(value, Path):
        return value.absolute()
    return tuple(map(_absolute, value)) if isinstance(value, tuple) else value


def split_columns(name: str, number: int, line: bytes) -> tuple[bytes, bytes]:
    r"""Returns the two columns of a line.

    Args:
        name: name of the file, for messages.
        number: number of the line, from 1.
        line: the line.

    Raises:
        InputError: if there are not two columns.

    Example:
    >>> split_columns("a.tsv", 1, b"A dog.\tEin Hund.")
    (b'A dog.', b'Ein Hund.')
    """
    columns = line.split(b"\t")
    if len(columns) != 2:
        shown = ", ".join(repr(each[:40].decode("utf-8", "replace")) for each in columns[:9])
        raise InputError(
            f"{name}, line {number} has {len(columns)} columns ({shown}). It must have 2: a "
            "sentence, a tab, and its translation. Otherwise choose two columns by number or by "
            "their name in the first line, as in --tsv_columns=1,2 or --tsv_columns=en,de."
        )
    return columns[0], columns[1]


def _unequal(corpus: ParallelFiles, source_lines: int, target_lines: int) -> InputError:
    return InputError(
        f"{corpus.source} has {source_lines:,} lines, but {corpus.target} has {target_lines:,}. "
        f"{describe_misalignment(corpus.source, corpus.target)}"
    )


class BlockReader:
    r"""Reads a corpus block by block. Afterwards, `read` describes it.

    Example:
    >>> _ = Path("a.en").write_text("A dog.\nA cat.\nA bird.\n")
    >>> [block.texts[0] for block in BlockReader(TextFile(Path("a.en")), max_lines=2)]
    [b'A dog.\nA cat.\n', b'A bird.\n']
    """

    def __init__(
        self,
        corpus: Corpus | TextFile,
        max_lines: int | None = None,
        *,
        named: Corpus | TextFile | None = None,
    ) -> None:
        """Creates a reader.

        Args:
            corpus: the corpus.
            max_lines: maximum lines of a block; None for `BLOCK_LINES`.
            named: the same corpus with other paths, for messages and `read`; None for `corpus`.
        """
        self._corpus = corpus
        self._max_lines = max_lines or BLOCK_LINES
        self._named = named or corpus
        self._read: Read | None = None

    @property
    def read(self) -> Read:
        """The data read; available after the last block."""
        assert self._read is not None, "the corpus was not read to its end"
        return self._read

    def __iter__(self) -> Iterator[Block]:
        """Yields all blocks.

        Raises:
            InputError: for a file that is missing, unreadable or empty, and for
                files with different numbers of lines.
        """
        if isinstance(self._corpus, _FILES):
            assert isinstance(self._named, _FILES)
            yield from self._of_files(self._corpus, tuple(map(str, self._named.paths)))
        else:
            assert not isinstance(self._named, TextFile)
            yield from self._of_pairs(self._corpus, self._named.name)

    def _of_files(
        self, corpus: ParallelFiles | TsvFile | TextFile, names: tuple[str, ...]
    ) -> Iterator[Block]:
        with contextlib.ExitStack() as stack:
            readers = [LineReader(path) for path in corpus.paths]
            for reader in readers:
                stack.callback(reader.close)
            while lines := _ahead(readers, self._max_lines):
                line, offsets = readers[0].lines + 1, tuple(r.offset for r in readers)
                texts = tuple(reader.take(lines) for reader in readers)
                yield Block(names, line, offsets, texts)
            self._require_ends(corpus, readers)
            sha256 = {name: r.sha256 for name, r in zip(names, readers, strict=True)}
            self._read = Read(readers[0].lines, sha256)

    def _require_ends(
        self, corpus: ParallelFiles | TsvFile | TextFile, readers: list[LineReader]
    ) -> None:
        for reader in readers:
            while lines := reader.ahead(BLOCK_LINES, BLOCK_BYTES):
                reader.take(lines)
        for reader in readers:
            if not reader.lines:
                raise InputError(f"{reader.path} is empty. It must have one sentence per line.")
        if len({reader.lines for reader in readers}) > 1:
            assert isinstance(corpus, ParallelFiles)
            raise _unequal(corpus, *(reader.lines for reader in readers))

    def _of_pairs(self, corpus: Corpus, name: str) -> Iterator[Block]:
        digest, read = hashlib.sha256(), 0
        for chunk in _chunks(corpus.pairs(), self._max_lines):
            texts = tuple(
                b"".join(text.replace(b"\n", b" ") + b"\n" for text in side)
                for side in zip(*chunk, strict=True)
            )
            for text in texts:
                digest.update(text)
            yield Block((name,) * 2, read + 1, (0, 0), texts)
            read += len(chunk)
        self._read = Read(read, {name: digest.hexdigest()})


def _ahead(readers: Sequence[LineReader], lines: int) -> int:
    """Returns the number of lines of the next block; 0 at the end of a file."""
    for reader in readers:
        lines = reader.ahead(lines, BLOCK_BYTES) if lines else 0
    return lines


def _chunks(
    pairs: Iterable[tuple[bytes, bytes]], max_lines: int
) -> Iterator[list[tuple[bytes, bytes]]]:
    chunk, size = [], 0
    for pair in pairs:
        chunk.append(pair)
        size += max(map(len, pair))
        if len(chunk) == max_lines or size > BLOCK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
