"""Reads translation memories (TMX 1.4b): for each unit, the segments of two languages."""

from __future__ import annotations

import codecs
import dataclasses
import html
import io
import re
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from lxml import etree

from keras_transformer.console import warn
from keras_transformer.data.cleaning import normalized_language
from keras_transformer.data.corpus import Corpus
from keras_transformer.data.reading import open_binary, reading_errors, require_file
from keras_transformer.errors import InputError

_CHUNK = 2**20  # characters
_MAX_UNIT = 2**24  # characters
_MAX_NAMED = 20  # languages that a message lists
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
# A unit ends at its end tag, or before the next unit. An XML parser for the whole file would stop
# at the first stray "<".
_UNIT = re.compile(r"<tu(?:\s[^<>]*)?(?:/>|>.*?(?:</tu\s*>|(?=<tu[\s/>])))", re.DOTALL)
_END = re.compile(r"</(?:body|tmx)\s*>")
_ILLEGAL = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")  # in XML
# Errors that do not change the text of a unit.
_HARMLESS = ("INVALID_CHAR", "UNDECLARED_ENTITY", "NS_ERR_UNDEFINED_NAMESPACE")
_BOMS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16: its mark is the start of this one
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_DECLARED = re.compile(rb"\s*<\?xml[^>]*?\bencoding\s*=\s*[\"']([A-Za-z][\w.-]*)")

# Invalid bytes become a lone surrogate, which no valid unit contains.
_UNDECODABLE = f"{__name__}.undecodable"
codecs.register_error(_UNDECODABLE, lambda error: ("\udcff", error.end))  # type: ignore[attr-defined]

# Inline elements whose content is markup of the original document. `hi` and `sub` contain text.
_CODES = {"bpt", "ept", "it", "ph", "ut"}
_BREAKS = {"br", "lb", "p"}  # elements of other formats
_BREAK_TYPES = {"lb", "pb", "cb", "br", "x-br", "x-lb", "linebreak", "x-linebreak"}
_BREAK_CODE = re.compile(
    r"<\s*/?\s*(?:br|p|div|li|tr|td|th|hr|h[1-6])\b|\\(?:line|par|tab|[nrt])(?![a-z])",
    re.IGNORECASE,
)


@dataclasses.dataclass(frozen=True)
class TmxOptions:
    """The languages of translation memories."""

    source_language: str | None = dataclasses.field(
        default=None, metadata={"help": "source language, as in de"}
    )
    target_language: str | None = dataclasses.field(
        default=None, metadata={"help": "target language, as in en"}
    )


class TmxReader:
    """Reads translation memories for `prepare`."""

    options = TmxOptions
    help = "translation memories"

    def read(self, location: str, options: TmxOptions) -> Sequence[Corpus]:
        """Returns one corpus per file. The location has one path, or several with commas."""
        source, target = options.source_language, options.target_language
        if not (source and target):
            raise InputError(
                f"{location} needs a source and a target language, but they are {source} and "
                f"{target}. Set both, for example to en and de."
            )
        paths = [location] if Path(location).is_file() else location.split(",")
        return [TmxFile(require_file(path), source, target) for path in paths]


READER = TmxReader()


