"""Terms, and the translations that a text must have for them."""

from __future__ import annotations

import os
import re
import threading
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import regex

from keras_transformer.console import progress_bar
from keras_transformer.data.reading import read_text
from keras_transformer.errors import InputError, needs_extra, one_line, require
from keras_transformer.extensions.documents.spans import LETTER, UNSPACED, Range, outside
from keras_transformer.text.symbols import TERM_SYMBOLS

Terms: TypeAlias = Mapping[str, str] | Iterable[tuple[str, str]]

# A word, such as 5.50 and mini-bus, or a mark.
_PIECE = regex.compile(rf"{UNSPACED}\p{{M}}*|{LETTER}+(?:['’.,:/-]{LETTER}+)*|\S")
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"


class Glossary:
    """Finds terms in texts: the longest ones, as whole words.

    Of terms that overlap, the first one in the text counts. A term in capitals, such as US, is
    found only in capitals. Others are found in any case: if their first letter, or all of them, are
    capitals only in the text, so are those of the translation.

    Soft terms are suggested to the model, which may change their endings. So they are also found
    with other endings, by the stems of their words (Snowball).

    Args:
        terms: the terms and their translations.
        source_language: code of the language of the terms, as in "en". Without it, or in a language
            that the stemmer does not know, words have no stems.
        is_soft: True for soft terms.

    Example:
    >>> from keras_transformer.extensions.documents.glossary import Glossary
    >>> Glossary({"fare": "Fahrpreis"}).find("The fare? FARE!")
    [(4, 8, 'Fahrpreis'), (10, 14, 'FAHRPREIS')]
    """

    def __init__(
        self, terms: Terms, source_language: str | None = None, is_soft: bool = False
    ) -> None:
        self.is_soft = is_soft
        self._stem = _stemmer(source_language) if is_soft else str
        self._terms: dict[tuple[str, ...], dict[str, str]] = {}
        self._sizes: dict[str, int] = {}  # pieces of the longest term, by its first one
        pairs: list[Any] = [*(terms.items() if isinstance(terms, Mapping) else terms)]
        with progress_bar(len(pairs), "terms", "reading terms", iterable=pairs, delay=1) as bar:
            for term in bar:
                self._add(term)

    def _add(self, term: Any) -> None:
        """Adds a term with its translation."""
        is_pair = isinstance(term, tuple | list) and [*map(type, term)] == [str, str]
        require(is_pair, f"A glossary has pairs of texts, not {term!r}.")
        source, target = (" ".join(side.split()) for side in term)
        require(bool(source and target), f"A side of a term is empty: {source!r}, {target!r}.")
        pieces = tuple(map(self._key, _PIECE.findall(source)))
        known = self._terms.setdefault(pieces, {})
        if known.setdefault(source, target) != target:
            raise InputError(
                f"The glossary has two translations of {source!r}: {known[source]!r} and "
                f"{target!r}. Keep one of them."
            )
        self._sizes[pieces[0]] = max(self._sizes.get(pieces[0], 0), len(pieces))

    @classmethod
    def read(
        cls,
        path: str | os.PathLike[str],
        source_language: str | None = None,
        is_soft: bool = False,
    ) -> Glossary:
        """Reads a file: TBX, or text with a term, a tab and its translation in each line.

        Args:
            path: the file. TBX has the suffix .tbx, and two languages.
            source_language: code of the language of the terms, as in "en". TBX needs it.
            is_soft: as in the constructor.
        """
        path = Path(path)
        if path.suffix.lower() == ".tbx":
            return cls(_read_tbx(path, source_language), source_language, is_soft)
        terms = list[tuple[str, str]]()
        for number, line in enumerate(read_text(path), 1):
            source, target = [*line.split("\t"), ""][:2]
            if source.strip() and target.strip():
                terms.append((source, target))
            elif line.strip():
                raise InputError(
                    f"{path}, line {number}: a term, a tab and its translation are expected."
                )
        return cls(terms, source_language, is_soft)

    def find(self, text: str, taken: Sequence[Range] = ()) -> list[tuple[int, int, str]]:
        """Returns the ranges of terms and their translations, outside of ordered, taken ranges."""
        found, position = [], 0
        ranges = [match.span() for match in _PIECE.finditer(text)]
        keys = [self._key(text[slice(*piece)]) for piece in ranges]
        while position < len(keys):
            step = 1
            for size in range(self._sizes.get(keys[position], 0), 0, -1):
                known = self._terms.get(tuple(keys[position : position + size]))
                if known and position + size <= len(keys):
                    term = ranges[position][0], ranges[position + size - 1][1]
                    translation = _translation(known, text[slice(*term)])
                    if translation and outside([term], taken):
                        found.append((*term, translation))
                        step = size
                        break
            position += step
        return found

    def _key(self, piece: str) -> str:
        """Returns what equal pieces have in common, whatever their case and form in Unicode."""
        return self._stem(_folded(piece))


def annotated(translation: str) -> str:
    """Returns what a source has instead of a soft term, in training and later."""
    begin, end = TERM_SYMBOLS
    return f"{begin} {translation} {end}"


def _stemmer(language: str | None) -> Callable[[str], str]:
    """Returns a function from words to stems, or to the words themselves."""
    with needs_extra("documents", "Soft terms"):
        import Stemmer
    code = re.split("[-_]", (language or "").lower())[0]
    try:
        stemmer, lock = Stemmer.Stemmer("no" if code == "nb" else code, 0), threading.Lock()
    except KeyError:  # Snowball does not know the language
        return str

    def stem(word: str) -> str:
        with lock:  # a stemmer has state
            return str(stemmer.stemWord(word))

    return stem


def _folded(piece: str) -> str:
    return unicodedata.normalize("NFKC", piece.replace("’", "'")).casefold()


def _translation(known: Mapping[str, str], text: str) -> str | None:
    """Returns the translation of a term with the capitals of its text; None for another word."""
    text = " ".join(text.split())
    if text in known:
        return known[text]
    sources = [source for source in known if not _is_capitals(source)]
    if not sources:
        return None
    source = min(sources, key=lambda source: _folded(source) != _folded(text))  # not only its stem
    target = known[source]
    if _is_capitals(text):
        return target.upper()
    if text[0].isupper() and source[0].islower():
        return target[0].upper() + target[1:]
    return target


def _is_capitals(text: str) -> bool:
    return text.isupper() and len(text) > 1


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
        terms = {}
        for section in entry.iter("{*}langSet", "{*}langSec"):
            term = next(section.iter("{*}term"), None)
            if term is not None:
                terms[section.get(_LANGUAGE, "")] = "".join(term.itertext())
        concepts.append(terms)
    languages = [*dict.fromkeys(language for terms in concepts for language in terms)]
    codes = [re.split("[-_]", language.lower())[0] for language in languages]
    wanted = re.split("[-_]", (source_language or "").lower())[0]
    require(
        len(codes) == 2 and codes.count(wanted) == 1,
        f"{path} has the languages {', '.join(languages) or 'none'}. A glossary needs two, and one "
        f"of them is the source language ({wanted or 'unknown'}; --source_language gives it).",
    )
    source, target = languages if codes[0] == wanted else reversed(languages)
    return [(terms[source], terms[target]) for terms in concepts if len(terms) == 2]
