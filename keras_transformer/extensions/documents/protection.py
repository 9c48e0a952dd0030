"""Translates sentences so that each protected span is in the output exactly once, unchanged.

There are three ways. Each one gets the sentences in which the ways before it lost a span:

1. `kept`: the model copies the span, or a stand-in such as X1, which is replaced afterwards. A
   check of the output finds spans that are missing, changed or repeated.
2. `aligned`: the sentence is translated without its spans. Each one is inserted before the
   translation of the word that follows it in the source, if the model returns alignments.
3. `appended`: the same without alignments, at the same relative position in the sentence.

A model whose vocabulary has symbols for spans would be another way of `_WAYS`, before the others.
"""

from __future__ import annotations

import bisect
import collections
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import regex

from keras_transformer.extensions.documents import spans as spans_module
from keras_transformer.extensions.documents.sentences import gap_between, split_to_fit
from keras_transformer.extensions.documents.spans import Span, find_spans
from keras_transformer.inference.engine import Engine
from keras_transformer.inference.tags import add_tag
from keras_transformer.inference.translate import translate_lines, translate_verbose

Range = tuple[int, int]  # the first character, and the one after the last

_UNSPACED = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"
_LETTER = rf"(?:(?!{_UNSPACED})[\w\p{{M}}])"
# In scripts without spaces, each character is a word.
_WORD = regex.compile(rf"{_UNSPACED}\p{{M}}*|{_LETTER}+(?:['’.-]{_LETTER}+)*|\S")
_STAND_IN = r"\bX\d+\b"
# These may follow a span, or precede it, without a space.
_AFTER, _BEFORE = ".,;!?)]»”。，、", "([«“„¿¡"


class Aligned(NamedTuple):
    """A translation with its words.

    Attributes:
        text: the translation.
        words: the range of each of its words. A protected span is one word.
        sources: for each word the index of a word of the source. Empty if the source has no words.
        spans: the ranges of the protected spans in `text`.
        status: None, or the way that kept the spans.
    """

    text: str
    words: list[Range]
    sources: list[int]
    spans: Sequence[Range] = ()
    status: str | None = None


def words_of(text: str, spans: Sequence[Range]) -> list[Range]:
    """Returns the ranges of the words and punctuation marks of a text. A span is one word."""
    words, start = [], 0
    for first, last in [*spans, (len(text), len(text))]:
        words += [match.span() for match in _WORD.finditer(text, start, first)]
        words += [(first, last)] if last > first else []
        start = last
    return words


def ranges_of(text: str, patterns: Sequence[str]) -> list[Range]:
    """Returns the ranges of the protected spans of a text."""
    return [(span.start, span.end) for span in find_spans(text, patterns)]


def slot_of(position: int, count: int, aligned: Aligned, follows: bool = False) -> int:
    """Returns before which word of a translation something is inserted.

    In the source, it is after `position` of the `count` words. If it `follows`, it stays with the
    word before it, and not with the one after it.
    """
    if position == 0 or not aligned.sources:
        return 0
    if position >= count:
        return len(aligned.words)
    if position in aligned.sources and not follows:
        return aligned.sources.index(position)
    before = [word for word, source in enumerate(aligned.sources) if source < position]
    return max(before, key=lambda word: (aligned.sources[word], word), default=-1) + 1


