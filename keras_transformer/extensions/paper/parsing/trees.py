"""Constituency trees, and trees as sequences of symbols.

Trees are read in the bracketed form of the Penn Treebank (Marcus et al., 1993). A tree has words
and constituents, each with a label and a span of words. Parts that are not scored (Collins, 1997)
are not read: traces, constituents that contain nothing else, function tags and indices (`NP-SBJ-1`
becomes `NP`), and an outermost bracket without a label.

A tree becomes a sequence of symbols depth first (Vinyals et al., 2015, section 2.2). A constituent
starts with a symbol such as `(NP` and ends with `)NP`. Each word is the tag of its part of speech,
or `XX`:

    (TOP (S (NP (DT The) (NN cat)) (VP (VBZ sleeps)) (. .)))
    (S (NP DT NN )NP (VP VBZ )VP . )S
    (S (NP XX XX )NP (VP XX )VP XX )S

Tags show the model its current word. Without tags the model must count, and one missed word moves
all following brackets. The labels of closing brackets are redundant. They help the model, and do
not make sequences longer.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from keras_transformer.data.reading import read_text
from keras_transformer.errors import InputError

TRACE = "-NONE-"
# Labels of an outermost bracket that is the sentence, not a constituent.
ROOTS = ("", "TOP", "ROOT", "S1")
# Only ASCII spaces separate words, because some words begin with a thin space. Trees contain no
# control characters or line separators: cleaning would turn them into spaces, and split words.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029]")
_TOKEN = re.compile(r"[()]|[^ \t\r\n()]+")


def is_name(text: str) -> bool:
    """Returns True if the text can be a label, a tag or a word inside brackets."""
    found = _TOKEN.fullmatch(text)
    return found is not None and text not in ("(", ")") and not _CONTROL.search(text)


class Constituent(NamedTuple):
    """A label over the words from `start` to `end`, exclusive."""

    label: str
    start: int
    end: int


@dataclasses.dataclass(frozen=True)
class Tree:
    """A sentence and its constituents.

    Attributes:
        words: at least one, without spaces and brackets (`-LRB-` stands for one).
        tags: the part of speech of each word, or `XX` if it is unknown.
        constituents: sorted by their first word, outer before inner. Each contains at least one
            word. Any two are nested or disjoint.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    constituents: tuple[Constituent, ...]

    def __str__(self) -> str:
        """Returns the tree in brackets, as in `(TOP (S (NP (DT The) (NN cat)) (VP …)))`."""
        parts = ["(TOP"]
        for constituent, place in self.walk():
            if constituent is None:
                parts.append(f" ({self.tags[place]} {self.words[place]})")
            elif place == constituent.start:
                parts.append(f" ({constituent.label}")
            else:
                parts.append(")")
        return "".join([*parts, ")"])

    def walk(self) -> Iterator[tuple[Constituent | None, int]]:
        """Yields the parts of the tree depth first, from the left.

        A word is `(None, place)`, an opening constituent `(constituent, start)`, and a closing one
        `(constituent, end)`.
        """
        waiting = list(reversed(self.constituents))
        opened: list[Constituent] = []
        for place in range(len(self.words)):
            while waiting and waiting[-1].start == place:
                opened.append(waiting.pop())
                yield opened[-1], place
            yield None, place
            while opened and opened[-1].end == place + 1:
                yield opened.pop(), place + 1


def read_trees(path: str | Path) -> list[Tree]:
    """Reads a file of trees, with any line breaks."""
    return list(parse_trees(read_text(path), str(path)))


def parse_trees(lines: Iterable[str], name: str) -> Iterator[Tree]:
    """Yields the trees of a text."""
    reader = _Reader(name)
    for number, line in enumerate(lines, start=1):
        if control := _CONTROL.search(line):
            raise InputError(
                f"{name}, {_Place(number, control.start() + 1)}: the tree contains the control "
                f"character U+{ord(control[0]):04X}. Remove it."
            )
        for found in _TOKEN.finditer(line):
            tree = reader.take(found[0], _Place(number, found.start() + 1))
            if tree is not None:
                yield tree
    reader.end()


class _Place(NamedTuple):
    line: int
    column: int

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"


@dataclasses.dataclass
class _Bracket:
    """An open bracket, and its content so far."""

    place: _Place
    start: int  # words before it
    number: int  # constituents before it
    label: str | None = None  # None while a label may still come
    word: str | None = None
    has_children: bool = False


