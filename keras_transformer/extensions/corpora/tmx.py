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
from keras_transformer.data.corpus import Corpus
from keras_transformer.data.reading import open_binary, reading_errors, require_file
from keras_transformer.errors import InputError
from keras_transformer.extensions.corpora import LanguageOptions

_CHUNK = 2**20  # characters
_MAX_UNIT = 2**24  # characters
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
# A unit ends at its end tag, or before the next unit. An XML parser for the whole file would lose
# all units after an unclosed comment.
_UNIT = re.compile(r"<tu(?:\s[^<>]*)?(?:/>|>.*?(?:</tu\s*>|(?=<tu[\s/>])))", re.DOTALL)
_END = re.compile(r"</(?:body|tmx)\s*>")
_ILLEGAL = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")  # characters that XML forbids
# Errors that do not change the text of a unit.
_HARMLESS = ("INVALID_CHAR", "UNDECLARED_ENTITY", "NS_ERR_UNDEFINED_NAMESPACE")
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
# Marks of removed codes. XML allows neither of these characters.
_BREAK, _PLACEHOLDER = "\x02", "\x03"
_BETWEEN = re.compile("(?<=([^\\s\x02\x03]))[\x02\x03]+(?=(\\S))")


class TmxReader:
    """Reads translation memories for `prepare`."""

    options = LanguageOptions
    help = "translation memories"

    def read(self, location: str, options: LanguageOptions) -> Sequence[Corpus]:
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
        source_language, target_language: codes such as "en", which matches en, en-US and en_US.
            "en-US" matches only this variant. The first matching variant of a unit is used.
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
        wanted = [_normalized(code) for code in (self.source_language, self.target_language)]
        units, bad, languages = 0, list[str](), dict[str, None]()
        try:
            with open_binary(self.path) as file:
                for units, unit in enumerate(_units(self.path, file), start=1):
                    sides = dict.fromkeys(wanted, b"")
                    try:
                        for language, text in _variants(unit):
                            languages[language] = None
                            for code in wanted:
                                if f"{language}-".startswith(f"{code}-") and not sides[code]:
                                    sides[code] = text.encode()
                    except ValueError as error:
                        bad.append(f"unit {units}: {error}")
                    yield sides[wanted[0]], sides[wanted[1]]
        except reading_errors() as error:
            raise InputError(f"{self.path} cannot be read after unit {units} ({error}).") from error
        if not units:
            raise InputError(
                f"{self.path} has no translation units (<tu> elements). Give a TMX file."
            )
        if bad:
            warn(
                f"{self.path}: {len(bad):,} of {units:,} units cannot be read. They are dropped "
                f"and counted as empty. The first is {bad[0]}."
            )
        for code in wanted:
            if languages and not any(f"{found}-".startswith(f"{code}-") for found in languages):
                raise InputError(
                    f"{self.path} has no text in {code}. Its languages are "
                    f"{', '.join(list(languages)[:20])}. Choose two of them."
                )


def _normalized(code: str) -> str:
    """Returns a language code in the form `en` or `en-us`."""
    return code.strip().lower().replace("_", "-")


def _units(path: Path, file: IO[bytes]) -> Iterator[str]:
    """Yields the XML of each unit of a file."""
    chunk = file.read(_CHUNK)
    decoder = io.IncrementalNewlineDecoder(
        codecs.getincrementaldecoder(_encoding(chunk))(_UNDECODABLE), translate=True
    )
    buffer, found = "", False
    while chunk:
        buffer += decoder.decode(chunk)
        chunk = file.read(_CHUNK)
        if not chunk:
            buffer += decoder.decode(b"", final=True)
        end = 0
        for match in _UNIT.finditer(buffer):
            yield match[0]
            end, found = match.end(), True
        buffer = buffer[max(end, len(buffer) - _MAX_UNIT) :]
    if found and not _END.search(buffer):
        raise InputError(f"{path} is truncated: it ends without </tmx>. Copy or download it again.")


def _encoding(start: bytes) -> str:
    """Returns the codec of a file: UTF-16 by its first bytes, or as the file declares it."""
    if b"\0" in start[:4]:  # markup is ASCII
        has_mark = start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        return "utf-16" if has_mark else "utf-16-be" if start[:1] == b"\0" else "utf-16-le"
    declared = _DECLARED.match(start)
    try:
        if declared and b"<tmx".decode(declared[1].decode()) == "<tmx":
            return declared[1].decode()
    except (LookupError, ValueError):  # an unknown name
        pass
    return "utf-8-sig"


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
        language = _normalized(variant.get(_LANGUAGE) or variant.get("lang") or "")
        text = "" if segment is None else "".join(_pieces(segment))
        text = _BETWEEN.sub(_space, text).replace(_BREAK, "").replace(_PLACEHOLDER, "")
        yield language, _ILLEGAL.sub(" ", text).replace("\n", " ")


def _pieces(element: etree._Element) -> Iterator[str]:
    """Yields the text of a segment, with a mark for each removed code."""
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
                    yield _BREAK
                elif name == "ph":  # other codes only format the text
                    yield _PLACEHOLDER
            else:
                yield _BREAK if name in _BREAKS else ""
                yield from _pieces(child)
        yield child.tail or ""


def _space(match: re.Match[str]) -> str:
    """Returns a space for a line break, and for placeholders between letters or digits."""
    in_words = (unicodedata.category(side)[0] in "LMN" for side in match.groups())
    return " " if _BREAK in match[0] or all(in_words) else ""