def translate_protected(
    model: Engine,
    sentences: Sequence[str],
    patterns: Sequence[str] = (),
    tag: str = "",
    needs_words: bool = False,
) -> list[Aligned]:
    """Translates sentences. Each protected span is in the output exactly once, byte for byte.

    Args:
        sentences: texts of one sentence each, without white space around them.
        patterns: regular expressions of spans, besides those of `find_spans`.
        tag: a symbol for the start of each sentence, such as <2de>.
        needs_words: whether the words and their alignment are used.
    """
    spans = [find_spans(text, patterns) for text in sentences]
    originals = [_as_they_are(*pair) for pair in zip(sentences, spans, strict=True)]
    outputs = _with_branches(model, sentences, spans, patterns, tag)
    results: dict[int, Aligned] = {}
    for index, text in enumerate(sentences):
        if not regex.search(r"\w", _without(text, spans[index])):  # nothing to translate
            copy = _by_position(text, text, patterns)
            results[index] = _substituted(copy, originals[index], outputs[index])
    patterns = (*patterns, _STAND_IN)
    for way in _WAYS:
        lines = {}
        for index, text in enumerate(sentences):
            symbols = way(text, spans[index])
            changes = way is _as_they_are and symbols != outputs[index]
            is_line = all(len(symbol.splitlines()) == 1 for symbol in symbols)
            if index not in results and is_line and not changes:
                lines[index] = _replaced(text, spans[index], symbols), symbols
        split = split_to_fit(model, tag, [line for line, _ in lines.values()])
        fitting = [index for index, parts in zip(lines, split, strict=True) if len(parts) == 1]
        texts = [lines[index][0] for index in fitting]
        found = _translate(model, texts, patterns, tag, needs_words)
        for index, aligned in zip(fitting, found, strict=True):
            symbols = lines[index][1]
            counts = collections.Counter(aligned.text[slice(*place)] for place in aligned.spans)
            is_copied = all(counts[symbol] == symbols.count(symbol) for symbol in symbols)
            if is_copied and not (counts.keys() - {*symbols}).intersection(originals[index]):
                results[index] = _substituted(aligned, symbols, outputs[index])
    todo = [index for index in range(len(sentences)) if index not in results]
    rests = [" ".join(_without(sentences[index], spans[index]).split()) for index in todo]
    parts = split_to_fit(model, tag, rests)
    lines_of_rests = [part.strip() for group in parts for part in group if part.strip()]
    found_rests = iter(_translate(model, lines_of_rests, patterns, tag, True))
    status = "appended" if model.translate_verbose is None else "aligned"
    for index, group in zip(todo, parts, strict=True):
        _, rest = joined(group, found_rests, patterns)
        found_spans = find_spans(rest.text, patterns)
        texts = _as_they_are(rest.text, found_spans)
        invented = [s for s, t in zip(found_spans, texts, strict=True) if t in originals[index]]
        if invented:  # the model has learned one of the spans
            rest = _by_position("".join(group), _without(rest.text, invented), patterns)
        inserted = _with_inserted(sentences[index], spans[index], outputs[index], rest)
        results[index] = inserted._replace(status=status if spans[index] else None)
    return [results[index] for index in range(len(sentences))]


def _as_they_are(text: str, spans: Sequence[Span]) -> list[str]:
    return [text[span.start : span.end] for span in spans]


def _stand_ins(text: str, spans: Sequence[Span]) -> list[str]:
    """Returns X1, X2 and so on, without those that the text contains."""
    numbers = (number for number in range(1, len(text) + 2) if f"X{number}" not in text.upper())
    return [f"X{next(numbers)}" for _ in spans]


# Each returns the texts that represent the spans in the line that the model gets.
_WAYS = (_as_they_are, _stand_ins)


def _replaced(text: str, spans: Sequence[Span], new: Sequence[str]) -> str:
    for span, part in zip(reversed(spans), reversed(new), strict=True):
        text = text[: span.start] + part + text[span.end :]
    return text


def _without(text: str, spans: Sequence[Span]) -> str:
    return _replaced(text, spans, [" "] * len(spans))


