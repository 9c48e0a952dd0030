"""Prepares treebanks for training: words are the source, symbols are the target."""

from __future__ import annotations

import dataclasses
import glob
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from keras_transformer.data.prepare import PreparedData, PrepareOptions, prepare
from keras_transformer.data.reading import read_text, require_file
from keras_transformer.errors import InputError
from keras_transformer.extensions.paper.parsing.symbols import symbol_model
from keras_transformer.extensions.paper.parsing.trees import (
    Tree,
    linearize,
    read_trees,
    symbols_of,
)
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
        tags: True if parts of speech are symbols.
    """

    paths: tuple[Path, ...]
    tags: bool = True

    @property
    def name(self) -> str:
        """The files; more than two are abbreviated. Pair i is the i-th tree."""
        names = [str(path) for path in self.paths]
        more = f" and {len(names) - 2:,} more" if len(names) > 2 else ""
        return f"{' + '.join(names[:2])}{more}"

    def trees(self) -> Iterator[Tree]:
        """Yields the trees of all files. Raises the errors of `read_trees`."""
        for path in self.paths:
            yield from read_trees(path)

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields words and symbols of each tree, separated by spaces. Raises the errors of
        `read_trees`.
        """
        for tree in self.trees():
            yield " ".join(tree.words).encode(), " ".join(linearize(tree, self.tags)).encode()


def find_files(patterns: Sequence[str], ids: str | Path | None = None) -> list[Path]:
    """Returns the files of a treebank without repetitions, under their first names.

    `ids` is a file with one name per line, with or without an ending. It selects and orders files.
    """
    found = []
    for pattern in patterns:
        paths = [pattern] if Path(pattern).is_file() else sorted(glob.glob(pattern))
        if not paths:
            raise InputError(f"No file matches {pattern}. Give files of trees, or a pattern.")
        found += [require_file(path) for path in paths]
    if ids is None:
        return _once(found)
    named = []
    for number, name in enumerate(map(str.strip, read_text(ids)), start=1):
        of_name = _once(path for path in found if name in (path.name, path.stem))
        if name and len(of_name) != 1:
            raise InputError(
                f"{ids}, line {number}: {len(of_name)} of {len(found)} files of trees are called "
                f"{name!r}. The name must be unique."
            )
        named += of_name if name else []
    if not named:
        raise InputError(f"{ids} names no files. It must have one name per line.")
    return _once(named)


def _once(paths: Iterable[Path]) -> list[Path]:
    """Returns the first path of each file, because links can give a file several paths."""
    first: dict[Path, Path] = {}
    for path in paths:
        first.setdefault(path.resolve(), path)
    return list(first.values())


def prepare_trees(
    files: Sequence[Path],
    output_dir: str | Path,
    options: PrepareOptions = DEFAULTS,
    *,
    valid_files: Sequence[Path] | None = None,
    tags: bool = True,
    num_workers: int = 1,
) -> PreparedData:
    """Prepares a treebank, as `data.prepare.prepare` prepares text.

    The source vocabulary is learned from the words. The target vocabulary is the symbols.
    """
    both = {path.resolve() for path in files} & {path.resolve() for path in valid_files or ()}
    if both:
        raise InputError(
            f"{min(both)} is in the training set and in the validation set. Remove it from one of "
            "them."
        )
    train, valid = (Treebank(tuple(_once(paths)), tags) for paths in (files, valid_files or ()))
    trees = list(train.trees())
    source = options.learn(" ".join(tree.words).encode() for tree in trees)
    return prepare(
        [train],
        output_dir,
        options,
        valid_corpora=[valid] if valid_files else None,
        vocab_from=Vocabulary(source, symbol_model(symbols_of(trees, tags))),
        num_workers=num_workers,
    )
