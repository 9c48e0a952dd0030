"""The work on one block of a corpus: cleaning it, and encoding it to token ids.

Each stage is a function that may run in another process. It writes its files atomically.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from keras_transformer.data.cleaning import (
    EXAMPLE_CHARACTERS,
    EXAMPLES,
    CleaningOptions,
    CleaningReport,
    CleanPairs,
    clean,
)
from keras_transformer.data.corpus import Block
from keras_transformer.data.duplicates import HASH, SHORT_HASH, hash_pairs
from keras_transformer.data.token_store import IntArray, encoded, write_lines, write_shard
from keras_transformer.runs.atomic import atomic_path, write_text
from keras_transformer.text.vocabulary import Vocabulary


class BlockFiles(NamedTuple):
    """The intermediate files of a block.

    Attributes:
        directory: directory of the blocks of a split.
        number: number of the block in its split, from 0.

    Example:
    >>> files = BlockFiles(Path("work"), 7)
    >>> files.path("hashes.npy")
    PosixPath('work/00007.hashes.npy')
    """

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
    """A block to clean.

    Example:
    >>> from keras_transformer.data.corpus import BlockReader, ParallelFiles
    >>> [block] = BlockReader(ParallelFiles(Path("train.en"), Path("train.de")))
    >>> task = CleanTask(BlockFiles(Path("work"), 0), block, CleaningOptions())
    >>> task.files.name
    '00000'
    """

    files: BlockFiles
    block: Block
    options: CleaningOptions


@dataclasses.dataclass
class CleanedBlock:
    """The cleaned pairs of a block, including duplicates and held-out pairs.

    Attributes:
        files: files with the pairs.
        corpus: name of the corpus.
        pairs: number of pairs.
        duplicates: int64, places of duplicates in the block.
        held_out: int64, places of pairs that are held out for validation.

    Example:
    >>> block = CleanedBlock(BlockFiles(Path("work"), 0), "train.en + train.de", pairs=3)
    >>> len(block.duplicates)
    0
    """

    files: BlockFiles
    corpus: str
    pairs: int
    duplicates: IntArray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
    held_out: IntArray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))


class EncodeTask(NamedTuple):
    """A cleaned block to encode.

    Attributes:
        block: the block.
        directory: directory with the vocabulary and the token stores.
        split: store of the pairs. Those that are held out go to "valid".
        fingerprint: fingerprint of the vocabulary.
        max_tokens: pairs with a longer side are dropped. The end id counts.

    Example:
    >>> block = CleanedBlock(BlockFiles(Path("work"), 0), "train.en + train.de", pairs=3)
    >>> EncodeTask(block, Path("build/data"), "train", "fingerprint", max_tokens=256).split
    'train'
    """

    block: CleanedBlock
    directory: Path
    split: str
    fingerprint: str
    max_tokens: int


def clean_block(task: CleanTask) -> dict[str, Any]:
    """Cleans a block and writes the clean pairs.

    Args:
        task: the block.

    Returns:
        The name of the corpus, the number of pairs read, and the cleaning report, as JSON values.

    Raises:
        InputError: for the reasons of `clean`.

    Example:
    >>> from keras_transformer.data.corpus import BlockReader, ParallelFiles
    >>> [block] = BlockReader(ParallelFiles(Path("train.en"), Path("train.de")))
    >>> clean_block(CleanTask(BlockFiles(Path("work"), 0), block, CleaningOptions()))["pairs"]
    3
    """
    files = task.files
    if (done := files.result("clean.json")) is not None:
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
    result = {"corpus": pairs.corpus, "pairs": report.read, "cleaning": report.as_dict()}
    write_text(files.path("clean.json"), json.dumps(result))  # after all other files
    return result


def encode_block(task: EncodeTask) -> dict[str, Any]:
    """Encodes a cleaned block, and writes a shard of each store that gets pairs.

    Args:
        task: the block.

    Returns:
        The number of clean pairs, the report of pairs dropped here, and for each store the counts
        of its shard, as JSON values.

    Example:
    >>> from keras_transformer.data.corpus import BlockReader, ParallelFiles
    >>> [block] = BlockReader(ParallelFiles(Path("train.en"), Path("train.de")))
    >>> files = BlockFiles(Path("work"), 0)
    >>> corpus = clean_block(CleanTask(files, block, CleaningOptions()))["corpus"]
    >>> cleaned = CleanedBlock(files, corpus, pairs=3, held_out=np.array([1]))
    >>> vocabulary = Vocabulary.load("build/data")
    >>> vocabulary.save("new")
    >>> task = EncodeTask(cleaned, Path("new"), "train", vocabulary.fingerprint, max_tokens=256)
    >>> {store: shard["pairs"] for store, shard in encode_block(task)["shards"].items()}
    {'train': 2, 'valid': 1}
    """
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
    rewritten = vocabulary.rewritten_targets(pairs.targets)
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
        shards[store]["target"]["rewritten"] = len(changed)
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
