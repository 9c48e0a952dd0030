"""Configurations and vocabularies that come with the models of other toolkits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_transformer.errors import InputError, needs_extra
from keras_transformer.extensions.converters import ConvertOptions
from keras_transformer.extensions.converters.pieces import (
    PieceOrder,
    order_pieces,
    read_sentencepiece,
    word_model,
)
from keras_transformer.runs.checkpoints import reading


def read_tokens(path: Path) -> list[str]:
    """Returns the lines of a vocabulary file."""
    with reading(path, "a vocabulary"):
        return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def read_json(file: Path) -> dict[str, Any]:
    """Reads a JSON object."""
    if not file.is_file():
        raise InputError(f"{file} does not exist. The model needs it.")
    with reading(file, "JSON"):
        content = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it is not an object with names and values")
    return content


def read_yaml(directory: Path, path: str | None) -> dict[str, Any]:
    """Reads a YAML mapping."""
    with needs_extra("convert", "reading a YAML configuration"):
        import yaml
    if path is None:
        found = sorted([*directory.glob("*.yml"), *directory.glob("*.yaml")])
        if len(found) != 1:
            names = ", ".join(each.name for each in found) or "none"
            raise InputError(
                f"{directory} must contain one configuration (.yml), but has {names}. Give the "
                "configuration that trained the model with --config."
            )
        path = str(found[0])
    with reading(Path(path), "a YAML configuration"):
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it is not a mapping")
        return content


def find_vocabularies(
    directory: Path,
    pattern: str,
    options: ConvertOptions,
    names: Sequence[str] = ("", ""),
    *,
    can_share: bool = True,
) -> list[Path]:
    """Returns the vocabulary files of source and target."""
    given = (options.source_vocabulary, options.target_vocabulary)
    usual = [directory / name if (directory / name).is_file() else None for name in names]
    chosen = [Path(path) if path else file for path, file in zip(given, usual, strict=True)]
    named = [path for path in chosen if path is not None]
    if len(named) == len(chosen):
        return named
    if not can_share:
        i = chosen.index(None)
        side = ("source", "target")[i]
        raise InputError(
            f"{directory} lacks {names[i]}, the vocabulary of the {side}. Copy it there, or give "
            f"it with --{side}_vocabulary."
        )
    found = sorted(directory.glob(pattern))
    if len(found) != 1:
        found_names = ", ".join(each.name for each in found) or "none"
        raise InputError(
            f"{directory} must contain one vocabulary {pattern}, but has {found_names}. Give them "
            "with --source_vocabulary and --target_vocabulary."
        )
    return [path or found[0] for path in chosen]


def order_tokens(
    token_lists: Sequence[Sequence[str]],
    sentencepiece: Sequence[str] | None,
    *,
    joint: bool,
    pad_piece: str,
    start_row: int,
) -> PieceOrder:
    """Returns the vocabulary of lists of tokens, with their ids."""
    if joint and list(token_lists[0]) != list(token_lists[1]):
        raise InputError(
            "The model shares its embeddings between source and target, but the two vocabularies "
            "differ. Give the vocabulary of this model."
        )
    if sentencepiece is not None:
        models = [read_sentencepiece(Path(path)) for path in sentencepiece]
        tables = [_ids(tokens) for tokens in token_lists]
    else:
        models, tables = map(list, zip(*map(word_model, token_lists), strict=True))
    source, target = tables
    return order_pieces(
        models[0],
        models[1],
        source,
        source if joint else target,
        pad_piece=pad_piece,
        start_row=start_row,
    )


def _ids(tokens: Sequence[str]) -> dict[str, int]:
    ids: dict[str, int] = {}
    for i, token in enumerate(tokens):
        if ids.setdefault(token, i) != i:
            raise InputError(f"The vocabulary has {token!r} twice. It is damaged.")
    return ids
