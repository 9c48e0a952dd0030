"""Splits texts into sentences, and long sentences into parts.

Unicode's property Sentence_Terminal says which characters are stops. The lists of the package
sentencex say which words are abbreviations.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence

import numpy as np
import regex
import sentencex

from keras_transformer.inference.batching import TokenCounts, token_counts
from keras_transformer.inference.engine import Engine
from keras_transformer.inference.tags import add_tag

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

# A tag in a text of `protection.py`. It has no width.
TAG = "\ufff9"
# Where long sentences are split, in order of preference.
_BREAKS = tuple(map(re.compile, (r"[;:–—](?=\s)|[；：]", r"[,،](?=\s)|[，、]", r"(?=\s)")))
# A Chinese or Japanese character at the end of a text, before tags. Text has no space after it.
_UNSPACED = re.compile(
    r"[\u3001-\u30ff\u3400-\u9fff\uf900-\ufaff\uff01-\uff9f\U00020000-\U0003ffff]"
    rf"(?:<[^<>]*>|{TAG})*\Z"
)
# Target size of the parts as a fraction of the limit. The margin is needed because equal numbers of
# characters can have different numbers of tokens.
_FILL = 0.8


def segment(text: str, language: str | None = None) -> list[str]:
    """Splits a text into pieces of one sentence each, using rules.

    Each piece has one sentence and the white space before it. The concatenated pieces equal the
    text without the white space at its end.

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
    pieces, start, offset = list[str](), 0, 0
    for line in text.splitlines(keepends=True):
        for end in [*_sentence_ends(line, language), len(line)]:
            if piece := text[start : offset + end].rstrip():
                pieces.append(piece)
                start += len(piece)
        offset += len(line)
    return pieces


def _sentence_ends(line: str, language: str | None) -> Iterator[int]:
    for match in _SENTENCE_END.finditer(line):
        is_full_stop = match[0].strip(TAG) == "."
        if not (is_full_stop and _is_abbreviated(line, match.start() + 1, language)):
            yield match.end()


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


def gap_between(gap: str, text: str, last: str) -> str:
    """Returns what separates a translation from the next one, instead of `gap` in the source.

    Args:
        gap: the white space between two sentences of the source.
        text: the translation of the sentence before the gap, or "".
        last: the sentence of the source before the gap, or "".
    """
    if not last or gap not in ("", " "):
        return gap
    is_joined = _UNSPACED.search(text) or not (gap or _UNSPACED.search(last))
    return "" if is_joined else " "


def split_to_fit(
    model: Engine, tag: str, sentences: Sequence[tuple[int, str]], lines: Sequence[int]
) -> tuple[list[tuple[int, str]], list[str]]:
    """Splits sentences that are too long into parts, and returns remarks, too.

    Each sentence and part has the index of its text, and `lines` has the lines of the texts. A
    sentence is split if it has more tokens than the model accepts, or more than the longest
    training source. Parts end at a semicolon, colon or dash if possible, otherwise at a comma, at
    white space, or within a word.
    """
    counts, limits = measure(model, tag, [sentence for _, sentence in sentences])
    parts, remarks = list[tuple[int, str]](), list[str]()
    sizes = zip(counts["tokens"].tolist(), limits.tolist(), strict=True)
    for (index, sentence), (tokens, limit) in zip(sentences, sizes, strict=True):
        found, line = [sentence], f"Line {lines[index]} has a sentence"
        if tokens > limit:
            found = _parts(model, tag, sentence, tokens, limit)
            is_known = limit == model.max_train_source_length
            name = "the longest source in training" if is_known else "decoding.max_source_tokens"
            remarks.append(
                f"{line} of {tokens:,} tokens. It was translated in {len(found):,} parts of at "
                f"most {limit:,} tokens ({name})."
            )
        elif tokens == 1 and sentence.strip(f" {TAG}"):  # there is only the end token
            remarks.append(f"{line} without tokens, which was kept.")
        parts += [(index, part) for part in found if part.strip()]
    return parts, remarks


def measure(model: Engine, tag: str, texts: Sequence[str]) -> tuple[TokenCounts, np.ndarray]:
    """Returns the token counts of texts with a tag, and the most tokens that each may have."""
    lines = [add_tag(text.strip().replace(TAG, ""), tag) for text in texts]
    counts = token_counts(model.lengths, lines)
    longest = model.max_train_source_length
    return counts, counts["used"] if longest is None else np.minimum(counts["used"], longest)


def _parts(model: Engine, tag: str, sentence: str, tokens: int, limit: int) -> list[str]:
    """Splits a sentence into parts of at most `limit` tokens, tag included, or of one character."""
    pieces = _divide(sentence, max(2, round(tokens / (_FILL * limit))))
    if len(pieces) == 1:
        return pieces
    parts = []
    counts, _ = measure(model, tag, pieces)
    for piece, count in zip(pieces, counts["tokens"].tolist(), strict=True):
        parts += _parts(model, tag, piece, count, limit) if count > limit else [piece]
    return parts


def _divide(sentence: str, count: int) -> list[str]:
    """Splits a sentence into at least `count` pieces of similar lengths at the best breaks."""
    size = -(-len(sentence) // count)
    pieces, start = [], 0
    while len(sentence) - start > size:
        window = start + max(1, size // 2), start + size
        matches = ([*pattern.finditer(sentence, *window)] for pattern in _BREAKS)
        end = next((found[-1].end() for found in matches if found), start + size)
        pieces.append(sentence[start:end])
        start = end
    return [*pieces, sentence[start:]]
