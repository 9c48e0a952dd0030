"""The texts of a prepared TFDS set, read as fast as its files allow.

TFDS parses its records one at a time, some 20,000 a second; here they are
parsed in batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_datasets as tfds
from array_record.python import array_record_module

from keras_transformer.data.corpora.tfds_sets import reason
from keras_transformer.errors import InputError

_BATCH = 4096  # records parsed at once
_BUFFER = 2**23  # bytes read at once


class SplitReader:
    """Reads texts of one split of a set."""

    def __init__(self, name: str, builder: Any, split: str, keys: Sequence[str]) -> None:
        """Finds the split's files; reads none yet.

        Args:
            name: of the set, for what is told to the user.
            builder: of the set.
            split: one of its splits, or what TFDS makes of them: "train[:10%]".
            keys: of the texts to read.

        Raises:
            InputError: for a set that is not on disk, and a split that does not exist or is empty.
        """
        self._name = name
        self._builder = builder
        self._split = split
        self._keys = tuple(keys)
        splits = builder.info.splits
        if not splits:
            self._dataset()  # says that nothing is there
            return
        try:
            self._files = splits[split].file_instructions
        except (ValueError, AssertionError) as error:
            raise self._no_such_split() from error
        if any(file.take <= 0 for file in self._files) or not self._files:
            raise InputError(f"split {split!r} of {name} has no pair; expected at least one")

    def batches(self) -> Iterator[tuple[list[bytes], ...]]:
        """Yields the texts of some pairs at a time, a list for each key.

        Raises:
            InputError: for files that are missing, damaged, or of an unknown format.
        """
        read = _READERS.get(self._builder.info.file_format) if self._builder.info.splits else None
        if read is None:
            for batch in self._dataset().batch(_BATCH).as_numpy_iterator():
                yield tuple(batch[key].tolist() for key in self._keys)
            return
        specification = {key: tf.io.FixedLenFeature((), tf.string) for key in self._keys}
        for file in self._files:
            left = file.take
            try:
                for records in read(file.filename, file.skip, file.take):
                    texts = tf.io.parse_example(records, specification)
                    left -= len(records)
                    yield tuple(texts[key].numpy().tolist() for key in self._keys)
            except (tf.errors.OpError, OSError, IndexError, RuntimeError, ValueError) as error:
                raise InputError(
                    f"{file.filename} cannot be read ({reason(error)}); expected what TFDS has"
                    " prepared"
                ) from error
            if left:
                raise InputError(
                    f"{file.filename} ends {left:,} pairs early; expected as many as"
                    " dataset_info.json beside it says"
                )

    def _dataset(self) -> Any:
        """Returns TFDS's own reader, for all formats that it knows and for its mock data."""
        # One file after the other: the order does not hang on how many there are.
        in_order = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
        try:
            return self._builder.as_dataset(split=self._split, read_config=in_order)
        except AssertionError as error:  # what TFDS raises for data that is not there
            raise InputError(
                f"{self._name} is not prepared in {self._builder.data_dir}; nothing is downloaded"
                " unasked: expected a directory that has it (--tfds_data_dir, or a recipe's"
                " --corpus_dir), or bin/prepare.py --tfds_download, which downloads it"
            ) from error
        except (ValueError, KeyError) as error:
            raise self._no_such_split() from error

    def _no_such_split(self) -> InputError:
        return InputError(
            f"{self._name} has no split {self._split!r}; expected one of"
            f" {sorted(self._builder.info.splits)} or a slice of one, as in train[:10%]"
        )


def _tfrecords(path: str, skip: int, take: int) -> Iterator[Any]:
    records = tf.data.TFRecordDataset(path, buffer_size=_BUFFER).skip(skip).take(take)
    yield from records.batch(_BATCH).prefetch(2)


def _array_records(path: str, skip: int, take: int) -> Iterator[list[bytes]]:
    reader = array_record_module.ArrayRecordReader(path, f"readahead_buffer_size:{_BUFFER}")
    try:
        for start in range(skip, skip + take, _BATCH):
            yield reader.read(start, min(start + _BATCH, skip + take))
    finally:
        reader.close()


_READERS: dict[Any, Callable[[str, int, int], Iterable[Any]]] = {
    tfds.core.FileFormat.TFRECORD: _tfrecords,
    tfds.core.FileFormat.ARRAY_RECORD: _array_records,
}
