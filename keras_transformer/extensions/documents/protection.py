"""Translates texts so that each protected span and each tag is in the output exactly once.

There are four ways. Each one gets the sentences in which the ways before it lost a span:

1. `symbols`: the model places symbols of its vocabulary, such as ｟0｠ for a span. A model without
   alignments also places a pair of symbols for an element. Models without these symbols begin with
   the next way.
2. `kept`: the model copies the span, or a stand-in such as X1, which is replaced afterwards.
3. `aligned`: the sentence is translated without its spans. Each one is inserted before the
   translation of the word that follows it in the source, if the model returns alignments.
4. `appended`: the same without alignments, at the same relative position in the sentence.

A check of the output finds spans that are missing, changed or repeated. If the model returns
nothing for the words of a sentence, the sentence is not translated, and its status is `empty`.

Elements without a pair of symbols are placed by the alignment of the words, because small models
lose words between the symbols of a pair. Some rules are known from the HTML of Bergamot's
translator: an element without words is placed before the word that follows it, and elements such as
`code` are copied.
"""

from __future__ import annotations

import bisect
import collections
import functools
import html
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import regex

from keras_transformer.errors import require
from keras_transformer.extensions.documents import casing, placement, sentences, spans
from keras_transformer.extensions.documents.glossary import annotated
from keras_transformer.extensions.documents.markup import Token, text_token, tokenize
from keras_transformer.extensions.documents.placement import Word, text_of, text_without_tags
from keras_transformer.extensions.documents.sentences import TAG
from keras_transformer.inference import Translation
from keras_transformer.inference.engine import Engine
from keras_transformer.inference.tags import add_tag, split_tags
from keras_transformer.inference.translate import (
    translate_lines,
    translate_verbose,
    with_details,
)
from keras_transformer.text.symbols import SPAN_SYMBOLS, SYMBOLS, TAG_SYMBOLS, TERM_SYMBOLS

STATUSES = ("symbols", "kept", "aligned", "appended", "empty")

# They stand for a span, and for the other characters of a term, while a text is split into words.
_SPAN, _REST = "\ufffc", "\ufffb"
# White space and a word. In scripts without spaces, each character is a word.
_WORD = regex.compile(
    rf"([\s\x1c-\x1f]*)({spans.UNSPACED}\p{{M}}*|{spans.LETTER}+(?:(?:['’.-]|{TAG}+){spans.LETTER}+)*|\S)"
)
_STAND_IN = r"\bX\d+\b"
# Training data has spaces between words and the symbols of tags, also inside of elements.
_GLUED_TAG = regex.compile(rf"(?<=｟b\d｠)(?={spans.LETTER})|(?<={spans.LETTER})(?=｟e\d｠)")
_INNER_SPACE = regex.compile(r"(?<!\w｟b\d｠)(?<=｟b\d｠) +| +(?=｟e\d｠(?!\w))")

Words: TypeAlias = Sequence[Word]
# Returns the texts that represent spans and tags in the line of the model, by their indices.
_Way: TypeAlias = Callable[[Words], Mapping[int, str]]


def with_entities(word: Word) -> str:
    """Returns the characters of a word in a file with entities."""
    if not spans.branches_of(word.text):
        return word.text if word.is_tag else html.escape(word.text, quote=False)
    tokens = tokenize(word.text, frozenset(), False)  # a message may have tags in its branches
    return "".join(html.escape(t.raw, quote=False) if t.kind == "text" else t.raw for t in tokens)


def without_entities(word: Word) -> str:
    """Returns the characters of a word in other files."""
    return word.text


def quoted_for_icu(word: Word) -> str:
    """Returns the characters of a word in a branch of an ICU message."""
    return spans.quote_for_icu(word.text) if word.kind == "word" else word.text


def translate_texts(
    model: Engine,
    texts: Sequence[str],
    source_tag: str = "",
    lines: Sequence[int] = range(1, sys.maxsize),
) -> tuple[list[str], collections.Counter[str], list[str]]:
    """Translates texts of any number of sentences, which may begin with the tag of a language.

    Line breaks, indents and gaps of several spaces stay. The results are those of
    `translate_tokens`.
    """
    outputs, statuses, remarks = dict(enumerate(texts)), collections.Counter[str](), list[str]()
    tagged = [split_tags(text, model.symbols) for text in texts]
    for tag in dict.fromkeys(tag for tag, _ in tagged):
        chosen = [index for index, (other, _) in enumerate(tagged) if other == tag]
        fragments = [tokenize(tagged[index][1], frozenset(), False) for index in chosen]
        numbers, tags = [lines[index] for index in chosen], f"{source_tag} {tag}".strip()
        found, counts, new = translate_tokens(model, fragments, (), tags, without_entities, numbers)
        statuses += counts
        remarks += new
        outputs |= zip(chosen, found, strict=True)
    return [*outputs.values()], statuses, remarks


