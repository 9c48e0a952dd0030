"""A parallel corpus from TensorFlow Datasets: any translation set of its catalog.

TFDS is imported only when a corpus is created, because it is slow to load.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from keras_transformer.data.corpus import Corpus, ParallelFiles
from keras_transformer.errors import InputError

FOLDER_PREFIX = "translate_folder:"
_LINE_BREAKS = re.compile(rb"[\r\n]+")


def tfds_corpus(
    name: str,
    split: str,
    source_language: str | None = None,
    data_dir: str | None = None,
    *,
    target_language: str | None = None,
    download: bool = False,
) -> Corpus:
    """Returns a registered set, as `TfdsCorpus` does, or the two files of a folder.

    The name "translate_folder:DIR" means the files DIR/{language}.{split}.txt, as in
    `tfds.TranslateFolder`. Lines end only at LF. TFDS itself would also end them at characters such
    as U+2028, which misaligns the two sides.
    """
    if not name.startswith(FOLDER_PREFIX):
        return TfdsCorpus(
            name,
            split,
            source_language,
            data_dir,
            target_language=target_language,
            download=download,
        )
    files = _folder_files(Path(name.removeprefix(FOLDER_PREFIX)).expanduser(), split)
    source, target = _direction(name, sorted(files), source_language, target_language)
    return ParallelFiles(files[source], files[target])


class TfdsCorpus:
    """Sentence pairs of one split of a TFDS translation set, in one direction.

    Attributes:
        name: name of the corpus in reports, such as "wmt14_translate/de-en[train]".
    """

    def __init__(
        self,
        name: str,
        split: str,
        source_language: str | None,
        data_dir: str | None = None,
        *,
        target_language: str | None = None,
        download: bool = False,
    ) -> None:
        """Finds a set, and prepares it on request. It does not read sentences.

        The phrasebook is always prepared, because it needs no download.

        Args:
            split: split, such as "train", "validation" or "train[:10%]".
        """
        from keras_transformer.extensions.corpora import tfds_sets

        if data_dir is not None and "://" not in data_dir:  # workers may have another directory
            data_dir = str(Path(data_dir).expanduser().absolute())
        self.name = f"{name}[{split}]"
        builder = tfds_sets.find(name, data_dir)
        self.source_language, self.target_language = _direction(
            name, tfds_sets.text_keys(builder), source_language, target_language
        )
        if download or tfds_sets.needs_no_download(builder):
            builder = tfds_sets.prepare(name, builder, data_dir)
        self._reader = tfds_sets.SplitReader(
            name, builder, split, (self.source_language, self.target_language)
        )

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields (source, target), one line each, always in the same order.

        A line break inside a text becomes a space. Nothing else is changed or checked.
        """
        for sources, targets in self._reader.batches():
            yield from zip(_one_line_each(sources), _one_line_each(targets), strict=True)


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
    if not splits:
        raise InputError(f"{directory} lacks text files. Name them LANGUAGE.SPLIT.txt.")
    if split not in splits:
        raise InputError(f"{directory} lacks the split {split!r}. Choose one of {sorted(splits)}.")
    return splits[split]


def _one_line_each(texts: list[bytes]) -> list[bytes]:
    joined = b"".join(texts)  # one look for all of them
    if b"\n" not in joined and b"\r" not in joined:
        return texts
    return [_LINE_BREAKS.sub(b" ", text) for text in texts]
