"""Parallel corpora from TensorFlow Datasets: any translation set of its catalog, or a folder.

TFDS is imported only when a set is opened, because it is slow to load.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from keras_transformer.data.corpus import Corpus, ParallelFiles
from keras_transformer.errors import InputError
from keras_transformer.extensions.corpora import LanguageOptions, option

FOLDER_PREFIX = "translate_folder:"
_BATCH = 1024  # examples that TFDS decodes together
_LINE_BREAKS = re.compile(rb"[\r\n]+")
# A name such as "huggingface:opus_books". Even looking it up would use the network.
_COMMUNITY = re.compile(r"[A-Za-z_]\w*:[A-Za-z_]")


@dataclasses.dataclass(frozen=True)
class TfdsOptions(LanguageOptions):
    """The languages and the directory of TFDS sets."""

    tfds_data_dir: str | None = option(None, "directory of the TFDS data")
    tfds_download: bool = option(False, "let TFDS download a missing dataset")


class TfdsReader:
    """Reads TFDS sets for `prepare`.

    A set has its registered name ("wmt14_translate/de-en"), or the one in its data directory.
    "translate_folder:DIR" means the files DIR/{language}.{split}.txt, as in `tfds.TranslateFolder`.
    Their lines end only at LF. TFDS itself would also end them at characters such as U+2028, which
    misaligns the two sides.
    """

    options = TfdsOptions
    help = "a TFDS set and its split, as in wmt14_translate/de-en@train"

    def read(self, location: str, options: TfdsOptions) -> Sequence[Corpus]:
        """Returns the corpus of a location, "NAME@SPLIT"."""
        name, _, split = location.rpartition("@")
        if not name:
            raise InputError(f"{location} lacks a split. Add it, as in {location}@train.")
        if name.startswith(FOLDER_PREFIX):
            return [_folder(name, split, options)]
        builder = _builder(name, options.tfds_data_dir)
        languages = _direction(name, _text_keys(builder), options)
        # The phrasebook is generated from installed packages.
        may_prepare = options.tfds_download or builder.name == "phrasebook"
        if may_prepare and not builder.data_path.exists():
            try:
                builder.download_and_prepare()
            except Exception as error:
                raise InputError(
                    f"{name} cannot be prepared in {builder.data_dir} ({_reason(error)}). Check "
                    "that it can be downloaded and that the disk has room for it."
                ) from error
        if not builder.info.splits:
            raise InputError(
                f"{name} is not prepared in {builder.data_dir}. Name the directory that has it "
                "(tfds_data_dir, or corpus_dir of a recipe), or allow the download with "
                "tfds_download."
            )
        try:
            has_pairs = builder.info.splits[split].num_examples > 0
        except (AssertionError, ValueError, KeyError):
            has_pairs = False
        if not has_pairs:
            raise InputError(
                f"{name} lacks the split {split!r}. Choose one of {sorted(builder.info.splits)}, "
                "or a slice such as train[:10%]."
            )
        return [TfdsCorpus(f"{name}[{split}]", split, languages, builder)]


READER = TfdsReader()


def _folder(name: str, split: str, options: TfdsOptions) -> ParallelFiles:
    """Returns the files of a split of "translate_folder:DIR"."""
    directory = Path(name.removeprefix(FOLDER_PREFIX)).expanduser()
    paths = [path for path in sorted(directory.glob("*.*.txt")) if path.suffixes[0][1:] == split]
    files = {path.name.split(".")[0]: path for path in paths}
    if len(files) < 2:
        raise InputError(
            f"{directory} has no texts of the split {split!r} in two languages. It must be a "
            "directory with files LANGUAGE.SPLIT.txt, such as en.train.txt and de.train.txt."
        )
    source, target = _direction(name, sorted(files), options)
    return ParallelFiles(files[source], files[target])


@dataclasses.dataclass(frozen=True)
class TfdsCorpus:
    """Sentence pairs of one split of a TFDS translation set, in one direction.

    Attributes:
        name: the set with its split, such as "wmt14_translate/de-en[train]".
        languages: the keys of the source and the target text.
    """

    name: str
    split: str
    languages: tuple[str, str]
    builder: Any

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields (source, target), one line each, always in the same order.

        A line break inside a text becomes a space. Nothing else is changed or checked.
        """
        try:
            for source, target in self._texts():
                yield _LINE_BREAKS.sub(b" ", source), _LINE_BREAKS.sub(b" ", target)
        except Exception as error:  # TensorFlow, TFDS and the file system raise many types
            raise InputError(
                f"{self.name} in {self.builder.data_dir} cannot be read ({_reason(error)}). "
                "Prepare the dataset again with TFDS."
            ) from error

    def _texts(self) -> Iterator[tuple[bytes, bytes]]:
        import tensorflow_datasets as tfds

        source, target = self.languages
        if self.builder.info.file_format == tfds.core.FileFormat.ARRAY_RECORD:
            for example in self.builder.as_data_source(split=self.split):
                yield example[source], example[target]
            return
        # Files are read one by one, so that the order does not depend on their number.
        in_order = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
        dataset = self.builder.as_dataset(split=self.split, read_config=in_order)
        for batch in dataset.batch(_BATCH).as_numpy_iterator():
            yield from zip(batch[source].tolist(), batch[target].tolist(), strict=True)


