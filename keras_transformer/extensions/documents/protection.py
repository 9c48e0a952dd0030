"""Translates sentences so that each protected span is in the output exactly once, unchanged.

There are three ways. Each one gets the sentences in which the ways before it lost a span:

1. `kept`: the model copies the span, or a stand-in such as X1, which is replaced afterwards. A
   check of the output finds spans that are missing, changed or repeated.
2. `aligned`: the sentence is translated without its spans. Each one is inserted before the
   translation of the word that follows it in the source, if the model returns alignments.
3. `appended`: the same without alignments, at the same relative position in the sentence.

If the model returns nothing for the words of a sentence, its status is `empty`.

A model whose vocabulary has symbols for spans would be another way of `_WAYS`, before the others.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import regex

from keras_transformer.extensions.documents.placement import Token, Word, text_of, with_tags
from keras_transformer.extensions.documents.sentences import gap_between, split_to_fit, with_gaps
from keras_transformer.extensions.documents.spans import (
    BRANCH_PATTERNS,
    branches_of,
    find_spans,
    quote_for_icu,
    spliced,
)
from keras_transformer.inference.engine import Engine
from keras_transformer.inference.tags import add_tag
from keras_transformer.inference.translate import translate_lines, translate_verbose

STATUSES = ("kept", "aligned", "appended", "empty")

_UNSPACED = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"
_LETTER = rf"(?:(?!{_UNSPACED})[\w\p{{M}}])"
# In scripts without spaces, each character is a word.
_WORD = regex.compile(rf"{_UNSPACED}\p{{M}}*|{_LETTER}+(?:['’.-]{_LETTER}+)*|\S")
_STAND_IN = r"\bX\d+\b"


class Aligned(NamedTuple):
    """The words of a translation, and None or its status, such as "kept"."""

    words: list[Word]
    status: str | None = None

    @property
    def text(self) -> str:
        """The translation."""
        return text_of(self.words)


def words_of(text: str, patterns: Sequence[str] = ()) -> list[Word]:
    """Returns the words of a text, each with its own index as `source`."""
    ranges: list[tuple[int, int, bool]] = []
    cursor = 0
    for start, end in [*find_spans(text, patterns), (len(text), len(text))]:
        ranges += [(*match.span(), False) for match in _WORD.finditer(text, cursor, start)]
        ranges += [(start, end, True)] * (start < end)
        cursor = end
    ends = [0, *(end for _, end, _ in ranges)]
    return [
        Word(text[gap:start], text[start:end], index, is_span)
        for index, (gap, (start, end, is_span)) in enumerate(zip(ends, ranges, strict=False))
    ]


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
        needs_words: whether the alignment of the words is used.
    """
    sources = [words_of(text, patterns) for text in sentences]
    spans = [_spans(words) for words in sources]
    new = iter(_with_branches(model, [s for found in spans for s in found], patterns, tag))
    new_spans = [[next(new) for _ in found] for found in spans]
    results: dict[int, Aligned] = {}
    for index, words in enumerate(sources):
        if not regex.search(r"\w", _without_spans(words)):  # nothing to translate
            copy = _with_spans(words, new_spans[index])
            results[index] = Aligned(copy, "kept" if spans[index] else None)
    for way in _WAYS:
        todo = [index for index in range(len(sentences)) if index not in results]
        symbols = {index: way(sentences[index], spans[index]) for index in todo}
        lines = [text_of(_with_spans(sources[index], symbols[index])) for index in todo]
        split = split_to_fit(model, tag, lines)
        fitting = {
            index: parts[0] for index, parts in zip(todo, split, strict=True) if not parts[1:]
        }
        found = _translate(model, [*fitting.values()], [*patterns, _STAND_IN], tag, needs_words)
        for index, words in zip(fitting, found, strict=True):
            known = {*symbols[index], *spans[index]}
            copied = [span for span in _spans(words) if span in known]
            if sorted(copied) == sorted(symbols[index]):
                words = _substituted(words, symbols[index], new_spans[index])
                results[index] = _result(words, new_spans[index], "kept")
    todo = [index for index in range(len(sentences)) if index not in results]
    parts = split_to_fit(model, tag, [_without_spans(sources[index]) for index in todo])
    rests = [part.strip() for group in parts for part in group if part.strip()]
    translated = iter(_translate(model, rests, patterns, tag, needs_words=True))
    status = "appended" if model.translate_verbose is None else "aligned"
    for index, group in zip(todo, parts, strict=True):
        _, rest = joined(group, translated, patterns)
        # A model may write a span that it has seen in training.
        rest = [word for word in rest if not (word.is_span and word.text in spans[index])]
        words = _with_inserted(_with_spans(sources[index], new_spans[index]), rest)
        results[index] = _result(words, new_spans[index], status)
    return [results[index] for index in range(len(sentences))]


