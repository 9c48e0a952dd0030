"""Prepares treebanks for training: words are the source, symbols are the target.

The target vocabulary has one token for each symbol. It is a SentencePiece model, so that prepared
data, runs and exports store it like any other vocabulary. They are recognized as parsers by it.
"""

from __future__ import annotations

import dataclasses
import glob
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from keras_transformer.data.prepare import PreparedData, PrepareOptions, prepare
from keras_transformer.data.reading import read_text, require_file
from keras_transformer.errors import InputError
from keras_transformer.extensions.paper.parsing.trees import (
    SymbolKind,
    Tree,
    linearize,
    read_trees,
    symbols_of,
)
from keras_transformer.text.charsmap import with_rules
from keras_transformer.text.model_proto import CONTROL, UNKNOWN, USER_DEFINED, ModelProto
from keras_transformer.text.vocabulary import MAX_BYTES, SPECIAL_PIECES, Vocabulary

# The longest sentences of the WSJ have some 400 symbols. One word can have many.
DEFAULTS = PrepareOptions(
    separate_vocabularies=True, max_tokens=512, max_length_ratio=None, augment={}
)


@dataclasses.dataclass(frozen=True)
class Treebank:
    """Files of trees, as a corpus whose sources are words and whose targets are symbols."""

    paths: tuple[Path, ...]
    tags: bool = True  # parts of speech are symbols

    @property
    def name(self) -> str:
        """The files; more than two are abbreviated. Pair i is the i-th tree."""
        names = [str(path) for path in self.paths]
        more = f" and {len(names) - 2:,} more" if len(names) > 2 else ""
        return f"{' + '.join(names[:2])}{more}"

    def trees(self) -> Iterator[Tree]:
        """Yields the trees of all files."""
        for path in self.paths:
            yield from read_trees(path)

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields words and symbols of each tree, separated by spaces."""
        for tree in self.trees():
            yield " ".join(tree.words).encode(), " ".join(linearize(tree, self.tags)).encode()


def split_patterns(values: Iterable[str]) -> list[str]:
    """Returns the patterns of a repeatable flag that also accepts lists with commas."""
    return [pattern for value in values for pattern in value.split(",")]


def find_files(patterns: Sequence[str], ids: str | Path | None = None) -> list[Path]:
    """Returns the files of a treebank, each once.

    `ids` is a file with one name per line, with or without an ending. It selects and orders files.
    """
    found: list[Path] = []
    for pattern in patterns:
        paths = [pattern] if Path(pattern).is_file() else sorted(glob.glob(pattern))
        if not paths:
            raise InputError(f"No file matches {pattern}. Give files of trees, or a pattern.")
        found += [require_file(path).resolve() for path in paths]  # links can repeat files
    found = list(dict.fromkeys(found))
    if ids is None:
        return found
    named = []
    for number, name in enumerate(map(str.strip, read_text(ids)), start=1):
        matches = [path for path in found if name in (path.name, path.stem)]
        if name and len(matches) != 1:
            raise InputError(
                f"{ids}, line {number}: {len(matches)} of {len(found)} files of trees are called "
                f"{name!r}. The name must be unique."
            )
        named += matches
    if not named:
        raise InputError(f"{ids} names no files. It must have one name per line.")
    return list(dict.fromkeys(named))


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

    The source vocabulary is learned from the words, of at most `vocabulary_lines` trees: more are
    halved at random. The target vocabulary is the symbols.
    """
    if both := {*files} & {*(valid_files or ())}:
        raise InputError(
            f"{min(both)} is in the training set and in the validation set. Remove it from one of "
            "them."
        )
    train, valid = (Treebank(tuple(paths), tags) for paths in (files, valid_files or ()))
    trees = list(train.trees())
    lines = [" ".join(tree.words).encode() for tree in trees]
    random_ = random.Random(options.seed)
    while len(lines) > options.vocabulary_lines or sum(map(len, lines)) > MAX_BYTES:
        lines = random_.sample(lines, len(lines) // 2)
    return prepare(
        [train],
        output_dir,
        options,
        valid_corpora=[valid] if valid_files else None,
        vocab_from=Vocabulary(options.learn(lines), symbol_model(symbols_of(trees, tags))),
        num_workers=num_workers,
    )


_SPACE = "\u2581"  # how SentencePiece writes the space before each symbol


def symbol_model(symbols: Sequence[str]) -> bytes:
    """Returns the serialized SentencePiece model of symbols.

    Text consists of symbols separated by spaces. Pad, unknown, start and end ids are 0, 1, 2 and 3.
    A symbol that is missing in the training data is unknown.
    """
    model = ModelProto()
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    trainer.pad_id, trainer.unk_id, trainer.bos_id, trainer.eos_id = range(4)
    for piece, kind in zip(SPECIAL_PIECES, (CONTROL, UNKNOWN, CONTROL, CONTROL), strict=True):
        model.pieces.add(piece=piece, type=kind)
    # Unknown tokens are scored with the normal tokens, so there must be at least one.
    model.pieces.add(piece=_SPACE, score=0.0)
    for symbol in symbols:
        # User-defined pieces are never split, even if segmentations are sampled.
        model.pieces.add(piece=_SPACE + symbol, type=USER_DEFINED)
    # Without any rule, tensorflow-text would write a line to standard error whenever the model is
    # loaded.
    normalizer.precompiled_charsmap = with_rules(b"", {"\t": " "})
    return bytes(model.SerializeToString(deterministic=True))


def symbols_by_id(vocabulary: Vocabulary) -> list[str] | None:
    """Returns the symbol of each target id, or ""; None if the vocabulary is not from a
    treebank.
    """
    pieces = ModelProto.FromString(vocabulary.target_model).pieces
    first = len(SPECIAL_PIECES) + 1  # the piece before it is the space
    symbols = [piece.piece.removeprefix(_SPACE) for piece in pieces[first:]]
    if not symbols or any(piece.type != USER_DEFINED for piece in pieces[first:]):
        return None
    return [""] * first + symbols


def word_boundaries(vocabulary: Vocabulary) -> tuple[list[bool], list[bool]] | None:
    """Returns whether each source id starts a word, and whether each target id stands for one.

    The end token counts as a word. None if the vocabulary is not from a treebank.
    """
    symbols = symbols_by_id(vocabulary)
    if symbols is None:
        return None
    pieces = ModelProto.FromString(vocabulary.source_model).pieces
    begins = [piece.piece.startswith(_SPACE) for piece in pieces]
    begins[vocabulary.end_id] = True
    return begins, [SymbolKind.of(symbol) is SymbolKind.WORD for symbol in symbols]


def require_parser(vocabulary: Vocabulary, model: str) -> list[str]:
    """Returns the result of `symbols_by_id` for a parser, and raises an error for other models."""
    symbols = symbols_by_id(vocabulary)
    if symbols is None:
        raise InputError(
            f"{model} is not a parser: its target vocabulary has tokens that are not symbols of "
            "trees. Train on data of keras-transformer prepare_trees."
        )
    return symbols