def _with_branches(
    model: Engine,
    sentences: Sequence[str],
    spans: Sequence[Sequence[Span]],
    patterns: Sequence[str],
    tag: str,
) -> list[list[str]]:
    """Returns the texts of the spans in the output. Branches of ICU messages are translated."""
    outputs = [_as_they_are(*pair) for pair in zip(sentences, spans, strict=True)]
    branches = [
        text[slice(*branch)].strip()
        for text, found in zip(sentences, spans, strict=True)
        for span in found
        for branch in span.branches
    ]
    if not branches:
        return outputs
    inner = (*patterns, *spans_module.BRANCH_PATTERNS)
    results = iter(zip(branches, translate_protected(model, branches, inner, tag), strict=True))
    for text, found, output in zip(sentences, spans, outputs, strict=True):
        for number, span in enumerate(found):
            parts, cursor = [], span.start
            for start, end in span.branches:
                source, aligned = next(results)
                new = source if aligned.text == source else _quoted(aligned)
                parts += [text[cursor:start], text[start:end].replace(source, new or source, 1)]
                cursor = end
            output[number] = "".join(parts) + text[cursor : span.end]
    return outputs


def _quoted(aligned: Aligned) -> str:
    """Returns a translated branch, with its text quoted where a message needs it."""
    output, cursor = "", 0
    for start, end in aligned.spans:
        output += spans_module.quote_for_icu(aligned.text[cursor:start], aligned.text[start])
        output += aligned.text[start:end]
        cursor = end
    return output + spans_module.quote_for_icu(aligned.text[cursor:])


def _substituted(aligned: Aligned, symbols: Sequence[str], new: Sequence[str]) -> Aligned:
    """Replaces the symbols of spans in a translation. Other spans of it stay."""
    numbers = collections.defaultdict[str, list[str]](list)
    for symbol, part in zip(symbols, new, strict=True):
        numbers[symbol].append(part)
    output, cursor, moved = "", 0, []
    for start, end in aligned.spans:
        output += aligned.text[cursor:start]
        symbol = aligned.text[start:end]
        part = numbers[symbol].pop(0) if numbers[symbol] else symbol
        moved.append((len(output), len(output) + len(part)))
        output += part
        cursor = end
    output += aligned.text[cursor:]
    status = "kept" if symbols else None
    return Aligned(output, words_of(output, moved), aligned.sources, moved, status)


def joined(
    pieces: Sequence[str], results: Iterator[Aligned], patterns: Sequence[str]
) -> tuple[list[Range], Aligned]:
    """Returns the words of the source, and its translation, from those of its sentences."""
    source_words, text, words, sources = list[Range](), "", list[Range](), list[int]()
    offset, gap, last = 0, "", ""
    for piece in pieces:
        sentence = piece.strip()
        start = piece.index(sentence)
        gap += piece[:start]
        if sentence:
            aligned = next(results)
            text += gap_between(gap, text, last)
            words += [(first + len(text), end + len(text)) for first, end in aligned.words]
            sources += [source + len(source_words) for source in aligned.sources]
            found = words_of(sentence, ranges_of(sentence, patterns))
            source_words += [(s + offset + start, e + offset + start) for s, e in found]
            text += aligned.text
            gap, last = "", sentence
        gap += piece[start + len(sentence) :]
        offset += len(piece)
    return source_words, Aligned(text + gap, words, sources)


def _with_inserted(
    text: str, spans: Sequence[Span], outputs: Sequence[str], rest: Aligned
) -> Aligned:
    """Inserts the spans of a text into the translation of the text without them."""
    ranges = [(span.start, span.end) for span in spans]
    words = words_of(text, ranges)
    plain = [index for index, word in enumerate(words) if word not in ranges]
    atoms = [index for index, word in enumerate(words) if word in ranges]
    items = []
    for number, (start, end) in enumerate(ranges):
        slot = slot_of(bisect.bisect_left(plain, atoms[number]), len(plain), rest)
        position = rest.words[slot][0] if slot < len(rest.words) else len(rest.text)
        before, after = text[:start][-1:], text[end:][:1]
        if slot and before.strip() and rest.text[rest.words[slot - 1][1] - 1] == before:
            position = rest.words[slot - 1][1]  # it follows the same character, such as #
        items.append((slot, number, position, before, after))
    items.sort()
    output, cursor, moved = "", 0, list[Range]()
    for index, (_, number, position, before, after) in enumerate(items):
        output += rest.text[cursor : max(cursor, position)]
        cursor = max(cursor, position)
        output += " " * _needs_space(output[-1:], before, _BEFORE)
        moved.append((len(output), len(output) + len(outputs[number])))
        output += outputs[number]
        is_last = index + 1 == len(items) or items[index + 1][2] > cursor
        neighbor = rest.text[cursor : cursor + 1]
        output += " " * (is_last and _needs_space(neighbor, after, _AFTER))
    output += rest.text[cursor:]
    numbers, sources = iter([number for _, number, *_ in items]), iter(rest.sources)
    found = words_of(output, moved)
    aligned = [
        atoms[next(numbers)] if word in moved else plain[min(next(sources, 0), len(plain) - 1)]
        for word in found
    ]
    return Aligned(output, found, aligned, moved)


