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

    Constituents are sorted by their first word, outer before inner. Each contains at least one
    word, and any two are nested or disjoint.
    """

    words: tuple[str, ...]  # at least one, without spaces and brackets (`-LRB-` stands for one)
    tags: tuple[str, ...]  # the part of speech of each word, or `XX` if it is unknown
    constituents: tuple[Constituent, ...]

    def __str__(self) -> str:
        """Returns the tree in brackets, as in `(TOP (S (NP (DT The) (NN cat)) (VP …)))`."""
        parts = [
            f" ({self.tags[position]} {self.words[position]})"
            if constituent is None
            else f" ({constituent.label}"
            if position == constituent.start
            else ")"
            for constituent, position in self.walk()
        ]
        return f"(TOP{''.join(parts)})"

    def walk(self) -> Iterator[tuple[Constituent | None, int]]:
        """Yields the parts of the tree depth first, from the left.

        A word is `(None, position)`, the start of a constituent `(constituent, start)`, and its end
        `(constituent, end)`.
        """
        waiting = list(reversed(self.constituents))
        opened: list[Constituent] = []
        for position in range(len(self.words)):
            while waiting and waiting[-1].start == position:
                opened.append(waiting.pop())
                yield opened[-1], position
            yield None, position
            while opened and opened[-1].end == position + 1:
                yield opened.pop(), position + 1


def read_trees(path: str | Path) -> list[Tree]:
    """Reads a file of trees, with any line breaks."""
    return list(parse_trees(read_text(path), str(path)))


@dataclasses.dataclass
class _Bracket:
    """An open bracket, and its content so far."""

    location: str
    start: int  # words before it
    number: int  # constituents before it
    label: str | None = None  # None while a label may still come
    word: str | None = None
    has_children: bool = False


def parse_trees(lines: Iterable[str], name: str) -> Iterator[Tree]:
    """Yields the trees of a text."""
    opened: list[_Bracket] = []
    words: list[str] = []
    tags: list[str] = []
    # A constituent reserves its index when it opens, and fills it when it closes.
    constituents: list[Constituent | None] = []

    def refused(location: str, message: str) -> InputError:
        return InputError(f"{name}, {location}: {message}")

    for location, token in _tokens(lines, name):
        last = opened[-1] if opened else None
        if token == "(":
            if last is not None:
                if last.word is not None:
                    message = f"a bracket opens next to the word {last.word!r}, where it should"
                    raise refused(location, f"{message} close")
                last.has_children, last.label = True, last.label or ""
                if last.label == "" and len(opened) > 1:
                    raise refused(
                        last.location,
                        f"a bracket without a label is inside the tree that begins at "
                        f"{opened[0].location}: it needs a label, or the tree is not closed",
                    )
            opened.append(_Bracket(location, len(words), len(constituents)))
            constituents.append(None)
        elif last is None:
            raise refused(
                location,
                "a bracket closes that was never opened"
                if token == ")"
                else f"{token[:40]!r} is outside of brackets, where a tree should begin with '('",
            )
        elif token != ")":
            if last.label is None:
                last.label = token
            elif last.word is None and not last.has_children:
                last.word = token
            else:
                sibling = "brackets" if last.has_children else f"the word {last.word!r}"
                message = f"the word {token[:40]!r} is next to {sibling}: it needs separate"
                raise refused(location, f"{message} brackets")
        else:
            opened.pop()
            label = last.label or ""
            if last.word is not None:
                if label != TRACE:
                    words.append(last.word)
                    tags.append(label)
            elif not last.has_children:
                message = f"the bracket ({label}) is empty: it needs a word or brackets inside"
                raise refused(last.location, message)
            elif len(words) > last.start and (opened or label not in ROOTS):
                constituents[last.number] = Constituent(
                    _without_function(label), last.start, len(words)
                )
            if not opened:
                if not words:
                    raise refused(location, "the tree that ends here lacks words")
                kept = tuple(found for found in constituents if found is not None)
                yield Tree(tuple(words), tuple(tags), kept)
                words, tags, constituents = [], [], []
    if opened:
        raise refused(
            opened[0].location,
            f"the tree that begins here is not closed, {len(opened)} closing brackets are missing",
        )


def _tokens(lines: Iterable[str], name: str) -> Iterator[tuple[str, str]]:
    """Yields the location and the text of each bracket and word."""
    for number, line in enumerate(lines, start=1):
        if control := _CONTROL.search(line):
            raise InputError(
                f"{name}, line {number}, column {control.start() + 1}: the tree contains the "
                f"control character U+{ord(control[0]):04X}. Remove it."
            )
        for found in _TOKEN.finditer(line):
            yield f"line {number}, column {found.start() + 1}", found[0]


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
    for constituent, position in tree.walk():
        if constituent is None:
            symbols.append(tree.tags[position] if tags else WORD)
        else:
            bracket = OPEN if position == constituent.start else CLOSE
            symbols.append(bracket + constituent.label)
    return symbols


class SymbolKind(enum.IntEnum):
    """The effect of a symbol on a tree."""

    NOTHING = 0
    OPEN = 1
    CLOSE = 2
    WORD = 3

    @classmethod
    def of(cls, symbol: str) -> SymbolKind:
        """Parses any text as a symbol. Labels and tags must be possible in a tree."""
        if symbol.startswith(CLOSE):
            return cls.CLOSE
        if not is_name(symbol.removeprefix(OPEN)) or symbol == TRACE:
            return cls.NOTHING
        return cls.OPEN if symbol.startswith(OPEN) else cls.WORD


def restore(words: Sequence[str], symbols: Iterable[str]) -> Tree:
    """Builds a tree over exactly these words from any symbols.

    * A closing bracket of any label closes the last opened bracket, if there is one.
    * Symbols for words beyond the last word are ignored. Words without a symbol come at the end,
      inside the open brackets, with the tag `XX`.
    * Open brackets are closed at the end. Constituents without words are left out.

    `text_ops.restore_trees` does the same in a graph.
    """
    tags: list[str] = []
    constituents: list[Constituent] = []
    opened: list[int] = []  # indices of the open `constituents`
    for symbol in (*symbols, *[WORD] * len(words)):
        kind = SymbolKind.of(symbol)
        if kind is SymbolKind.WORD and len(tags) < len(words):
            tags.append(symbol)
        elif kind is SymbolKind.OPEN:
            opened.append(len(constituents))
            constituents.append(Constituent(symbol.removeprefix(OPEN), len(tags), len(words)))
        elif kind is SymbolKind.CLOSE and opened:
            last = opened.pop()
            constituents[last] = constituents[last]._replace(end=len(tags))
    held = tuple(found for found in constituents if found.start < found.end)
    return Tree(tuple(words), tuple(tags), held)


def symbols_of(trees: Iterable[Tree], tags: bool = True) -> list[str]:
    """Returns all symbols that trees with these labels and tags can contain, sorted."""
    symbols = set() if tags else {WORD}
    for tree in trees:
        symbols.update(tree.tags if tags else ())
        for constituent in tree.constituents:
            symbols.update((OPEN + constituent.label, CLOSE + constituent.label))
    return sorted(symbols)
