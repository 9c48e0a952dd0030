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
from keras_transformer.errors import InputError


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
    """Reads a test set from files with one sentence per line.

    Args:
        source: file of the source, if there is one.
    """
    paths = [reference] if isinstance(reference, str | Path) else list(reference)
    references = [read_text(path) for path in paths]
    sources = None if source is None else read_text(source)
    for path, lines in [*zip(paths, references, strict=True), (source, sources)]:
        if lines is not None and len(lines) != len(references[0]):
            raise InputError(
                f"{path} has {len(lines):,} lines, but {paths[0]} has {len(references[0]):,}."
            )
    return EvaluationSet(references, sources)


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
    get = f"sacrebleu --download {name} -l {language_pair}"
    folder = Path(SACREBLEU_DIR, name)
    # Only this method opens connections.
    dataset.maybe_download = lambda: None  # type: ignore[method-assign]
    try:
        source = dataset.get_source_file(language_pair)
        references = dataset.get_reference_files(language_pair)
    except FileNotFoundError:
        raise InputError(
            f"The test set {name} for {language_pair} is not in {folder}. Download it with: {get}"
        ) from None
    except Exception as error:  # sacreBLEU has six parsers with many exceptions
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"sacreBLEU cannot read its test set in {folder}: {reason}. Remove the folder, then "
            f"run: {get}"
        ) from error
    if not references:
        raise InputError(
            f"The test set {name} for {language_pair} in {folder} has no references that "
            "sacreBLEU accepts."
        )
    try:
        texts = [read_text(path) for path in (source, *references)]
    except InputError as error:
        raise InputError(f"{str(error).rstrip('.')}. Remove the folder, then run: {get}") from None
    if len({len(text) for text in texts}) > 1:
        lines = " and ".join(f"{len(text):,}" for text in texts)
        raise InputError(
            f"The source and references for {language_pair} in {folder} have {lines} lines. Remove "
            f"the folder, then run: {get}"
        )
    return EvaluationSet(texts[1:], texts[0], name, language_pair)
