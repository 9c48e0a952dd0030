"""Constituency trees in the bracketed form of the Penn Treebank (Marcus et al., 1993).

A tree is its words and its constituents, each a label and a span of words. What parsers are
not scored on is not read (Collins, 1997): traces, constituents that hold nothing else, function
tags and indices (`NP-SBJ-1` is `NP`), and an outermost bracket without a label of its own.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from keras_transformer.data.corpora.reading import read_text
from keras_transformer.errors import InputError

TRACE = "-NONE-"
# Labels of an outermost bracket that stands for the sentence, not for a constituent.
ROOTS = ("", "TOP", "ROOT", "S1")
# Spaces are those of ASCII: some words begin with a thin space. Control characters and line
# separators are nowhere in a tree: cleaning makes them spaces, and one word would become two.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029]")
_TOKEN = re.compile(r"[()]|[^ \t\r\n()]+")


def is_name(text: str) -> bool:
    """Whether the text can be a label, a tag or a word within brackets."""
    found = _TOKEN.fullmatch(text)
    return found is not None and text not in ("(", ")") and not _CONTROL.search(text)


class Constituent(NamedTuple):
    """A label over the words from `start` up to, and without, `end`."""

    label: str
    start: int
    end: int


@dataclasses.dataclass(frozen=True)
class Tree:
    """A sentence and its constituents.

    Attributes:
        words: at least one, without spaces and brackets (`-LRB-` stands for one).
        tags: the part of speech of each word, or `XX` where it is not known.
        constituents: in the order in which they open, the outer before the inner; each holds
            a word, and any two are one inside the other or apart.
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
        """Yields what opens, stands and closes, depth first, from the left.

        A word is `(None, its place)`, a constituent that opens `(it, its start)`, and one that
        closes `(it, its end)`.
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
    """Reads a file of trees: one a line, several a line, or each on several lines.

    Raises:
        InputError: for a file that cannot be read, and for what is no tree.
    """
    return list(parse_trees(read_text(path), str(path)))


def parse_trees(lines: Iterable[str], name: str) -> Iterator[Tree]:
    """Yields the trees of a text.

    Args:
        lines: the text.
        name: where it comes from, for what is told to the user.

    Raises:
        InputError: for brackets that do not fit, a tree without words, a control character, or
            text that is no tree; line and column are told, which count from 1.
    """
    reader = _Reader(name)
    for number, line in enumerate(lines, start=1):
        if control := _CONTROL.search(line):
            raise InputError(
                f"{name}, {_Place(number, control.start() + 1)}: the control character "
                f"U+{ord(control[0]):04X} stands in the tree; expected words and labels without"
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
    """A bracket that is open: what was read of it so far."""

    place: _Place
    start: int  # words before it
    number: int  # constituents before it
    label: str | None = None  # None while a label may still come
    word: str | None = None
    has_children: bool = False


class _Reader:
    """Makes trees of tokens, one after the other."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._open: list[_Bracket] = []
        self._begin()

    def _begin(self) -> None:
        self._words: list[str] = []
        self._tags: list[str] = []
        # The place of a constituent is taken when it opens, and filled when it closes.
        self._constituents: list[Constituent | None] = []

    def take(self, token: str, place: _Place) -> Tree | None:
        """Takes the next token, and returns the tree that it completes, if it does."""
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
        """Raises `InputError` where a tree is not closed."""
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
                    place, f"a bracket opens beside the word {parent.word!r}; expected it to close"
                )
            parent.has_children = True
            if parent.label is None:
                parent.label = ""
            if parent.label == "" and len(self._open) > 1:
                raise self._error(
                    parent.place,
                    f"a bracket without a label within the tree that begins at "
                    f"{self._open[0].place}; expected a label, or that tree to be closed before",
                )
        self._open.append(_Bracket(place, len(self._words), len(self._constituents)))
        self._constituents.append(None)

    def _says(self, token: str, place: _Place) -> None:
        if not self._open:
            raise self._error(
                place, f"{token[:40]!r} stands outside of brackets; expected '(' of a tree"
            )
        bracket = self._open[-1]
        if bracket.label is None:
            bracket.label = token
        elif bracket.word is None and not bracket.has_children:
            bracket.word = token
        else:
            what = "brackets" if bracket.has_children else f"the word {bracket.word!r}"
            raise self._error(
                place, f"the word {token[:40]!r} stands beside {what}; expected it in its own"
            )

    def _closes(self, place: _Place) -> None:
        if not self._open:
            raise self._error(place, "a bracket closes that was never opened; expected '('")
        bracket = self._open.pop()
        label = bracket.label or ""
        if bracket.word is not None:
            if label != TRACE:
                self._words.append(bracket.word)
                self._tags.append(label)
        elif not bracket.has_children:
            raise self._error(
                bracket.place,
                f"the bracket ({label}) is empty; expected a word, or brackets, within it",
            )
        elif len(self._words) > bracket.start and (self._open or label not in ROOTS):
            self._constituents[bracket.number] = Constituent(
                _without_function(label), bracket.start, len(self._words)
            )

    def _finished(self, place: _Place) -> Tree:
        if not self._words:
            raise self._error(place, "the tree that ends here has no words; expected at least one")
        constituents = tuple(each for each in self._constituents if each is not None)
        tree = Tree(tuple(self._words), tuple(self._tags), constituents)
        self._begin()
        return tree

    def _error(self, place: _Place, message: str) -> InputError:
        return InputError(f"{self._name}, {place}: {message}")


def _without_function(label: str) -> str:
    """Returns `NP` of `NP-SBJ-1`, `NP=2` and `NP`; what begins with a hyphen is a label itself."""
    return label if label[0] in "-=" else re.split("[-=]", label)[0]