def ways(statuses: Mapping[str, int]) -> str:
    """Returns the sentence that tells a user in which ways spans were kept."""
    counts = ", ".join(f"{statuses[status]:,} {status}" for status in STATUSES)
    return f"Sentences with spans: {counts}."


def has_option(model: Engine, text: str) -> bool:
    """Returns whether the glossary of the model, or `casing="auto"`, applies to a text."""
    _, text = split_tags(text, model.symbols)
    plain = "".join(token.text for token in tokenize(text, frozenset(), False))
    found = spans.find_spans(plain)
    if model.glossary is not None and model.glossary.find(plain, found):
        return True
    words = spans.spliced(plain, [(*span, " ") for span in found])
    return model.casing == "auto" and casing.is_in_capitals(words)


def translate_tokens(
    model: Engine,
    fragments: Sequence[Sequence[Token]],
    patterns: Sequence[str] = (),
    tag: str = "",
    written: Callable[[Word], str] = with_entities,
    lines: Sequence[int] = range(1, sys.maxsize),
) -> tuple[list[str], collections.Counter[str], list[str]]:
    """Translates texts with tags.

    Args:
        fragments: the tokens of each text.
        patterns: regular expressions of protected spans.
        tag: a symbol for each sentence, such as <2de>.
        written: returns the characters that represent a word.
        lines: the numbers of the lines of the texts, for remarks.

    Returns:
        The texts, the numbers of sentences by status, and remarks for the user.
    """
    require(
        model.n_best == 1,
        f"{model.label} returns {model.n_best} translations per sentence, but a document or file "
        "needs exactly 1 (decoding.n_best).",
    )
    masked = [_masked(fragment, patterns, model) for fragment in fragments]
    pieces = [(index, piece) for index, (found, _) in enumerate(masked) for piece in found]
    parts, remarks = sentences.split_to_fit(model, tag, pieces, lines)
    sources = [_sentence(part, masked[index][1]) for index, part in parts]
    given = sources
    if model.casing != "keep":
        given = [casing.sentence_case(words, model.source_language) for words in sources]
    results = translate_sentences(model, given, patterns, tag)
    messages = _messages(model, sources, patterns, tag)
    new, changed, previous, last = [""] * len(fragments), set[int](), "", ""
    rows = zip(parts, sources, given, results, strict=True)
    for (index, text), words, line, (translation, status) in rows:
        source = [w._replace(text=w.name) if w.kind == "span" and w.name else w for w in words]
        # In a text that the model leaves as it is, tags stay where they are.
        is_same = text_without_tags(translation).split() == text_without_tags(line).split()
        placed = words if is_same else placement.with_tags(line, translation)
        if line is not words and not is_same:
            placed = casing.in_capitals(placed, model.target_language)
        placed = [
            word if word.name else word._replace(text=messages.get(word.text, word.text))
            for word in placed
        ]
        if translation is line:  # it stays as it is
            placed = [*source]
        if is_same:
            placed[0] = placed[0]._replace(gap="")  # it is in `text`
        else:
            placed = _with_clear_spans(placed, patterns)
        if text_without_tags(placed).split() != text_without_tags(source).split():
            changed.add(index)
        if status == "empty" and model.fallback[0] != "empty":
            shown = text_without_tags(source).strip()[:40]
            remarks.append(f"Line {lines[index]}: the model returns nothing for {shown!r}.")
        gap = sentences.gap_between(text[: -len(text.lstrip())], previous, last)
        if placed[0].kind == "span" and new[index][-1:].isalnum():
            gap = gap or " "  # behind a letter, it would not be read as a span
        previous, last = "".join(word.gap + written(word) for word in placed), text
        new[index] += gap + previous
    outputs = ["".join(token.raw for token in fragment) for fragment in fragments]
    for index in changed:
        # White space around a text, such as line breaks, is not a part of the translation.
        raw = outputs[index]
        start, end = len(raw) - len(raw.lstrip()), len(raw.rstrip())
        outputs[index] = raw[:start] + new[index].strip() + raw[end:]
    if model.fallback[0] == "empty":
        for (index, _), (_, status) in zip(parts, results, strict=True):
            outputs[index] *= status != "empty"
    return outputs, collections.Counter(status for _, status in results if status), remarks


