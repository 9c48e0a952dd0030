"""Places tags and spans in a translation, by the alignment of its words."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from keras_transformer.extensions.documents.spans import Range

# These may follow a tag or span, or precede it, without a space.
_AFTER, _BEFORE = ".,;:!?)]»”。，、", "([«“„¿¡"


class Token(NamedTuple):
    """The characters of a text or of a tag.

    Attributes:
        kind: "text", "open", "close" or "empty". Empty ones are copied.
        raw: the characters in the file.
        name: the name of an element.
        text: the text, without entities.
    """

    kind: str
    raw: str
    name: str = ""
    text: str = ""


class Word(NamedTuple):
    """A word, a punctuation mark or a protected span.

    Attributes:
        gap: the white space before it.
        text: its characters.
        source: for a word of a translation, the index of a word of the source.
        is_span: whether it is protected.
    """

    gap: str
    text: str
    source: int = 0
    is_span: bool = False


class _Mark(NamedTuple):
    """An element around the words first to last of the source, or a tag between two words."""

    first: int
    last: int
    start: int  # the index of its first token
    stop: int  # the index of its last token
    left: str  # the character of the text before it
    right: str  # the character of the text after it
    is_apart: bool  # whether white space, and not another tag, is before it

    @property
    def follows(self) -> bool:
        """Whether it stays with the word before it."""
        return bool(self.left.strip()) and self.right.isspace()


def text_of(words: Sequence[Word]) -> str:
    """Returns the text that consists of the words."""
    return "".join(word.gap + word.text for word in words)


def with_tags(
    tokens: Sequence[Token], source: Sequence[Word], translation: Sequence[Word]
) -> list[Word]:
    """Returns the words of a translation, with the tags of its source as spans between them.

    Args:
        tokens: the text of the source, and its tags. A tag that does not match another one is kept
            like a tag between words.
        source: the words of this text.
        translation: the words of its translation.
    """
    marks = _marks(tokens, source)
    words = [*translation, Word("", "")]
    gaps = [word.gap for word in words]
    before = [list[Word]() for _ in words]  # the tags in front of each word
    after = [list[Word]() for _ in words]  # the tags that follow the word before each word

    def write(position: int, end: int, first: int, last: int) -> None:
        """Places the tags of some tokens within some words of the translation."""
        inside = []
        while position < end:
            if mark := marks.get(position):
                inside.append(mark)
                position = mark.stop
            position += 1
        placed = _placed(inside, (first, last), [word.source for word in translation], len(source))
        for start, stop, mark in placed:
            if start < stop:
                before[start].append(Word(gaps[start], tokens[mark.start].raw))
                gaps[start] = ""
                write(mark.start + 1, mark.stop, start, stop)
                after[stop].append(Word("", tokens[mark.stop].raw))
                continue
            follows = start > first and (mark.follows or start == last) and not before[start]
            left = [*after[start], *before[start]][-1:]
            needs_space = start > first and _needs_space(
                words[start - 1].text[-1:], mark.left, _BEFORE
            )
            space = " " * (mark.is_apart if left and left[0].is_span else needs_space)
            gap = "" if follows else gaps[start].replace("  ", " ")
            tags = [t.raw for t in tokens[mark.start : mark.stop + 1] if t.kind != "text"]
            word = Word(gap or space, "".join(tags), mark.start, is_span=True)
            (after if follows else before)[start].append(word)
            space = " " * _needs_space(words[start].text[:1], mark.right, _AFTER)
            gaps[start] = (follows and gaps[start]) or space

    write(0, len(tokens), 0, len(translation))
    output = []
    for index, word in enumerate(words):
        output += [*after[index], *before[index], word._replace(gap=gaps[index])]
    return output[:-1]


def _needs_space(neighbor: str, in_source: str, marks: str) -> bool:
    """Returns whether a space is needed between a tag and its neighbor in the output."""
    inside_word = neighbor.isalnum() and in_source.isalnum()
    return bool(neighbor.strip()) and neighbor not in (in_source, *marks) and not inside_word


def _marks(tokens: Sequence[Token], source: Sequence[Word]) -> dict[int, _Mark]:
    """Returns the elements and the other tags by the indices of their first tokens."""
    closing: dict[int, int] = {}
    opened: list[int] = []
    for index, token in enumerate(tokens):
        if token.kind == "open":
            opened.append(index)
        elif token.kind == "close":
            while token.name in [tokens[start].name for start in opened]:
                start = opened.pop()
                if tokens[start].name == token.name:
                    closing[start] = index
                    break
    offsets = [0, *itertools.accumulate(len(token.text) for token in tokens)]
    ends = [*itertools.accumulate(len(word.gap + word.text) for word in source)]
    starts = [end - len(word.text) for word, end in zip(source, ends, strict=True)]
    text = "".join(token.text for token in tokens)
    marks = {}
    for start, token in enumerate(tokens):
        if token.kind != "text":
            stop = closing.get(start, start)
            begin, end = offsets[start], offsets[stop]
            first = bisect.bisect_right(ends, begin)
            last = max(first, bisect.bisect_left(starts, end)) if begin < end else first
            is_apart = tokens[max(0, start - 1)].raw[-1:].isspace()
            left, right = text[:begin][-1:], text[end : end + 1]
            marks[start] = _Mark(first, last, start, stop, left, right, is_apart)
    return marks


def slot_of(position: int, count: int, sources: Sequence[int], follows: bool = False) -> int:
    """Returns before which word of a translation something is inserted.

    Args:
        position: in the source, the number of words before it.
        count: the number of words of the source.
        sources: for each word of the translation, the index of a word of the source.
        follows: whether it stays with the word before it, and not with the one after it.
    """
    if position == 0:
        return 0
    if position >= count:
        return len(sources)
    if position in sources and not follows:
        return sources.index(position)
    before = [word for word, source in enumerate(sources) if source < position]
    return max(before, key=lambda word: (sources[word], word), default=-1) + 1


def _placed(
    marks: Sequence[_Mark], words: Range, sources: Sequence[int], source_count: int
) -> list[tuple[int, int, _Mark]]:
    """Returns for each mark the words of the translation that it contains, in their order.

    The marks have the same element around them, which contains `words` of the translation.
    `sources` has the index of a word of the source, of `source_count`, for each of these words.
    """
    ranges: dict[int, Range] = {}
    free = set(range(*words))
    for is_relative in (False, True):
        for index, mark in enumerate(marks):
            if mark.last > mark.first and index not in ranges and free:
                middle = (mark.first + mark.last) / 2 / source_count * len(sources)
                nearest = min(free, key=lambda word: abs(word + 0.5 - middle))
                found = (nearest, nearest + 1) if is_relative else _best_range(mark, free, sources)
                if found:
                    ranges[index] = found
                    free -= set(range(*found))
    elements, slot = [*ranges.values()], words[0]
    for index, mark in enumerate(marks):
        if index not in ranges:  # tags between words keep their order
            slot = max(slot, slot_of(mark.first, source_count, sources, mark.follows))
            slot = next((last for first, last in elements if first < slot < last), slot)
            slot = min(slot, words[1])
            ranges[index] = (slot, slot)
    order = sorted(range(len(marks)), key=lambda index: (*ranges[index], index))
    return [(*ranges[index], marks[index]) for index in order]


def _best_range(mark: _Mark, free: set[int], sources: Sequence[int]) -> Range | None:
    """Returns the contiguous free words that represent an element best, or None.

    A word that translates one of the element counts 1, another one -1.
    """
    best, best_total, total, start = None, 0, 0, 0
    for word in sorted(free):
        if total <= 0 or word - 1 not in free:
            total, start = 0, word
        total += 1 if mark.first <= sources[word] < mark.last else -1
        if total > best_total:
            best, best_total = (start, word + 1), total
    return best