def _result(words: list[Word], spans: Sequence[str], status: str) -> Aligned:
    if all(word.text in spans for word in words):
        return Aligned(words, "empty")
    return Aligned(words, status if spans else None)


def _spans(words: Sequence[Word]) -> list[str]:
    return [word.text for word in words if word.is_span]


def _without_spans(words: Sequence[Word]) -> str:
    text = "".join(" " if word.is_span else word.gap + word.text for word in words)
    return " ".join(text.split())


def _with_spans(words: Sequence[Word], texts: Sequence[str]) -> list[Word]:
    """Returns the words with other texts of the spans."""
    new = iter(texts)
    return [word._replace(text=next(new)) if word.is_span else word for word in words]


def _as_they_are(text: str, spans: Sequence[str]) -> Sequence[str]:
    return spans


def _stand_ins(text: str, spans: Sequence[str]) -> Sequence[str]:
    """Returns X1, X2 and so on, without those that the text contains."""
    numbers = (number for number in itertools.count(1) if f"X{number}" not in text.upper())
    return [f"X{next(numbers)}" for _ in spans]


# Each returns the texts that represent the spans in the line that the model gets.
_WAYS = (_as_they_are, _stand_ins)


def _substituted(words: list[Word], symbols: Sequence[str], new: Sequence[str]) -> list[Word]:
    """Replaces the symbols of spans in a translation. Other spans of it stay."""
    texts = collections.defaultdict[str, list[str]](list)
    for symbol, text in zip(symbols, new, strict=True):
        texts[symbol].append(text)
    return [
        word._replace(text=texts[word.text].pop(0)) if word.is_span and texts[word.text] else word
        for word in words
    ]


def _with_branches(
    model: Engine, spans: Sequence[str], patterns: Sequence[str], tag: str
) -> list[str]:
    """Returns spans in which the branches of ICU messages are translated."""
    branches = [branches_of(span) for span in spans]
    texts = [
        span[slice(*pair)].strip()
        for span, found in zip(spans, branches, strict=True)
        for pair in found
    ]
    if not texts:
        return [*spans]
    results = iter(translate_protected(model, texts, (*patterns, *BRANCH_PATTERNS), tag))
    return [
        spliced(span, [(*pair, _branch(span[slice(*pair)], next(results))) for pair in found])
        for span, found in zip(spans, branches, strict=True)
    ]


def _branch(source: str, result: Aligned) -> str:
    """Returns a translated branch, with its text quoted where a message needs it."""
    if result.status == "empty" or result.text == source.strip():
        return source
    texts = [word.gap + word.text for word in result.words]
    quoted = [
        text if word.is_span else quote_for_icu(text, after[:1])
        for word, text, after in zip(result.words, texts, [*texts[1:], ""], strict=True)
    ]
    return source.replace(source.strip(), "".join(quoted), 1)


