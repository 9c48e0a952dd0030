"""Splits text with tags, such as HTML, into tokens."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

import regex

from keras_transformer.errors import InputError
from keras_transformer.extensions.documents.spans import in_time

# Elements of HTML that are copied with their content.
COPIED = frozenset("code kbd samp var math svg script style pre textarea template".split())
_VOID = frozenset("area base br col embed hr img input link meta source track wbr".split())
_RAW = frozenset("script style textarea".split())  # their content has no tags
_TAG = regex.compile(
    r"""(?P<empty><!--.*?-->|<!\[CDATA\[.*?\]\]>|<\?.*?\?>|<%.*?%>|<[!?][^>]*>|<\d[\d:.]*>)
    |<(?P<slash>/?)(?P<name>[A-Za-z][^\s/<>]*+)(?P<attributes>(?:[^<>"']|"[^"]*"|'[^']*')*+)>
    |&lt;(?P<slash>/?)(?P<name>[A-Za-z][\w:-]*+)(?P<attributes>(?:(?!&[lg]t;)[^<>])*+)(?:&gt;|>)
    |(?P<entity>&[A-Za-z][\w.-]*;)""",
    regex.VERBOSE | regex.DOTALL,
)
_NOT_TRANSLATED = regex.compile(
    r"""\s(?:translate\s*=\s*["']?no|mtype\s*=\s*["']protected|class\s*=["']?[^"'=]*\bnotranslate)\b"""
)
_LINE_BREAK = regex.compile(r"(?<![ \t])[ \t]*+[\r\n]\s*")


class Token(NamedTuple):
    """The characters of a text or of a tag.

    Attributes:
        kind: "text", "open", "close" or "empty". Empty ones are copied.
        raw: the characters in the file.
        name: the name of an element.
        text: the text, without entities.
    """

    kind: str
    raw: str
    name: str = ""
    text: str = ""


def broken(label: str, text: str, position: int, reason: str) -> NoReturn:
    """Raises an `InputError` for a position of a file."""
    line = text.count("\n", 0, position) + 1
    column = position - text.rfind("\n", 0, position)
    raise InputError(f"{label}, line {line}, column {column}: {reason}")


def text_token(raw: str, has_entities: bool = True) -> Token:
    """Returns the token of a text. With entities, a line break in it is a space."""
    text = _LINE_BREAK.sub(" ", html.unescape(raw)) if has_entities else raw
    return Token("text", raw, text=text)


def tokenize(text: str, copied: frozenset[str] = COPIED, has_entities: bool = True) -> list[Token]:
    """Splits a text with tags into tokens, whose concatenation is the text.

    The elements `copied` become one token with their content, as do those with `translate="no"`.
    """
    return [*tokens_of(text, copied, has_entities)]


def tokens_of(
    text: str, copied: frozenset[str] = COPIED, has_entities: bool = True
) -> Iterator[Token]:
    """Yields the tokens of `tokenize`."""
    cursor = position = 0
    while match := in_time(_TAG.search, text, position):
        position = match.end()
        name, entity = (match["name"] or "").lower(), match["entity"]
        kind = "empty"
        if entity and (not has_entities or html.unescape(entity) != entity):
            continue  # it is text, unlike the entities that a file defines
        if name and not match["attributes"].endswith("/") and name not in _VOID:
            kind = "close" if match["slash"] else "open"
        if kind == "open" and (name in copied or _NOT_TRANSLATED.search(match["attributes"])):
            kind, position = "empty", _end_of_element(text, position, name)
        if cursor < match.start():
            yield text_token(text[cursor : match.start()], has_entities)
        yield Token(kind, text[match.start() : position], name)
        cursor = position
    if cursor < len(text):
        yield text_token(text[cursor:], has_entities)


def _end_of_element(text: str, position: int, name: str) -> int:
    """Returns the end of an element whose start tag ends at `position`."""
    depth = 1
    tag = regex.compile(rf"<(/?){regex.escape(name)}(?![\w:.-])[^<>]*?(/?)>", regex.IGNORECASE)
    for match in tag.finditer(text, position):
        if match[1]:
            depth -= 1
        elif not match[2] and name not in _RAW:
            depth += 1
        if depth == 0:
            return int(match.end())
    return len(text)
