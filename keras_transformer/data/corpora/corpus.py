"""Parallel text in: blocks of raw lines, aligned or refused.

A block is a run of pairs that is cleaned and encoded by itself. Where blocks end
depends on the text alone, so the same corpus gives the same ones everywhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from keras_transformer.data.corpora.misalignment import describe_drift
from keras_transformer.data.corpora.reading import LineReader, read_lines
from keras_transformer.errors import InputError

BLOCK_LINES = 2**16
BLOCK_BYTES = 2**23  # of a side; a single longer line is a block of its own


class Block(NamedTuple):
    """Consecutive lines of a corpus, as they stand in it, each with its LF.

    Attributes:
        names: of the file of each side, for what is told to the user.
        line: number of the first line, from 1.
        offsets: bytes of each side's file before it.
        texts: of each side, as many lines in one as in the other; of a file whose lines
            hold both, one.
    """

    names: tuple[str, ...]
    line: int
    offsets: tuple[int, ...]
    texts: tuple[bytes, ...]


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

    @property
    def paths(self) -> tuple[Path, ...]:
        """Both paths."""
        return self.source, self.target

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields the lines of both files, pair by pair.

        Raises:
            InputError: for what `read_lines` refuses, or different numbers of lines.
        """
        sources, targets = read_lines(self.source), read_lines(self.target)
        for number, (source, target) in enumerate(itertools.zip_longest(sources, targets)):
            if source is None or target is None:
                longer = number + 1 + sum(1 for _ in (targets if source is None else sources))
                raise _unequal(self, *((number, longer) if source is None else (longer, number)))
            yield source, target


@dataclasses.dataclass(frozen=True)
class TsvFile:
    """A corpus of a file whose lines are a sentence, a TAB, and its translation."""

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
            InputError: for what `read_lines` refuses, or another number of columns.
        """
        for number, line in enumerate(read_lines(self.path), start=1):
            yield split_columns(self.name, number, line)


class Read(NamedTuple):
    """What was read of a corpus: pairs, and SHA-256 of its text by the name of the file."""

    pairs: int
    sha256: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class TextFile:
    """A file in one language; its blocks have one side."""

    path: Path

    @property
    def paths(self) -> tuple[Path, ...]:
        """The path."""
        return (self.path,)


_FILES = (ParallelFiles, TsvFile, TextFile)


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
    return [
        ParallelFiles(require_file(source), require_file(target))
        for source, target in zip(sources, targets, strict=True)
    ]


def require_file(path: str | Path) -> Path:
    """Returns the path; raises `InputError` where there is no regular file."""
    try:
        is_file, exists = Path(path).is_file(), Path(path).exists()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); expected a file") from error
    if not is_file:  # a pipe could be read only once
        state = "is no regular file" if exists else "is missing"
        raise InputError(f"{path} {state}; expected a text file, one sentence a line")
    return Path(path)


def located(corpus: Corpus) -> Corpus:
    """Returns the corpus with absolute paths, by which a process in any directory reads it.

    What is no path of a dataclass, as the files of a TFDS set, stays as it is.
    """
    file: Any = corpus  # of which the protocol does not say that it is a dataclass
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
    """Returns the two columns of a line; raises `InputError` where there are not two."""
    columns = line.split(b"\t")
    if len(columns) != 2:
        raise InputError(
            f"{name}, line {number} has {len(columns)} columns; expected 2: a sentence, a TAB, and "
            "its translation"
        )
    return columns[0], columns[1]


def _unequal(corpus: ParallelFiles, source_lines: int, target_lines: int) -> InputError:
    return InputError(
        f"{corpus.source} has {source_lines:,} lines and {corpus.target} has {target_lines:,}; "
        f"expected the same number. {describe_drift(corpus.source, corpus.target)}"
    )


class BlockReader:
    """Reads a corpus block by block; then `read` tells what it was."""

    def __init__(
        self,
        corpus: Corpus | TextFile,
        max_lines: int | None = None,
        *,
        named: Corpus | TextFile | None = None,
    ) -> None:
        """Begins nothing yet.

        Args:
            corpus: what to read.
            max_lines: of a block; `BLOCK_LINES` if None.
            named: the same corpus under the names that blocks and `read` are to have; if None,
                its own.
        """
        self._corpus = corpus
        self._max_lines = max_lines or BLOCK_LINES
        self._named = named or corpus
        self._read: Read | None = None

    @property
    def read(self) -> Read:
        """What was read; there once all blocks were taken."""
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
                raise InputError(f"{reader.path} is empty; expected one sentence a line")
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
    """Returns how many lines, at most as many, a block has next; 0 where a file is at its end."""
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
