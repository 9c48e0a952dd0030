"""Trees as sequences of symbols, and back (Vinyals et al., 2015, section 2.2).

A tree is walked depth first. A constituent is `(NP` where it opens and `)NP` where it closes; each
word is the tag of its part of speech, or `XX`, whatever it is:

    (TOP (S (NP (DT The) (NN cat)) (VP (VBZ sleeps)) (. .)))
    (S (NP DT NN )NP (VP VBZ )VP . )S
    (S (NP XX XX )NP (VP XX )VP XX )S

Tags say which word the model is at. Without them it has to count, and one word that it missed
moves all brackets behind it.

The labels of closing brackets tell nothing that the opening ones have not. They are there for the
model, to which they say what it has closed; the sequence is not a symbol longer for them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

from keras_transformer.paper.parsing.trees import TRACE, Constituent, Tree, is_name

WORD = "XX"
OPEN = "("
CLOSE = ")"


def linearize(tree: Tree, tags: bool = True) -> list[str]:
    """Returns the symbols of a tree, of which `restore` makes the same tree.

    Args:
        tree: a tree.
        tags: whether its tags are among them; if not, they are not restored.
    """
    symbols = []
    for constituent, place in tree.walk():
        if constituent is None:
            symbols.append(tree.tags[place] if tags else WORD)
        else:
            bracket = OPEN if place == constituent.start else CLOSE
            symbols.append(bracket + constituent.label)
    return symbols


class Does(enum.IntEnum):
    """What a symbol does, wherever it stands."""

    NOTHING = 0
    OPEN = 1
    CLOSE = 2
    STAND = 3  # for a word

    @classmethod
    def of(cls, symbol: str) -> Does:
        """Any text is a symbol; labels and tags are those that a tree can have."""
        if symbol.startswith(CLOSE):
            return cls.CLOSE
        if not is_name(symbol.removeprefix(OPEN)) or symbol == TRACE:
            return cls.NOTHING
        return cls.OPEN if symbol.startswith(OPEN) else cls.STAND


def restore(words: Sequence[str], symbols: Iterable[str]) -> Tree:
    """Makes a tree over exactly these words of any symbols whatever.

    * A closing bracket closes what was opened last, whatever its label, and nothing where
      nothing is open.
    * What stands for a word beyond the last is nothing; words for which nothing stands come at
      the end, within what is open there, each with the tag `XX`.
    * What is open at the end is closed; what then holds no word is left out.

    `restoration.restored` does the same within a graph.

    Args:
        words: any number of them.
        symbols: as `linearize` returns them, or not.
    """
    tags: list[str] = []
    constituents: list[Constituent] = []
    opened: list[int] = []  # those of `constituents` that are
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
    """Returns all symbols that trees of these labels, and of these tags, can have, sorted."""
    symbols = set() if tags else {WORD}
    for tree in trees:
        symbols.update(tree.tags if tags else ())
        for constituent in tree.constituents:
            symbols.update((OPEN + constituent.label, CLOSE + constituent.label))
    return sorted(symbols)
