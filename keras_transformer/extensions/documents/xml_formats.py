"""Finds the translatable texts of XLIFF, of Android's strings.xml and of DOCX.

expat, the parser of Python's standard library, checks a file and finds the positions of its
elements, so that all other characters stay the same. lxml selects the elements.
"""

from __future__ import annotations

import html
import io
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pyexpat import ErrorString, ExpatError, ParserCreate
from typing import Any, NamedTuple

import regex
from lxml import etree

from keras_transformer.errors import InputError, one_line
from keras_transformer.extensions.documents.markup import Token, broken, text_token, tokenize
from keras_transformer.extensions.documents.placement import Word
from keras_transformer.extensions.documents.protection import with_entities
from keras_transformer.extensions.documents.text_formats import Unit

_START_TAG = regex.compile(r"""<(?:[^>"']|"[^"]*"|'[^']*')*>""")
# Elements of XLIFF whose content is code of the original file.
_XLIFF_COPIED = frozenset("bpt ept ph it x bx ex sc ec cp sm em".split())
# A text, and the start and the end of the CDATA section around it.
_CDATA = regex.compile(r"(?|(\s*<!\[CDATA\[)((?:(?!\]\]>).)*+)(\]\]>\s*)|()(.*)())", regex.DOTALL)
_ANDROID_TEXTS = (
    "/resources/string[not(ancestor-or-self::*[@translatable='false'])] | /resources/*"
    "[self::string-array or self::plurals]/item[not(ancestor-or-self::*[@translatable='false'])]"
)
_DOCX_PARTS = regex.compile(
    r"word/(?:document|header\d*|footer\d*|footnotes|endnotes|comments)\.xml"
)
_MAX_XML_BYTES = 2**26  # of these files, which can be a thousand times as large as the archive
_DOCX_END = regex.compile(r"</?w:(?:p|tab|br|cr)[\s/>]")  # between two texts
_PRESERVING = '<w:t xml:space="preserve">'


class Extent(NamedTuple):
    """The positions of an element. All are indices of characters."""

    start: int
    inner: int  # the end of its start tag
    stop: int  # the start of its end tag
    end: int


def parse(text: str, label: str) -> tuple[Any, dict[Any, Extent]]:
    """Returns the root of an XML file, and the positions of all its elements."""
    extents: list[Extent] = []
    opened: list[int] = []
    parser = ParserCreate("utf-8")  # the declaration may name another encoding

    def start(name: str, attributes: dict[str, str]) -> None:
        begin = parser.CurrentByteIndex
        inner = _START_TAG.match(text, begin).end()
        opened.append(len(extents))
        extents.append(Extent(begin, inner, inner, inner))

    def end(name: str) -> None:
        index, stop = opened.pop(), parser.CurrentByteIndex
        if text[extents[index].inner - 2] != "/":
            extents[index] = extents[index]._replace(stop=stop, end=text.index(">", stop) + 1)

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.DefaultHandler = len  # any handler: without one, entities would be expanded
    try:
        # With one byte for each character, the positions of the parser are those in the text.
        parser.Parse(regex.sub(r"[^\0-\x7f]", "x", text).encode(), True)
    except ExpatError as error:
        raise InputError(
            f"{label}, line {error.lineno}, column {error.offset + 1}: invalid XML "
            f"({ErrorString(error.code)})."
        ) from error
    options = {"resolve_entities": False, "recover": True, "huge_tree": True}
    root = etree.fromstring(text.encode(), etree.XMLParser(encoding="utf-8", **options))
    return root, dict(zip(root.iter(etree.Element), extents, strict=True))


def xliff_units(text: str, label: str) -> Iterator[Unit]:
    """Yields the sources of XLIFF 1.2 and 2 that have no target, which is added."""
    root, extents = parse(text, label)
    name = root.tag.rpartition("}")[2]
    if name != "xliff":
        broken(label, text, extents[root].start, f"<{name}> is not the start of XLIFF.")
    for unit in root.iter("{*}trans-unit", "{*}segment"):
        source, target = unit.find("{*}source"), unit.find("{*}target")
        if source is None or source.xpath("ancestor-or-self::*[@translate='no']"):
            continue
        extent = extents[source]
        name = f"{source.prefix}:target" if source.prefix else "target"
        if target is None:
            start = end = extents[[source, *unit.iterfind("{*}seg-source")][-1]].end
            indent = text[text.rfind("\n", 0, extent.start) + 1 : extent.start]
            opening = f"<{name}>" if indent.strip() else f"\n{indent}<{name}>"
        else:
            start, inner, stop, end = extents[target]
            opening = regex.sub(r"\s*/>$", ">", text[start:inner])
            if text[inner:stop].strip():
                continue
        before, content, after = _CDATA.fullmatch(text[extent.inner : extent.stop]).groups()
        tokens = tokenize(content, copied=_XLIFF_COPIED)
        if source.xpath("ancestor-or-self::*[@xml:space='preserve']"):
            tokens = [t._replace(text=html.unescape(t.raw) * (t.kind == "text")) for t in tokens]
        opening, ending = opening + before, f"{after}</{name}>"
        if content.strip():
            render = _writer(before, content)
            yield Unit(start, end, tokens, render, opening, ending, is_new=True)