def _with_clear_spans(words: list[Word], patterns: Sequence[str]) -> list[Word]:
    """Returns words with spaces around their spans, if other characters change one of these."""
    needed = [word.text for word in words if word.kind == "span" and not word.name]
    if not needed:
        return words
    text = text_without_tags(words)
    found = collections.Counter(text[slice(*span)] for span in spans.find_spans(text, patterns))
    if not collections.Counter(needed) - found:
        return words
    return words[:1] + [
        word._replace(gap=word.gap or " ") if "span" in (word.kind, before.kind) else word
        for before, word in itertools.pairwise(words)
    ]


def _masked(
    tokens: Sequence[Token], patterns: Sequence[str], model: Any = None
) -> tuple[list[str], Iterator[Word]]:
    """Returns a text with one character for each span and each tag, and these in their order.

    With a model, the text is split into sentences. A term may be an abbreviation, or have a stop.
    A term of the glossary becomes a span, whose text is the translation, or, if it is soft, a word.
    """
    text = "".join(token.text for token in tokens)
    found = spans.find_spans(text, patterns)
    inner = {span: list[tuple[int, int, str]]() for span in found}  # tags in its branches
    items = list[tuple[int, int, Word]]()
    glossary = model and model.glossary
    for start, end, new in glossary.find(text, found) if glossary else ():
        fields = new, "span", text[start:end]
        if glossary.is_soft:
            fields = text[start:end], "word", annotated(new)
        items.append((start, end, Word("", *fields)))
        found.append((start, end))
    found.sort()
    messages = {span for span in found if spans.branches_of(text[slice(*span)])}
    offset = position = 0
    for token in tokens:
        offset += len(token.text)
        if token.kind != "text":  # a tag within another span is moved out of it
            before = bisect.bisect_left(found, (offset,)) - 1  # the last one that starts before it
            is_inside = before >= 0 and offset < found[before][1]
            start, end = found[before] if is_inside else (offset, offset)
            # The order of the tags of a DOCX file cannot change.
            if token.name != "run" and (start, end) in messages:
                inner[start, end].append((offset - start, offset - start, token.raw))
                continue
            position = max(position, end if token.kind == "close" else start)
            items.append((position, position, Word("", token.raw, token.kind, token.name)))
    for (start, end), tags in inner.items():
        items.append((start, end, Word("", spans.spliced(text[start:end], tags), "span")))
    items.sort(key=lambda item: item[:2])
    terms = [(a, b, _SPAN + _REST * (b - a - 1)) for a, b, word in items if word.name and a < b]
    marks = [(a, b, TAG if w.is_tag else _SPAN) for a, b, w in items if not (w.name and a < b)]
    shown, text = spans.spliced(text, marks), spans.spliced(text, marks + terms)
    parts = [shown.rstrip()]
    if model and model.splits_texts:
        parts = sentences.segment(shown, model.source_language)
    ends = itertools.accumulate(map(len, parts))
    cuts = [0, *(end for end in ends if text[end : end + 1] != _REST)]  # terms are not split
    parts = [text[slice(*part)].replace(_REST, "") for part in itertools.pairwise(cuts)]
    return parts, (word for *_, word in items)


def words_of(text: str, items: Iterator[Word]) -> list[Word]:
    """Returns the words, spans and tags of a text from `_masked`."""
    words = list[Word]()
    for gap, found in _WORD.findall(text):
        word = found.replace(TAG, "")
        tags = [next(items) for _ in range(found.count(TAG))]
        # Tags within a word are moved out of it.
        split = next((i for i, tag in enumerate(tags) if tag.kind == "close"), len(tags))
        inside = [next(items)] if word == _SPAN else [Word("", word)] * bool(word)
        first, *others = [*tags[:split], *inside, *tags[split:]]
        words += [first._replace(gap=gap), *others]
    return words


