"""Target-language tags, such as `<2de>`, at the start of source lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from keras_transformer.errors import InputError

# Tag formats of multilingual corpora: <2de> (Johnson et al.), >>deu<< (OPUS-MT), __de__ (fairseq).
_FORM = r"(?:<2[^\s<>]+>|>>[^\s<>]+<<|__[^\W_]+(?:_[^\W_]+)*__)"
_TAG = re.compile(_FORM)
_LEADING = re.compile(rf"\s*({_FORM}(?:\s*{_FORM})*)")


def language_tags(symbols: Iterable[str]) -> tuple[str, ...]:
    """Returns the symbols that have a tag format, sorted.

    Args:
        symbols: the symbols of a vocabulary.

    Example:
    >>> language_tags(["<2fr>", "<number>", "<2de>"])
    ('<2de>', '<2fr>')
    """
    return tuple(sorted(symbol for symbol in symbols if _TAG.fullmatch(symbol)))


def split_tags(line: str, tags: Sequence[str] | None) -> tuple[str, str]:
    """Splits a line into its leading tags and the rest, which keeps the indentation.

    Args:
        line: a source line.
        tags: the tags of the model. None if they are unknown; then every text in a tag format
            counts as a tag.

    Example:
    >>> split_tags("  <2de> It rains.", ["<2de>"])
    ('<2de>', '  It rains.')
    >>> split_tags("<2it> It rains.", ["<2de>"])
    ('', '<2it> It rains.')
    """
    match = _LEADING.match(line)
    if match is None:
        return "", line
    found = _TAG.findall(match[1])
    if tags is not None and not set(found) <= set(tags):
        return "", line
    indent, rest = line[: match.start(1)], line[match.end() :]
    return " ".join(found), indent + (rest[1:] if rest[:1] == " " else rest)


def add_tag(text: str, tag: str) -> str:
    """Adds a tag at the start of a text, as in training data. Empty texts stay empty.

    Args:
        text: a source sentence.
        tag: the tag; empty for none.

    Example:
    >>> add_tag("It rains.", "<2de>")
    '<2de> It rains.'
    """
    return f"{tag} {text}" if tag and text.strip() else text


def check_tag(tag: str | None, tags: Sequence[str] | None, place: str) -> None:
    """Raises `InputError` if a model does not have a tag.

    Args:
        tag: the tag; None for none.
        tags: the tags of the model; None if they are unknown, as on a server.
        place: the path of the model.

    Example:
    >>> check_tag("<2de>", ["<2de>", "<2fr>"], "build/run")
    """
    if tag is None or tags is None or tag in tags:
        return
    known = f"Its tags are {', '.join(tags)}." if tags else "It has no tags."
    raise InputError(
        f"source_tag is {tag!r}, but the vocabulary of {place} does not have it. {known}"
    )


def missing_tags(lines: Sequence[str], tags: Sequence[str] | None) -> str | None:
    """Returns a warning about lines without a tag, or None if all lines have one.

    Args:
        lines: source lines; empty lines do not count.
        tags: the tags of the model. If it has none, there is no warning.

    Example:
    >>> missing_tags(["<2de> a", "b"], ["<2de>"])
    '1 of 2 lines has no target-language tag. Begin each line with <2de>, or use --source_tag.'
    """
    if not tags:
        return None
    lines = [line for line in lines if line.strip()]
    count = sum(not split_tags(line, tags)[0] for line in lines)
    if not count:
        return None
    verb = "has" if count == 1 else "have"
    return (
        f"{count:,} of {len(lines):,} lines {verb} no target-language tag. Begin each line with "
        f"{' or '.join(tags)}, or use --source_tag."
    )
