"""Symbols of spans and tags in training pairs, so that a model learns where they belong.

At run time, a symbol such as ｟0｠ stands for a span that a translation must keep. A pair such as
｟b0｠ and ｟e0｠ for a tag around words. Few corpora contain either.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random
from typing import NamedTuple, TypeAlias

import regex

from keras_transformer.data.augmentation import Pair
from keras_transformer.extensions.augmentation import alignment
from keras_transformer.extensions.augmentation.alignment import Lexicon, Link, Phrase
from keras_transformer.extensions.documents.spans import UNSPACED, Range, find_spans, spliced
from keras_transformer.inference.tags import add_tag, split_tags
from keras_transformer.text.symbols import SPAN_SYMBOLS, SYMBOLS, TAG_SYMBOLS
from keras_transformer.text.vocabulary import Vocabulary

Change: TypeAlias = tuple[int, int, str]  # a range of a text, and its new text
Changes: TypeAlias = list[Change]  # of the source and the target

_MOST_SPANS = 3
_MOST_TAGS = 2
_MARKS = (b"", b"", b"", b"", b"()", b'""')  # characters around a symbol
_WITHOUT_SPACE = regex.compile(rf"{UNSPACED}|[。、，！？；：]")


class Side(NamedTuple):
    """A text, its protected spans, and its other words."""

    text: str
    spans: list[Range]
    words: list[Range]

    def contents(self, ranges: Sequence[Range]) -> list[str]:
        """Returns the texts of ranges."""
        return [self.text[start:end] for start, end in ranges]


class SymbolAugmentation:
    """Adds symbols to training pairs: an `Augmentation` of the preparation."""

    kinds: Collection[str] = ("spans", "tags")
    symbols: Sequence[str] = SYMBOLS
    learn = staticmethod(alignment.learn_lexicon)

    def __init__(self, lexicon: Lexicon, vocabulary: Vocabulary) -> None:
        self._lexicon = lexicon
        self._known = sorted(vocabulary.source_symbols)
        ids = [vocabulary.encode_source(_MARKS), vocabulary.encode_target(_MARKS)]
        rows = zip(_MARKS, *ids, strict=True)
        self._marks = [m.decode() for m, s, t in rows if vocabulary.unknown_id not in s + t]

    def __call__(self, kind: str, pair: Pair, following: Pair, random_: Random) -> Pair | None:
        """Returns the pair with symbols, or None if it stays as it is."""
        if "｟" in "".join(pair):
            return None
        language, source = split_tags(pair[0], self._known)
        sides = [_side(text) for text in (source, pair[1])]
        words = [side.contents(side.words) for side in sides]
        links = alignment.aligned_words(words[0], words[1], self._lexicon)
        changes = self._changes(kind, sides, links, following, random_)
        if not changes:
            return None
        source, target = map(spliced, (source, pair[1]), zip(*changes, strict=True))
        return add_tag(source, language), target

    def _changes(
        self, kind: str, sides: Sequence[Side], links: Sequence[Link], following: Pair,
        random_: Random,
    ) -> list[Changes]:  # fmt: skip
        """Returns the changes of both sides, or none if the pair stays as it is."""
        if kind == "tags":
            tags = random_.sample(TAG_SYMBOLS, random_.randint(1, _MOST_TAGS))
            return _tagged(sides, links, tags, random_)
        symbols = random_.sample(SPAN_SYMBOLS, random_.randint(1, _MOST_SPANS))
        copied = _copied(sides, symbols, random_)
        return copied or _inserted(sides, links, symbols, self._marks, random_)


def _side(text: str) -> Side:
    """Finds the spans and the words of a text."""
    spans = find_spans(text)
    return Side(text, spans, alignment.word_ranges(text, spans))


def _copied(sides: Sequence[Side], symbols: Sequence[str], random_: Random) -> list[Changes]:
    """Replaces texts that occur once on both sides, such as names, by symbols."""
    source, target = map(_copyable, sides)
    copies = [text for text in source if text in target]
    chosen = zip(random_.sample(copies, len(copies)), symbols, strict=False)
    return [[(*source[text], symbol), (*target[text], symbol)] for text, symbol in chosen]


def _copyable(side: Side) -> dict[str, Range]:
    """Returns the spans, and the words with a digit or a capital, that occur once in a text."""
    ranges = side.words + side.spans
    found = dict(zip(side.contents(ranges), ranges, strict=True))
    kept = {*side.contents(side.spans)}
    kept |= {text for text in found if text != text.lower() or any(map(str.isdigit, text))}
    return {text: found[text] for text in found if text in kept and side.text.count(text) == 1}


def _inserted(
    sides: Sequence[Side], links: Sequence[Link], symbols: Sequence[str], marks: Sequence[str],
    random_: Random,
) -> list[Changes]:  # fmt: skip
    """Inserts symbols next to words that translate each other, or at the ends of both texts."""
    candidates = [([0, 0], False), ([len(side.text) for side in sides], True)]
    for link in links:
        words = [side.words[word] for side, word in zip(sides, link, strict=True)]
        candidates += [([word[0] for word in words], False), ([word[1] for word in words], True)]
    changes = list[Changes]()
    for symbol in symbols:
        positions, behind = random_.choice(candidates)
        mark = random_.choice(marks)
        changes.append(_at(sides, positions, mark[:1] + symbol + mark[1:], behind))
    return changes


def _at(sides: Sequence[Side], positions: Sequence[int], symbol: str, behind: bool) -> Changes:
    """Inserts a symbol behind or before the words at a position of each side."""
    changes = Changes()
    for side, position in zip(sides, positions, strict=True):
        space = "" if _WITHOUT_SPACE.match(side.text, position - behind) else " "
        changes.append((position, position, space + symbol if behind else symbol + space))
    return changes


def _tagged(
    sides: Sequence[Side], links: Sequence[Link], tags: Sequence[tuple[str, str]], random_: Random
) -> list[Changes]:
    """Puts pairs of symbols around phrases. One may contain another one, but they do not cross."""
    phrases = alignment.phrases_of(links)
    chosen = list[Phrase]()
    for phrase in random_.sample(phrases, len(phrases)):
        if len(chosen) < len(tags) and not any(_cross(phrase[0], other) for other, _ in chosen):
            chosen.append(phrase)
    chosen.sort(key=lambda phrase: [first - last for first, last in phrase])  # the longest first
    changes = list[Changes]()
    for phrase, (begin, end) in zip(chosen, tags, strict=False):
        ranges = [side.words[first:last] for side, (first, last) in zip(sides, phrase, strict=True)]
        changes.append(_at(sides, [words[0][0] for words in ranges], begin, False))
        # Where a tag ends and another one begins, without a space, the first one ends first.
        changes.insert(0, _at(sides, [words[-1][1] for words in ranges], end, True))
    return changes


def _cross(first: Range, second: Range) -> bool:
    """Returns whether ranges of source words overlap. Then the translations overlap, too."""
    (a, b), (c, d) = sorted([first, second])
    return a < c < b < d
