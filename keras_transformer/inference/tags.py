"""Tags of languages, such as `<2de>` or `>>deu<< >>eng<<`, at the start of source lines."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from keras_transformer.errors import InputError

# Tag formats of multilingual corpora: <2de> (Johnson et al.), >>deu<< (OPUS-MT), __de__ (fairseq).
_FORM = r"(?:<2[^\s<>]+>|>>[^\s<>]+<<|__[^\W_]+(?:_[^\W_]+)*__)"
_TAG = re.compile(_FORM)
# Codes of three letters, as those of NLLB, for the languages whose rules this package knows.
_TWO_LETTERS = dict(
    entry.split(":")
    for entry in "arb:ar azj:az bul:bg cat:ca ces:cs dan:da deu:de ell:el eng:en est:et eus:eu "
    "fin:fi fra:fr gle:ga hin:hi hun:hu hye:hy ind:id ita:it lit:lt nld:nl nno:nn nob:nb npi:ne "
    "pol:pl por:pt ron:ro rus:ru slk:sk spa:es srp:sr swe:sv tam:ta tur:tr ukr:uk".split()
)
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


def add_missing_tag(text: str, tag: str, symbols: Sequence[str] | None) -> str:
    """Returns a text that begins with the symbols of `tag`, unless it begins with others.

    Of two, such as ">>deu<< >>eng<<", a text may have the first. `symbols` are as in `split_tags`.
    """
    found, rest = split_tags(text, symbols)
    given = found.split()
    missing = tag.split()[len(given) :]
    if not missing or text.lstrip().startswith(tag):
        return text
    return add_tag(rest, " ".join([*given, *missing]))


def add_missing_tags(texts: Any, tag: str, symbols: Sequence[str] | None) -> np.ndarray:
    """Calls `add_missing_tag` for texts, bytes `(batch,)`."""
    decoded = [text.decode("utf-8", "surrogateescape") for text in np.asarray(texts)]
    tagged = [add_missing_tag(text, tag, symbols) for text in decoded]
    return np.array([text.encode("utf-8", "surrogateescape") for text in tagged], object)


def two_letters(code: str) -> str:
    """Returns the code of a language without its script or region: "en" of eng_Latn and en_XX."""
    language = re.split("[-_]", code.lower())[0]
    return _TWO_LETTERS.get(language, language)


def check_tag(tag: str | None, symbols: Sequence[str] | None, label: str) -> None:
    """Raises `InputError` if the vocabulary of the model at `label` does not have a tag."""
    if tag is None or symbols is None or {*tag.split()} <= {*symbols}:
        return
    tags = language_tags(symbols)
    known = f"Its tags are {', '.join(tags)}." if tags else "It has no tags."
    raise InputError(
        f"source_tag is {tag!r}, but the vocabulary of {label} does not have it. {known}"
    )


def missing_tags(
    lines: Sequence[str], symbols: Sequence[str] | None, source_tag: str | None = None
) -> str | None:
    """Returns a warning about lines without a tag or with an unknown one, or None.

    There is no warning without tags among the symbols. If `source_tag`, the symbol that is added
    to the lines, is a tag, lines need none. Empty lines do not count.
    """
    tags = language_tags(symbols or ())
    if not tags:
        return None
    found = {tag for line in lines for tag in split_tags(line, None)[0].split()}
    if unknown := found - {*(symbols or ())}:
        return f"Some lines begin with {min(unknown)}, but the model lacks this tag: it is text."
    if not {*tags}.isdisjoint((source_tag or "").split()):
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
