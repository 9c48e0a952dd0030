r"""Finds the parts of a text that a translation must keep, such as `{name}`, `%s` and URLs.

Plain numbers and times are not protected, because their form changes with the language.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import regex

from keras_transformer.errors import InputError

# A character of a script without spaces, which counts as a word, and one of other words.
UNSPACED = r"(?:(?!\p{M})[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}ーｰ])"
LETTER = rf"(?:(?!{UNSPACED})[\w\p{{M}}])"
# A group of balanced brackets inside a URL, such as the variable in https://a.b/{id}.
_GROUP = r"(?:\{[^{}\s]*\}|\([^()\s]*\))"
_URL_END = r"""[^\s<>"“”„(){}.,;:!?…'’\]«»。，、！？；：]"""
_URL = rf"""(?:{_GROUP}|[^\s<>"“”„(){{}}«»。，、！？；：])*(?<={_URL_END}|[)}}])"""
_EMOJI = r"(?:\p{Emoji_Presentation}|\p{Extended_Pictographic}\uFE0F)[\U0001F3FB-\U0001F3FF]?"
_PATTERNS = {
    "url": rf"(?:(?:https?|ftp|file)://|www\.|mailto:){_URL}",
    "email": r"(?<![\w.+-])[\w.+-]*\w@\w[\w-]*(?:\.[\w-]*\w)+",
    "name": r"(?<![\w@])@\w+(?:[.-]\w+)*",
    "tag": r"(?<![\w&#])#\d*[^\W\d]\w*",
    "path": r"(?<![\w/.~<])(?:~|\.\.?)?(?:/[\w@+-]*(?:\.[\w@+-]+)*)*/[\w@+-]+(?:\.[\w@+-]+)*/?"
    r"""|(?<!\w)[A-Za-z]:(?:\\[^\s\\/:*?"<>|]+)*\\[^\s\\/:*?"<>|.,;!)\]»”。，、]+(?:\.\w+)?"""
    r"|(?<![\w./-])(?:[\w.-]+/)*[\w-]+\.(?:csv|docx?|exe|gif|html?|jpe?g|js|json|md|pdf|png|py|sh|txt|xlsx?|xml|"
    r"ya?ml|zip)\b",
    "entity": r"&(?:#\d+|#[xX][\da-fA-F]+|[A-Za-z]\w+);",
    # {name}, {0}, {n, number}, {\an8}, {{name}}, {% if x %}, <%= x %>, ${name}, #{name}, %{name}
    "variable": r"\{{2,3}[^{}]*\}{2,3}|\{%[^{}]*%\}|<%[^<>]*%>|[$#%]?\{[^{}\s,]+(?:\s*,[^{}]*)?\}",
    "format": r"%\(\w+\)[-+0# ]*[\d.]*[a-zA-Z]|%%|%\w+%(?![\w(%])"
    r"|(?<!\d)%(?:\d+\$)?[-+0#]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh?|ll?|[jztLq])?"
    r"[diouxXeEfFgGaAcsp@]",
    "parameter": r"(?<![\w:]):[A-Za-z_]\w*:?",
    # Dates (24.12.2026) and thousands (1.234.567) are plain numbers.
    "version": r"\bv\d+(?:\.\d+)*(?:[-+]\w+)*"
    r"|(?<![\w.])(?!\d{1,2}\.\d{1,2}\.\d{4}\b|\d{1,3}(?:\.\d{3})+\b)"
    r"\d+(?:\.\d+){2,}(?:[-+.]?\w+)*",
    # snake_case, camelCase, function(), AB-12 and hexadecimal numbers
    "identifier": r"\b(?=\w*[^\W_]_+[^\W_]|__+[^\W_])\w+\b|\b[a-z]+(?:[A-Z][a-z0-9]+)+\b"
    r"|(?<![A-Za-z_]\w*\.)\b[A-Za-z_]\w*(?:\.\w+)*\(\)|\b[A-Z]{2,}-?\d[\dA-Z]*(?:-[\dA-Z]+)*\b"
    r"|\b(?=\d*[a-f])(?=[a-f]*\d)[\da-f]{7,}(?:-[\da-f]+)*\b",
    "emoji": rf"(?:{_EMOJI}(?:\u200D\p{{Extended_Pictographic}}\uFE0F?[\U0001F3FB-\U0001F3FF]?)*"
    r"[\U000E0020-\U000E007F]*|[0-9#*]\uFE0F?\u20E3)+",
    # Vocabularies write symbols as ｟0｠. The others are used in `protection.py`.
    "symbol": r"｟[^\s｟｠]*｠|[\ufff9\ufffb\ufffc]",
    "escape": r"\\(?:[nrt@?]|[uU][0-9a-fA-F]{4})",
}
_ICU = regex.compile(
    r"""\{\s*[\w.-]+\s*,\s*(?:plural|selectordinal|select)\s*,\s*(?:offset:\s*\d+\s*)?
    (?:(?:=\d+|[\w-]+)\s*\{(?P<branch>
        (?P<text>''|'[{}\#|][^']*'?|'|[^{}']++|\{(?&text)*+\})*+  # with quoted text, and braces
    )\}\s*)++\}""",
    regex.VERBOSE,
)
_COMPILED = [regex.compile(pattern, regex.VERSION1) for pattern in _PATTERNS.values()]
# The number of a plural, quoted text and apostrophes outside of words are protected in branches.
BRANCH_PATTERNS = (r"(?<!\w)#(?!\w)", r"'[{}#|][^']*'", r"''")


_MATCH_SECONDS = 2.0  # most texts take less than a millisecond
Range = tuple[int, int]  # the first character, and the one after the last


def compile_patterns(patterns: Sequence[str]) -> list[regex.Pattern[str]]:
    """Returns the compiled patterns of a user; raises an `InputError` for an invalid one."""
    compiled = []
    for pattern in patterns:
        try:
            compiled.append(regex.compile(pattern))
        except regex.error as error:
            raise InputError(
                f"{pattern!r} is not a regular expression: {error.msg} at character {error.pos}. "
                "Write a special character as in \\( to find the character itself."
            ) from error
    return compiled


def find_spans(text: str, patterns: Sequence[str] = ()) -> list[Range]:
    r"""Returns the protected spans of a text. They do not overlap: the first, longest one counts.

    Args:
        patterns: regular expressions of more spans, such as r"ACME\w*".

    Example:
    >>> from keras_transformer.extensions.documents.spans import find_spans
    >>> text = "Hi {name}, see https://example.com at 5:30."
    >>> [text[start:end] for start, end in find_spans(text)]
    ['{name}', 'https://example.com']
    """
    found = []
    for pattern in [*compile_patterns(patterns), _ICU, *_COMPILED]:
        for match in in_time(_all_matches, text, pattern):
            if kept := match[0].strip():  # a pattern of the user may find spaces around it
                start = match.start() + match[0].index(kept)
                found.append((start, start + len(kept)))
    spans: list[Range] = []
    for start, end in sorted(found, key=lambda span: (span[0], -span[1])):
        if not spans or start >= spans[-1][1]:
            spans.append((start, end))
    return spans


def in_time(search: Callable[..., Any], text: str, *arguments: Any) -> Any:
    """Returns what a search in a text finds, or raises an `InputError` if it takes too long."""
    started = time.thread_time()
    while True:
        try:
            return search(text, *arguments, timeout=_MATCH_SECONDS)
        except TimeoutError as error:  # it also counts the time of other threads
            if time.thread_time() - started > _MATCH_SECONDS / 2:
                raise InputError(
                    f"A text of {len(text):,} characters takes too long to read. Split it, close "
                    "its braces, tags and comments, or use faster patterns of spans."
                ) from error


def _all_matches(text: str, pattern: regex.Pattern[str], timeout: float) -> list[Any]:
    return [*pattern.finditer(text, timeout=timeout)]


def outside(ranges: Iterable[Range], taken: Sequence[Range]) -> list[Range]:
    """Returns the ranges that are outside of the taken ones, which are in order and apart."""
    return [
        (start, end)
        for start, end in ranges
        # The last one that starts before the end.
        if (before := bisect.bisect_left(taken, (end,)) - 1) < 0 or taken[before][1] <= start
    ]


def quote_for_icu(text: str) -> str:
    """Quotes the apostrophes and braces of a text for an ICU message."""
    return regex.sub(r"[{}]+", r"'\g<0>'", text.replace("'", "''"))


def unquoted_from_icu(text: str) -> str:
    """Returns a text of an ICU message with plain apostrophes in its words."""
    return regex.sub(r"(?<=\w)''(?=\w)", "'", text)


def branches_of(span: str) -> list[Range]:
    """Returns the ranges of a span that are translated: the branches of an ICU message."""
    match = _ICU.fullmatch(span)
    return match.spans("branch") if match else []


def spliced(text: str, changes: Iterable[tuple[int, int, str]]) -> str:
    """Returns a text with other contents of some ranges. Of equal ranges, the first comes first."""
    parts, cursor = [], 0
    for start, end, new in sorted(changes, key=lambda change: change[:2]):
        parts += [text[cursor:start], new]
        cursor = end
    return "".join([*parts, text[cursor:]])
