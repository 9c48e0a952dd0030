"""Target-language tags, such as `<2de>`, at the start of source lines."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence

from keras_transformer.errors import InputError

# Tag formats of multilingual corpora: <2de> (Johnson et al.), >>deu<< (OPUS-MT), __de__ (fairseq).
_FORM = r"(?:<2[^\s<>]+>|>>[^\s<>]+<<|__[^\W_]+(?:_[^\W_]+)*__)"
_TAG = re.compile(_FORM)
# For models with unknown symbols. A text such as __init__ or __0__ is not a tag.
_LANGUAGE_CODE = r"(?:<2[^\s<>]+>|>>[^\s<>]+<<|__[a-z]{2,3}(?:_[A-Z][A-Za-z]+)?__)"


def language_tags(symbols: Iterable[str]) -> tuple[str, ...]:
    """Returns the symbols of a vocabulary that have a tag format, sorted."""
    return tuple(sorted(symbol for symbol in symbols if _TAG.fullmatch(symbol)))


def split_tags(line: str, symbols: Sequence[str] | None) -> tuple[str, str]:
    """Splits a line into its leading tags and the rest, which keeps the indentation.

    Other symbols of the model may come before a tag. After the last tag, they belong to the text.
    If the symbols of the model are unknown (None), a text in a tag format counts as a tag if it is
    not the whole line.
    """
    pattern = _leading_symbol(None if symbols is None else tuple(symbols))
    start = end = position = len(line) - len(line.lstrip())
    found, tags = list[str](), list[str]()
    while match := pattern.match(line, position):
        found.append(match[1])
        if _TAG.fullmatch(match[1]):
            tags, end = list(found), match.end(1)
        position = match.end()
    rest = line[end:]
    if not tags or (symbols is None and not rest.strip()):
        return "", line
    return " ".join(tags), line[:start] + (rest[1:] if rest[:1] == " " else rest)


@functools.cache
def _leading_symbol(symbols: tuple[str, ...] | None) -> re.Pattern[str]:
    """Returns a pattern of a symbol and white space. Without symbols, it never matches."""
    if symbols is None:
        return re.compile(rf"({_LANGUAGE_CODE})\s*")
    longest_first = sorted(symbols, key=len, reverse=True)
    return re.compile(rf"({'|'.join(map(re.escape, longest_first)) or '(?!)'})\s*")


def add_tag(text: str, tag: str) -> str:
    """Adds a tag at the start of a text, as in training data. Empty texts stay empty."""
    return f"{tag} {text}" if tag and text.strip() else text


def check_tag(tag: str | None, symbols: Sequence[str] | None, label: str) -> None:
    """Raises `InputError` if the vocabulary of the model at `label` does not have a tag."""
    if tag is None or symbols is None or tag in symbols:
        return
    tags = language_tags(symbols)
    known = f"Its tags are {', '.join(tags)}." if tags else "It has no tags."
    raise InputError(
        f"source_tag is {tag!r}, but the vocabulary of {label} does not have it. {known}"
    )


def missing_tags(
    lines: Sequence[str], symbols: Sequence[str] | None, source_tag: str | None = None
) -> str | None:
    """Returns a warning about lines without a tag, or None if all lines have one.

    There is no warning without tags among the symbols, or if `source_tag`, the symbol that is added
    to the lines, is a tag. Empty lines do not count.
    """
    tags = language_tags(symbols or ())
    if not tags or source_tag in tags:
        return None
    lines = [line for line in lines if line.strip()]
    count = sum(not split_tags(line, symbols)[0] for line in lines)
    if not count:
        return None
    verb = "has" if count == 1 else "have"
    return (
        f"{count:,} of {len(lines):,} lines {verb} no target-language tag. Begin each line with "
        f"{' or '.join(tags)}, or use source_tag."
    )
