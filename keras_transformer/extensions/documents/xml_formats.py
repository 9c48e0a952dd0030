"""Finds the translatable texts of XLIFF, of Android's strings.xml and of DOCX.

The parser of Python's standard library reports the position of each element in the file, so that
all other characters stay the same.
"""

from __future__ import annotations

import dataclasses
import io
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pyexpat import ErrorString, ExpatError, ParserCreate

import regex

from keras_transformer.errors import InputError, one_line
from keras_transformer.extensions.documents.markup import Token, broken, tokenize
from keras_transformer.extensions.documents.text_formats import Unit

_START_TAG = regex.compile(r"""<[^\s/>]+(?:\s+[^\s=]+\s*=\s*(?:"[^"]*"|'[^']*'))*+\s*/?>""")
# Elements of XLIFF whose content is code of the original file.
_XLIFF_COPIED = frozenset("bpt ept ph it x bx ex sc ec cp sm em".split())
_ANDROID_TEXTS = {"string": "resources", "item": "string-array plurals"}  # element → its parents
_DOCX_PARTS = regex.compile(
    r"word/(?:document|header\d*|footer\d*|footnotes|endnotes|comments)\.xml"
)
_PRESERVING = '<w:t xml:space="preserve">'


@dataclasses.dataclass
class Element:
    """An element of an XML file. All positions are indices of characters."""

    name: str
    attributes: dict[str, str]
    parent: Element | None
    start: int
    inner: int  # the end of its start tag
    stop: int = 0  # the start of its end tag
    end: int = 0

    def ancestors(self) -> Iterator[Element]:
        """Yields the element and all elements around it."""
        element: Element | None = self
        while element is not None:
            yield element
            element = element.parent


def elements(text: str, label: str) -> list[Element]:
    """Returns the elements of an XML file, in the order of their starts."""
    data = text.encode()
    found: list[Element] = []
    stack: list[Element] = []
    parser = ParserCreate("utf-8")  # `text` is decoded, so its declaration does not count
    known = [0, 0]  # a number of bytes, and of the characters in them

    def position() -> int:
        byte = parser.CurrentByteIndex
        known[1] += len(data[known[0] : byte].decode())
        known[0] = byte
        return known[1]

    def start(name: str, attributes: dict[str, str]) -> None:
        begin = position()
        match = _START_TAG.match(text, begin)
        element = Element(name, attributes, stack[-1] if stack else None, begin, match.end())
        found.append(element)
        stack.append(element)

    def end(name: str) -> None:
        element = stack.pop()
        if text[element.inner - 2] == "/":
            element.stop = element.end = element.inner
        else:
            element.stop = position()
            element.end = text.index(">", element.stop) + 1

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.DefaultHandler = lambda data: None  # then entities of the file are not expanded
    try:
        parser.Parse(data, True)
    except ExpatError as error:
        raise InputError(
            f"{label}, line {error.lineno}, column {error.offset + 1}: invalid XML "
            f"({ErrorString(error.code)})."
        ) from error
    return found


def xliff_units(text: str, label: str) -> Iterator[Unit]:
    """Yields the sources of XLIFF 1.2 and 2 that have no target, which is added."""
    found = elements(text, label)
    if found[0].name.rpartition(":")[2] != "xliff":
        broken(label, text, found[0].start, f"<{found[0].name}> is not the start of XLIFF.")
    children: dict[int, dict[str, Element]] = {}
    for element in found:
        name, parent = element.name.rpartition(":")[2], element.parent
        if parent and parent.name.rpartition(":")[2] in ("trans-unit", "segment"):
            children.setdefault(id(parent), {})[name] = element
    for parts in children.values():
        source, target = parts.get("source"), parts.get("target")
        if source is None or (target and text[target.inner : target.stop].strip()):
            continue
        if any(element.attributes.get("translate") == "no" for element in source.ancestors()):
            continue
        tokens = tokenize(text[source.inner : source.stop], copied=_XLIFF_COPIED)
        name = source.name.removesuffix("source") + "target"
        if target is None:
            after = parts.get("seg-source", source).end
            line_start = text.rfind("\n", 0, source.start)
            gap = text[line_start : source.start] if line_start >= 0 else ""
            opening, begin, end = ("" if gap.strip() else gap) + f"<{name}>", after, after
        else:
            opening, begin, end = text[target.start : target.inner], target.start, target.end
            opening = regex.sub(r"\s*/>$", ">", opening)

        def render(output: str, opening: str = opening, name: str = name) -> str:
            return f"{opening}{output}</{name}>"

        if text[source.inner : source.stop].strip():
            yield Unit(begin, end, tokens, render, is_new=True)


