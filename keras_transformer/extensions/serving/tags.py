"""Target-language tags of a model that is called through its signatures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras_transformer.inference.tags import add_tag, split_tags


def served_tags(
    signatures: Mapping[str, Callable[..., Mapping[str, Any]]],
) -> tuple[tuple[str, ...] | None, str | None]:
    """Returns the symbols of an export or a server, and the symbol that it adds to texts.

    Args:
        signatures: functions from lists of inputs to arrays, by name.
    """
    if not {"symbols", "tokenize"} <= set(signatures):
        return None, None
    text = {"text": ["a"]}
    symbols = tuple(symbol.decode() for symbol in signatures["symbols"](text)["symbols"][0])
    # A server with --source_tag adds it to this text, too.
    tokens = [token.decode() for token in signatures["tokenize"](text)["tokens"][0]]
    return symbols, next((token for token in tokens if token in symbols), None)


def add_missing_tag(text: str, tag: str, symbols: Sequence[str] | None) -> str:
    """Returns a text with a tag at its start, unless it begins with the tag or another one.

    Args:
        tag: the tag; empty for none.
        symbols: the symbols of the model, as in `split_tags`.
    """
    has_tag = split_tags(text, symbols)[0] or text.lstrip().startswith(tag)
    return text if has_tag else add_tag(text, tag)
