"""Blocks of a corpus: reading them, cleaning them, and encoding them to token ids.

A block is a sequence of pairs that is cleaned and encoded separately. The ends of blocks depend
only on the text. `clean_block` and `encode_block` may run in another process, and write their files
atomically.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from keras_transformer.data.cleaning import (
    EXAMPLE_CHARACTERS,
    EXAMPLES,
    HASH,
    SHORT_HASH,
    CleaningOptions,
    CleaningReport,
    CleanPairs,
    clean,
    hash_pairs,
)
from keras_transformer.data.corpus import Corpus, ParallelFiles, TsvFile
from keras_transformer.data.reading import Block, raw_lines
from keras_transformer.data.token_store import IntArray, encoded, write_lines, write_shard
from keras_transformer.runs.atomic import atomic_path, write_text
from keras_transformer.text.vocabulary import Vocabulary

BLOCK_LINES = 2**16
BLOCK_BYTES = 2**23  # of the longer sides of all pairs; a longer pair is a separate block
# Normalization is compared with the text for this many targets of a block.
_COMPARED_TARGETS = 1000


@dataclasses.dataclass(frozen=True)
class TextFile:
    """A file in one language; its blocks have one side."""

    path: Path

    @property
    def paths(self) -> tuple[Path, ...]:
        """The path."""
        return (self.path,)


class BlockReader:
    """Reads a corpus block by block, and computes its SHA-256.

    Attributes:
        pairs: number of pairs read so far.
        blocks: number of blocks read so far.
    """

    def __init__(self, corpus: Corpus | TextFile, max_lines: int | None = None) -> None:
        self._corpus = corpus
        self._max_lines = max_lines or BLOCK_LINES
        self.pairs = 0
        self.blocks = 0
        if isinstance(corpus, ParallelFiles | TsvFile | TextFile):  # as raw bytes, which is fast
            self._names = tuple(map(str, corpus.paths))
        else:
            self._names = (corpus.name,) * 2
        self._digests = {name: hashlib.sha256() for name in self._names}

    @property
    def sha256(self) -> dict[str, str]:
        """The SHA-256 in hex of the text of each file read so far, by its name."""
        return {name: digest.hexdigest() for name, digest in self._digests.items()}

    def __iter__(self) -> Iterator[Block]:
        """Yields all blocks."""
        offsets = (0,) * len(self._names)
        for rows in _chunks(self._rows(), self._max_lines):
            texts = tuple(map(b"".join, zip(*rows, strict=True)))
            for name, text in zip(self._names, texts, strict=False):
                self._digests[name].update(text)
            yield Block(self._names, self.pairs + 1, offsets, texts, "".join(self.sha256.values()))
            self.pairs += len(rows)
            self.blocks += 1
            offsets = tuple(offset + len(text) for offset, text in zip(offsets, texts, strict=True))

    def _rows(self) -> Iterator[tuple[bytes, ...]]:
        """Yields the lines of each pair, each with LF."""
        corpus = self._corpus
        if isinstance(corpus, ParallelFiles):
            for row in itertools.zip_longest(*map(raw_lines, corpus.paths)):
                if None in row:
                    raise corpus.misaligned()
                yield row
        elif isinstance(corpus, TsvFile | TextFile):
            yield from zip(raw_lines(corpus.path), strict=True)
        else:
            for pair in corpus.pairs():
                yield tuple(text.replace(b"\n", b" ") + b"\n" for text in pair)


def _chunks(rows: Iterable[tuple[bytes, ...]], max_lines: int) -> Iterator[list[tuple[bytes, ...]]]:
    chunk: list[tuple[bytes, ...]] = []
    size = 0
    for row in rows:
        longest = max(map(len, row))
        if chunk and (len(chunk) == max_lines or size + longest > BLOCK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(row)
        size += longest
    if chunk:
        yield chunk


class BlockFiles(NamedTuple):
    """The intermediate files of a block."""

    directory: Path
    number: int

    @property
    def name(self) -> str:
        """The start of the names of the files, and the name of the block's shards."""
        return f"{self.number:05d}"

    def path(self, part: str) -> Path:
        """Returns the path of one of the files."""
        return self.directory / f"{self.name}.{part}"

    def clean_lines(self, side: str) -> list[bytes]:
        """Returns the clean lines of a side, "source" or "target"."""
        return self.path(f"{side}.txt").read_bytes().split(b"\n")[:-1]

    def save(self, part: str, array: npt.NDArray[Any]) -> None:
        """Writes an array."""
        with atomic_path(self.path(part)) as partial, partial.open("wb") as file:
            np.save(file, array)

    def result(self, part: str) -> dict[str, Any] | None:
        """Returns the result of a finished stage, or None."""
        try:
            return dict(json.loads(self.path(part).read_bytes()))
        except (FileNotFoundError, ValueError):  # ValueError: after a power cut
            return None

    def remove_clean_text(self) -> None:
        """Removes the clean text, which is not needed after the encoding."""
        for part in ("source.txt", "target.txt", "lines.npy"):
            self.path(part).unlink(missing_ok=True)