def joined(
    pieces: Sequence[str], results: Iterator[list[Word]], patterns: Sequence[str]
) -> tuple[list[Word], list[Word]]:
    """Returns the words of a text and of its translation, from those of its sentences."""
    source: list[Word] = []
    words: list[Word] = []
    last = ""
    for gap, sentence in with_gaps(pieces)[0]:
        new_gap = gap_between(gap, words[-1].text if words else "", last)
        for index, word in enumerate(next(results)):
            if not index and word.is_span and words and words[-1].text[-1:].isalnum():
                new_gap = gap or " "  # behind a letter, it would be no span any more
            gap_of_word = word.gap if index else new_gap
            words.append(word._replace(gap=gap_of_word, source=word.source + len(source)))
        first, *others = words_of(sentence, patterns)
        source += [first._replace(gap=gap), *others]
        last = sentence
    return source, words


def _with_inserted(source: Sequence[Word], rest: Sequence[Word]) -> list[Word]:
    """Inserts the spans of a source into the translation of its other words."""
    tokens, plain, numbers, gap = list[Token](), list[Word](), list[int](), ""
    for number, word in enumerate(source):
        gap += word.gap
        text = "" if word.is_span else word.text
        tokens.append(Token("text", word.gap, text=word.gap))
        tokens.append(Token("empty" if word.is_span else "text", word.text, text=text))
        if not word.is_span:
            plain.append(word._replace(gap=gap))
            numbers.append(number)
            gap = ""
    return [
        # There are two tokens for each word of the source.
        word._replace(
            source=word.source // 2 if word.is_span else numbers[min(word.source, len(numbers) - 1)]
        )
        for word in with_tags(tokens, plain, rest)
    ]


def _translate(
    model: Engine, lines: Sequence[str], patterns: Sequence[str], tag: str, needs_words: bool
) -> list[list[Word]]:
    """Translates lines. Without `translate_verbose`, words are aligned by relative position."""
    tagged = [add_tag(line, tag) for line in lines]
    if not needs_words or model.translate_verbose is None:
        pairs = zip(lines, translate_lines(model, tagged), strict=True)
        return [_by_position(line, best.text, patterns) for line, (best, *_) in pairs]
    details = translate_verbose(model, tagged)
    return [_by_alignment(*pair, tag, patterns) for pair in zip(lines, details, strict=True)]


def _by_position(line: str, text: str, patterns: Sequence[str]) -> list[Word]:
    words = words_of(" ".join(text.splitlines()).strip(), patterns)
    count = len(words_of(line, patterns))
    return [word._replace(source=word.source * count // len(words)) for word in words]


def _by_alignment(
    line: str, details: dict[str, Any], tag: str, patterns: Sequence[str]
) -> list[Word]:
    """Returns the best translation of a line. The pieces of a word vote for its source word."""
    best: dict[str, Any] = next(iter(details["translations"]), {"text": ""})
    words = _by_position(line, best["text"], patterns)
    votes = collections.defaultdict[int, collections.Counter[int]](collections.Counter)
    source_words = _words_of_pieces(details["source_tokens"], words_of(line, patterns), tag)
    targets = _words_of_pieces(best["tokens"], words) if words else []
    for word, piece in zip(targets, best["alignment"] if words else [], strict=True):
        votes[word][source_words[min(piece, len(source_words) - 1)]] += 1
    return [
        word._replace(source=votes[index].most_common(1)[0][0]) if votes[index] else word
        for index, word in enumerate(words)
    ]


def _words_of_pieces(pieces: Sequence[str], words: Sequence[Word], tag: str = "") -> list[int]:
    """Returns the index of the word with the middle of each piece."""
    # The vocabulary may have normalized the text. Then positions are scaled to its length.
    letters = [index for index, word in enumerate(words) for _ in "".join(word.text.split())]
    # Tokens such as </s> and <0xE4> are not the text of one.
    texts = [regex.sub(r"^</?\w+>$|▁", "", piece) for piece in pieces]
    sizes = [len(text) * (text not in tag.split()) for text in texts]
    scale = len(letters) / max(1, sum(sizes))
    starts = itertools.accumulate(sizes, initial=0)
    middles = (int((start + size / 2) * scale) for start, size in zip(starts, sizes, strict=False))
    return [letters[min(len(letters) - 1, middle)] for middle in middles]