def _sentence(text: str, items: Iterator[Word]) -> list[Word]:
    """Returns the words of a sentence, with empty tags for elements that others contain, too."""
    words = words_of(text, items)
    ends = placement.end_tags(words)
    matched = {*ends, *ends.values()}
    others = [word for index, word in enumerate(words) if index not in matched]
    begun = [Word("", "", "open", word.name) for word in others if word.kind == "close"]
    continued = [Word("", "", "close", word.name) for word in others if word.kind == "open"]
    words = [*reversed(begun), *words, *reversed(continued)]
    return [word._replace(source=index) for index, word in enumerate(words)]


def _messages(
    model: Engine, sources: Sequence[Words], patterns: Sequence[str], tag: str
) -> dict[str, str]:
    """Returns the ICU messages among the spans, with translated branches."""
    texts = [
        word.text for words in sources for word in words if word.kind == "span" and not word.name
    ]
    found = {text: spans.branches_of(text) for text in texts}
    texts = [span[slice(*branch)] for span, branches in found.items() for branch in branches]
    if not texts:
        return {}
    fragments = [
        [token._replace(text=spans.unquoted_from_icu(token.text)) for token in tokens]
        for tokens in (tokenize(text, has_entities=False) for text in texts)
    ]
    patterns = [*patterns, *spans.BRANCH_PATTERNS]
    outputs, *_ = translate_tokens(model, fragments, patterns, tag, quoted_for_icu)
    new = (output or text for output, text in zip(outputs, texts, strict=True))
    return {
        span: spans.spliced(span, [(*branch, next(new)) for branch in branches])
        for span, branches in found.items()
    }


def translate_sentences(
    model: Engine, sources: Sequence[Words], patterns: Sequence[str], tag: str
) -> list[tuple[Words, str | None]]:
    """Returns the words of translations, and their statuses, or None without spans.

    Tags are missing, and spans if the status is "aligned" or "appended". A kept source is returned.
    """
    last = "appended" if model.translate_verbose is None else "aligned"
    ways: list[tuple[str, _Way]] = [("kept", _spans), ("kept", _stand_ins), (last, lambda _: {})]
    if {*SYMBOLS} <= {*(model.symbols or ())}:
        pairs = () if last == "aligned" else TAG_SYMBOLS
        ways.insert(0, ("symbols", functools.partial(_symbols, pairs)))
    unwanted = {*SYMBOLS, *TERM_SYMBOLS}.union(*(_spans(words).values() for words in sources))
    replaces_low = model.fallback[0] == "source"
    needs_details = replaces_low or any(word.is_tag for words in sources for word in words)
    results: dict[int, tuple[Words, str | None]] = {}
    for index, words in enumerate(sources):
        if not any(word.kind == "word" and regex.search(r"\w", word.text) for word in words):
            results[index] = _line(words, _spans(words)), "kept" if _spans(words) else None
    for status, way in ways:
        if not (todo := [index for index in range(len(sources)) if index not in results]):
            break
        lines = {index: _line(sources[index], way(sources[index])) for index in todo}
        counts, limits = sentences.measure(model, tag, [*map(text_of, lines.values())])
        for index in itertools.compress(todo, counts["tokens"] > limits):
            del lines[index]
            if status == last:  # without the translations of soft terms
                words = [w._replace(name="") if w.kind == "word" else w for w in sources[index]]
                lines[index] = _line(words, {})
        given = [add_tag(_GLUED_TAG.sub(" ", text_of(line)), tag) for line in lines.values()]
        if last == "aligned" and (needs_details or status == last):
            found = with_details(translate_verbose(model, given))
        else:
            found = translate_lines(model, given)
        for (index, line), (best, *_) in zip(lines.items(), found, strict=True):
            source, words = sources[index], _aligned(line, best, patterns, tag)
            words, is_complete = _with_spans(words, line, source, unwanted)
            needs_status = _spans(source) or any(word.kind != "word" for word in line)
            has_words = any(word.kind == "word" for word in words)
            if replaces_low and best.details and not best.details["tokens"]:  # its quality is low
                results[index] = source, "kept" if _spans(source) else None
            elif has_words and (is_complete or status == last):
                results[index] = words, status if needs_status else None
            elif status == last:
                results[index] = source, "empty"
    return [results[index] for index in range(len(sources))]


def _spans(words: Words) -> dict[int, str]:
    return {index: word.text for index, word in enumerate(words) if word.kind == "span"}


