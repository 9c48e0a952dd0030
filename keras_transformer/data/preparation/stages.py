"""What is done to one block of a corpus: cleaned to a shard of text, encoded to one of ids.

Each stage is a function of its task alone, which may run in another process or on
another machine that sees the same files; what it leaves is there whole or not at all.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from keras_transformer.data.corpora.cleaning import (
    CleaningOptions,
    CleaningReport,
    CleanPairs,
    clean,
)
from keras_transformer.data.corpora.corpus import Block, BlockReader, Corpus
from keras_transformer.data.preparation.report import SideStatistics
from keras_transformer.data.token_store import encoded, write_lines, write_shard
from keras_transformer.errors import InputError
from keras_transformer.runs.atomic import atomic_path
from keras_transformer.text.vocabulary import Vocabulary

Places: TypeAlias = npt.NDArray[np.int64]
HASH = np.dtype([("high", np.uint64), ("low", np.uint64)])


class CleanSource(NamedTuple):
    """A corpus to clean.

    Attributes:
        directory: takes what is left of its blocks.
        corpus: as the user has named it.
        located: the same by absolute paths, for a process whose directory is another.
        first: number of its first block among those of all corpora.
        sha256: of its files, when they were read first.
    """

    directory: Path
    corpus: Corpus
    located: Corpus
    first: int
    options: CleaningOptions
    sha256: Mapping[str, str]


class CleanTask(NamedTuple):
    """A block to clean, and the name of the files in `directory` that take what is left."""

    directory: Path
    name: str
    block: Block
    options: CleaningOptions


class EncodeTask(NamedTuple):
    """Cleaned text to encode.

    Attributes:
        directory, name: of its `CleanTask`.
        stores: the directories that take shards of those to keep, and of those held out.
        vocabulary: directory of the vocabulary.
        fingerprint: the vocabulary's.
        held_out: int64, places of the latter among the block's pairs.
        duplicates: int64, places of those to be dropped.
        max_tokens: a pair with a longer side is dropped; the end id counts.
    """

    directory: Path
    name: str
    stores: tuple[Path, Path | None]
    vocabulary: Path
    fingerprint: str
    held_out: Places
    duplicates: Places
    max_tokens: int


def clean_tasks(source: CleanSource) -> Iterator[CleanTask]:
    """Yields a task for each block of a corpus.

    Raises:
        InputError: where it is not what was read first.
    """
    reader = BlockReader(source.located, named=source.corpus)
    for number, block in enumerate(reader, start=source.first):
        yield CleanTask(source.directory, f"{number:05d}", block, source.options)
    if reader.read.sha256 != source.sha256:
        raise InputError(
            f"{source.corpus.name} has changed while it was read; expected it to stay as it is"
        )


def clean_block(task: CleanTask) -> dict[str, Any]:
    """Cleans a block, writes what is left, and returns the counts as JSON values."""
    if (done := _done(_part(task, "clean.json"))) is not None:
        return done
    report = CleaningReport()
    pairs = clean(task.block, task.options, report)
    task.directory.mkdir(parents=True, exist_ok=True)
    for name, lines in (("source.txt", pairs.sources), ("target.txt", pairs.targets)):
        with atomic_path(_part(task, name)) as path:
            write_lines(path, lines)
    _save(_part(task, "lines.npy"), pairs.lines)
    if task.options.drop_duplicates:
        _save(hashes_file(task.directory, task.name), _hashes(pairs, HASH))
    counts = {"pairs": report.read, "cleaning": report.as_dict()}
    result = {"name": task.name, "corpus": pairs.corpus, **counts}
    return _finished(_part(task, "clean.json"), result)


def encode_block(task: EncodeTask) -> dict[str, Any]:
    """Encodes cleaned text, writes shards of both stores, and returns counts as JSON values."""
    if (done := _done(_part(task, "encoded.json"))) is not None:
        return done
    corpus = json.loads(_part(task, "clean.json").read_bytes())["corpus"]
    numbers = np.load(_part(task, "lines.npy"))
    texts = (clean_lines(task.directory, task.name, side) for side in ("source", "target"))
    report = CleaningReport()
    pairs = CleanPairs(corpus, numbers, *texts)
    single = _mask(task.duplicates, len(numbers), inside=False)
    held_out = _mask(task.held_out, len(numbers))[single]
    pairs = pairs.keep(single, "duplicate", report)
    vocabulary = _vocabulary(task.vocabulary, task.fingerprint)
    source = encoded(
        pairs.sources,
        vocabulary.encode_source(pairs.sources, threads=1),
        vocabulary.source_vocab_size,
    )
    target = encoded(
        pairs.targets,
        vocabulary.encode_target(pairs.targets, threads=1),
        vocabulary.target_vocab_size,
    )
    # SentencePiece's normalization can leave nothing but the end id.
    full = (source.lengths > 1) & (target.lengths > 1)
    short = np.maximum(source.lengths, target.lengths) <= task.max_tokens
    pairs.keep(full, "empty", report)
    pairs.keep(short | ~full, "too_many_tokens", report)
    result: dict[str, Any] = {"pairs": len(numbers), "cleaning": report.as_dict()}
    for name, store, mask in zip(
        ("kept", "held_out"), task.stores, (~held_out, held_out), strict=True
    ):
        if store is None:
            continue
        sides = (source.where(full & short & mask), target.where(full & short & mask))
        result[name] = {
            "pairs": len(sides[0].lines),
            "sha256": write_shard(store / task.name, *sides),
            "statistics": [SideStatistics.of(s, vocabulary.unknown_id).as_dict() for s in sides],
        }
        # 64 bits are enough to count by: nothing is dropped for being like another.
        stored = pairs.where(full & short & mask)
        _save(stored_hashes_file(task, name), _hashes(stored, np.dtype(np.uint64)))
    return _finished(_part(task, "encoded.json"), result)


def clean_lines(directory: Path, name: str, side: str) -> list[bytes]:
    """Returns the lines of a side that cleaning has left of a block."""
    return (directory / f"{name}.{side}.txt").read_bytes().split(b"\n")[:-1]


def hashes_file(directory: Path, name: str) -> Path:
    """Returns the file with a hash of each pair that cleaning has left of a block."""
    return directory / f"{name}.hashes.npy"


def stored_hashes_file(task: EncodeTask, part: str) -> Path:
    """Returns the file with a hash of each pair that a block leaves, "kept" or "held_out"."""
    return _part(task, f"{part}.npy")


def forget(task: EncodeTask) -> None:
    """Removes the cleaned text of a block that is encoded."""
    for name in ("source.txt", "target.txt", "lines.npy"):
        _part(task, name).unlink(missing_ok=True)


def _part(task: CleanTask | EncodeTask, name: str) -> Path:
    return task.directory / f"{task.name}.{name}"


def _mask(places: Places, count: int, inside: bool = True) -> npt.NDArray[np.bool_]:
    mask = np.full(count, not inside)
    mask[places] = inside
    return mask


def _done(path: Path) -> dict[str, Any] | None:
    """Returns the result that a process before this one has left, or None."""
    try:
        return dict(json.loads(path.read_bytes()))
    except (FileNotFoundError, ValueError):  # the latter after the machine's power was cut
        return None


def _finished(path: Path, result: dict[str, Any]) -> dict[str, Any]:
    """Writes a result: the last of what a task leaves, and there whole or not at all."""
    with atomic_path(path) as partial:
        partial.write_text(json.dumps(result), encoding="utf-8")
    return result


def _save(path: Path, array: npt.NDArray[Any]) -> None:
    with atomic_path(path) as partial, partial.open("wb") as file:
        np.save(file, array)


@functools.lru_cache(maxsize=1)
def _vocabulary(directory: Path, fingerprint: str) -> Vocabulary:
    """Returns the vocabulary, which a process loads once while it is the same."""
    return Vocabulary.load(directory)


def _hashes(pairs: CleanPairs, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Returns as many bits as a type has for each pair, by which equal ones are found."""
    digests = (
        hashlib.blake2b(b"%b\n%b" % pair, digest_size=dtype.itemsize).digest()
        for pair in zip(pairs.sources, pairs.targets, strict=True)
    )
    return np.frombuffer(b"".join(digests), dtype)