def _direction(name: str, languages: Sequence[str], options: TfdsOptions) -> tuple[str, str]:
    """Returns the keys of the source and the target text."""
    source, target = options.source_language, options.target_language
    if len(languages) == 2:  # the other one is the target
        source = source or next((key for key in languages if target and key != target), None)
        target = target or next((key for key in languages if key != source), None)
    if source not in languages or target not in languages or source == target:
        raise InputError(
            f"The source language of {name} is {source!r} and the target language is {target!r}. "
            f"Choose two different ones of its texts {list(languages)}."
        )
    return str(source), str(target)


def _builder(name: str, data_dir: str | None) -> Any:
    """Returns the builder of a set of TFDS, of this package, or prepared in `data_dir`."""
    import tensorflow_datasets as tfds

    from keras_transformer.extensions.corpora import multi30k  # noqa: F401  registers it

    if _COMMUNITY.match(name):
        raise InputError(
            f"{name!r} is a community dataset. Only datasets of TFDS itself are supported, such as "
            "wmt14_translate/de-en."
        )
    if re.split("[/:]", name)[0] == "phrasebook":  # it needs an extra
        from keras_transformer.extensions.corpora.phrasebook import tfds_builder  # noqa: F401
    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except Exception as error:  # the name is wrong, or dataset_info.json is damaged
        raise InputError(
            f"TFDS cannot use the dataset {name!r} ({_reason(error)}), and none is prepared in "
            f"{data_dir or 'its default directory'}. Use a name such as wmt14_translate/de-en, or "
            "translate_folder:DIR."
        ) from error
    if "/" not in name and len(builder.builder_configs) > 1:
        parts = [f"{name}/{part}" for part in builder.builder_configs]
        raise InputError(f"{name} has several parts. Choose one of {parts}.")
    return builder


def _text_keys(builder: Any) -> list[str]:
    """Returns the keys of the texts in an example of the set. They are its languages."""
    import tensorflow_datasets as tfds

    features = builder.info.features
    if not isinstance(features, tfds.features.FeaturesDict):
        return []
    return sorted(k for k, v in features.items() if isinstance(v, tfds.features.Text))


def _reason(error: Exception) -> str:
    """Returns the first sentence of a message of TFDS, which can have pages."""
    text = " ".join(str(error).split())
    text = re.sub(r"^Failed to construct dataset .*?\}\": |\{\{.*?\}\} ?", "", text)
    return text.split(". ")[0][:300].rstrip(".") or type(error).__name__
