"""Translates text with tags: each tag is in the output exactly once, around the right words.

Tags are taken out, the text is translated, and the tags are placed by the alignment of the words.
Some rules are known from the HTML of Bergamot's translator: an element without words is placed
before the word that follows it, and elements such as `code` are copied.
"""

from __future__ import annotations

import bisect
import dataclasses
import html
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

import regex

from keras_transformer.errors import InputError
from keras_transformer.extensions.documents.protection import (
    Aligned,
    Range,
    joined,
    ranges_of,
    slot_of,
    translate_protected,
)
from keras_transformer.extensions.documents.sentences import segment, split_to_fit
from keras_transformer.inference.engine import Engine

# Elements of HTML that are copied with their content.
COPIED = frozenset("code kbd samp var math svg script style pre textarea template".split())
_VOID = frozenset("area base br col embed hr img input link meta source track wbr".split())
_TAG = regex.compile(
    r"""(?P<empty><!--.*?-->|<!\[CDATA\[.*?\]\]>|<[!?][^>]*>|<\d[\d:.]*>)
    |<(?P<slash>/?)(?P<name>[A-Za-z][^\s/>]*)(?P<attributes>(?:[^>"']|"[^"]*"|'[^']*')*+)>
    |(?P<entity>&[A-Za-z][\w.-]*;)""",
    regex.VERBOSE | regex.DOTALL,
)
_NOT_TRANSLATED = regex.compile(r"""\b(?:translate\s*=\s*["']?no|mtype\s*=\s*["']protected)\b""")


class Token(NamedTuple):
    """The characters of a text or of a tag: "text", "open", "close" or "empty" (copied)."""

    kind: str
    raw: str
    name: str = ""


@dataclasses.dataclass
class _Node:
    """An element around the words first to last of the source, or a tag between two words."""

    first: int
    last: int
    opening: str
    closing: str = ""
    before: str = ""  # the characters around the tag, without those of other tags
    after: str = ""
    children: list[_Node] = dataclasses.field(default_factory=list)

    @property
    def follows(self) -> bool:
        """Whether it stays with the word before it."""
        return bool(self.before.strip()) and self.after.isspace()


def broken(label: str, text: str, position: int, reason: str) -> NoReturn:
    """Raises an `InputError` for a position of a file."""
    line = text.count("\n", 0, position) + 1
    column = position - text.rfind("\n", 0, position)
    raise InputError(f"{label}, line {line}, column {column}: {reason}")


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
        if name and not match[0].endswith("/>") and name not in _VOID:
            kind = "close" if match["slash"] else "open"
        if kind == "open" and (name in copied or _NOT_TRANSLATED.search(match["attributes"])):
            end_tag = regex.compile(rf"</{regex.escape(name)}\s*>", regex.IGNORECASE)
            end = end_tag.search(text, position)
            kind, position = "empty", end.end() if end else len(text)
        tokens += [Token("text", text[cursor : match.start()])] * (cursor < match.start())
        tokens.append(Token(kind, text[match.start() : position], name))
        cursor = position
    return [*tokens, Token("text", text[cursor:])] if cursor < len(text) else tokens


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
    parts = [[_text(token, has_entities) for token in fragment] for fragment in fragments]
    pieces = _sentences(model, ["".join(part) for part in parts], patterns, tag)
    sentences = [piece.strip() for group in pieces for piece in group if piece.strip()]
    has_tags = any(token.kind != "text" for fragment in fragments for token in fragment)
    found = translate_protected(model, sentences, patterns, tag, has_tags)
    statuses = Counter(result.status for result in found if result.status)
    results = iter(found)
    outputs = []
    for fragment, part, group in zip(fragments, parts, pieces, strict=True):
        words, aligned = joined(group, results, patterns)
        if aligned.text == "".join(part):
            outputs.append("".join(token.raw for token in fragment))
        else:
            escape = _escaped if has_entities else str
            placement = _Placement(aligned, len(words), escape)
            whole = (0, len(aligned.words)), (0, len(aligned.text))
            output = placement.render(_tree(fragment, part, words), *whole)
            # White space around a text, such as line breaks, is not a part of the translation.
            raw = "".join(token.raw for token in fragment)
            start, end = regex.fullmatch(r"(\s*).*?(\s*)", raw, regex.DOTALL).groups()
            outputs.append(start + output.strip() + end)
    return outputs, statuses


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _text(token: Token, has_entities: bool) -> str:
    """Returns the text of a token, which is "" for tags."""
    if token.kind != "text" or not has_entities:
        return token.raw * (token.kind == "text")
    return regex.sub(r"[ \t]*[\r\n]\s*", " ", html.unescape(token.raw))


