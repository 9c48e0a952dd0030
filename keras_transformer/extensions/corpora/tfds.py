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

FOLDER_PREFIX = "translate_folder:"
_BATCH = 1024  # examples that TFDS decodes together
_LINE_BREAKS = re.compile(rb"[\r\n]+")
# A name such as "huggingface:opus_books". Even looking it up would use the network.
_COMMUNITY = re.compile(r"(?!translate_folder:)[A-Za-z_]\w*:[A-Za-z_]")
# A part of OPUS that TFDS builds from a list of its subsets.
_OPUS_PART = re.compile(r"opus/([A-Za-z_]+)-([A-Za-z_]+) for (.+)")


def _option(default: Any, help_: str) -> Any:
    return dataclasses.field(default=default, metadata={"help": help_})


@dataclasses.dataclass(frozen=True)
class TfdsOptions:
    """The languages and the directory of TFDS sets."""

    source_language: str | None = _option(None, "source language, as in de")
    target_language: str | None = _option(None, "target language, as in en")
    tfds_data_dir: str | None = _option(None, "directory of the TFDS data")
    tfds_download: bool = _option(False, "let TFDS download a missing dataset")


class TfdsReader:
    """Reads TFDS sets for `prepare`."""

    options = TfdsOptions
    help = (
        "TFDS set and its split, as in wmt14_translate/de-en@train, or translate_folder:DIR@train"
    )

    def read(self, location: str, options: TfdsOptions) -> Sequence[Corpus]:
        """Returns the corpus of a location, "NAME@SPLIT"."""
        name, _, split = location.rpartition("@")
        if not name:
            raise InputError(f"{location} lacks a split. Add it, as in {location}@train.")
        corpus = tfds_corpus(
            name,
            split,
            options.source_language,
            options.tfds_data_dir,
            target_language=options.target_language,
            download=options.tfds_download,
        )
        return [corpus]


READER = TfdsReader()


def tfds_corpus(
    name: str,
    split: str,
    source_language: str | None = None,
    data_dir: str | None = None,
    *,
    target_language: str | None = None,
    download: bool = False,
) -> Corpus:
    """Returns a split of a set in one direction. It does not read sentences.

    Args:
        name: a registered set such as "wmt14_translate/de-en" or "multi30k/de-en", a set that was
            prepared in `data_dir`, a part of OPUS in the form "opus/en-fr for EMEA, KDE4", or
            "translate_folder:DIR". The latter means the files DIR/{language}.{split}.txt, as in
            `tfds.TranslateFolder`. Their lines end only at LF. TFDS itself would also end them at
            characters such as U+2028, which misaligns the two sides.
        split: split, such as "train" or "train[:10%]"; for a folder the part of the files' names.
        source_language: key of the source text, such as "de"; None if it follows from the target.
        data_dir: directory of prepared sets; None for the default of TFDS.
        target_language: key of the target text; None for the other one of two.
        download: whether a set that is not in `data_dir` may be downloaded.
    """
    if name.startswith(FOLDER_PREFIX):
        files = _folder_files(Path(name.removeprefix(FOLDER_PREFIX)).expanduser(), split)
        source, target = _direction(name, sorted(files), source_language, target_language)
        return ParallelFiles(files[source], files[target])
    builder = _builder(name, data_dir)
    source, target = _direction(name, _text_keys(builder), source_language, target_language)
    if download or builder.name == "phrasebook":  # it is generated from installed packages
        builder = _prepared(name, builder, data_dir)
    corpus = TfdsCorpus(name, split, source, target, builder)
    corpus.check_split()
    return corpus