def android_units(text: str, label: str) -> Iterator[Unit]:
    """Yields the strings of Android's strings.xml, but not those with translatable="false"."""
    root, extents = parse(text, label)
    for element in root.xpath(_ANDROID_TEXTS):
        extent = extents[element]
        before, content, _ = _CDATA.fullmatch(text[extent.inner : extent.stop]).groups()
        # Quotation marks around the text keep its white space.
        quoted = regex.fullmatch(r'(?s)(\s*(?:"(?=.*"\s*$))?)(.*?)((?<!\\)"?\s*)', content)
        source = regex.sub(r"\\(['\"])", r"\1", quoted[2])
        if source and not regex.fullmatch(r"[@?][\w:.]+/[\w.]+", source):
            start, end = (extent.inner + len(before) + index for index in quoted.span(2))
            tokens = tokenize(source, copied=frozenset({"xliff:g"}))
            yield Unit(start, end, tokens, _writer(before, source))


def _writer(before: str, content: str) -> Callable[[str], str]:
    """Returns what writes a translation: without entities in a CDATA section of plain text."""
    is_plain = before and html.unescape(content) == content and "<" not in content
    return _cdata_text if is_plain else str


def _cdata_text(text: str) -> str:
    return html.unescape(text).replace("]]>", "]]]]><![CDATA[>")


def android_word(word: Word) -> str:
    """Returns the characters of a word in an Android file: quotation marks are escaped."""
    text = with_entities(word)
    return text if word.is_tag else regex.sub(r"(['\"])", r"\\\1", text)


def docx_parts(data: bytes, label: str) -> dict[str, str]:
    """Returns the XML files of a DOCX file that contain text, by their labels."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = [name for name in archive.namelist() if _DOCX_PARTS.fullmatch(name)]
            if sum(archive.getinfo(name).file_size for name in names) > _MAX_XML_BYTES:
                raise ValueError(f"it has more than {_MAX_XML_BYTES >> 20} MB of text")
            parts = {f"{label}: {name}": archive.read(name).decode() for name in names}
    # zipfile raises these for damaged, encrypted and otherwise unreadable archives.
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
        raise InputError(f"{label} is not a readable DOCX file ({one_line(error)}).") from error
    if f"{label}: word/document.xml" not in parts:
        raise InputError(f"{label} is not a DOCX file: it contains no word/document.xml.")
    return parts


def with_docx_parts(data: bytes, parts: dict[str, str], label: str) -> bytes:
    """Returns a DOCX file with other XML files. The rest of its content is the same."""
    output = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(output, "w") as new:
        for info in archive.infolist():
            content = parts.get(f"{label}: {info.filename}")
            new.writestr(info, archive.read(info) if content is None else content.encode())
    return output.getvalue()


def docx_units(text: str, label: str) -> Iterator[Unit]:
    """Yields the paragraphs of a part of a DOCX file.

    A paragraph consists of runs with the same formatting. The text of runs that are formatted like
    the first one is outside of tags. Other runs are elements. The tags are everything that is
    between two texts in the file. Tabs and line breaks end a text.
    """
    root, extents = parse(text, label)
    group: list[Any] = []
    for element in root.xpath("//*[name()='w:t'][ancestor::*[name()='w:p']]"):
        extent = extents[element]
        if group and _DOCX_END.search(text, extents[group[-1]].stop, extent.inner):
            yield _docx_unit(text, group, extents)
            group = []
        group += [element] * (extent.stop > extent.inner)
    if group:
        yield _docx_unit(text, group, extents)


def _docx_unit(text: str, texts: Sequence[Any], extents: dict[Any, Extent]) -> Unit:
    def format_of(element: Any) -> tuple[str, list[Any]]:
        """Returns the formatting, and the elements around the run, such as a link."""
        run, *around = element.iterancestors()
        formats = [text[extents[e].start : extents[e].end] for e in run.iterfind("{*}rPr")]
        return "".join(formats), around

    first = format_of(texts[0])
    begin, cursor = extents[texts[0]].start, extents[texts[0]].inner
    opening = text[begin:cursor].replace("<w:t>", _PRESERVING)
    tokens, is_open = [], False
    for element in texts:
        _, inner, stop, _ = extents[element]
        is_first = format_of(element) == first
        kind = "empty" if is_open != is_first else ("close" if is_first else "open")
        if element is not texts[0]:
            raw = text[cursor:inner].replace("<w:t>", _PRESERVING)
            tokens.append(Token(kind, raw, "run"))
            is_open = not is_first
        tokens.append(text_token(text[inner:stop]))
        cursor = stop
    ending = ""
    paragraph = next(texts[-1].iterancestors("{*}p"))
    outermost = next(e for e in texts[-1].iterancestors() if e.getparent() is paragraph)
    tail = text[cursor : extents[outermost].end]
    if is_open and regex.fullmatch(r"(?:</w:\w+>)+", tail):
        # Words may follow the last run, in a run like the first one.
        tokens.append(Token("close", f"{tail}<w:r>{first[0]}{_PRESERVING}", "run"))
        cursor, ending = extents[outermost].end, "</w:t></w:r>"
    return Unit(begin, cursor, tokens, opening=opening, ending=ending)
