"""Finds, prepares and reads translation sets of TFDS.

Importing this module loads TFDS and registers Multi30k. The phrasebook needs an extra, so it is
registered only when it is used.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_datasets as tfds
from array_record.python import array_record_module

from keras_transformer.errors import InputError
from keras_transformer.extensions.corpora import multi30k  # noqa: F401  (to import it is to register it)

_EXAMPLE = "Use a name such as wmt14_translate/de-en"
# A name such as "huggingface:opus_books". Even looking it up would use the network.
_NAMESPACE = re.compile(r"[A-Za-z_]\w*:[A-Za-z_]")
# A part of OPUS that TFDS builds from a list of its subsets.
_OPUS_PART = re.compile(r"opus/([A-Za-z_]+)-([A-Za-z_]+) for (.+)")


def find(name: str, data_dir: str | None) -> Any:
    """Returns the builder of a set of TFDS, of this package, or prepared in `data_dir`."""
    if _NAMESPACE.match(name):
        raise InputError(
            f"{name!r} is a community dataset. Only datasets of TFDS itself are supported, such as "
            "wmt14_translate/de-en."
        )
    if re.split("[/:]", name)[0] == "phrasebook":
        import keras_transformer.extensions.corpora.phrasebook.tfds_builder  # noqa: F401  registers it
    part = _OPUS_PART.fullmatch(name)
    named = (
        {"name": "opus", "config": _opus_config(name, *part.groups())} if part else {"name": name}
    )
    try:
        builder = tfds.builder(**named, data_dir=data_dir)
    except tfds.core.registered.DatasetNotFoundError as error:
        there = f", and none is prepared in {data_dir}" if data_dir else ""
        raise InputError(
            f"TFDS does not know the dataset {name!r}{there}. {_EXAMPLE}, or translate_folder:DIR"
        ) from error
    except Exception as error:  # malformed, no such part or version, a damaged dataset_info.json
        raise InputError(
            f"TFDS cannot use the dataset {name!r} ({reason(error)}). {_parts(name)}"
        ) from error
    if "/" not in name and len(builder.builder_configs) > 1:
        raise InputError(f"{name} has several parts. {_parts(name)}")
    return builder


def text_keys(builder: Any) -> list[str]:
    """Returns the keys of the texts in an example of the set. They are its languages."""
    features = builder.info.features
    if not isinstance(features, tfds.features.FeaturesDict):
        return []
    return sorted(k for k, v in features.items() if isinstance(v, tfds.features.Text))


def needs_no_download(builder: Any) -> bool:
    """Returns whether the set is generated from installed packages."""
    return bool(builder.name == "phrasebook")


def prepare(name: str, builder: Any, data_dir: str | None) -> Any:
    """Downloads and writes the set if it is not on disk, and returns its builder."""
    if builder.data_path.exists():
        return builder
    try:
        builder.download_and_prepare()
        return builder
    except Exception as error:
        another = find(name, data_dir)
        if another.data_path.exists():  # by another process in the meantime
            return another
        raise InputError(
            f"{name} cannot be prepared in {builder.data_dir} ({reason(error)}). Check that it can "
            "be downloaded and that the disk has room for it."
        ) from error


def reason(error: Exception) -> str:
    """Returns the first sentence of a message of TFDS, which can have pages."""
    text = " ".join(str(error).split())
    text = re.sub(r"^Failed to construct dataset .*?\}\": |\{\{.*?\}\} ?", "", text)
    return text.split(". ")[0][:300].rstrip(".") or type(error).__name__


def _opus_config(name: str, source: str, target: str, subsets: str) -> Any:
    from tensorflow_datasets.datasets.opus import opus_dataset_builder as opus

    pair = tuple(sorted((source, target)))
    subset_names = re.split(r",\s*", subsets)
    for subset in subset_names:
        known = opus.DATASET_MAP.get(subset)
        if known is None:
            raise InputError(
                f"{name}: TFDS does not know the OPUS subset {subset!r}. Choose some of "
                f"{', '.join(sorted(opus.DATASET_MAP))}."
            )
        if pair not in known.language_pairs:  # TFDS would skip it silently
            languages = sorted(set(itertools.chain(*known.language_pairs)))
            raise InputError(
                f"{name}: {subset} lacks the pair {'-'.join(pair)}. Choose two of "
                f"{', '.join(languages)}."
            )
    return opus.OpusConfig(version="0.1.0", language_pair=pair, subsets=subset_names)


def _parts(name: str) -> str:
    """Returns the advice of an error message: the parts of the set."""
    set_name = re.split("[/:]", name)[0]
    try:
        parts = list(tfds.builder_cls(set_name).builder_configs)
    except Exception:  # no such set
        return _EXAMPLE
    if not parts:
        return f"Use {set_name}"
    if set_name == "opus":
        parts.append("en-fr for EMEA, KDE4")
    return f"Choose one of {[f'{set_name}/{part}' for part in parts]}"


_BATCH = 4096  # records parsed at once
_BUFFER = 2**23  # bytes read at once


class SplitReader:
    """Reads texts of one split of a set.

    TFDS parses about 20,000 records per second, one at a time. Here they are parsed in batches.
    """

    def __init__(self, name: str, builder: Any, split: str, keys: Sequence[str]) -> None:
        """Finds the files of the split, without reading them.

        Args:
            split: a split, or an expression of TFDS such as "train[:10%]".
        """
        self._name = name
        self._builder = builder
        self._split = split
        self._keys = tuple(keys)
        splits = builder.info.splits
        if not splits:
            self._dataset()  # raises InputError, because no data exist
            return
        try:
            self._files = splits[split].file_instructions
        except (ValueError, AssertionError) as error:
            raise self._no_such_split() from error
        if any(file.take <= 0 for file in self._files) or not self._files:
            raise InputError(f"The split {split!r} of {name} is empty.")

    def batches(self) -> Iterator[tuple[list[bytes], ...]]:
        """Yields the texts of some pairs at a time, a list for each key."""
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
                    f"{file.filename} cannot be read ({reason(error)}). Prepare the dataset again "
                    "with TFDS."
                ) from error
            if left:
                raise InputError(
                    f"{file.filename} ends {left:,} pairs too early, according to "
                    "dataset_info.json. Prepare the dataset again."
                )

    def _dataset(self) -> Any:
        """Returns TFDS's own reader, for all formats that it knows and for its mock data."""
        # Files are read one by one, so that the order does not depend on their number.
        in_order = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
        try:
            return self._builder.as_dataset(split=self._split, read_config=in_order)
        except AssertionError as error:  # raised by TFDS if data are missing
            raise InputError(
                f"{self._name} is not prepared in {self._builder.data_dir}. Name the directory "
                "that has it (--tfds_data_dir, or --corpus_dir of a recipe), or allow the "
                "download with --tfds_download of keras-transformer prepare."
            ) from error
        except (ValueError, KeyError) as error:
            raise self._no_such_split() from error

    def _no_such_split(self) -> InputError:
        return InputError(
            f"{self._name} lacks the split {self._split!r}. Choose one of "
            f"{sorted(self._builder.info.splits)}, or a slice such as train[:10%]."
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
