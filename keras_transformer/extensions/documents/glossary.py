"""Terms, and the translations that a text must have for them."""

from __future__ import annotations

import collections
import os
import threading
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import regex

from keras_transformer.console import progress_bar
from keras_transformer.data.reading import read_text
from keras_transformer.errors import InputError, needs_extra, one_line, require
from keras_transformer.extensions.documents import casing, spans
from keras_transformer.extensions.documents.spans import LETTER, UNSPACED
from keras_transformer.inference import Languages
from keras_transformer.inference.tags import two_letters
from keras_transformer.text.symbols import TERM_SYMBOLS

Terms: TypeAlias = Mapping[str, str] | Iterable[tuple[str, str]] | str | os.PathLike[str]

_INVISIBLE = regex.compile(r"\p{Default_Ignorable_Code_Point}")  # such as a soft hyphen
# A word, such as 5.50, mini-bus, can't and o'clock, or a mark. Other apostrophes are marks, but not
# in Cyrillic, where they stand for a sound.
_PIECE = regex.compile(
    rf"(?!{_INVISIBLE.pattern})(?:{UNSPACED}[\p{{M}}ﾞﾟ]*|(?:[oO]['’])?{LETTER}+"
    rf"(?:(?:[.,:/‐‑\xad\u2060-]|['’](?=\p{{Cyrillic}}|[tT](?!{LETTER}))){LETTER}+)*|\S)"
)
_MOST_PIECES = 50  # of a term; the time to find terms grows with the square of it
_OTHER_CAPITAL = regex.compile(r"(?<=[\w\p{M}])\p{Lu}")  # not the first letter of a word
_QUOTED = regex.compile(r'(?<![^\t])"((?:[^"\t]|"")++)"(?![^\t])')
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"


class Glossary:
    """Finds terms in texts: the longest ones, as whole words.

    Of terms that overlap, the first one in the text counts. A term in capitals, such as US, is
    found only in capitals. Others are found in any case: if their first letter, or all of them, are
    capitals only in the text, so are those of the translation. But a translation with a capital
    within a word, such as iPhone, or with a protected span does not change.

    Soft terms are suggested to the model, which may change their endings. So they are also found
    with other endings, by the stems of their words (Snowball). A model knows few words in capitals,
    so the translation of a soft term in capitals is written as in the glossary.

    Args:
        terms: the terms and their translations, or the path of a file.
        source_language: code of the language of the terms, as in "en". Without it, or in a language
            that the stemmer does not know, words have no stems.
        target_language: code of the language of the translations.
        is_soft: True for soft terms.

    Example:
    >>> from keras_transformer.extensions.documents.glossary import Glossary
    >>> Glossary({"fare": "Fahrpreis"}).find("The fare? FARE!")
    [(4, 8, 'Fahrpreis'), (10, 14, 'FAHRPREIS')]
    """

    def __init__(
        self, terms: Terms, source_language: str | None = None, target_language: str | None = None,
        is_soft: bool = False,
    ) -> None:  # fmt: skip
        self.is_soft, self._languages = is_soft, (source_language, target_language)
        self._stem = _stemmer(source_language) if is_soft else str
        self._terms: dict[tuple[str, ...], dict[str, str]] = {}
        self._sizes: dict[str, int] = {}  # pieces of the longest term, by its first one
        label, rows = _rows(terms, self._languages)
        with progress_bar(len(rows), "terms", "reading terms", iterable=rows, delay=1) as bar:
            for number, term in bar:
                if fault := self._add(term):
                    raise InputError(f"{label} {number}: {fault}")

    def _add(self, term: Any) -> str | None:
        """Adds a term with its translation, or returns what is wrong with them."""
        if not isinstance(term, tuple | list) or [*map(type, term)] != [str, str]:
            return f"{term!r} is not a pair. A glossary has pairs of texts, a file with a tab."
        source, target = (" ".join(side.split()) for side in term)
        pieces = tuple(map(self._key, _PIECE.findall(source)))
        if not (pieces and _form(target)):
            return f"a side of the term is empty: {source!r}, {target!r}."
        if len(pieces) > _MOST_PIECES:
            return f"{source[:40]!r} has {len(pieces):,} words and marks, more than {_MOST_PIECES}."
        known = self._terms.setdefault(pieces, {}).setdefault(_form(source), target)
        self._sizes[pieces[0]] = max(self._sizes.get(pieces[0], 0), len(pieces))
        if known == target or _form(known) == _form(target):
            return None
        return f"{source!r} has two translations, {known!r} and {target!r}. Keep one of them."

    def find(self, text: str, taken: Sequence[spans.Range] = ()) -> list[tuple[int, int, str]]:
        """Returns the ranges of terms outside of ordered, taken ones, and their translations."""
        found, position = [], 0
        ranges = [match.span() for match in _PIECE.finditer(text)]
        keys = tuple(self._key(text[slice(*piece)]) for piece in ranges)
        while position < len(keys):
            step = 1
            for size in range(self._sizes.get(keys[position], 0), 0, -1):
                known = self._terms.get(keys[position : position + size])
                if known and position + size <= len(keys):
                    term = ranges[position][0], ranges[position + size - 1][1]
                    translation = self._translation(known, _form(text[slice(*term)]))
                    if translation and spans.outside([term], taken):
                        found.append((*term, translation))
                        step = size
                        break
            position += step
        return found

    def _key(self, piece: str) -> str:
        """Returns what equal pieces have in common, whatever their case and form in Unicode."""
        return self._stem(casing.folded(_form(piece), self._languages[0]))

    def _translation(self, known: Mapping[str, str], text: str) -> str | None:
        """Returns the translation of a text, with its capitals; None if it is another word."""
        sources = [source for source in known if not _is_capitals(source)]
        if text in known or not sources:
            return known.get(text)
        language, target_language = self._languages
        folded, *others = (casing.folded(word, language) for word in (text, *sources))
        source = sources[others.index(folded) if folded in others else 0]  # not only its stem
        target = known[source]
        if _OTHER_CAPITAL.search(target) or spans.find_spans(target):
            return target
        if _is_capitals(text):
            return target if self.is_soft else casing.dotted(target, target_language).upper()
        if text[0].isupper() and source[0].islower():
            return casing.dotted(target[0], target_language).title() + target[1:]
        return target


