"""Reads translation memories (TMX 1.4b): for each unit, the segments of two languages."""

from __future__ import annotations

import codecs
import dataclasses
import functools
import html
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

from lxml import etree

from keras_transformer.console import warn
from keras_transformer.data.cleaning import normalized_language
from keras_transformer.data.reading import open_binary, reading_errors, require_file
from keras_transformer.errors import InputError

_CHUNK = 2**20  # bytes
_MAX_UNIT = 2**24  # characters
_MAX_NAMED = 20  # languages that a message lists
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"

# Matches comments, CDATA sections, and the tags that delimit units. The end of a comment or a CDATA
# section may be missing.
_TOKEN = re.compile(
    r"<!--(?:.*?(?P<end>-->))?|<!\[CDATA\[(?:.*?(?P<end_of_data>]]>))?"
    r"|<(?P<slash>/?)(?:[\w.-]+:)?(?P<name>tu|body|tmx)(?=[\s/>])[^<>]*(?P<close>>?)",
    re.DOTALL,
)
_LONGEST_START = 64  # characters to search again, because a token may continue in the next chunk
_PREFIX = re.compile(r"\bxmlns:([A-Za-z_][\w.-]*)\s*=")

# Characters that XML does not allow, and references to characters.
_ILLEGAL = re.compile(
    r"[\0-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]|&#(?:x([0-9A-Fa-f]{1,8})|(\d{1,8}));"
)
# XML allows the 32 noncharacters from here. They replace control characters while a unit is parsed.
_STAND_IN = 0xFDD0
# Later steps refuse NUL, so it becomes U+0001.
_CONTROL = {_STAND_IN + code: chr(max(code, 1)) for code in range(32)}

_BOMS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16: its mark is the start of this one
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_DECLARED = re.compile(rb"\s*<\?xml[^>]*?\bencoding\s*=\s*[\"']([A-Za-z][\w.-]*)")
_MARKUP = "<tuv lang='en'>&amp;</tuv>~+\\"

# Inline elements whose content is markup of the original document. `hi` and `sub` contain text.
_CODES = {"bpt", "ept", "it", "ph", "ut"}
_BREAKS = {"br", "lb", "p"}  # elements of other formats
_BREAK_TYPES = {"lb", "pb", "cb", "br", "x-br", "x-lb", "linebreak", "x-linebreak"}
_BREAK_CODE = re.compile(
    r"<\s*/?\s*(?:br|p|div|li|tr|td|th|hr|h[1-6])\b|\\(?:line|par|tab|[nrt])(?![a-z])",
    re.IGNORECASE,
)


_PARSER = etree.XMLParser(encoding="utf-8", resolve_entities=False, no_network=True, load_dtd=False)


class _BadUnit(ValueError):
    """A unit that cannot be read."""


