"""Finds the translatable texts of HTML, Markdown, subtitles and files of strings.

Libraries that write these formats change more of a file than its text. So only the texts are
replaced. Where their positions are difficult to find, libraries report them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, NamedTuple

import regex
from markdown_it import MarkdownIt
from markdown_it.common.utils import normalizeReference

from keras_transformer.extensions.documents.markup import (
    Token,
    broken,
    text_token,
    tokenize,
    tokens_of,
)

# Elements of HTML inside of a sentence. "" are comments and entities.
_INLINE = frozenset(
    "a abbr acronym b bdi bdo big cite code data del dfn em font i img ins kbd label mark math q "
    "rp rt ruby s samp small span strike strong sub sup svg time tt u var wbr".split()
) | {""}
_QUOTED = r'"(?:[^"\\]|\\.)*+"'
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
# This also quotes the texts of other formats.
_to_json = functools.partial(json.dumps, ensure_ascii=False)
_NEWLINE = r"(?:\r\n?|\n|\Z)"
_LINE = rf"(?:[^\r\n]*\S[^\r\n]*{_NEWLINE})"  # that is not empty
_CLOCK = r"[ \t]*(?:\d+:)?\d\d:\d\d[,.]\d+[ \t]*"
_TIMES = rf"{_CLOCK}-->{_CLOCK}(?:(?<=\s)[^\r\n]*)?{_NEWLINE}"


class Unit(NamedTuple):
    """A text of a file.

    Attributes:
        start: index of its first character in the file.
        end: index after its last character.
        tokens: the text that is translated, with its tags.
        render: returns the characters that replace the range, for a translation.
        opening: the characters before them, and `ending` those after them.
        is_new: whether the file has another place for the translation, so that it is always
            written.
    """

    start: int
    end: int
    tokens: Sequence[Token]
    render: Callable[[str], str] = str
    opening: str = ""
    ending: str = ""
    is_new: bool = False


def html_units(text: str, label: str) -> Iterator[Unit]:
    """Yields the texts of HTML. Attributes are kept, and so are scripts and `pre`."""
    position, start, tokens = 0, 0, list[Token]()
    for token in [*tokenize(text), Token("empty", "", "end")]:
        if token.kind == "text" and (found := regex.search(r"<[A-Za-z/!?]", token.raw)):
            broken(label, text, position + found.start(), "the tag does not end. Add the '>'.")
        if token.kind == "text" or token.name in _INLINE:
            tokens.append(token)
        else:
            if any(token.kind == "text" and token.raw.strip() for token in tokens):
                yield Unit(start, position, tokens)
            start, tokens = position + len(token.raw), []
        position += len(token.raw)


def plain_units(text: str, label: str) -> Iterator[Unit]:
    """Yields the lines of a text."""
    for match in regex.finditer(r"[^\r\n]+", text):
        yield Unit(match.start(), match.end(), tokenize(match[0], frozenset(), False))


def json_units(text: str, label: str) -> Iterator[Unit]:
    """Yields the strings of a JSON document that are not keys."""
    try:
        json.loads(text, parse_int=str)  # Python does not convert very long numbers
    except json.JSONDecodeError as error:
        broken(label, text, error.pos, f"invalid JSON ({error.msg}).")
    except RecursionError:
        broken(label, text, 0, "the JSON is nested too deeply.")
    for match in regex.finditer(rf"({_QUOTED})(\s*:)?", text):
        value = json.loads(match[1])
        if not match[2] and value.encode(errors="ignore").decode() == value:  # valid UTF-8
            yield Unit(match.start(1), match.end(1), tokenize(value, has_entities=False), _to_json)


def _unescaped(strings: str) -> str:
    """Returns the text of one or more quoted strings."""
    quoted = "".join(match[0][1:-1] for match in regex.finditer(_QUOTED, strings, regex.DOTALL))

    def character(escape: regex.Match[str]) -> str:
        return chr(int(escape[1], 16)) if escape[1] else _ESCAPES.get(escape[2], escape[2])

    text = regex.sub(r"\\(?:U([0-9a-fA-F]{4})|(.))", character, quoted, flags=regex.DOTALL)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # joins pairs


def _entries(
    pattern: str, skipped: str, text: str, label: str, form: str = "a complete entry"
) -> Iterator[regex.Match[str]]:
    """Yields the entries of a file. Anything between them is an error, which names their form."""
    entry = regex.compile(pattern, regex.DOTALL | regex.VERBOSE)
    gap = regex.compile(rf"(?:{skipped})*+", regex.DOTALL)
    position = gap.match(text).end()
    while position < len(text):
        match = entry.match(text, position)
        if match is None:
            broken(label, text, position, f"{form} should begin here.")
        yield match
        position = gap.match(text, match.end()).end()


def strings_units(text: str, label: str) -> Iterator[Unit]:
    """Yields the values of an iOS .strings file."""
    pattern = rf"(?:{_QUOTED}|[\w.-]+)\s*=\s*({_QUOTED})\s*;"
    for match in _entries(pattern, r"\s|/\*.*?\*/|//[^\n]*", text, label):
        tokens = tokenize(_unescaped(match[1]), has_entities=False)
        yield Unit(match.start(1), match.end(1), tokens, _to_json)


def po_units(text: str, label: str) -> Iterator[Unit]:
    """Yields the messages of a PO file that have no translation."""
    string = rf"({_QUOTED}(?:\s*{_QUOTED})*)"
    comment = r"\s*(?:\#(?!~)[^\n]*\s*)*"
    pattern = rf"""(?:msgctxt\s+{string}{comment})?msgid\s+{string}{comment}
        (?:msgid_plural\s+{string}{comment})?(?:msgstr((?:\[\d+\])?)\s+{string}{comment})+"""
    form = regex.search(r"nplurals\s*=\s*(\d)", text)
    singular = "" if form and form[1] == "1" else "[0]"
    for match in _entries(pattern, r"\s|#[^\n]*", text, label):
        for number, (start, end) in zip(match.captures(4), match.spans(5), strict=True):
            source = match[2] if number in ("", singular) or not match[3] else match[3]
            tokens = tokenize(_unescaped(source), has_entities=False)
            if tokens and not _unescaped(text[start:end]):
                yield Unit(start, end, tokens, _to_json, is_new=True)


def subtitle_units(text: str, label: str) -> Iterator[Unit]:
    """Yields the texts of SubRip and WebVTT subtitles: the lines of a subtitle together."""
    is_vtt = text.startswith("WEBVTT")
    number, skipped = rf"\d+[ \t]*{_NEWLINE}", r"\s"
    if is_vtt:
        number = rf"{_LINE}?"
        skipped = rf"\s|(?=(?:WEBVTT|NOTE|STYLE|REGION)\b)(?:(?![^\r\n]*-->){_LINE})+"
    form = "a time such as 00:00:01,000 --> 00:00:02,000, after a number or WEBVTT,"
    for match in _entries(rf"{number}{_TIMES}({_LINE}*)", skipped, text, label, form):
        lines = [*regex.finditer(r"[^\r\n]+", text, pos=match.start(1), endpos=match.end(1))]
        dash = regex.compile(r"\s*[-–—]\s*")
        is_dialogue = any(dash.match(line[0]) for line in lines)
        for group in [[line] for line in lines] if is_dialogue else [lines] * bool(lines):
            end = group[-1].end()
            speaker = dash.match(text, group[0].start(), end)
            start = speaker.end() if speaker else group[0].start()
            newline = regex.search(r"\r\n?|\n|$", text, pos=start)[0]
            joined = regex.sub(r"\s*[\r\n]\s*", " ", text[start:end])
            render = functools.partial(_wrapped, len(group), newline)
            yield Unit(start, end, tokenize(joined, has_entities=is_vtt), render)


def _wrapped(lines: int, newline: str, text: str) -> str:
    """Breaks a text into a number of lines of similar lengths, outside of tags and variables."""
    spaces = [m.start() for m in regex.finditer(r"<[^>]*>|\{[^}]*\}|( )", text) if m[1]]
    ideals = [len(text) * number / lines for number in range(1, lines)]
    breaks = {min(spaces, key=lambda i: abs(i - ideal), default=-1) for ideal in ideals}
    return "".join(newline if i in breaks else character for i, character in enumerate(text))


_MARKDOWN = regex.compile(
    r"""(?P<empty>(?<!`)(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)|<[A-Za-z][\w+.-]*:[^\s<>]*>
    |<[^\s<>@]+@[^\s<>]+>|<!--.*?-->|&\#?\w+;|\\[!-/:-@\[-`{-~]|^\[[\ xX]\](?=\s)
    |^\[\^[^\]]+\]:|\[\^[^\]]+\]|^\[!\w+\])
    |(?P<tag></?[A-Za-z][^<>]*>)
    |(?P<label>!?\[[^\[\]*_`]+\](?:\[\])?(?![\[(]))
    |(?P<close>\](?:\((?:[^()\s]|\([^()]*\))*(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)|\[[^\]]*\])?
        |(?<=\S)(?:\*{1,3}|_{1,3}|~~)(?!\w))
    |(?P<open>!?\[|(?:\*{1,3}|(?<!\w)_{1,3}|~~)(?=\S))""",
    regex.VERBOSE,
)


def markdown_units(text: str, label: str) -> Iterator[Unit]:
    """Yields the texts of Markdown. Code, HTML blocks and metadata at the start are kept."""
    starts = [0, *(match.end() for match in regex.finditer(r"\r\n?|\n", text)), len(text)]
    metadata = regex.match(r"(---|\+\+\+)\r?\n.*?\n\1[ \t]*(\r?\n|$)", text, regex.DOTALL)
    cursor = metadata.end() if metadata else 0
    # The lines of the metadata are empty for the parser, so that the numbers of lines stay.
    content = regex.sub(r"[^\r\n]", "", text[:cursor]) + text[cursor:]
    parsed: dict[str, Any] = {}
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(content, parsed)
    references, is_cell = parsed.get("references", {}), False
    for token in tokens:
        if token.type != "inline" or token.map is None:
            is_cell = token.type in ("td_open", "th_open")
            continue
        group: list[tuple[int, str]] = []
        for row, content in enumerate(token.content.split("\n"), token.map[0]):
            line, start = content.strip(), max(cursor, starts[row])
            # A paragraph ends with its line. Markers such as those of lists are before it.
            find = text.find if is_cell else text.rfind
            position = find(line, start, starts[row + 1])
            if position < 0:
                line = line.replace("|", "\\|")  # in a cell of a table
                position = find(line, start, starts[row + 1])
            if line and position >= 0:
                cursor = position + len(line)
                group.append((position, line.removesuffix("\\")))
            # A line break in the output, and the line of a marker such as [!NOTE].
            if group and regex.search(r"\\$|  $|^\s*\[!\w+\]\s*$", content):
                yield _markdown_unit(group, references)
                group = []
        if group:
            yield _markdown_unit(group, references)


def _markdown_unit(lines: Sequence[tuple[int, str]], references: Container[str]) -> Unit:
    text = " ".join(line for _, line in lines)
    tokens: list[Token] = []
    cursor = 0
    for match in _MARKDOWN.finditer(text):
        if match.start() < cursor:
            continue  # it is inside of an element that is copied
        kind, raw = str(match.lastgroup), match[0]
        name = raw if raw[0] in "*_~" else "["
        if kind == "label":  # a link whose text is also its label, or text in brackets
            if normalizeReference(raw.strip("![]")) not in references:
                continue
            kind = "empty"
        elif kind == "tag":
            kind, raw, name, _ = next(tokens_of(text[match.start() :], has_entities=False))
            if kind == "text":
                continue
        tokens += [text_token(text[cursor : match.start()], False)] * (cursor < match.start())
        tokens.append(Token(kind, raw, name))
        cursor = match.start() + len(raw)
    tokens += [text_token(text[cursor:], False)] * (cursor < len(text))
    return Unit(lines[0][0], lines[-1][0] + len(lines[-1][1]), tokens)