class CleanTask(NamedTuple):
    """A block to clean."""

    files: BlockFiles
    block: Block
    options: CleaningOptions


@dataclasses.dataclass
class CleanedBlock:
    """The cleaned pairs of a block, including duplicates and held-out pairs.

    Attributes:
        duplicates: int64, places of duplicates in the block.
        held_out: int64, places of pairs that are held out for validation.
    """

    files: BlockFiles
    corpus: str
    pairs: int
    duplicates: IntArray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
    held_out: IntArray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))


class EncodeTask(NamedTuple):
    """A cleaned block to encode."""

    block: CleanedBlock
    directory: Path
    split: str
    fingerprint: str
    max_tokens: int


def clean_block(task: CleanTask) -> dict[str, Any]:
    """Cleans a block and writes the clean pairs."""
    files = task.files
    if (done := files.result("clean.json")) and done["digest"] == task.block.digest:
        return done
    report = CleaningReport()
    pairs = clean(task.block, task.options, report)
    files.directory.mkdir(parents=True, exist_ok=True)
    for part, lines in (("source.txt", pairs.sources), ("target.txt", pairs.targets)):
        with atomic_path(files.path(part)) as path:
            write_lines(path, lines)
    files.save("lines.npy", pairs.lines)
    if task.options.drop_duplicates:
        files.save("hashes.npy", hash_pairs(pairs, HASH))
    result = {
        "corpus": pairs.corpus,
        "digest": task.block.digest,
        "pairs": report.read,
        "cleaning": report.as_dict(),
    }
    write_text(files.path("clean.json"), json.dumps(result))  # after all other files
    return result


def encode_block(task: EncodeTask) -> dict[str, Any]:
    """Encodes a cleaned block, and writes a shard of each store that gets pairs."""
    block, files = task.block, task.block.files
    if (done := files.result("encoded.json")) is not None:
        return done
    report = CleaningReport()
    sides = (files.clean_lines("source"), files.clean_lines("target"))
    pairs = CleanPairs(block.corpus, np.load(files.path("lines.npy")), *sides)
    places = np.arange(block.pairs)
    single = ~np.isin(places, block.duplicates)
    held_out = np.isin(places[single], block.held_out)
    pairs = pairs.keep(single, "duplicate", report)
    vocabulary = _vocabulary(task.directory, task.fingerprint)
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
    masks = {task.split: ~held_out}
    if len(block.held_out):
        masks["valid"] = held_out
    rewritten = vocabulary.rewritten_targets(pairs.targets[:_COMPARED_TARGETS])
    shards: dict[str, dict[str, Any]] = {}
    for store, mask in masks.items():
        stored = full & short & mask
        both = {"source": source.where(stored), "target": target.where(stored)}
        shards[store] = {
            "name": files.name,
            "pairs": int(np.count_nonzero(stored)),
            "sha256": write_shard(task.directory / store / files.name, *both.values()),
        }
        for name, side in both.items():
            shards[store][name] = {
                "unknown": int(np.count_nonzero(side.ids == vocabulary.unknown_id)),
                "lengths": np.bincount(side.lengths).tolist(),  # sentences with 0, 1, 2, … tokens
            }
        changed = [place for place in rewritten if stored[place]]
        compared = int(np.count_nonzero(stored[:_COMPARED_TARGETS]))
        shards[store]["target"] |= {"compared": compared, "rewritten": len(changed)}
        shards[store]["target"]["rewritten_examples"] = [
            {
                "corpus": pairs.corpus,
                "line": int(pairs.lines[place]),
                **_difference(" ".join(pairs.targets[place].decode().split()), rewritten[place]),
            }
            for place in changed[:EXAMPLES]
        ]
        files.save(f"{store}_hashes.npy", hash_pairs(pairs.where(stored), SHORT_HASH))
    result = {"pairs": block.pairs, "cleaning": report.as_dict(), "shards": shards}
    write_text(files.path("encoded.json"), json.dumps(result))  # after all other files
    return result


def _difference(before: str, after: str) -> dict[str, str]:
    """Returns both texts from a little before their first difference."""
    start = max(0, len(os.path.commonprefix([before, after])) - EXAMPLE_CHARACTERS // 4)
    part = slice(start, start + EXAMPLE_CHARACTERS)
    return {"before": before[part], "after": after[part]}


@functools.lru_cache(maxsize=1)
def _vocabulary(directory: Path, fingerprint: str) -> Vocabulary:
    """Returns the vocabulary. A process loads it again only if it changes."""
    return Vocabulary.load(directory)