class _Reader:
    """Builds trees from a stream of tokens."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._open: list[_Bracket] = []
        self._begin()

    def _begin(self) -> None:
        self._words: list[str] = []
        self._tags: list[str] = []
        # A constituent reserves its place when it opens, and fills it when it closes.
        self._constituents: list[Constituent | None] = []

    def take(self, token: str, place: _Place) -> Tree | None:
        """Reads the next token, and returns the tree that it completes, or None."""
        if token == "(":
            self._opens(place)
        elif token == ")":
            self._closes(place)
            if not self._open:
                return self._finished(place)
        else:
            self._says(token, place)
        return None

    def end(self) -> None:
        """Raises `InputError` if a tree is not closed."""
        if self._open:
            raise self._error(
                self._open[0].place,
                f"the tree that begins here is not closed, {len(self._open)} closing brackets are "
                "missing",
            )

    def _opens(self, place: _Place) -> None:
        if self._open:
            parent = self._open[-1]
            if parent.word is not None:
                raise self._error(
                    place,
                    f"a bracket opens next to the word {parent.word!r}, where it should close",
                )
            parent.has_children = True
            if parent.label is None:
                parent.label = ""
            if parent.label == "" and len(self._open) > 1:
                raise self._error(
                    parent.place,
                    "a bracket without a label is inside the tree that begins at "
                    f"{self._open[0].place}: it needs a label, or that tree must be closed first",
                )
        self._open.append(_Bracket(place, len(self._words), len(self._constituents)))
        self._constituents.append(None)

    def _says(self, token: str, place: _Place) -> None:
        if not self._open:
            raise self._error(
                place, f"{token[:40]!r} is outside of brackets, where a tree should begin with '('"
            )
        bracket = self._open[-1]
        if bracket.label is None:
            bracket.label = token
        elif bracket.word is None and not bracket.has_children:
            bracket.word = token
        else:
            what = "brackets" if bracket.has_children else f"the word {bracket.word!r}"
            raise self._error(
                place, f"the word {token[:40]!r} is next to {what}: it needs separate brackets"
            )

    def _closes(self, place: _Place) -> None:
        if not self._open:
            raise self._error(place, "a bracket closes that was never opened")
        bracket = self._open.pop()
        label = bracket.label or ""
        if bracket.word is not None:
            if label != TRACE:
                self._words.append(bracket.word)
                self._tags.append(label)
        elif not bracket.has_children:
            raise self._error(
                bracket.place,
                f"the bracket ({label}) is empty: it needs a word or brackets inside",
            )
        elif len(self._words) > bracket.start and (self._open or label not in ROOTS):
            self._constituents[bracket.number] = Constituent(
                _without_function(label), bracket.start, len(self._words)
            )

    def _finished(self, place: _Place) -> Tree:
        if not self._words:
            raise self._error(place, "the tree that ends here lacks words")
        constituents = tuple(each for each in self._constituents if each is not None)
        tree = Tree(tuple(self._words), tuple(self._tags), constituents)
        self._begin()
        return tree

    def _error(self, place: _Place, message: str) -> InputError:
        return InputError(f"{self._name}, {place}: {message}")


def _without_function(label: str) -> str:
    """Returns `NP` for `NP-SBJ-1`, `NP=2` and `NP`. A label that begins with a hyphen stays
    unchanged.
    """
    return label if label[0] in "-=" else re.split("[-=]", label)[0]


WORD = "XX"
OPEN = "("
CLOSE = ")"


def linearize(tree: Tree, tags: bool = True) -> list[str]:
    """Returns the symbols of a tree. `restore` is the inverse."""
    symbols = []
    for constituent, place in tree.walk():
        if constituent is None:
            symbols.append(tree.tags[place] if tags else WORD)
        else:
            bracket = OPEN if place == constituent.start else CLOSE
            symbols.append(bracket + constituent.label)
    return symbols


class Does(enum.IntEnum):
    """The function of a symbol."""

    NOTHING = 0
    OPEN = 1
    CLOSE = 2
    STAND = 3  # for a word

    @classmethod
    def of(cls, symbol: str) -> Does:
        """Parses any text as a symbol. Labels and tags must be possible in a tree."""
        if symbol.startswith(CLOSE):
            return cls.CLOSE
        if not is_name(symbol.removeprefix(OPEN)) or symbol == TRACE:
            return cls.NOTHING
        return cls.OPEN if symbol.startswith(OPEN) else cls.STAND


def restore(words: Sequence[str], symbols: Iterable[str]) -> Tree:
    """Builds a tree over exactly these words from any symbols.

    * A closing bracket of any label closes the last opened bracket, if there is one.
    * Symbols for words beyond the last word are ignored. Words without a symbol come at the end,
      inside the open brackets, with the tag `XX`.
    * Open brackets are closed at the end. Constituents without words are left out.

    `text_ops.restored` does the same in a graph.
    """
    tags: list[str] = []
    constituents: list[Constituent] = []
    opened: list[int] = []  # indices of the open `constituents`
    for symbol in (*symbols, *[WORD] * len(words)):
        does = Does.of(symbol)
        if does is Does.STAND and len(tags) < len(words):
            tags.append(symbol)
        elif does is Does.OPEN:
            opened.append(len(constituents))
            constituents.append(Constituent(symbol.removeprefix(OPEN), len(tags), len(words)))
        elif does is Does.CLOSE and opened:
            last = opened.pop()
            constituents[last] = constituents[last]._replace(end=len(tags))
    held = tuple(each for each in constituents if each.start < each.end)
    return Tree(tuple(words), tuple(tags), held)


def symbols_of(trees: Iterable[Tree], tags: bool = True) -> list[str]:
    """Returns all symbols that trees with these labels and tags can contain, sorted."""
    symbols = set() if tags else {WORD}
    for tree in trees:
        symbols.update(tree.tags if tags else ())
        for constituent in tree.constituents:
            symbols.update((OPEN + constituent.label, CLOSE + constituent.label))
    return sorted(symbols)
