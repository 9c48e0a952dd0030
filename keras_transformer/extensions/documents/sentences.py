"""Translates documents: splits them into sentences, and joins the translations.

Unicode's property Sentence_Terminal says which characters are stops. The lists of the package
sentencex say which words are abbreviations.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

import regex
import sentencex

from keras_transformer.errors import InputError
from keras_transformer.inference.batching import token_counts
from keras_transformer.inference.engine import Engine
from keras_transformer.inference.tags import add_tag, split_tags
from keras_transformer.inference.translate import number_warnings, translate_lines

# Patterns of the package regex, which has the properties of Unicode. Possessive quantifiers (such
# as `++`) keep them linear in the length of a line.
_SPACE = r"[\s\p{Z}]"
_STOP = r"[\p{Sentence_Terminal}…]"
_MARK = r"[\p{Cf}\p{M}]"  # direction marks, joiners, and variation selectors, which have no width
_EMOJI = r"(?:\p{Emoji_Presentation}|\p{Extended_Pictographic}\uFE0F)"
_QUOTE = r"[\"'\p{Pi}\p{Pf}\p{Pe}]"
_CLOSING = rf"(?:{_QUOTE}|{_MARK}|{_SPACE}?»(?!\S)|{_SPACE}?{_EMOJI})"
_OPENING = rf"(?:[\"'\p{{Pi}}\p{{Pf}}\p{{Ps}}\p{{Pd}}\p{{So}}¿¡•*]{_SPACE}?|{_MARK})"
# Lo: the letters of scripts without case. Georgian has none in sentences, but its letters are Ll.
_CAPITAL = r"[\p{Lu}\p{Lt}\p{Lo}\p{N}\p{Georgian}]"
_GREEK_QUESTION = rf"(?:(?<=\p{{Greek}})[;\u037e]|[;\u037e](?={_SPACE}++{_OPENING}*+\p{{Greek}}))"

_SENTENCE_END = regex.compile(
    # Not within a decimal, such as a full-width one.
    rf"(?<!{_STOP})(?!(?<=\p{{Nd}}){_STOP}\p{{Nd}})(?:{_STOP}++|{_GREEK_QUESTION})(?:"
    rf"{_CLOSING}*+(?={_SPACE}++{_OPENING}*+{_CAPITAL})"
    # Stops of other scripts, such as the full-width ones and the danda, need no space after them.
    rf"|(?<=[\p{{Sentence_Terminal}}--.!?]){_MARK}*+(?=\S)(?!{_QUOTE}|\p{{Ll}}))"
    # Tokenized text has spaces around each stop. It may be lowercase.
    rf"|(?<={_SPACE})\.(?:{_SPACE}\.)*+(?={_SPACE})",
    regex.VERSION1,
)
# The word before a full stop, and the word after it.
_LAST_WORD = regex.compile(
    r"(?:(\p{L}{2,}\.\s+)|(?<![\p{L}\p{M}\p{N}]))([\p{L}\p{M}\p{N}.&-]+)\.$", regex.REVERSE
)
_NEXT_WORD = regex.compile(r"\W*(\w+)")
# These do not end a sentence: an initial, a Roman number, a German street, and a day of the month.
_INITIAL = regex.compile(r"(?:.*\.)?(?:\p{L}\p{M}*|[IVX]+)|\p{L}+str")
_DAY = regex.compile(r"\p{N}{1,2}")
_LONGEST_WORD = 40  # characters
_LONGEST_BEFORE_NUMBER = 3
# The lists of sentencex that are used for a text of an unknown language. A word of one language is
# rarely an abbreviation in these lists; in the lists of Italian or Dutch, many are ("it", "on").
_COMMON = tuple("en de fr pt pl sk fi ru uk bg".split())

# Where long sentences are split, in order of preference.
_BREAKS = tuple(map(re.compile, (r"[;:–—]\s|[；：]", r"[,،]\s|[，、]", r"\s")))
# Chinese and Japanese characters. Text has no space after them.
_UNSPACED = re.compile(
    r"[\u3001-\u30ff\u3400-\u9fff\uf900-\ufaff\uff01-\uff9f\U00020000-\U0003ffff]"
)
# Target size of the parts as a fraction of the limit. The margin is needed because equal numbers of
# characters can have different numbers of tokens.
_FILL = 0.8


def segment(text: str, language: str | None = None) -> list[str]:
    """Splits a text into pieces of one sentence each, using rules.

    Each piece has one sentence and the white space around it, or only white space. The
    concatenated pieces equal the text.

    A sentence ends at the end of its line (`str.splitlines`). It also ends

    - at `.!?…` and similar characters of other scripts, with closing quotes and brackets, direction
      marks and emojis, before white space and the start of a sentence: a capital, a digit, or a
      letter of a script without case, with or without opening quotes;
    - at a stop of another script, such as `。` and `।`, also without white space;
    - at a Greek question mark (`;`);
    - at a full stop between spaces.

    It does not end after a single letter, a number of one or two digits, a Roman numeral, or an
    abbreviation that the package sentencex knows in the language.

    Known limits:

    - A sentence that continues on the next line is split into two.
    - A sentence is joined to the next one if it ends with a single letter or a small number
      ("vitamin C.", "She is 17."), or if the next one starts with a lowercase letter.
    - An unknown abbreviation before a capital ("Univ. Prof.", "5 Tsd. Euro", "inkl. Steuern",
      "zzgl. Versand", "św. Jan") ends a sentence.
    - A Chinese or Japanese sentence that ends with a quotation ends only before white space.
    - In Thai and other scripts without stops, each line is one sentence.

    Args:
        language: code of the language, as in "de". None for the abbreviations of several European
            languages.
    """
    lines = text.splitlines(keepends=True)
    return [piece for line in lines for piece in _segment_line(line, language)]


def _segment_line(line: str, language: str | None) -> list[str]:
    pieces, start = [], 0
    for match in _SENTENCE_END.finditer(line):
        if match[0] != "." or not _is_abbreviated(line, match.end(), language):
            pieces.append(line[start : match.end()])
            start = match.end()
    return [*pieces, line[start:]]


def _is_abbreviated(line: str, end: int, language: str | None) -> bool:
    """Returns whether the full stop before `end` does not end a sentence."""
    found = _LAST_WORD.search(line[max(0, end - _LONGEST_WORD) : end])
    if found is None:
        return False
    before, word = found.groups()
    if _DAY.fullmatch(word):
        return before is None  # "3. Mai", but not "Nr. 5."
    if not regex.search(r"\p{L}", word):
        return False
    found = _NEXT_WORD.match(line[end : end + _LONGEST_WORD])
    after = found[1] if found else "A"
    if word.lower() == "no" and not after[0].isdigit():  # an answer
        return False
    # For several languages, sentencex joins any word and number. "Abb. 4" and "No. 5" are short.
    if after[0].isdigit() and len(word) > _LONGEST_BEFORE_NUMBER:
        after = "A"
    return bool(_INITIAL.fullmatch(word)) or _has_abbreviation(word, after, language)


@functools.lru_cache(maxsize=2**14)
def _has_abbreviation(word: str, after: str, language: str | None) -> bool:
    """Returns whether sentencex does not split between two words with a full stop."""
    languages = _COMMON if language is None else (re.split("[-_]", language.lower())[0],)
    # English titles, such as "Dr.", are used in many languages. Its other abbreviations are words
    # there, such as "me" in Spanish.
    languages += ("en",) if word[0].isupper() else ()
    return any(len(sentencex.segment(code, f"{word}. {after}")) == 1 for code in languages)


def join_translations(pieces: Sequence[str], translations: Sequence[str]) -> str:
    """Returns the text of the pieces with each sentence replaced by its translation.

    Line breaks and gaps of several spaces are kept. Any other gap becomes one space. There is no
    space after Chinese and Japanese characters, or inside a word that was split. Line breaks in a
    translation become spaces.
    """
    remaining = iter(translations)
    text, gap, last = "", "", ""  # `last` is the sentence before the gap
    for piece in pieces:
        sentence = piece.strip()
        if not sentence:
            gap += piece
            continue
        start = piece.index(sentence)
        gap += piece[:start]
        gap = gap_between(gap, text, last)
        text += gap + " ".join(next(remaining).splitlines())
        gap, last = piece[start + len(sentence) :], sentence
    return text + gap


def gap_between(gap: str, text: str, last: str) -> str:
    """Returns what separates a translation from the next one, instead of `gap` in the source.

    Args:
        gap: the white space between two sentences of the source.
        text: the translation so far, or "".
        last: the sentence of the source before the gap, or "".
    """
    if not last or gap not in ("", " "):
        return gap
    is_joined = _UNSPACED.match(text[-1:]) or not (gap or _UNSPACED.match(last[-1:]))
    return "" if is_joined else " "


def translate_document(model: Engine, text: str, source_tag: str = "") -> tuple[str, list[str]]:
    """Translates a document and keeps its lines.

    A sentence is translated in parts if it has more tokens than the model accepts, or more than
    the longest training source. Parts end at a semicolon, colon or dash if possible, otherwise at
    a comma, at white space, or within a word.
    """
    if model.n_best > 1:
        raise InputError(
            f"{model.label} returns {model.n_best} translations per sentence, but a document needs "
            "exactly 1 (decoding.n_best)."
        )
    tagged = [split_tags(line, model.symbols) for line in text.splitlines(keepends=True)]
    sentences = [
        (f"{source_tag} {tag}".strip(), piece)
        for tag, line in tagged
        for piece in _segment_line(line, model.source_language)
    ]
    pieces, warnings = _split_long_sentences(model, sentences)
    results = translate_lines(
        model, [add_tag(piece.strip(), tag) for tag, piece in pieces if piece.strip()]
    )
    translations = [best.text for best, *_ in results]
    warnings += number_warnings(model, text.splitlines())
    return join_translations([piece for _, piece in pieces], translations), warnings


def _split_long_sentences(
    model: Engine, pieces: Sequence[tuple[str, str]]
) -> tuple[list[tuple[str, str]], list[str]]:
    """Splits sentences that are too long. Returns (tags, piece) pairs, and warnings."""
    result: list[tuple[str, str]] = []
    warnings: list[str] = []
    line = 1
    sentences = [add_tag(piece.strip(), tag) for tag, piece in pieces if piece.strip()]
    counts = token_counts(model.lengths, sentences)
    numbers = iter(zip(counts["tokens"].tolist(), counts["used"].tolist(), strict=True))
    for tag, piece in pieces:
        sentence = piece.strip()
        start = piece.index(sentence)
        line += piece[:start].count("\n")
        parts = [sentence]
        if sentence:
            tokens, used = next(numbers)
            fitting = min(used, model.max_train_source_length or used)
            if fitting < tokens:
                parts = _parts(model, tag, sentence, tokens, fitting)
                limit = "the longest source in training"
                if fitting == used:
                    limit = "decoding.max_source_tokens"
                warnings.append(
                    f"Line {line} has a sentence of {tokens:,} tokens. It was translated in "
                    f"{len(parts):,} parts of at most {fitting:,} tokens ({limit})."
                )
            elif tokens == 1:  # there is only the end token
                warnings.append(f"Line {line} has a sentence without tokens, which was left out.")
        split = [piece[:start], *parts, piece[start + len(sentence) :]]
        result += [(tag, part) for part in split]
        line += piece[start:].count("\n")
    return result, warnings


def split_to_fit(model: Engine, tag: str, sentences: Sequence[str]) -> list[list[str]]:
    """Splits each sentence that is too long, with its tag, into parts that the model accepts."""
    counts = token_counts(model.lengths, [add_tag(sentence, tag) for sentence in sentences])
    result = []
    for sentence, tokens, used in zip(sentences, counts["tokens"], counts["used"], strict=True):
        limit = int(min(used, model.max_train_source_length or used))
        split = tokens > limit
        result.append(_parts(model, tag, sentence, int(tokens), limit) if split else [sentence])
    return result


def _parts(model: Engine, tag: str, sentence: str, tokens: int, limit: int) -> list[str]:
    """Splits a sentence into parts of at most `limit` tokens, tag included, or of one character."""
    pieces = _divide(sentence, max(2, round(tokens / (_FILL * limit))))
    if len(pieces) == 1:
        return pieces
    parts = []
    counts = token_counts(model.lengths, [add_tag(piece, tag) for piece in pieces])["tokens"]
    for piece, count in zip(pieces, counts.tolist(), strict=True):
        parts += _parts(model, tag, piece, count, limit) if count > limit else [piece]
    return parts


def _divide(sentence: str, count: int) -> list[str]:
    """Splits a sentence into at least `count` pieces of similar lengths at the best breaks."""
    size = -(-len(sentence) // count)
    pieces, start = [], 0
    while len(sentence) - start > size:
        end = _last_break(sentence, start + size // 2, start + size)
        pieces.append(sentence[start:end])
        start = end
    return [*pieces, sentence[start:]]


def _last_break(sentence: str, start: int, end: int) -> int:
    for pattern in _BREAKS:
        if matches := list(pattern.finditer(sentence, start, end)):
            return matches[-1].end()
    return end