def _sentences(
    model: Engine, texts: Sequence[str], patterns: Sequence[str], tag: str
) -> list[list[str]]:
    """Splits texts into sentences that are not too long, but never inside a protected span."""
    segments = [segment(text, model.source_language) for text in texts]
    parts = iter(split_to_fit(model, tag, [part for group in segments for part in group]))
    result = []
    for text, group in zip(texts, segments, strict=True):
        ranges = ranges_of(text, patterns)
        pieces, start, end = [], 0, 0
        for part in (part for _ in group for part in next(parts)):
            end += len(part)
            if not any(first < end < last for first, last in ranges):
                pieces.append(text[start:end])
                start = end
        result.append(pieces)
    return result


def _tree(tokens: Sequence[Token], texts: Sequence[str], words: Sequence[Range]) -> list[_Node]:
    """Returns the elements and other tags of a text, with the words between them.

    A tag that does not match another one is kept like a tag between words.
    """
    text, offset = "".join(texts), 0
    starts, ends = [start for start, _ in words], [end for _, end in words]
    root = _Node(0, len(words), "")
    stack = [(root, "", 0)]  # the open elements, with their names and offsets

    def keep_unmatched() -> None:
        node, _, _ = stack.pop()
        stack[-1][0].children.extend(node.children)
        node.children = []

    for token, part in zip(tokens, texts, strict=True):
        before = bisect.bisect_right(ends, offset)  # words before this tag
        if token.kind == "close" and token.name in [name for _, name, _ in stack[1:]]:
            while stack[-1][1] != token.name:
                keep_unmatched()
            node, _, begin = stack.pop()
            last = bisect.bisect_left(starts, offset)
            if begin < offset and last > node.first:
                node.last, node.closing = last, token.raw
            else:  # an element without words
                node.opening += "".join(child.opening for child in node.children) + token.raw
                node.children = []
        elif token.kind != "text":
            left, right = text[:offset][-1:], text[offset : offset + 1]
            node = _Node(before, before, token.raw, "", left, right)
            stack[-1][0].children.append(node)
            if token.kind == "open":
                stack.append((node, token.name, offset))
        offset += len(part)
    while len(stack) > 1:
        keep_unmatched()
    return root.children


class _Placement(NamedTuple):
    """Writes a translation with the tags of its source."""

    aligned: Aligned
    source_count: int
    escape: Callable[[str], str]

    def render(self, nodes: Sequence[_Node], words: Range, characters: Range) -> str:
        """Returns a part of the translation with the tags inside of it."""
        text, output = self.aligned.text, ""
        cursor, stop = characters
        for first, last, node in self._placed(nodes, words):
            position = stop
            if first == last == words[0]:
                position = cursor  # the tag comes first
            elif first == last and node.follows:
                position = max(self.aligned.words[first - 1][1], cursor)
            elif first < len(self.aligned.words):
                position = min(max(self.aligned.words[first][0], cursor), stop)
            end = self.aligned.words[last - 1][1] if last > first else position
            output += self.escape(text[cursor:position])
            is_tag = first == last
            output += " " * (is_tag and node.before.isspace() and output[-1:].isalnum())
            inner = self.render(node.children, (first, last), (position, end))
            output += node.opening + inner + node.closing
            neighbor = text[end : end + 1]
            output += " " * (is_tag and neighbor.isalnum() and not node.after.isalnum())
            cursor = end
        return output + self.escape(text[cursor:stop])

    def _placed(self, nodes: Sequence[_Node], words: Range) -> list[tuple[int, int, _Node]]:
        """Returns for each node the words of the translation that it contains, in their order."""
        ranges: dict[int, Range] = {}
        free = set(range(*words))
        for choose in (self._aligned_range, self._relative_range):
            for index, node in enumerate(nodes):
                is_open = index not in ranges and node.last > node.first
                if is_open and (found := choose(node, free)):
                    ranges[index] = found
                    free -= set(range(*found))
        elements, slot = [*ranges.values()], words[0]
        for index, node in enumerate(nodes):
            if index not in ranges:  # tags between words keep their order
                at = slot_of(node.first, self.source_count, self.aligned, node.follows)
                slot = max(slot, at)
                slot = next((last for first, last in elements if first < slot < last), slot)
                slot = min(slot, words[1])
                ranges[index] = (slot, slot)
        order = sorted(range(len(nodes)), key=lambda index: (*ranges[index], index))
        return [(*ranges[index], nodes[index]) for index in order]

    def _aligned_range(self, node: _Node, free: set[int]) -> Range | None:
        """Returns the contiguous free words that represent an element best, or None.

        A word that translates one of the element counts 1, another one -1.
        """
        best, best_total, total, start = None, 0, 0, 0
        for word in sorted(free):
            if total <= 0 or word - 1 not in free:
                total, start = 0, word
            total += 1 if node.first <= self.aligned.sources[word] < node.last else -1
            if total > best_total:
                best, best_total = (start, word + 1), total
        return best

    def _relative_range(self, node: _Node, free: set[int]) -> Range | None:
        """Returns the free word nearest to the relative position of an element."""
        middle = (node.first + node.last) / 2 / self.source_count * len(self.aligned.words)
        word = min(free, key=lambda word: abs(word + 0.5 - middle), default=None)
        return None if word is None else (word, word + 1)
