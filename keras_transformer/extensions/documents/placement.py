"""Places the tags and spans of a sentence in its translation, by the alignment of its words."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple

from keras_transformer.extensions.documents.spans import Range

# These may follow a tag or span, or precede it, without a space.
_AFTER, _BEFORE = ".,;:!?)]»”。，、", "([«“„¿¡"

_DEEPEST = 100  # elements inside of each other


class Word(NamedTuple):
    """A word, a punctuation mark, a protected span or a tag.

    Attributes:
        gap: the white space before it.
        text: its characters.
        kind: "word", "span", or the kind of a tag: "open", "close" or "empty".
        name: the name of the element of a tag; for the translation of a term, the term; for a soft
            term, what the model gets.
        source: its index in the sentence; in a translation, the index of the word that it
            translates.
    """

    gap: str
    text: str
    kind: str = "word"
    name: str = ""
    source: int = 0

    @property
    def is_tag(self) -> bool:
        """Whether it is a tag."""
        return self.kind not in ("word", "span")


def text_of(words: Sequence[Word]) -> str:
    """Returns the text that consists of the words."""
    return "".join(word.gap + word.text for word in words)


def text_without_tags(words: Sequence[Word]) -> str:
    """Returns the text that consists of the words that are not tags."""
    return "".join(word.gap + word.text * (not word.is_tag) for word in words)


def end_tags(words: Sequence[Word]) -> dict[int, int]:
    """Returns the index of the end tag for each start tag that has one, if it is not too deep."""
    found: dict[int, int] = {}
    opened: list[int] = []
    for index, word in enumerate(words):
        if word.kind == "open" and len(opened) < _DEEPEST:
            opened.append(index)
        while word.kind == "close" and word.name in [words[start].name for start in opened]:
            start = opened.pop()
            if words[start].name == word.name:
                found[start] = index
                break
    return found


def with_tags(source: Sequence[Word], translation: Sequence[Word]) -> list[Word]:
    """Returns a translation with the tags of its source, and the spans that it lacks.

    A tag that does not match another one is placed like an element without words.
    """
    placement = _Placement(source, translation)
    placement.write(0, len(source), 0, len(placement.sources))
    return placement.output


class _Placement:
    """A translation, in which marks are written: tags of its source, and spans that it lacks."""

    def __init__(self, source: Sequence[Word], translation: Sequence[Word]) -> None:
        self.source, self.output = source, list[Word]()
        self.words = list[Word]()  # the translation without tags
        self.known = dict[int, int]()  # for each tag of the translation, the word behind it
        gap = ""
        for word in translation:
            gap = gap or word.gap
            if word.is_tag:
                self.known[word.source] = len(self.words)
            else:
                self.words.append(word._replace(gap=gap))
                gap = ""
        self.sources = [word.source for word in self.words]
        self.pairs = sorted((source, word) for word, source in enumerate(self.sources))
        self.words.append(Word("", ""))
        kept = {word.source for word in translation if word.kind == "span"}
        self.marks = {
            index
            for index, word in enumerate(source)
            if word.is_tag or (word.kind == "span" and index not in kept)
        }
        self.ends = {mark: mark for mark in self.marks} | end_tags(source)
        self.following = [""] * (len(source) + 1)  # the character at each word, without tags
        for i in reversed(range(len(source))):
            text = source[i].gap + source[i].text * (not source[i].is_tag)
            self.following[i] = text[:1] or self.following[i + 1]
        self.first_word = next((i for i in range(len(source)) if i not in self.marks), len(source))

    def write(self, start: int, stop: int, first: int, last: int) -> None:
        """Writes the words from first to last, and the marks from start to stop of the source."""
        marks = []
        while start < stop:
            if start in self.marks:
                marks.append(start)
            start = self.ends.get(start, start) + 1
        position = first
        for begin, end, mark in self._ranges(marks, first, last):
            self.output += self.words[position:begin]
            if begin < end:
                self.output.append(self.source[mark]._replace(gap=self.words[begin].gap))
                # A tag without an end tag is like a word, with a space behind it.
                gap = "" if self.source[self.ends[mark]].text else self.source[mark + 1].gap
                self.words[begin] = self.words[begin]._replace(gap=gap)
                self.write(mark + 1, self.ends[mark], begin, end)
                self.output.append(self.source[self.ends[mark]]._replace(gap=""))
            else:
                self._write_between(mark, begin, first, last)
            position = end
        self.output += self.words[position:last]

    def _ranges(self, marks: Sequence[int], first: int, last: int) -> list[tuple[int, int, int]]:
        """Returns which words of the translation marks contain: (first, last, mark), in order.

        The marks have the same element around them, with the words from first to last. An element
        of several sentences has tags without text: it reaches the border of the sentence.
        """
        ranges: dict[int, Range] = {}
        free = set(range(first, last))
        begins = {mark for mark in marks if not self.source[mark].text}
        ends = {mark for mark in marks if not self.source[self.ends[mark]].text}
        with_words = [m for m in marks if not self.marks.issuperset(range(m, self.ends[m] + 1))]
        with_words.sort(key=lambda mark: mark not in begins | ends)
        for find in (self._known_range, self._best_range):
            for mark in with_words:
                if mark not in ranges and (found := find(mark, free)):
                    begin, end = found
                    begin, end = first if mark in begins else begin, last if mark in ends else end
                    ranges[mark] = begin, end
                    free -= set(range(begin, end))
        elements, slot = [*ranges.values()], first
        for mark in marks:
            if mark not in ranges:  # marks without words keep their order
                slot = max(slot, self._slot(mark))
                slot = next((end for begin, end in elements if begin < slot < end), slot)
                slot = first if mark in begins else last if mark in ends else min(slot, last)
                ranges[mark] = (slot, slot)
        return sorted((*ranges[mark], mark) for mark in marks)

    def _known_range(self, mark: int, free: set[int]) -> Range | None:
        """Returns the words between the tags of an element in the translation, or None."""
        begin, end = self.known.get(mark, 0), self.known.get(self.ends[mark], 0)
        return (begin, end) if begin < end and free.issuperset(range(begin, end)) else None

    def _best_range(self, mark: int, free: set[int]) -> Range | None:
        """Returns the contiguous free words that represent an element best, or None.

        A word that translates one of the element counts 1, another one -1. Without any, it is the
        word at the relative position.
        """
        best, best_total, total, start = None, 0, 0, 0
        for word in sorted(free):
            if total <= 0 or word - 1 not in free:
                total, start = 0, word
            total += 1 if mark < self.sources[word] < self.ends[mark] else -1
            if total > best_total:
                best, best_total = (start, word + 1), total
        slot = self._slot(mark)
        return best or ((slot, slot + 1) if slot in free else None)

    def _slot(self, mark: int) -> int:
        """Returns before which word of the translation a mark is written."""
        if mark <= self.first_word:
            return 0
        index = bisect.bisect_left(self.pairs, (mark,))
        if self._follows(mark):
            return self.pairs[index - 1][1] + 1 if index else 0
        index = bisect.bisect_left(self.pairs, (mark + 1,))
        return self.pairs[index][1] if index < len(self.pairs) else len(self.pairs)

    def _follows(self, mark: int) -> bool:
        """Returns whether a mark stays with the word before it."""
        left, right = self._neighbors(mark)
        return bool(left.strip()) and right.isspace()

    def _neighbors(self, mark: int) -> tuple[str, str]:
        """Returns the characters before and after a mark in the source, without later tags."""
        left = (self.source[mark - 1].text if mark else "") + self.source[mark].gap
        return left[-1:], self.following[self.ends[mark] + 1]

    def _write_between(self, mark: int, slot: int, first: int, last: int) -> None:
        """Writes a mark without words. The spaces around it are like those in the source."""
        left, right = self._neighbors(mark)
        following = self.words[slot]
        follows = slot > first and (slot == last or self._follows(mark))
        is_behind = slot > first or (self.output and not self.output[-1].is_tag)
        before = self.output[-1].text[-1:] if is_behind else ""
        # Between the neighbors in the source, a space only stands for the mark.
        kept = "" if (before, following.text[:1]) == (left, right) else following.gap
        gap = ("" if follows else kept) or _space(before, left, _BEFORE)
        inner = range(mark, self.ends[mark] + 1)  # the words, if any, are elsewhere
        start, *others = (self.source[index] for index in inner if index in self.marks)
        self.output += [start._replace(gap=gap), *others]
        gap = (kept if follows else "") or _space(following.text[:1], right, _AFTER)
        self.words[slot] = following._replace(gap=gap)


def _space(neighbor: str, in_source: str, marks: str) -> str:
    """Returns the space that is needed between a mark and its neighbor in the translation."""
    inside_word = neighbor.isalnum() and in_source.isalnum()
    return " " * (
        bool(neighbor.strip()) and neighbor not in (in_source, *marks) and not inside_word
    )
