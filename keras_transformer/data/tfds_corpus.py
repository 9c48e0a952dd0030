"""A parallel corpus out of TensorFlow Datasets: any translation set of its catalogue.

TFDS is imported when a corpus is made, not before: it is slow to load and not
everyone needs it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keras_transformer.errors import InputError

FOLDER_PREFIX = "translate_folder:"
_READ_AT_ONCE = 1024
_LINE_BREAKS = re.compile(rb"[\r\n]+")
# "huggingface:opus_books": looking such a set up already goes to the network.
_NAMESPACE = re.compile(r"[A-Za-z_]\w*:[A-Za-z_]")


class TfdsCorpus:
    """Sentence pairs of one split of a TFDS translation set, in one direction.

    Attributes:
        name: what the corpus is called in reports, "wmt14_translate/de-en[train]".
        source_language, target_language: the keys of the set's two texts.
    """

    def __init__(
        self,
        name: str,
        split: str,
        source_language: str,
        data_dir: str | None = None,
        *,
        target_language: str | None = None,
        download: bool = False,
    ) -> None:
        """Looks the set up and checks its languages; reads no sentence yet.

        Args:
            name: a registered set, "wmt14_translate/de-en", "multi30k/de-en", or
                "translate_folder:DIR" for files DIR/{language}.{split}.txt
                (`tfds.TranslateFolder`).
            split: "train", "validation", "train[:10%]" and so on.
            source_language: the key of the text to translate from, "de".
            data_dir: where TFDS keeps prepared sets; TFDS's own choice if None.
            target_language: needed only where the set has more than two texts.
            download: whether a set that is not in `data_dir` may be downloaded.

        Raises:
            InputError: for a set that does not exist, that is no translation set,
                or that has no such language.
        """
        self.name = f"{name}[{split}]"
        self._set = name
        self._split = split
        self._download = download
        self._builder = _folder(name) if name.startswith(FOLDER_PREFIX) else _set(name, data_dir)
        languages = _text_keys(self._builder.info.features)
        if len(languages) < 2:
            raise InputError(
                f"{name} is no translation set: its texts are {languages}; expected two languages"
            )
        others = [language for language in languages if language != source_language]
        if target_language is None and len(others) == 1:
            target_language = others[0]
        for side, language in (("source", source_language), ("target", target_language)):
            if language not in languages:
                raise InputError(
                    f"the {side} language of {name} is {language!r}; expected one of {languages}"
                )
        if source_language == target_language:
            raise InputError(f"source and target language of {name} are both {source_language!r}")
        self.source_language = source_language
        self.target_language = str(target_language)

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields (source, target), UTF-8, one line each, always in the same order.

        A line break inside a text becomes a space.

        Raises:
            InputError: for a split that does not exist, or a set that is not
                prepared on disk while downloading was not asked for.
        """
        batches = self._dataset().batch(_READ_AT_ONCE)
        for batch in batches.as_numpy_iterator():
            sides = (batch[self.source_language], batch[self.target_language])
            for source, target in zip(*sides, strict=True):
                yield _LINE_BREAKS.sub(b" ", source), _LINE_BREAKS.sub(b" ", target)

    def _dataset(self) -> Any:
        import tensorflow_datasets as tfds

        is_folder = self._set.startswith(FOLDER_PREFIX)
        if self._download and not is_folder:
            self._builder.download_and_prepare()
        # One file after the other: the order does not hang on how many there are.
        one_file = tfds.ReadConfig(interleave_cycle_length=1)
        try:
            return self._builder.as_dataset(split=self._split, read_config=one_file)
        except AssertionError as error:  # what TFDS raises for data that is not there
            raise InputError(
                f"{self._set} is not prepared in {self._builder.data_dir}; nothing is downloaded"
                " unasked: give --tfds_download to download it, or --tfds_data_dir to say where it"
                " is"
            ) from error
        except (ValueError, KeyError) as error:
            raise InputError(
                f"{self._set} has no split {self._split!r}; expected one of"
                f" {sorted(self._builder.info.splits)} or a slice of one"
            ) from error


def _set(name: str, data_dir: str | None) -> Any:
    if _NAMESPACE.match(name):
        raise InputError(
            f"{name!r} is a community data set; expected one that TFDS itself has, such as"
            " wmt14_translate/de-en"
        )
    import tensorflow_datasets as tfds

    from keras_transformer.data import multi30k  # noqa: F401  (to import it is to register it)

    try:
        return tfds.builder(name, data_dir=data_dir)
    except tfds.core.registered.DatasetNotFoundError as error:
        raise InputError(
            f"TFDS has no data set {name!r}; expected a name such as wmt14_translate/de-en, or"
            f" {FOLDER_PREFIX}DIR"
        ) from error
    except (ValueError, AssertionError) as error:  # malformed, or no such config or version
        raise InputError(
            f"TFDS has no data set {name!r}; expected a name such as wmt14_translate/de-en"
            f" ({_first_sentence(error)})"
        ) from error


def _folder(name: str) -> Any:
    import tensorflow_datasets as tfds

    directory = Path(name.removeprefix(FOLDER_PREFIX)).expanduser()
    if not directory.is_dir():
        raise InputError(f"{directory} is no directory; expected files LANGUAGE.SPLIT.txt in it")
    for file in sorted(directory.iterdir()):
        if len(file.name.split(".")) != 3:
            raise InputError(f"{file} is not named LANGUAGE.SPLIT.txt, as in en.train.txt")
        content = file.read_bytes()
        try:
            content.decode()
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            byte = content[error.start]
            raise InputError(f"{file}, line {line}: byte 0x{byte:02x} is not UTF-8") from error
    try:
        return tfds.TranslateFolder(str(directory))
    except ValueError as error:  # unequal numbers of lines
        raise InputError(f"{directory} is not parallel: {_first_sentence(error)}") from error


def _text_keys(features: Any) -> list[str]:
    import tensorflow_datasets as tfds

    if not isinstance(features, tfds.features.FeaturesDict):
        return []
    return sorted(k for k, v in features.items() if isinstance(v, tfds.features.Text))


def _first_sentence(error: Exception) -> str:
    """Returns what TFDS complains of; its messages can go on for pages."""
    text = " ".join(str(error).split())
    return (
        re.sub(r"^Failed to construct dataset .*?\}\": ", "", text).split(". ")[0][:300].rstrip(".")
    )