@dataclasses.dataclass(frozen=True)
class TmxFile:
    """A corpus in a TMX file, which may be compressed. Unit i counts as line i.

    The segment of a missing language is empty, and both are empty if the unit is not valid XML.
    Cleaning counts and drops such pairs.

    Attributes:
        source_language, target_language: codes such as "en", which matches en, en-US, en_US and
            eng. "en-US" matches only this variant. The first matching variant of a unit is used.
    """

    path: Path
    source_language: str
    target_language: str

    @property
    def name(self) -> str:
        """The path."""
        return str(self.path)

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields a pair of segments, each as one line, for each unit."""
        wanted = [normalized_language(x) for x in (self.source_language, self.target_language)]
        units, bad, first_problem = 0, 0, ""
        missing, languages = set(wanted), dict[str, None]()
        try:
            with open_binary(self.path) as file:
                for units, unit in enumerate(_units(self.path, file), start=1):
                    sides: dict[str, str] = {}
                    try:
                        for language, text in _variants(unit):
                            languages.setdefault(language)
                            for code in wanted:
                                if language == code or language.startswith(f"{code}-"):
                                    sides.setdefault(code, text)
                    except ValueError as error:
                        bad, first_problem = bad + 1, first_problem or f"unit {units}: {error}"
                    missing -= sides.keys()
                    source, target = (sides.get(code, "").encode() for code in wanted)
                    yield source, target
        except reading_errors() as error:
            raise InputError(f"{self.path} cannot be read after unit {units} ({error}).") from error
        if not units:
            raise InputError(
                f"{self.path} has no translation units (<tu> elements). Give a TMX file."
            )
        if bad:
            warn(
                f"{self.path}: {bad:,} of {units:,} units cannot be read. They are dropped and "
                f"counted as empty. The first is {first_problem}."
            )
        if missing and languages:
            raise InputError(
                f"{self.path} has no text in {' and '.join(sorted(missing))}. Its languages are "
                f"{', '.join(list(languages)[:_MAX_NAMED])}. Choose two of them."
            )


def _units(path: Path, file: IO[bytes]) -> Iterator[str]:
    """Yields the XML of each unit of a file."""
    first = file.read(_CHUNK)
    decoder = io.IncrementalNewlineDecoder(
        codecs.getincrementaldecoder(_encoding(first))(_UNDECODABLE), translate=True
    )
    buffer, found = decoder.decode(first), False
    while True:
        end = 0
        for match in _UNIT.finditer(buffer):
            yield match[0]
            end, found = match.end(), True
        buffer = buffer[max(end, len(buffer) - _MAX_UNIT) :]
        chunk = file.read(_CHUNK)
        buffer += decoder.decode(chunk, final=not chunk)
        if not chunk:
            break
    if found and not _END.search(buffer):
        raise InputError(f"{path} is truncated: it ends without </tmx>. Copy or download it again.")


def _encoding(sample: bytes) -> str:
    """Returns the name of the codec for a file that begins with these bytes."""
    for mark, name in _BOMS.items():
        if sample.startswith(mark):
            return name
    if sample[1:2] == b"\0" or sample[:1] == b"\0":  # markup is ASCII
        return "utf-16-le" if sample[1:2] == b"\0" else "utf-16-be"
    declared = _DECLARED.match(sample)
    name = declared[1].decode() if declared else "utf-8"
    try:
        if b"<tmx".decode(name) == "<tmx":  # false for a wrong declaration, such as of UTF-16
            return codecs.lookup(name).name
    except (LookupError, ValueError):
        pass
    return "utf-8"


def _variants(unit: str) -> Iterator[tuple[str, str]]:
    """Yields language and text of each variant. Raises `ValueError` if the unit is not valid."""
    parser = etree.XMLParser(
        encoding="utf-8", recover=True, resolve_entities=False, no_network=True, load_dtd=False
    )
    try:
        root = etree.fromstring(_ILLEGAL.sub(" ", unit).encode(), parser)
    except UnicodeEncodeError:
        raise ValueError("its bytes are not valid in the encoding of the file") from None
    for error in parser.error_log:
        if not error.type_name.endswith(_HARMLESS):
            raise ValueError(" ".join(error.message.split()))
    for variant in root.iterfind("{*}tuv"):
        segment = variant.find("{*}seg")
        language = variant.get(_LANGUAGE) or variant.get("lang") or ""
        yield normalized_language(language), "" if segment is None else _line(segment)


def _pieces(element: etree._Element) -> Iterator[str | bool]:
    """Yields the text of a segment. A bool marks each removed code, True for a line break."""
    yield element.text or ""
    for child in element:
        if child.tag is etree.Entity:  # tools write HTML entities; unknown ones are kept
            yield html.unescape(child.text)
        elif isinstance(child.tag, str):
            name = etree.QName(child).localname
            if name in _CODES:
                code = "".join(child.itertext())
                is_break = (child.get("type") or "").lower() in _BREAK_TYPES
                if is_break or code.isspace() or _BREAK_CODE.search(code):
                    yield True
                elif name == "ph":  # other codes only format the text
                    yield False
            else:
                yield from [True] * (name in _BREAKS)
                yield from _pieces(child)
        yield child.tail or ""


def _line(segment: etree._Element) -> str:
    """Returns the text as one line. Breaks, and placeholders between words, become spaces."""
    line: list[str] = []
    code: bool | None = None
    for piece in _pieces(segment):
        if isinstance(piece, bool):
            code = piece or bool(code)
        elif piece:
            if code is not None and line:
                sides = (line[-1][-1], piece[0])
                if any(map(str.isspace, sides)):
                    pass
                elif code or all(map(_is_in_word, sides)):
                    line.append(" ")
            line.append(piece)
            code = None
    return _ILLEGAL.sub(" ", "".join(line)).replace("\n", " ")


def _is_in_word(character: str) -> bool:
    return unicodedata.category(character)[0] in "LMN"
