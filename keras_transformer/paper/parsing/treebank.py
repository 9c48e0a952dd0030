"""Treebanks prepared for training: the words of each tree, and its symbols."""

from __future__ import annotations

import dataclasses
import glob
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from keras_transformer.data.corpora.corpus import require_file
from keras_transformer.data.corpora.reading import read_text
from keras_transformer.data.preparation.prepare import PreparedData, PrepareOptions, prepare
from keras_transformer.data.preparation.workers import Runner
from keras_transformer.errors import InputError
from keras_transformer.paper.parsing.linearization import linearize, symbols_of
from keras_transformer.paper.parsing.symbol_vocabulary import symbol_model
from keras_transformer.paper.parsing.trees import Tree, read_trees
from keras_transformer.text.vocabulary import Vocabulary

# The longest sentences of the WSJ have some 400 symbols. One word can have many.
DEFAULTS = PrepareOptions(
    vocab_size=8000, separate_vocabularies=True, max_tokens=512, max_length_ratio=None
)


@dataclasses.dataclass(frozen=True)
class Treebank:
    """Files of trees, as a corpus whose sources are words and whose targets are symbols.

    Attributes:
        paths: the files.
        tags: whether parts of speech are among the symbols.
    """

    paths: tuple[Path, ...]
    tags: bool = True

    @property
    def name(self) -> str:
        """The files, the first two of them by name; pair i is their i-th tree."""
        names = [str(path) for path in self.paths]
        more = f" and {len(names) - 2:,} more" if len(names) > 2 else ""
        return f"{' + '.join(names[:2])}{more}"

    def trees(self) -> Iterator[Tree]:
        """Yields the trees, file after file; raises what `read_trees` does."""
        for path in self.paths:
            yield from read_trees(path)

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields words and symbols, each with spaces between; raises what `read_trees` does."""
        for tree in self.trees():
            yield " ".join(tree.words).encode(), " ".join(linearize(tree, self.tags)).encode()


def find_files(patterns: Sequence[str], ids: str | Path | None = None) -> list[Path]:
    """Returns the files of a treebank, each once, under the name by which it was named first.

    Args:
        patterns: files, or patterns of them as `penn/*.tree`.
        ids: a file with a name a line: only files of these names, or with an ending after them,
            are taken, in this order.

    Raises:
        InputError: for a pattern that no file fits, or a name that is not that of one file.
    """
    found = []
    for pattern in patterns:
        paths = [pattern] if Path(pattern).is_file() else sorted(glob.glob(pattern))
        if not paths:
            raise InputError(f"no file is called {pattern}; expected files of trees, or a pattern")
        found += [require_file(path) for path in paths]
    if ids is None:
        return _once(found)
    named = []
    for number, name in enumerate(map(str.strip, read_text(ids)), start=1):
        of_name = _once(path for path in found if name in (path.name, path.stem))
        if name and len(of_name) != 1:
            raise InputError(
                f"{ids}, line {number}: {len(of_name)} of {len(found)} files of trees are called "
                f"{name!r}; expected one"
            )
        named += of_name if name else []
    if not named:
        raise InputError(f"{ids} names no files; expected a name a line")
    return _once(named)


def _once(paths: Iterable[Path]) -> list[Path]:
    """Returns the first of the paths of each file: links and folders can give it others."""
    first: dict[Path, Path] = {}
    for path in paths:
        first.setdefault(path.resolve(), path)
    return list(first.values())


def prepare_trees(
    files: Sequence[Path],
    output_dir: str | Path,
    options: PrepareOptions = DEFAULTS,
    *,
    valid_files: Sequence[Path] = (),
    tags: bool = True,
    runner: Runner | None = None,
) -> PreparedData:
    """Prepares a treebank, as `data.prepare.prepare` does text.

    The source vocabulary is learned from the words, the target vocabulary is the symbols.

    Args:
        files: of trees to train on; one that is named twice is read once.
        output_dir: a new directory, or the result of the same input and options.
        options: those of learning are of the source vocabulary.
        valid_files: of trees to validate on; sentences are held out of `files` if empty.
        tags: whether the model is to learn parts of speech, too.
        runner: who does the work; None for this process.

    Raises:
        InputError: for what is no tree, a file to train on that is to validate on as well, and
            what `prepare` refuses.
    """
    both = {path.resolve() for path in files} & {path.resolve() for path in valid_files}
    if both:
        raise InputError(
            f"{min(both)} is to train on and to validate on; expected it to be one of them"
        )
    train, valid = (Treebank(tuple(_once(paths)), tags) for paths in (files, valid_files))
    trees = list(train.trees())
    source = options.learn(" ".join(tree.words).encode() for tree in trees)
    return prepare(
        [train],
        output_dir,
        options,
        valid_corpora=[valid] if valid_files else [],
        vocab_from=Vocabulary(source, symbol_model(symbols_of(trees, tags))),
        runner=runner,
    )
