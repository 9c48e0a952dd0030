"""Translates text with tags: each tag is in the output exactly once, around the right words.

Tags are taken out, the text is translated, and the tags are placed by the alignment of the words.
Some rules are known from the HTML of Bergamot's translator: an element without words is placed
before the word that follows it, and elements such as `code` are copied.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Sequence
from typing import NoReturn

import regex

from keras_transformer.errors import InputError
from keras_transformer.extensions.documents.placement import Token, text_of, with_tags
from keras_transformer.extensions.documents.protection import joined, translate_protected
from keras_transformer.extensions.documents.sentences import segment, split_to_fit, with_gaps
from keras_transformer.extensions.documents.spans import find_spans
from keras_transformer.inference.engine import Engine

# Elements of HTML that are copied with their content.
COPIED = frozenset("code kbd samp var math svg script style pre textarea template".split())
_VOID = frozenset("area base br col embed hr img input link meta source track wbr".split())
_RAW = frozenset("script style textarea".split())  # their content has no tags
_TAG = regex.compile(
    r"""(?P<empty><!--.*?-->|<!\[CDATA\[.*?\]\]>|<\?.*?\?>|<%.*?%>|<[!?][^>]*>|<\d[\d:.]*>)
    |<(?P<slash>/?)(?P<name>[A-Za-z][^\s/>]*)(?P<attributes>(?:[^>"']|"[^"]*"|'[^']*')*+)>
    |&lt;(?P<slash>/?)(?P<name>[A-Za-z][\w:-]*)(?P<attributes>(?:(?!&[lg]t;)[^<>])*+)(?:&gt;|>)
    |(?P<entity>&[A-Za-z][\w.-]*;)""",
    regex.VERBOSE | regex.DOTALL,
)
_NOT_TRANSLATED = regex.compile(r"""\b(?:translate\s*=\s*["']?no|mtype\s*=\s*["']protected)\b""")


def broken(label: str, text: str, position: int, reason: str) -> NoReturn:
    """Raises an `InputError` for a position of a file."""
    line = text.count("\n", 0, position) + 1
    column = position - text.rfind("\n", 0, position)
    raise InputError(f"{label}, line {line}, column {column}: {reason}")


def text_token(raw: str, has_entities: bool = True) -> Token:
    """Returns the token of a text. With entities, a line break in it is a space."""
    text = regex.sub(r"[ \t]*[\r\n]\s*", " ", html.unescape(raw)) if has_entities else raw
    return Token("text", raw, text=text)


def tokenize(text: str, copied: frozenset[str] = COPIED, has_entities: bool = True) -> list[Token]:
    """Splits a text with tags into tokens, whose concatenation is the text.

    The elements `copied` become one token with their content, as do those with `translate="no"`.
    """
    tokens: list[Token] = []
    cursor = position = 0
    while match := _TAG.search(text, position):
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
            tokens.append(text_token(text[cursor : match.start()], has_entities))
        tokens.append(Token(kind, text[match.start() : position], name))
        cursor = position
    return [*tokens, text_token(text[cursor:], has_entities)] if cursor < len(text) else tokens


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


def translate_tokens(
    model: Engine,
    fragments: Sequence[Sequence[Token]],
    patterns: Sequence[str] = (),
    tag: str = "",
    has_entities: bool = True,
) -> tuple[list[str], Counter[str]]:
    """Translates texts with tags.

    Args:
        fragments: the tokens of each text.
        patterns: regular expressions of protected spans.
        tag: a symbol for each sentence, such as <2de>.
        has_entities: whether `&`, `<` and `>` of the text are written as entities, and a line break
            is a space.

    Returns:
        The texts, and the numbers of sentences by status (see `protection.py`).
    """
    texts = ["".join(token.text for token in fragment) for fragment in fragments]
    pieces = _sentences(model, texts, patterns, tag)
    sentences = [sentence for group in pieces for _, sentence in with_gaps(group)[0]]
    has_tags = any(token.kind != "text" for fragment in fragments for token in fragment)
    results = translate_protected(model, sentences, patterns, tag, has_tags)
    translations = iter([result.words for result in results])
    outputs = []
    for fragment, group in zip(fragments, pieces, strict=True):
        source, words = joined(group, translations, patterns)
        output = "".join(token.raw for token in fragment)
        if text_of(words) != text_of(source):
            if has_entities:
                words = [word._replace(text=_escaped(word.text)) for word in words]
            new = text_of(with_tags(fragment, source, words)).strip()
            # White space around a text, such as line breaks, is not a part of the translation.
            start, end = len(output) - len(output.lstrip()), len(output.rstrip())
            output = output[:start] + new + output[end:]
        outputs.append(output)
    return outputs, Counter(result.status for result in results if result.status)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _sentences(
    model: Engine, texts: Sequence[str], patterns: Sequence[str], tag: str
) -> list[list[str]]:
    """Splits texts into sentences that are not too long, but never inside a protected span."""
    segments = [segment(text, model.source_language) for text in texts]
    parts = iter(split_to_fit(model, tag, [part for group in segments for part in group]))
    result = []
    for text, group in zip(texts, segments, strict=True):
        spans = find_spans(text, patterns)
        pieces, start, end = [], 0, 0
        for part in (part for _ in group for part in next(parts)):
            end += len(part)
            if not any(first < end < last for first, last in spans):
                pieces.append(text[start:end])
                start = end
        result.append(pieces)
    return result