def annotated(translation: str) -> str:
    """Returns what a source has instead of a soft term, in training and later."""
    begin, end = TERM_SYMBOLS
    return f"{begin} {translation} {end}"


def _stemmer(language: str | None) -> Callable[[str], str]:
    """Returns a function from words to stems, or to the words themselves."""
    with needs_extra("documents", "Soft terms"):
        import Stemmer
    code = two_letters(language or "")
    try:
        stemmer, lock = Stemmer.Stemmer("no" if code == "nb" else code, 0), threading.Lock()
    except KeyError:  # Snowball does not know the language
        return str

    def stem(word: str) -> str:
        with lock:  # a stemmer has state
            return str(stemmer.stemWord(word))

    return stem


def _form(text: str) -> str:
    """Returns a text in the form in which terms are equal, except for their case."""
    if not text.isascii():
        text = _INVISIBLE.sub("", unicodedata.normalize("NFKC", text))
        text = text.replace("’", "'").replace("ʼ", "'").replace("‐", "-")
    return " ".join(text.split())


def _unquoted(line: str) -> str:
    """Returns a line without the quotation marks that a spreadsheet writes around columns."""
    return str(_QUOTED.sub(lambda column: column[1].replace('""', '"'), line))


def _is_capitals(text: str) -> bool:
    return text.isupper() and len(text) > 1


def _rows(terms: Terms, languages: Languages) -> tuple[str, list[tuple[Any, Any]]]:
    """Returns the terms with their numbers, and what these count."""
    if not isinstance(terms, str | os.PathLike):
        is_known = isinstance(terms, Iterable)
        require(is_known, f"The glossary is {terms!r}. Use a mapping, pairs or the path of a file.")
        pairs = terms.items() if isinstance(terms, Mapping) else terms
        return "Term", [*enumerate(pairs, 1)]
    path = Path(terms)
    if path.suffix.lower() == ".tbx":
        return f"{path}, line", _read_tbx(path, languages)
    lines = enumerate(map(_unquoted, read_text(path)), 1)
    return f"{path}, line", [(n, line.split("\t")[:2]) for n, line in lines if line.strip()]


def _read_tbx(path: Path, languages: Languages) -> list[tuple[str, Any]]:
    """Returns the line of each source term, and the term with its preferred translation."""
    with needs_extra("files", "a TBX file"):
        from lxml import etree
    try:
        root: Any = etree.parse(path, etree.XMLParser(resolve_entities=False, huge_tree=True))
    except (OSError, etree.XMLSyntaxError) as error:
        raise InputError(f"{path} is not readable TBX ({one_line(error)}).") from error
    concepts = []
    for entry in root.iter("{*}termEntry", "{*}conceptEntry"):
        terms = collections.defaultdict[str, list[tuple[bool, str]]](list)
        for section in entry.iter("{*}langSet", "{*}langSec"):
            for term in section.iter("{*}term"):
                is_other = "preferredTerm" not in "".join(term.getparent().itertext())
                terms[section.get(_LANGUAGE, "")].append((is_other, "".join(term.itertext())))
        concepts.append((f"{entry.sourceline}, concept {entry.get('id', 'without an id')}", terms))
    names = [*dict.fromkeys(name for _, terms in concepts for name in terms)]
    codes = [*map(two_letters, names)]
    wanted, other = (two_letters(language or "") for language in languages)
    require(
        len(codes) == 2 and codes.count(wanted) == 1 and (not other or other in codes),
        f"{path} has the languages {', '.join(names) or 'none'}. A glossary needs two: the source "
        f"language ({wanted or 'unknown'}; --source_language gives it) and the target language "
        f"({other or 'unknown'}) of the model.",
    )
    source, target = names if codes[0] == wanted else reversed(names)
    return [
        (line, (term, min(found[target], key=lambda term: term[0])[1]))
        for line, found in concepts
        if len(found) == 2
        for _, term in found[source]
    ]