def android_units(text: str, label: str) -> Iterator[Unit]:
    """Yields the strings of Android's strings.xml, but not those with translatable="false"."""
    for element in elements(text, label):
        parent = element.parent
        parents = _ANDROID_TEXTS.get(element.name, "").split()
        if parent is None or parent.name not in parents:
            continue
        if any(around.attributes.get("translatable") == "false" for around in element.ancestors()):
            continue
        raw = text[element.inner : element.stop]
        # Only the text inside of a CDATA section, or of quotation marks, is replaced.
        match = regex.fullmatch(
            r'(\s*(?:<!\[CDATA\[|"(?=.*"\s*$))?)(.*?)((?:\]\]>|(?<!\\)")?\s*)', raw, regex.DOTALL
        )
        source = regex.sub(r"\\(['\"])", r"\1", match[2])
        if source and not regex.fullmatch(r"[@?][\w:.]+/[\w.]+", source):
            start, end = (element.inner + index for index in match.span(2))
            yield Unit(start, end, tokenize(source, copied=frozenset({"xliff:g"})), _android_text)


def _android_text(text: str) -> str:
    """Returns a text with escaped quotation marks, but not inside of tags."""
    return str(regex.sub(r"(<[^>]*>)|(['\"])", lambda m: m[1] or f"\\{m[2]}", text))


def docx_parts(data: bytes, label: str) -> dict[str, str]:
    """Returns the XML files of a DOCX file that contain text, by their names."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = [name for name in archive.namelist() if _DOCX_PARTS.fullmatch(name)]
            parts = {name: archive.read(name).decode() for name in names}
    # zipfile raises these for damaged, encrypted and otherwise unreadable archives.
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
        raise InputError(f"{label} is not a readable DOCX file ({one_line(error)}).") from error
    if "word/document.xml" not in parts:
        raise InputError(f"{label} is not a DOCX file: it contains no word/document.xml.")
    return parts


def with_docx_parts(data: bytes, parts: dict[str, str]) -> bytes:
    """Returns a DOCX file with other XML files. The rest of its content is the same."""
    output = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(output, "w") as new:
        for info in archive.infolist():
            content = parts.get(info.filename)
            new.writestr(info, archive.read(info) if content is None else content.encode())
    return output.getvalue()


def docx_units(text: str, label: str) -> Iterator[Unit]:
    """Yields the paragraphs of a part of a DOCX file.

    A paragraph consists of runs with the same formatting. The text of runs that are formatted like
    the first one is outside of tags. Other runs are elements. The tags are everything that is
    between two texts in the file. Tabs and line breaks end a text.
    """
    formats: dict[int, str] = {}
    paragraphs: dict[int, list[Element]] = {}
    for element in elements(text, label):
        if element.name == "w:rPr" and element.parent is not None:
            formats[id(element.parent)] = text[element.start : element.end]
        elif element.name == "w:t" and element.stop > element.inner:
            around = [parent for parent in element.ancestors() if parent.name == "w:p"]
            if around:
                texts = paragraphs.setdefault(around[0].start, [])
                # A paragraph may contain others, in text boxes.
                between = text[texts[-1].stop : element.inner] if texts else ""
                if regex.search(r"<w:(?:p|tab|br|cr)[\s/>]", between):
                    yield from _docx_unit(text, texts, formats)
                    texts.clear()
                texts.append(element)
    for texts in paragraphs.values():
        yield from _docx_unit(text, texts, formats)


def _docx_unit(text: str, texts: Sequence[Element], formats: dict[int, str]) -> Iterator[Unit]:
    if not texts:
        return

    def format_of(element: Element) -> tuple[str, list[int]]:
        """Returns the formatting, and the elements around the run, such as a link."""
        _, run, *around = element.ancestors()
        return formats.get(id(run), ""), [parent.start for parent in around]

    first = format_of(texts[0])
    tokens, is_open = [Token("text", text[texts[0].inner : texts[0].stop])], False
    for before, element in zip(texts, texts[1:], strict=False):
        raw = text[before.stop : element.inner].replace("<w:t>", _PRESERVING)
        is_first = format_of(element) == first
        kind = "empty" if is_open != is_first else ("close" if is_first else "open")
        is_open = not is_first
        tokens += [Token(kind, raw, "run"), Token("text", text[element.inner : element.stop])]
    end, ending = texts[-1].stop, ""
    outermost = next(e for e in texts[-1].ancestors() if e.parent and e.parent.name == "w:p")
    tail = text[end : outermost.end]
    if is_open and regex.fullmatch(r"(?:</w:\w+>)+", tail):
        # Words may follow the last run, in a run like the first one.
        tokens.append(Token("close", f"{tail}<w:r>{first[0]}{_PRESERVING}", "run"))
        end, ending = outermost.end, "</w:t></w:r>"
    start_tag = text[texts[0].start : texts[0].inner]
    opening = _PRESERVING if start_tag == "<w:t>" else start_tag
    yield Unit(texts[0].start, end, tokens, lambda output: opening + output + ending)
