"""Encoded pairs on disk, with the cleaned text beside the ids.

A store is a directory of `source_ids.npy` and `target_ids.npy` (all ids one
after another, uint16 where the vocabulary fits and else int32),
`source_offsets.npy` and `target_offsets.npy` (int64, pair i from offset i to
offset i + 1), and `source.txt` and `target.txt` (line i is pair i). Each pair's
ids end with the end id; there is no start id and no padding.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from keras_transformer.errors import InputError


class EncodedPair(NamedTuple):
    """A pair to store: each side one line of text, and its ids, end id last."""

    source_text: bytes
    source_ids: Sequence[int]
    target_text: bytes
    target_ids: Sequence[int]


class TokenStore:
    """A store, read from disk as it is used (memory-mapped).

    Attributes:
        source_ids, target_ids: all ids, pair after pair, uint16 or int32.
        source_offsets, target_offsets: int64 `[len(self) + 1]`, where the pairs begin.
    """

    def __init__(self, directory: str | Path) -> None:
        """Opens a store.

        Raises:
            InputError: where there is none, or parts that do not fit together.
        """
        self.directory = Path(directory)
        self.source_ids = self._load("source_ids.npy")
        self.source_offsets = self._load("source_offsets.npy")
        self.target_ids = self._load("target_ids.npy")
        self.target_offsets = self._load("target_offsets.npy")
        for side, ids, offsets in (
            ("source", self.source_ids, self.source_offsets),
            ("target", self.target_ids, self.target_offsets),
        ):
            if len(offsets) != len(self.source_offsets) or offsets[-1:] != [len(ids)]:
                raise InputError(
                    f"{self.directory} is no token store: {side}_offsets.npy does not fit the "
                    "other files; prepare the data again"
                )

    def _load(self, name: str) -> npt.NDArray[Any]:
        try:
            return np.load(self.directory / name, mmap_mode="r")
        except (OSError, ValueError) as error:
            raise InputError(
                f"{self.directory} is no token store: {name} cannot be read ({error}); expected "
                "the folder train or valid of prepared data"
            ) from error

    def __len__(self) -> int:
        return len(self.source_offsets) - 1

    def source(self, index: int) -> npt.NDArray[np.int32]:
        """Returns the source ids of a pair, end id last."""
        return self._pair_ids(self.source_ids, self.source_offsets, index)

    def target(self, index: int) -> npt.NDArray[np.int32]:
        """Returns the target ids of a pair, end id last."""
        return self._pair_ids(self.target_ids, self.target_offsets, index)

    def _pair_ids(
        self, ids: npt.NDArray[Any], offsets: npt.NDArray[np.int64], index: int
    ) -> npt.NDArray[np.int32]:
        if not 0 <= index < len(self):
            raise IndexError(f"pair {index} of a store of {len(self)}")
        return ids[offsets[index] : offsets[index + 1]].astype(np.int32)

    @functools.cached_property
    def source_lengths(self) -> npt.NDArray[np.int64]:
        """Numbers of source ids, `[len(self)]`, end ids counted."""
        return np.diff(self.source_offsets)

    @functools.cached_property
    def target_lengths(self) -> npt.NDArray[np.int64]:
        """Numbers of target ids, `[len(self)]`, end ids counted."""
        return np.diff(self.target_offsets)

    def source_text(self) -> list[str]:
        """Returns the cleaned source lines."""
        return self._text("source")

    def target_text(self) -> list[str]:
        """Returns the cleaned target lines."""
        return self._text("target")

    def _text(self, side: str) -> list[str]:
        # Not str.splitlines, which also breaks lines at other characters than \n.
        return (self.directory / f"{side}.txt").read_bytes().decode().split("\n")[:-1]

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of ids and offsets, in hex: equal for stores that train alike."""
        digest = hashlib.sha256()
        for name in ("source_ids", "source_offsets", "target_ids", "target_offsets"):
            with (self.directory / f"{name}.npy").open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()


class TokenStoreWriter:
    """Writes a store pair by pair; it is whole once the `with` block has ended."""

    def __init__(self, directory: Path, source_vocab_size: int, target_vocab_size: int) -> None:
        """Makes the directory, which must not exist."""
        directory.mkdir(parents=True)
        self._sides = (
            _SideWriter(directory, "source", source_vocab_size),
            _SideWriter(directory, "target", target_vocab_size),
        )

    def __enter__(self) -> TokenStoreWriter:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for side in self._sides:
            side.close()

    def extend(self, pairs: Sequence[EncodedPair]) -> None:
        """Adds pairs."""
        source, target = self._sides
        source.extend([pair.source_text for pair in pairs], [pair.source_ids for pair in pairs])
        target.extend([pair.target_text for pair in pairs], [pair.target_ids for pair in pairs])


class _SideWriter:
    def __init__(self, directory: Path, side: str, vocab_size: int) -> None:
        self._dtype = np.dtype(np.uint16 if vocab_size <= 2**16 else np.int32)
        self._offsets_path = directory / f"{side}_offsets.npy"
        self._lengths = [0]
        self._num_ids = 0
        self._text = (directory / f"{side}.txt").open("wb")
        self._ids = (directory / f"{side}_ids.npy").open("wb")
        self._write_header(self._ids)

    def _write_header(self, file: IO[bytes]) -> None:
        # NumPy leaves room in the header for the first axis to grow, for this very use.
        np.lib.format.write_array_header_1_0(
            file, {"descr": self._dtype.str, "fortran_order": False, "shape": (self._num_ids,)}
        )

    def extend(self, texts: list[bytes], ids: list[Sequence[int]]) -> None:
        self._text.writelines(text + b"\n" for text in texts)
        self._lengths.extend(map(len, ids))
        flat = np.fromiter(itertools.chain.from_iterable(ids), self._dtype)
        self._num_ids += len(flat)
        self._ids.write(flat.tobytes())

    def close(self) -> None:
        self._text.close()
        self._ids.seek(0)
        self._write_header(self._ids)
        self._ids.close()
        np.save(self._offsets_path, np.cumsum(self._lengths, dtype=np.int64))
