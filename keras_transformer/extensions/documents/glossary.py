"""Terms, and the translations that a text must have for them."""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import regex

from keras_transformer.data.reading import read_text
from keras_transformer.errors import InputError, needs_extra, one_line, require
from keras_transformer.extensions.documents.spans import LETTER, UNSPACED, Range

Terms: TypeAlias = Mapping[str, str] | Iterable[tuple[str, str]]

_PIECE = regex.compile(rf"{UNSPACED}|{LETTER}+|\S")
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"


class Glossary:
    """Finds terms in texts: the longest ones, as whole words, in any case.

    Of terms that overlap, the first one in the text counts. A term whose capitals differ between
    the text and the glossary gets those of the text: a capital at its start, or only capitals. Two
    terms that differ only in their capitals are found as they are written.

    Args:
        terms: the terms and their translations.

    Example:
    >>> from keras_transformer.extensions.documents.glossary import Glossary
    >>> Glossary({"fare": "Fahrpreis"}).find("The fare? FARE!")
    [(4, 8, 'Fahrpreis'), (10, 14, 'FAHRPREIS')]
    """

    def __init__(self, terms: Terms) -> None:
        self._terms: dict[tuple[str, ...], dict[str, str]] = {}
        self._longest: dict[str, int] = {}  # pieces of the longest term, by its first one
        for source, target in terms.items() if isinstance(terms, Mapping) else terms:
            source, target = " ".join(source.split()), " ".join(target.split())
            require(bool(source and target), f"A side of a term is empty: {source!r}, {target!r}.")
            pieces = tuple(piece.casefold() for piece in _PIECE.findall(source))
            known = self._terms.setdefault(pieces, {})
            if known.setdefault(source, target) != target:
                raise InputError(
                    f"The glossary has two translations of {source!r}: {known[source]!r} and "
                    f"{target!r}. Keep one of them."
                )
            self._longest[pieces[0]] = max(self._longest.get(pieces[0], 0), len(pieces))

    @classmethod
    def read(cls, path: str | os.PathLike[str], source_language: str | None = None) -> Glossary:
        """Reads a file: TBX, or text with a term, a tab and its translation in each line.

        Args:
            path: the file. TBX has the suffix .tbx, and two languages.
            source_language: code of the language of the terms; None for the first one of the TBX.
        """
        path = Path(path)
        if path.suffix.lower() == ".tbx":
            return cls(_read_tbx(path, source_language))
        rows = [line.split("\t") for line in read_text(path)]
        for number, row in enumerate(rows, 1):
            is_term = len(row) >= 2 and row[0].strip() and row[1].strip()
            message = f"{path}, line {number}: a term, a tab and its translation are expected."
            require(bool(is_term) or not any(part.strip() for part in row), message)
        return cls((row[0], row[1]) for row in rows if len(row) >= 2)

    def find(self, text: str, taken: Sequence[Range] = ()) -> list[tuple[int, int, str]]:
        """Returns the ranges of the terms with their translations.

        They are outside of the taken ranges, which are in order and do not overlap.
        """
        found, position = [], 0
        pieces = [(match[0].casefold(), *match.span()) for match in _PIECE.finditer(text)]
        while position < len(pieces):
            size = self._size_at(pieces, position)
            if size:
                start, end = pieces[position][1], pieces[position + size - 1][2]
                before = bisect.bisect_left(taken, (end,)) - 1  # the last one that starts before
                if before < 0 or taken[before][1] <= start:
                    key = tuple(piece for piece, *_ in pieces[position : position + size])
                    found.append((start, end, _translation(self._terms[key], text[start:end])))
            position += size or 1
        return found

    def _size_at(self, pieces: Sequence[tuple[str, int, int]], position: int) -> int:
        """Returns the number of pieces of the longest term at a position, or 0."""
        longest = self._longest.get(pieces[position][0], 0)
        words = [piece for piece, *_ in pieces[position : position + longest]]
        sizes = (size for size in range(len(words), 0, -1) if tuple(words[:size]) in self._terms)
        return next(sizes, 0)


def _translation(translations: Mapping[str, str], text: str) -> str:
    """Returns the translation of a term with the capitals of its text."""
    text = " ".join(text.split())
    if text in translations:
        return translations[text]
    source, target = next(iter(translations.items()))
    if text.isupper() and len(text) > 1:
        return target.upper()
    if text[0].isupper() and source[0].islower():
        return target[0].upper() + target[1:]
    return target


def _read_tbx(path: Path, source_language: str | None) -> list[tuple[str, str]]:
    """Returns the first term of both languages of each concept."""
    with needs_extra("files", "a TBX file"):
        from lxml import etree
    try:
        root: Any = etree.parse(path, etree.XMLParser(resolve_entities=False, huge_tree=True))
    except (OSError, etree.XMLSyntaxError) as error:
        raise InputError(f"{path} is not readable TBX ({one_line(error)}).") from error
    concepts = []
    for entry in root.iter("{*}termEntry", "{*}conceptEntry"):
        sections = entry.iter("{*}langSet", "{*}langSec")
        concepts.append({s.get(_LANGUAGE, ""): s.findtext(".//{*}term") or "" for s in sections})
    languages = [*dict.fromkeys(language for terms in concepts for language in terms)]
    require(
        len(languages) == 2,
        f"{path} has the languages {', '.join(languages) or 'none'}. A glossary needs two.",
    )
    is_second = source_language is not None and languages[1].lower().startswith(source_language)
    source, target = reversed(languages) if is_second else languages
    return [(terms[source], terms[target]) for terms in concepts if len(terms) == 2]