@dataclasses.dataclass(frozen=True)
class TfdsCorpus:
    """Sentence pairs of one split of a TFDS translation set, in one direction."""

    set_name: str
    split: str
    source_language: str
    target_language: str
    builder: Any

    @property
    def name(self) -> str:
        """The set with its split, such as "wmt14_translate/de-en[train]"."""
        return f"{self.set_name}[{self.split}]"

    def check_split(self) -> None:
        """Raises `InputError` if the set is not on disk, or lacks the split."""
        splits = self.builder.info.splits
        try:
            if not splits:
                self._dataset()  # fails if there are no data
            elif splits[self.split].num_examples < 1:
                raise self._no_such_split()
        except AssertionError as error:
            if splits:
                raise self._no_such_split() from error
            raise InputError(
                f"{self.set_name} is not prepared in {self.builder.data_dir}. Name the directory "
                "that has it (--tfds_data_dir, or --corpus_dir of a recipe), or allow the "
                "download with --tfds_download of bin/prepare.py."
            ) from error
        except (ValueError, KeyError) as error:
            raise self._no_such_split() from error

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields (source, target), one line each, always in the same order.

        A line break inside a text becomes a space. Nothing else is changed or checked.
        """
        try:
            for example in self._examples():
                source, target = (example[k] for k in (self.source_language, self.target_language))
                yield _LINE_BREAKS.sub(b" ", source), _LINE_BREAKS.sub(b" ", target)
        except InputError:
            raise
        except Exception as error:  # of TensorFlow, TFDS or the file system
            raise InputError(
                f"{self.name} in {self.builder.data_dir} cannot be read ({_reason(error)}). "
                "Prepare the dataset again with TFDS."
            ) from error

    def _examples(self) -> Iterator[dict[str, bytes]]:
        import tensorflow_datasets as tfds

        splits = self.builder.info.splits
        if splits and self.builder.info.file_format == tfds.core.FileFormat.ARRAY_RECORD:
            yield from self.builder.as_data_source(split=self.split)
            return
        for batch in self._dataset().batch(_BATCH).as_numpy_iterator():
            for texts in zip(*(column.tolist() for column in batch.values()), strict=True):
                yield dict(zip(batch, texts, strict=True))

    def _dataset(self) -> Any:
        import tensorflow_datasets as tfds

        # Files are read one by one, so that the order does not depend on their number.
        in_order = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
        return self.builder.as_dataset(split=self.split, read_config=in_order)

    def _no_such_split(self) -> InputError:
        return InputError(
            f"{self.set_name} lacks the split {self.split!r}. Choose one of "
            f"{sorted(self.builder.info.splits)}, or a slice such as train[:10%]."
        )


def _direction(
    name: str, languages: Sequence[str], source: str | None, target: str | None
) -> tuple[str, str]:
    """Returns the keys of the source and the target text."""
    if len(languages) < 2:
        raise InputError(
            f"{name} is not a translation dataset: its texts are {list(languages)}. It needs two "
            "languages."
        )
    if len(languages) == 2:  # the other one is the target
        source = source or next((key for key in languages if target and key != target), None)
        target = target or next((key for key in languages if key != source), None)
    for side, language in (("source", source), ("target", target)):
        if language not in languages:
            raise InputError(
                f"The {side} language of {name} is {language!r}. Choose one of {list(languages)}."
            )
    if source == target:
        raise InputError(f"The source and target language of {name} are both {source!r}.")
    return str(source), str(target)


def _folder_files(directory: Path, split: str) -> dict[str, Path]:
    """Returns the files of a split by language."""
    splits: dict[str, dict[str, Path]] = {}
    try:
        for file in sorted(directory.iterdir()):
            match file.name.split("."):
                case language, of_split, "txt":
                    splits.setdefault(of_split, {})[language] = file
    except OSError as error:
        raise InputError(
            f"{directory} cannot be listed ({error.strerror}). It must be a directory with files "
            "LANGUAGE.SPLIT.txt."
        ) from error
    if split not in splits:
        raise InputError(
            f"{directory} lacks the split {split!r}. Its splits are {sorted(splits)}, from files "
            "named LANGUAGE.SPLIT.txt."
        )
    return splits[split]


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
    config = {}
    if part := _OPUS_PART.fullmatch(name):
        config = {"config": _opus_config(name, *part.groups())}
    try:
        builder = tfds.builder("opus" if part else name, data_dir=data_dir, **config)
    except Exception as error:  # unknown, malformed, no such part, or a damaged dataset_info.json
        raise InputError(
            f"TFDS cannot use the dataset {name!r} ({_reason(error)}), and none is prepared in "
            f"{data_dir or 'its default directory'}. {_parts(name)}"
        ) from error
    if "/" not in name and len(builder.builder_configs) > 1:
        raise InputError(f"{name} has several parts. {_parts(name)}")
    return builder


def _text_keys(builder: Any) -> list[str]:
    """Returns the keys of the texts in an example of the set. They are its languages."""
    import tensorflow_datasets as tfds

    features = builder.info.features
    if not isinstance(features, tfds.features.FeaturesDict):
        return []
    return sorted(k for k, v in features.items() if isinstance(v, tfds.features.Text))


def _prepared(name: str, builder: Any, data_dir: str | None) -> Any:
    """Downloads and writes the set if it is not on disk, and returns its builder."""
    if builder.data_path.exists():
        return builder
    try:
        builder.download_and_prepare()
        return builder
    except Exception as error:
        another = _builder(name, data_dir)
        if another.data_path.exists():  # by another process in the meantime
            return another
        raise InputError(
            f"{name} cannot be prepared in {builder.data_dir} ({_reason(error)}). Check that it "
            "can be downloaded and that the disk has room for it."
        ) from error


def _reason(error: Exception) -> str:
    """Returns the first sentence of a message of TFDS, which can have pages."""
    text = " ".join(str(error).split())
    text = re.sub(r"^Failed to construct dataset .*?\}\": |\{\{.*?\}\} ?", "", text)
    return text.split(". ")[0][:300].rstrip(".") or type(error).__name__


def _opus_config(name: str, source: str, target: str, subsets: str) -> Any:
    from tensorflow_datasets.datasets.opus import opus_dataset_builder as opus

    pair = tuple(sorted((source, target)))
    subset_names = re.split(r",\s*", subsets)
    known = {key for key, subset in opus.DATASET_MAP.items() if pair in subset.language_pairs}
    for subset in subset_names:
        if subset not in known:  # TFDS would skip it silently
            raise InputError(
                f"{name}: TFDS has no OPUS subset {subset!r} with the pair {'-'.join(pair)}. Its "
                f"subsets with this pair are {', '.join(sorted(known)) or 'none'}."
            )
    return opus.OpusConfig(version="0.1.0", language_pair=pair, subsets=subset_names)


def _parts(name: str) -> str:
    """Returns the advice of an error message: the parts of the set."""
    import tensorflow_datasets as tfds

    set_name = re.split("[/:]", name)[0]
    try:
        parts = list(tfds.builder_cls(set_name).builder_configs)
    except Exception:  # no such set
        return "Use a name such as wmt14_translate/de-en, or translate_folder:DIR"
    parts += ["en-fr for EMEA, KDE4"] * (set_name == "opus")
    return f"Choose one of {[f'{set_name}/{part}' for part in parts] or [set_name]}"
