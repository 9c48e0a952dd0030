"""Test sets: the user's files, or sacreBLEU's own sets where they are on disk.

sacreBLEU keeps its sets in ~/.sacrebleu, or where the variable SACREBLEU says. It would
download what it lacks; here nothing is, and the command that does is named.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
from collections.abc import Collection, Sequence
from pathlib import Path

from sacrebleu.dataset import DATASETS
from sacrebleu.utils import SACREBLEU_DIR

from keras_transformer.data.corpora.reading import read_text
from keras_transformer.errors import InputError


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
    """Sentences with one or more references each.

    Attributes:
        references: one text a reference, each of as many lines as there are sentences.
        sources: the sentences that are translated; None where only translations are scored.
        name: what sacreBLEU calls the set, as in "wmt14/full"; None for the user's files.
        language_pair: source and target, as in "en-de"; None where it is not known.
    """

    references: Sequence[Sequence[str]]
    sources: Sequence[str] | None = None
    name: str | None = None
    language_pair: str | None = None

    @property
    def target_language(self) -> str:
        """The second of the pair, as in "de"; empty where it is not known."""
        return (self.language_pair or "").partition("-")[2]

    @property
    def title(self) -> str | None:
        """Its name and languages, for a model card; None for the user's files."""
        return self.name and f"{self.name} {self.language_pair}"


def read_files(reference: str | Path, source: str | Path | None = None) -> EvaluationSet:
    """Reads a test set of one sentence a line.

    Raises:
        InputError: for what `read_text` refuses, or different numbers of lines.
    """
    references = read_text(reference)
    sources = None if source is None else read_text(source)
    if sources is not None and len(sources) != len(references):
        raise InputError(
            f"{source} has {len(sources):,} lines and {reference} {len(references):,}; "
            "expected the same number"
        )
    return EvaluationSet([references], sources)


def read_translations(path: str | Path, test: EvaluationSet) -> list[str]:
    """Reads a system's translations of a test set, one a line.

    Raises:
        InputError: for what `read_text` refuses, or another number of lines than the set has.
    """
    translations = read_text(path)
    if len(translations) != len(test.references[0]):
        raise InputError(
            f"{path} has {len(translations):,} lines and the reference "
            f"{len(test.references[0]):,}; expected the same number"
        )
    return translations


def sacrebleu_set(name: str, language_pair: str | None) -> EvaluationSet:
    """Reads one of sacreBLEU's test sets from the disk, with all its references.

    Text that sacreBLEU has not yet taken out of a set's files it takes out now, into its folder.

    Args:
        name: as `sacrebleu --list` shows it.
        language_pair: source and target, as in "en-de".

    Raises:
        InputError: for an unknown set or pair, and for a set that is not on disk, or not whole.
    """
    if name not in DATASETS:
        raise InputError(
            f"{name!r} is no test set of sacreBLEU; expected one such as "
            f"{_near(name, DATASETS)} (sacrebleu --list shows all)"
        )
    dataset = copy.copy(DATASETS[name])
    if language_pair not in dataset.langpairs:
        raise InputError(
            f"the test set {name} has no language pair {language_pair!r}; expected one of "
            f"{', '.join(dataset.langpairs)}"
        )
    get = f"sacrebleu --download {name} -l {language_pair}"
    folder = Path(SACREBLEU_DIR, name)
    # The one method that opens connections: without it sacreBLEU takes what is there.
    dataset.maybe_download = lambda: None  # type: ignore[method-assign]
    try:
        source = dataset.get_source_file(language_pair)
        references = dataset.get_reference_files(language_pair)
    except FileNotFoundError:
        raise InputError(
            f"the test set {name} of {language_pair} is not in {folder}, and nothing is "
            f"downloaded here; expected {get} before"
        ) from None
    except Exception as error:  # of six parsers, in files that anyone may have changed
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"sacreBLEU cannot read its test set in {folder} ({reason}); expected that folder as "
            f"{get} writes it"
        ) from error
    if not references:
        raise InputError(
            f"the test set {name} of {language_pair} in {folder} has no references that sacreBLEU "
            "takes; expected one to score against"
        )
    try:
        texts = [read_text(path) for path in (source, *references)]
    except InputError as error:
        raise InputError(f"{error}; {get} writes it anew into an empty folder") from None
    if len({len(text) for text in texts}) > 1:
        lines = " and ".join(f"{len(text):,}" for text in texts)
        raise InputError(
            f"the source and references of {language_pair} in {folder} have {lines} lines; "
            f"expected as many of each, as {get} writes them into an empty folder"
        )
    return EvaluationSet(texts[1:], texts[0], name, language_pair)


def _near(name: str, names: Collection[str]) -> str:
    """Up to five of `names` that are like `name`, the likest first."""
    likest = difflib.get_close_matches(name, names, n=5, cutoff=0.5)
    return ", ".join(likest or ["wmt14/full"])


def text_files(folder: str | Path, references: int = 1) -> list[Path]:
    """Returns the files that `write_text_files` will write into a folder, which it makes.

    They are `source.txt`, `hypothesis.txt`, `reference.txt`, and for more references
    `reference-2.txt` and so on.

    Raises:
        InputError: for a folder that has one of them, or cannot be made.
    """
    more = [f"reference-{number}.txt" for number in range(2, references + 1)]
    paths = [Path(folder, n) for n in ("source.txt", "hypothesis.txt", "reference.txt", *more)]
    for path in paths:
        if path.exists():
            raise InputError(f"{path} is there already; expected a folder without it")
    try:
        paths[0].parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be made ({error.strerror})") from error
    return paths


def write_text_files(paths: Sequence[Path], texts: Sequence[Sequence[str]]) -> None:
    """Writes one text a file, one sentence a line, as comet-score and its like read them.

    Raises:
        InputError: for a file that is there by now, or cannot be written.
    """
    for path, lines in zip(paths, texts, strict=True):
        try:
            with path.open("x", encoding="utf-8", newline="\n") as file:
                # They read in Python's text mode, in which a CR ends a line, too.
                file.writelines(line.replace("\r", " ") + "\n" for line in lines)
        except OSError as error:
            raise InputError(f"{path} cannot be written ({error.strerror})") from error
