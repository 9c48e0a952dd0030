"""A parallel corpus out of TensorFlow Datasets: any translation set of its catalogue.

TFDS is imported when a corpus is made, not before: it is slow to load and not
everyone needs it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from keras_transformer.data.corpora.corpus import Corpus, ParallelFiles
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

    A folder is named "translate_folder:DIR" and holds files DIR/{language}.{split}.txt, as
    `tfds.TranslateFolder` has them. Its lines are read as those of any other file: TFDS
    itself ends a line at U+2028 and its like too, which shifts one side against the other.
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
        name: what the corpus is called in reports, "wmt14_translate/de-en[train]".
        source_language, target_language: the keys of the set's two texts.
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
        """Looks the set up, prepares it where that is asked for; reads no sentence yet.

        The phrasebook is prepared unasked: that takes no download.

        Args:
            name: a registered set, "wmt14_translate/de-en" or "multi30k/de-en"; one that
                was prepared in `data_dir`, whoever made it; or any part of OPUS as TFDS
                writes it, "opus/en-fr for EMEA, KDE4".
            split: "train", "validation", "train[:10%]" and so on.
            source_language: the key of the text to translate from, "de".
            data_dir: where TFDS keeps prepared sets; TFDS's own choice if None.
            target_language: needed only where the set has more than two texts.
            download: whether a set that is not in `data_dir` may be downloaded.

        Raises:
            InputError: for a set that does not exist, is no translation set, has no such
                language or split, cannot be prepared, or is not prepared while
                downloading was not asked for.
        """
        from keras_transformer.data.corpora import tfds_sets

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

        A line break inside a text becomes a space. Nothing else is changed or checked:
        the bytes are those that the set holds.

        Raises:
            InputError: for files that are missing, damaged, or of an unknown format.
        """
        for sources, targets in self._reader.batches():
            yield from zip(_one_line_each(sources), _one_line_each(targets), strict=True)


def _direction(
    name: str, languages: Sequence[str], source: str | None, target: str | None
) -> tuple[str, str]:
    """Returns the keys to translate from and into."""
    if len(languages) < 2:
        raise InputError(
            f"{name} is no translation set: its texts are {list(languages)}; expected two languages"
        )
    if len(languages) == 2:  # one language tells the other
        source = source or next((key for key in languages if target and key != target), None)
        target = target or next((key for key in languages if key != source), None)
    for side, language in (("source", source), ("target", target)):
        if language not in languages:
            raise InputError(
                f"the {side} language of {name} is {language!r}; expected one of {list(languages)}"
            )
    if source == target:
        raise InputError(f"source and target language of {name} are both {source!r}")
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
            f"{directory} cannot be listed ({error.strerror}); expected a directory of files"
            " LANGUAGE.SPLIT.txt"
        ) from error
    if not splits:
        raise InputError(f"{directory} has no text files; expected LANGUAGE.SPLIT.txt")
    if split not in splits:
        raise InputError(f"{directory} has no split {split!r}; expected one of {sorted(splits)}")
    return splits[split]


def _one_line_each(texts: list[bytes]) -> list[bytes]:
    joined = b"".join(texts)  # one look for all of them
    if b"\n" not in joined and b"\r" not in joined:
        return texts
    return [_LINE_BREAKS.sub(b" ", text) for text in texts]