def _stand_ins(words: Words) -> dict[int, str]:
    """Returns X1, X2 and so on, without those that the text contains."""
    text = text_of(words).upper()
    numbers = (number for number in itertools.count(1) if f"X{number}" not in text)
    return {index: f"X{next(numbers)}" for index in _spans(words)}


def _symbols(pairs: Sequence[tuple[str, str]], words: Words) -> dict[int, str]:
    """Returns symbols of the vocabulary for the spans, and for the first elements with words."""
    symbols = dict(zip(_spans(words), itertools.cycle(SPAN_SYMBOLS), strict=False))
    free = iter(pairs)
    for start, end in sorted(placement.end_tags(words).items()):
        has_words = not all(word.is_tag for word in words[start:end])
        if has_words and (pair := next(free, None)):
            symbols[start], symbols[end] = pair
    return symbols


def _line(words: Words, symbols: Mapping[int, str]) -> list[Word]:
    """Returns the words that the model gets: symbols instead of spans and tags, or neither."""
    line, is_apart = list[Word](), False
    for index, word in enumerate(words):
        text = (word.name or word.text) if word.kind == "word" else symbols.get(index, "")
        is_apart = is_apart or bool(word.gap) or (word.kind == "span" and not text)
        if text:
            line.append(word._replace(gap=" " * (is_apart and bool(line)), text=text))
            is_apart = False
    return line


def _with_spans(
    words: Words, line: Words, source: Words, unwanted: set[str]
) -> tuple[list[Word], bool]:
    """Replaces symbols by spans and tags, and returns whether each one was there exactly once."""
    indices = collections.defaultdict[str, list[int]](list)
    for word in line:
        if word.kind != "word":
            indices[word.text].append(word.source)
    result, is_complete = list[Word](), True
    for word in words:
        if word.kind != "word" and indices[word.text]:
            result.append(source[indices[word.text].pop(0)]._replace(gap=word.gap))
        elif word.kind == "word" or word.text not in unwanted:
            result.append(word._replace(kind="word"))
        else:
            is_complete = False  # a model may write a span that it has seen in training
    return result, is_complete and not any(indices.values())


def _aligned(line: Words, best: Translation, patterns: Sequence[str], tag: str) -> list[Word]:
    """Returns the words of a translation. The pieces of a word vote for its source word."""
    text = _INNER_SPACE.sub("", " ".join(best.text.splitlines()).strip())
    kept = dict.fromkeys(word.text for word in line if word.kind == "span" and word.name)
    # A term is not a part of a longer word.
    terms = [rf"(?<!{spans.LETTER}){regex.escape(term)}(?!{spans.LETTER})" for term in kept]
    [text], items = _masked([text_token(text, False)], [*terms, *patterns, _STAND_IN])
    words = words_of(text, items)
    # Without votes, a word translates the one at the same relative position.
    chosen = [index * len(line) // len(words) for index in range(len(words))]
    if words and best.details:
        sources = _words_of_pieces(best.details["source_tokens"], line, tag)
        targets = _words_of_pieces(best.details["tokens"], words)
        votes = collections.defaultdict[int, collections.Counter[int]](collections.Counter)
        for target, piece in zip(targets, best.details["alignment"], strict=True):
            votes[target][sources[min(piece, len(sources) - 1)]] += 1
        for target, vote in votes.items():
            chosen[target] = vote.most_common(1)[0][0]
    return [word._replace(source=line[i].source) for word, i in zip(words, chosen, strict=True)]


def _words_of_pieces(pieces: Sequence[str], words: Words, tag: str = "") -> list[int]:
    """Returns the index of the word with the middle of each piece."""
    # The vocabulary may have normalized the text. Then positions are scaled to its length.
    letters = [index for index, word in enumerate(words) for _ in "".join(word.text.split())]
    # Tokens such as </s>, <0xE4> and >>de<< are not the text of one.
    texts = [regex.sub(r"^(</?\w+>|▁?>>\S+<<)$|▁", "", piece) for piece in pieces]
    sizes = [len(text) * (text not in tag.split()) for text in texts]
    scale = len(letters) / max(1, sum(sizes))
    starts = itertools.accumulate(sizes, initial=0)
    middles = (int((start + size / 2) * scale) for start, size in zip(starts, sizes, strict=False))
    return [letters[min(len(letters) - 1, middle)] for middle in middles]
