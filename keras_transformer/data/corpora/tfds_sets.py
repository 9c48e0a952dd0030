"""Translation sets of TFDS: found by name, prepared on disk, and read.

To import this module loads TFDS, and registers Multi30k. The phrasebook, which needs an extra,
is registered when it is asked for.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_datasets as tfds
from array_record.python import array_record_module

from keras_transformer.data.corpora import multi30k  # noqa: F401  (to import it is to register it)
from keras_transformer.errors import InputError

_EXAMPLE = "expected a name such as wmt14_translate/de-en"
# "huggingface:opus_books": looking such a set up already goes to the network.
_NAMESPACE = re.compile(r"[A-Za-z_]\w*:[A-Za-z_]")
# What TFDS calls the directory of a part of OPUS that has no name of its own.
_OPUS_PART = re.compile(r"opus/([A-Za-z_]+)-([A-Za-z_]+) for (.+)")


def find(name: str, data_dir: str | None) -> Any:
    """Returns the builder of a set: of TFDS's, of ours, or of one prepared in `data_dir`.

    Raises:
        InputError: for a set or a part of one that does not exist, and for a set of
            several parts none of which is named.
    """
    if _NAMESPACE.match(name):
        raise InputError(
            f"{name!r} is a community data set; expected one that TFDS itself has, such as"
            " wmt14_translate/de-en"
        )
    if re.split("[/:]", name)[0] == "phrasebook":
        import keras_transformer.data.corpora.phrasebook.tfds_builder  # noqa: F401  registers it
    part = _OPUS_PART.fullmatch(name)
    named = (
        {"name": "opus", "config": _opus_config(name, *part.groups())} if part else {"name": name}
    )
    try:
        builder = tfds.builder(**named, data_dir=data_dir)
    except tfds.core.registered.DatasetNotFoundError as error:
        there = f", and none is prepared in {data_dir}" if data_dir else ""
        raise InputError(
            f"TFDS has no data set {name!r}{there}; {_EXAMPLE}, or translate_folder:DIR"
        ) from error
    except Exception as error:  # malformed, no such part or version, a damaged dataset_info.json
        raise InputError(
            f"TFDS cannot use the data set {name!r} ({reason(error)}); {_parts(name)}"
        ) from error
    if "/" not in name and len(builder.builder_configs) > 1:
        raise InputError(f"{name} has several parts; {_parts(name)}")
    return builder


def text_keys(builder: Any) -> list[str]:
    """Returns under which keys an example of the set has texts: its languages."""
    features = builder.info.features
    if not isinstance(features, tfds.features.FeaturesDict):
        return []
    return sorted(k for k, v in features.items() if isinstance(v, tfds.features.Text))


def needs_no_download(builder: Any) -> bool:
    """Returns whether the set is made from what is installed."""
    return bool(builder.name == "phrasebook")


def prepare(name: str, builder: Any, data_dir: str | None) -> Any:
    """Downloads and writes the set where it is not on disk yet, and returns its builder.

    Raises:
        InputError: for whatever keeps TFDS from it: no network, no room, a file that
            must be fetched by hand.
    """
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
            f"{name} cannot be prepared in {builder.data_dir} ({reason(error)}); expected a set"
            " that can be downloaded, and a directory with room for it"
        ) from error


def reason(error: Exception) -> str:
    """Returns what TFDS complains of, in one sentence; its messages can go on for pages."""
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
                f"{name}: TFDS has no {subset!r} of OPUS; expected some of"
                f" {', '.join(sorted(opus.DATASET_MAP))}"
            )
        if pair not in known.language_pairs:  # TFDS would leave it out without a word
            languages = sorted(set(itertools.chain(*known.language_pairs)))
            raise InputError(
                f"{name}: {subset} has no pair {'-'.join(pair)}; expected two of"
                f" {', '.join(languages)}"
            )
    return opus.OpusConfig(version="0.1.0", language_pair=pair, subsets=subset_names)


def _parts(name: str) -> str:
    """Returns what was expected in place of `name`: the parts that the set has."""
    set_name = re.split("[/:]", name)[0]
    try:
        parts = list(tfds.builder_cls(set_name).builder_configs)
    except Exception:  # no such set
        return _EXAMPLE
    if not parts:
        return f"expected {set_name}"
    if set_name == "opus":
        parts.append("en-fr for EMEA, KDE4")
    return f"expected one of {[f'{set_name}/{part}' for part in parts]}"


_BATCH = 4096  # records parsed at once
_BUFFER = 2**23  # bytes read at once


class SplitReader:
    """Reads texts of one split of a set.

    TFDS parses about 20,000 records per second, one at a time. Here they are parsed in batches.
    """

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