@dataclasses.dataclass(frozen=True)
class TmxFile:
    """A corpus in a TMX file, which may be compressed. Unit i counts as line i.

    The segment of a missing language is empty, and both are empty if the unit is not valid XML.
    Cleaning counts and drops such pairs. The first bytes of the file determine its encoding, even
    if the XML declaration names another one.
    """

    path: Path
    source_language: str
    target_language: str

    @property
    def name(self) -> str:
        """The path."""
        return str(self.path)

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields a pair of segments, each as one line, for each unit.

        Control characters are kept. A warning gives the number of units that cannot be read.
        """
        wanted = [normalized_language(x) for x in (self.source_language, self.target_language)]
        units, first_problem, bad = 0, "", 0
        missing, languages = set(wanted), dict[str, None]()
        try:
            with open_binary(self.path) as file:
                for units, unit in enumerate(_read_units(self.path, file), start=1):
                    sides: dict[str, str] = {}
                    try:
                        for language, text in _variants(unit):
                            languages.setdefault(language)
                            for each in wanted:
                                if language == each or language.startswith(f"{each}-"):
                                    sides.setdefault(each, text)
                    except _BadUnit as error:
                        bad, first_problem = bad + 1, first_problem or f"unit {units}: {error}"
                    if missing:
                        missing -= sides.keys()
                    source, target = (sides.get(each, "").encode() for each in wanted)
                    yield source, target
        except reading_errors() as error:
            raise InputError(f"{self.path} cannot be read after unit {units} ({error}).") from error
        if not units:
            raise InputError(
                f"{self.path} has no translation units (<tu> elements). Give a TMX file."
            )
        if bad:
            _warn_once(
                f"{self.path}: {bad:,} of {units:,} units cannot be read. They are dropped and "
                f"counted as empty. The first is {first_problem}."
            )
        if missing and languages:
            raise InputError(
                f"{self.path} has no text in {' and '.join(sorted(missing))}. Its languages are "
                f"{', '.join(list(languages)[:_MAX_NAMED])}. Choose two of them."
            )


def tmx_files(
    paths: Sequence[str | Path], source_language: str | None, target_language: str | None
) -> list[TmxFile]:
    """Returns one corpus per file. Raises `InputError` if a file or a language is missing."""
    if not (source_language and target_language):
        raise InputError(
            f"{paths[0]} needs a source and a target language, but they are {source_language} and "
            f"{target_language}. Set both, for example to en and de."
        )
    return [TmxFile(require_file(path), source_language, target_language) for path in paths]


@functools.cache
def _warn_once(message: str) -> None:
    """Prints a warning only once, although a preparation reads every corpus twice."""
    warn(message)


# Finds the units in the bytes of a file.


def _read_units(path: Path, file: IO[bytes]) -> Iterator[str]:
    """Yields each unit of a file as an XML document, or "" for a unit without an end tag.

    Units are found without an XML parser, which would stop at the first error.
    """
    buffer, place = "", 0  # the search continues at `place`
    start: int | None = None  # where the open unit starts in `buffer`
    prefixes: tuple[str, ...] | None = None
    is_whole = False  # the end tag of the document was found
    for text in _decoded(file):
        is_last = text == ""
        buffer += text
        while token := _TOKEN.search(buffer, place):
            has_end = bool(token["end"] or token["end_of_data"] or token["close"])
            may_end_later = not token["name"] or token.end() == len(buffer)
            is_long = len(buffer) - token.start() > _CHUNK
            if not (has_end or is_last or is_long) and may_end_later:
                break  # the token may end in the next chunk
            place = token.end()
            if token["name"] in ("body", "tmx"):
                is_whole = is_whole or bool(token["slash"])
            elif token["name"] and not token["slash"]:
                if prefixes is None:
                    prefixes = tuple(dict.fromkeys(_PREFIX.findall(buffer[:place])))
                if start is not None:  # units do not contain units
                    yield ""
                start = token.start()
                if token[0].endswith("/>"):
                    yield _document(token[0], prefixes)
                    start = None
            elif token["name"] and start is not None:
                yield _document(buffer[start:place], prefixes or ())
                start = None
        else:
            place = max(place, len(buffer) - _LONGEST_START)
        if start is not None and len(buffer) - start > _MAX_UNIT:
            yield ""
            start = None
        kept = place if start is None else start
        buffer, place = buffer[kept:], place - kept
        start = None if start is None else 0
    if start is not None:
        yield ""
    if prefixes is not None and not is_whole:
        raise InputError(f"{path} is truncated: it ends without </tmx>. Copy or download it again.")


def _document(unit: str, prefixes: Iterable[str]) -> str:
    """Returns a unit as an XML document.

    The parser does not load the document type, so entities can neither expand nor read files. It is
    declared because undeclared entities would be errors otherwise.
    """
    declared = "".join(f" xmlns:{prefix}='{prefix}'" for prefix in prefixes)
    return f"<!DOCTYPE tmx SYSTEM 'tmx14.dtd'><tmx{declared}>{unit}</tmx>"


def _decoded(file: IO[bytes]) -> Iterator[str]:
    """Yields the text of a file in pieces, then "". Invalid bytes become `_UNDECODABLE`."""
    chunk = file.read(_CHUNK)
    decoder = codecs.getincrementaldecoder(_encoding(chunk))(_UNDECODABLE)
    while chunk:
        if text := decoder.decode(chunk):
            yield text
        chunk = file.read(_CHUNK)
    if text := decoder.decode(b"", final=True):
        yield text
    yield ""


# Invalid bytes become a lone surrogate. XML cannot contain it, so parsing rejects the unit.
_UNDECODABLE = f"{__name__}.undecodable"
codecs.register_error(_UNDECODABLE, lambda error: ("\udcff", error.end))  # type: ignore[attr-defined]


def _encoding(sample: bytes) -> str:
    """Returns the name of the codec for a file that begins with these bytes."""
    for mark, name in _BOMS.items():
        if sample.startswith(mark):
            return name
    head = sample[:256]
    for name, zeros in (("utf-16-le", head[1::2]), ("utf-16-be", head[::2])):
        if zeros.count(0) > len(head) // 4:  # markup is ASCII
            return name
    declared = _DECLARED.match(sample)
    # Long text in another encoding is rarely valid UTF-8 by chance.
    if declared and (sample.isascii() or not _is_utf8(sample)):
        name = declared[1].decode()
        try:
            if _MARKUP.encode().decode(name) == _MARKUP:
                codecs.getincrementaldecoder(name)
                return name
        except (LookupError, ValueError):  # an unknown codec, or not a text encoding
            pass
    return "utf-8"


def _is_utf8(sample: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)
    except UnicodeDecodeError:
        return False
    return True


# Extracts the segments of a unit.


def _variants(document: str) -> Iterator[tuple[str, str]]:
    """Yields language and text of each variant. Raises `_BadUnit` if the unit is not valid."""
    if not document:
        raise _BadUnit("it has no end")
    text = _ILLEGAL.sub(_stand_in, document)
    try:
        root = etree.fromstring(text.encode(), _PARSER)
    except UnicodeEncodeError as error:
        raise _BadUnit("its bytes are not valid in the encoding of the file") from error
    except etree.XMLSyntaxError as error:
        reason = re.sub(r",? line \d+, column \d+$", "", " ".join(str(error.msg).split()))
        raise _BadUnit(reason) from error
    for variant in root.iterfind("{*}tu/{*}tuv"):
        segment = variant.find("{*}seg")
        line = "" if segment is None else _line(segment)
        if text != document:
            line = line.translate(_CONTROL)
        language = variant.get(_LANGUAGE) or variant.get("lang") or ""
        yield normalized_language(language), line


def _stand_in(match: re.Match[str]) -> str:
    """Replaces a character, or a reference to one, if XML does not allow it."""
    if match[1] is None and match[2] is None:
        code = ord(match[0])
    else:
        code = int(match[1], 16) if match[1] else int(match[2])
    if code < 32:
        return match[0] if code in (9, 10, 13) else chr(_STAND_IN + code)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000 or code in (0xFFFE, 0xFFFF):
        return "\ufffd"
    return match[0]


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
    if not len(segment):
        return (segment.text or "").replace("\n", " ")
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
    return "".join(line).replace("\n", " ")


def _is_in_word(character: str) -> bool:
    return unicodedata.category(character)[0] in "LMN"
