"""Finds the translatable texts of XLIFF, of Android's strings.xml and of DOCX.

The parser of Python's standard library checks a file. Then a regular expression finds the tags, so
that all other characters stay the same.
"""

from __future__ import annotations

import dataclasses
import html
import io
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pyexpat import ErrorString, ExpatError, ParserCreate

import regex

from keras_transformer.errors import InputError, one_line
from keras_transformer.extensions.documents.markup import broken, text_token, tokenize
from keras_transformer.extensions.documents.placement import Token
from keras_transformer.extensions.documents.text_formats import Unit

# In a valid file. Comments, CDATA sections and declarations are skipped.
_XML_TAG = regex.compile(
    r"""<!--.*?-->|<!\[CDATA\[.*?\]\]>|<\?.*?\?>
    |<!DOCTYPE(?:[^\[>"']|"[^"]*"|'[^']*')*(?:\[(?:<!--.*?-->|"[^"]*"|'[^']*'|[^\]"'])*\]\s*)?>
    |<(?P<name>[^\s/>!?]+)(?P<attributes>(?:[^>"'/]|"[^"]*"|'[^']*')*)(?P<empty>/?)>
    |(?P<closing></[^>]*>)""",
    regex.VERBOSE | regex.DOTALL,
)
_ATTRIBUTE = regex.compile(r"""([^\s=]+)\s*=\s*["']([^"']*)""")
# Elements of XLIFF whose content is code of the original file.
_XLIFF_COPIED = frozenset("bpt ept ph it x bx ex sc ec cp sm em".split())
# A text, and the start and the end of the CDATA section around it.
_CDATA = regex.compile(r"(?|(\s*<!\[CDATA\[)((?:(?!\]\]>).)*+)(\]\]>\s*)|()(.*)())", regex.DOTALL)
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
    stop: int  # the start of its end tag
    end: int

    def ancestors(self) -> Iterator[Element]:
        """Yields the element and all elements around it."""
        element: Element | None = self
        while element is not None:
            yield element
            element = element.parent


def elements(text: str, label: str) -> list[Element]:
    """Returns the elements of an XML file, in the order of their starts."""
    try:
        ParserCreate("utf-8").Parse(
            text.encode(), True
        )  # the declaration may name another encoding
    except ExpatError as error:
        raise InputError(
            f"{label}, line {error.lineno}, column {error.offset + 1}: invalid XML "
            f"({ErrorString(error.code)})."
        ) from error
    found: list[Element] = []
    stack: list[Element] = []
    for tag in _XML_TAG.finditer(text):
        if tag["name"]:
            attributes = dict(_ATTRIBUTE.findall(tag["attributes"]))
            parent = stack[-1] if stack else None
            found.append(Element(tag["name"], attributes, parent, *tag.span(), *[tag.end()] * 2))
            stack += [found[-1]] * (not tag["empty"])
        elif tag["closing"]:
            element = stack.pop()
            element.stop, element.end = tag.span()
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
        name = source.name.removesuffix("source") + "target"
        if target is None:
            start = end = parts.get("seg-source", source).end
            indent = text[text.rfind("\n", 0, source.start) + 1 : source.start]
            opening = f"<{name}>" if indent.strip() else f"\n{indent}<{name}>"
        else:
            start, end = target.start, target.end
            opening = regex.sub(r"\s*/>$", ">", text[start : target.inner])
        before, content, after = _CDATA.fullmatch(text[source.inner : source.stop]).groups()
        tokens = tokenize(content, copied=_XLIFF_COPIED)
        if any(around.attributes.get("xml:space") == "preserve" for around in source.ancestors()):
            tokens = [t._replace(text=html.unescape(t.raw) * (t.kind == "text")) for t in tokens]
        opening, ending = opening + before, f"{after}</{name}>"
        if content.strip():
            yield Unit(start, end, tokens, opening=opening, ending=ending, is_new=True)


def android_units(text: str, label: str) -> Iterator[Unit]:
    """Yields the strings of Android's strings.xml, but not those with translatable="false"."""
    for element in elements(text, label):
        parent = element.parent
        parents = _ANDROID_TEXTS.get(element.name, "").split()
        if parent is None or parent.name not in parents:
            continue
        if any(around.attributes.get("translatable") == "false" for around in element.ancestors()):
            continue
        before, content, _ = _CDATA.fullmatch(text[element.inner : element.stop]).groups()
        # Quotation marks around the text keep its white space.
        quoted = regex.fullmatch(
            r'(\s*(?:"(?=.*"\s*$))?)(.*?)((?<!\\)"?\s*)', content, regex.DOTALL
        )
        source = regex.sub(r"\\(['\"])", r"\1", quoted[2])
        if source and not regex.fullmatch(r"[@?][\w:.]+/[\w.]+", source):
            start, end = (element.inner + len(before) + index for index in quoted.span(2))
            yield Unit(start, end, tokenize(source, copied=frozenset({"xliff:g"})), _android_text)


def _android_text(text: str) -> str:
    """Returns a text with escaped quotation marks, but not inside of tags."""
    return str(
        regex.sub(
            r"((?:<|&lt;)/?[A-Za-z][^<>]*?(?:>|&gt;))|(['\"])", lambda m: m[1] or f"\\{m[2]}", text
        )
    )


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
    tokens, is_open = [text_token(text[texts[0].inner : texts[0].stop])], False
    for before, element in zip(texts, texts[1:], strict=False):
        raw = text[before.stop : element.inner].replace("<w:t>", _PRESERVING)
        is_first = format_of(element) == first
        kind = "empty" if is_open != is_first else ("close" if is_first else "open")
        is_open = not is_first
        tokens += [Token(kind, raw, "run"), text_token(text[element.inner : element.stop])]
    start_tag = text[texts[0].start : texts[0].inner]
    opening = _PRESERVING if start_tag == "<w:t>" else start_tag
    end, ending = texts[-1].stop, ""
    outermost = next(e for e in texts[-1].ancestors() if e.parent and e.parent.name == "w:p")
    tail = text[end : outermost.end]
    if is_open and regex.fullmatch(r"(?:</w:\w+>)+", tail):
        # Words may follow the last run, in a run like the first one.
        tokens.append(Token("close", f"{tail}<w:r>{first[0]}{_PRESERVING}", "run"))
        end, ending = outermost.end, "</w:t></w:r>"
    yield Unit(texts[0].start, end, tokens, opening=opening, ending=ending)