def _needs_space(neighbor: str, in_source: str, marks: str) -> bool:
    """Returns whether a space is needed between a span and its neighbor in the output."""
    return bool(neighbor.strip()) and neighbor != in_source and neighbor not in marks


def _translate(
    model: Engine, lines: Sequence[str], patterns: Sequence[str], tag: str, needs_words: bool
) -> list[Aligned]:
    """Translates lines. Without `translate_verbose`, words are aligned by relative position."""
    tagged = [add_tag(line, tag) for line in lines]
    if not needs_words or model.translate_verbose is None:
        pairs = zip(lines, translate_lines(model, tagged), strict=True)
        return [_by_position(line, best.text, patterns) for line, (best, *_) in pairs]
    items = zip(lines, tagged, translate_verbose(model, tagged), strict=True)
    return [_aligned(*item, patterns) for item in items]


def _by_position(source: str, text: str, patterns: Sequence[str]) -> Aligned:
    text = " ".join(text.splitlines()).strip()
    spans = ranges_of(text, patterns)
    words, count = words_of(text, spans), len(words_of(source, ranges_of(source, patterns)))
    sources = [index * count // len(words) for index in range(len(words))] if count else []
    return Aligned(text, words, sources, spans)


def _aligned(line: str, tagged: str, details: dict[str, Any], patterns: Sequence[str]) -> Aligned:
    """Returns the best translation of a line. The pieces of a word vote for its source word."""
    best = next(iter(details["translations"]), {"text": ""})
    aligned = _by_position(line, best["text"], patterns)
    if not aligned.sources:
        return aligned
    offset = len(tagged) - len(line)
    starts = [start + offset for start, _ in words_of(line, ranges_of(line, patterns))]
    source_positions = _positions(details["source_tokens"], tagged)
    votes = [collections.Counter[int]() for _ in aligned.words]
    targets = [start for start, _ in aligned.words]
    positions = _positions(best["tokens"], aligned.text)
    for position, piece in zip(positions, best["alignment"], strict=True):
        source = source_positions[min(piece, len(source_positions) - 1)]
        word = max(0, bisect.bisect_right(targets, position) - 1)
        votes[word][max(0, bisect.bisect_right(starts, source) - 1)] += 1
    for word, counts in enumerate(votes):
        if counts:
            aligned.sources[word] = counts.most_common(1)[0][0]
    return aligned


def _positions(pieces: Sequence[str], text: str) -> list[int]:
    """Returns the index of the character in the middle of each piece of a text."""
    # The vocabulary may have normalized the text. Then positions are scaled to its length.
    letters = [index for index, character in enumerate(text) if not character.isspace()]
    # Tokens such as </s> and <0xE4> are not the text of one.
    sizes = [0 if regex.fullmatch(r"</?\w+>", p) else len(p.replace("▁", "")) for p in pieces]
    scale, before, positions = len(letters) / max(1, sum(sizes)), 0, []
    for size in sizes:
        positions.append(letters[min(len(letters) - 1, int((before + size / 2) * scale))])
        before += size
    return positions
