"""Test sets: the user's files, or sacreBLEU's test sets that are already on disk.

sacreBLEU stores its test sets in ~/.sacrebleu, or in the folder that the environment variable
SACREBLEU names. It would download missing ones. This module downloads nothing, and names the
command that does.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from sacrebleu.dataset import DATASETS
from sacrebleu.utils import SACREBLEU_DIR

from keras_transformer.data.reading import read_text
from keras_transformer.errors import InputError, one_line


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
    """Sentences with one or more references each.

    Attributes:
        references: the reference texts, each with one line per sentence.
        sources: the source sentences; None if only translations are scored.
        name: sacreBLEU's name, as in "wmt14/full"; None for the user's files.
        language_pair: source and target, as in "en-de"; None if unknown.
    """

    references: Sequence[Sequence[str]]
    sources: Sequence[str] | None = None
    name: str | None = None
    language_pair: str | None = None

    @property
    def target_language(self) -> str:
        """The target language, as in "de"; empty if unknown."""
        return (self.language_pair or "").partition("-")[2]

    @property
    def title(self) -> str | None:
        """The name and the languages, for a model card; None for the user's files."""
        return self.name and f"{self.name} {self.language_pair}"


def read_files(
    reference: str | Path | Sequence[str | Path], source: str | Path | None = None
) -> EvaluationSet:
    """Reads a test set from files with one sentence per line."""
    first, *others = [reference] if isinstance(reference, str | Path) else reference
    references = [read_text(first)]
    test = EvaluationSet(references)
    references += [read_translations(path, test) for path in others]
    return EvaluationSet(references, None if source is None else read_translations(source, test))


def read_translations(path: str | Path, test: EvaluationSet) -> list[str]:
    """Reads a system's translations of a test set, one per line."""
    translations = read_text(path)
    if len(translations) != len(test.references[0]):
        raise InputError(
            f"{path} has {len(translations):,} lines, but the reference has "
            f"{len(test.references[0]):,}."
        )
    return translations


def sacrebleu_set(name: str, language_pair: str | None) -> EvaluationSet:
    """Reads one of sacreBLEU's test sets from disk, with all its references.

    sacreBLEU extracts the text from downloaded files on first use.
    """
    if name not in DATASETS:
        raise InputError(
            f"sacreBLEU does not know the test set {name!r}. Use a name such as wmt14/full. "
            "sacrebleu --list prints all."
        )
    dataset = copy.copy(DATASETS[name])
    if language_pair not in dataset.langpairs:
        raise InputError(
            f"The test set {name} does not have the language pair {language_pair!r}. Use one of "
            f"{', '.join(dataset.langpairs)}."
        )
    folder = Path(SACREBLEU_DIR, name)
    get = f"sacrebleu --download {name} -l {language_pair}"
    # Only this method opens connections.
    dataset.maybe_download = lambda: None  # type: ignore[method-assign]
    try:
        source = dataset.get_source_file(language_pair)
        references = dataset.get_reference_files(language_pair)
        texts = [read_text(path) for path in (source, *references)]
        if len(texts) < 2 or len({len(text) for text in texts}) > 1:
            lines = " and ".join(f"{len(text):,}" for text in texts)
            raise ValueError(f"{lines} lines in the source and the references")
    except FileNotFoundError:
        raise InputError(
            f"The test set {name} for {language_pair} is not in {folder}. Download it with: {get}"
        ) from None
    except Exception as error:  # sacreBLEU has six parsers with many exceptions
        raise InputError(
            f"sacreBLEU cannot read its test set in {folder}: {one_line(repr(error))}. Remove the "
            f"folder, then run: {get}"
        ) from error
    return EvaluationSet(texts[1:], texts[0], name, language_pair)
