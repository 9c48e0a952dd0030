"""Encoded pairs on disk with their text, in shards.

A store is a directory with one directory per shard, and `store.json`, which lists the shards in
order and has the SHA-256 of all ids and of all texts. A shard has these files for the source, and
the same files for the target:

* `source_ids.npy`: all ids (uint16 if the vocabulary fits, otherwise int32). The ids of a sentence
  end with the end id. There are no start ids and no padding.
* `source_lengths.npy`: the number of ids of each sentence (uint32).
* `source.txt`: the text of each sentence, one per line.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from keras_transformer.errors import InputError, require
from keras_transformer.runs.atomic import atomic_path

IntArray: TypeAlias = npt.NDArray[np.int64]

_FORMAT = 2
_INDEX = "store.json"
_SIDES = ("source", "target")
_FILES = ("_lengths.npy", "_ids.npy", ".txt")  # of each side
_MAPS = 100  # open maps of ids and of text, for each side


class TokenStore:
    """A store on disk, which is memory-mapped. `sides` are the `source` and the `target`."""

    def __init__(self, directory: str | Path) -> None:
        """Opens a store."""
        self.directory = Path(directory)
        try:
            index = json.loads((self.directory / _INDEX).read_bytes())
            if index["format"] != _FORMAT:
                raise ValueError(f"it has format {index['format']}, not {_FORMAT}")
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InputError(
                f"{self.directory} is not a token store: {_INDEX} cannot be read ({error}). It "
                "must be the folder train or valid of prepared data."
            ) from error
        self.fingerprint: str = index["fingerprint"]
        self._texts: str | None = index.get("texts")  # older stores have none
        self._shards = shards = [self.directory / name for name in index["shards"]]
        self.sides = StoredSide(shards, "source"), StoredSide(shards, "target")
        self.source, self.target = self.sides
        found = [len(side.lengths) for side in self.sides]
        require(
            found == [index["pairs"]] * 2,
            f"{self.directory} is damaged: {_INDEX} has {index['pairs']} pairs, but the shards "
            f"have {found[0]} sources and {found[1]} targets. Prepare the data again.",
        )

    def __len__(self) -> int:
        return len(self.source.lengths)

    def check(self, vocab_sizes: Sequence[int]) -> None:
        """Reads all ids and texts. Raises `InputError` if one has changed, or if an id is not of
        the vocabularies.
        """
        digests = []
        for shard in self._shards:
            parts = [[_load(shard / f"{side}{file}") for file in _FILES] for side in _SIDES]
            for side, (_, ids, _), vocab_size in zip(_SIDES, parts, vocab_sizes, strict=True):
                message = f"{shard}/{side}_ids.npy has another vocabulary. Prepare the data again."
                require(int(ids.max(initial=0)) < vocab_size, message)
            digests.append(_digests(parts))
        for column, (kind, known) in enumerate([("ids", self.fingerprint), ("texts", self._texts)]):
            require(
                known in (None, _combined(digest[column] for digest in digests)),
                f"{self.directory} is damaged: its {kind} are not those that were prepared. "
                "Prepare the data again.",
            )


class StoredSide:
    """One side of all pairs. Each map keeps a file open, so only a few are kept: a process may have
    1,024 open files.

    Attributes:
        lengths: uint32 `[pairs]`, number of ids of each pair, with the end id.
    """

    def __init__(self, shards: Sequence[Path], side: str) -> None:
        self._texts = [shard / f"{side}.txt" for shard in shards]
        ids = [shard / f"{side}_ids.npy" for shard in shards]
        # Plain arrays, because slices of memmap take ten times as long.
        self._ids = functools.lru_cache(_MAPS)(lambda shard: np.asarray(_load(ids[shard])))
        self._text = functools.lru_cache(_MAPS)(lambda shard: np.asarray(_load(self._texts[shard])))
        self._line_ends = functools.cache(
            lambda shard: np.flatnonzero(self._text(shard) == ord("\n")).astype(np.uint32)
        )
        lengths = [np.array(_load(shard / f"{side}_lengths.npy")) for shard in shards]
        self._first = np.cumsum([0, *map(len, lengths)])  # pair of each shard
        self.lengths = np.concatenate([np.zeros(0, np.uint32), *lengths])
        # End of each pair within its shard.
        ends = [np.cumsum(shard, dtype=np.uint32) for shard in lengths]
        self._ends = np.concatenate([np.zeros(0, np.uint32), *ends])

    def ids(self, pairs: IntArray) -> npt.NDArray[np.int32]:
        """Returns the concatenated ids of pairs, each with its end id."""
        shards = np.searchsorted(self._first, pairs, side="right") - 1
        lengths = self.lengths[pairs].astype(np.int64)
        after = np.cumsum(lengths)
        taken = np.empty(int(after[-1]) if len(after) else 0, np.int32)
        # Reads shard by shard, so that each is mapped once, and few are mapped at the same time.
        order = np.argsort(shards, kind="stable")
        columns = (after, shards, self._ends[pairs], lengths)
        sorted_pairs = zip(*(column[order].tolist() for column in columns), strict=True)
        for position, shard, end, length in sorted_pairs:
            taken[position - length : position] = self._ids(shard)[end - length : end]
        return taken

    def lines(self, pairs: IntArray) -> list[bytes]:
        """Returns the cleaned lines of pairs."""
        shards = np.searchsorted(self._first, pairs, side="right") - 1
        located = list(zip(shards.tolist(), (pairs - self._first[shards]).tolist(), strict=True))
        lines = [b""] * len(pairs)
        for i in np.argsort(shards, kind="stable").tolist():  # opens one shard after the other
            shard, index = located[i]
            text, ends = self._text(shard), self._line_ends(shard)
            lines[i] = text[ends[index - 1] + 1 if index else 0 : ends[index]].tobytes()
        return lines

    def text(self) -> list[str]:
        """Returns all cleaned lines."""
        # str.splitlines would also split at characters other than \n.
        texts = (path.read_bytes().decode() for path in self._texts)
        return [line for text in texts for line in text.split("\n")[:-1]]


def _load(path: Path) -> npt.NDArray[Any]:
    try:
        is_text = path.suffix == ".txt"
        return np.memmap(path, np.uint8, "r") if is_text else np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} cannot be read ({error}). Prepare the data again.") from error


def _digests(sides: Iterable[Sequence[Any]]) -> tuple[str, str]:
    """Returns the SHA-256 of ids with lengths, and of texts, from the `_FILES` of both sides."""
    hash_of_ids, hash_of_texts = hashlib.sha256(), hashlib.sha256()
    for lengths, ids, text in sides:
        hash_of_ids.update(lengths)
        hash_of_ids.update(ids)
        hash_of_texts.update(text)
    return hash_of_ids.hexdigest(), hash_of_texts.hexdigest()


def _combined(digests: Iterable[str]) -> str:
    return hashlib.sha256(b"".join(map(bytes.fromhex, digests))).hexdigest()


def write_shard(
    directory: Path,
    lines: Sequence[Sequence[bytes]],
    ids: Sequence[Sequence[Sequence[int]]],
    vocab_sizes: Sequence[int],
) -> tuple[str, str]:
    """Writes one shard atomically, and returns the SHA-256 of its ids and of its texts. Each
    sequence has the source first.
    """
    written = []
    with atomic_path(directory) as partial:
        partial.mkdir(parents=True)
        for name, texts, rows, vocab_size in zip(_SIDES, lines, ids, vocab_sizes, strict=True):
            lengths = np.fromiter(map(len, rows), np.uint32, len(rows))
            dtype = np.uint16 if vocab_size <= 2**16 else np.int32
            flat = np.fromiter(itertools.chain.from_iterable(rows), dtype, int(lengths.sum()))
            np.save(partial / f"{name}_ids.npy", flat)
            np.save(partial / f"{name}_lengths.npy", lengths)
            written.append((lengths, flat, write_lines(partial / f"{name}.txt", texts)))
    return _digests(written)


def write_lines(path: Path, lines: Sequence[bytes]) -> bytes:
    """Writes lines, each with LF, and returns all that was written."""
    path.write_bytes(text := b"\n".join([*lines, b""]))
    return text


def write_index(directory: Path, shards: Sequence[tuple[str, int, str, str]]) -> int:
    """Makes a store of shards: name, pairs, and SHA-256 of the ids and of the texts of each.
    Returns the number of pairs.
    """
    count = sum(shard[1] for shard in shards)
    index = {
        "format": _FORMAT,
        "pairs": count,
        "fingerprint": _combined(shard[2] for shard in shards),
        "texts": _combined(shard[3] for shard in shards),
        "shards": [shard[0] for shard in shards],
    }
    directory.mkdir(exist_ok=True)  # missing if there are no shards
    (directory / _INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    return count
