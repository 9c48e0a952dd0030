"""The flag --document of `translate`, for lines with several sentences, and `translate_file`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from keras_transformer import console
from keras_transformer.errors import needs_extra

# Each message is printed once in a process.
_warn_once = functools.cache(console.warn)


def _splitter() -> Any:
    """Returns `sentences.segment`, or None without the package sentencex."""
    try:
        from keras_transformer.extensions.documents.sentences import segment
    except ImportError:
        return None
    return segment


def share_of_several(texts: Sequence[str]) -> float | None:
    """Returns the share of texts with several sentences; None without the package sentencex."""
    split = _splitter()
    return split and sum(len(split(text)) > 1 for text in texts) / len(texts)


def translate(
    model: Any, texts: Sequence[str], all_texts: bool, source_tag: str, first_line: int
) -> tuple[dict[int, str], list[str]]:
    """Translates texts, or only those with several sentences.

    Returns the translations by the indices of the texts, and remarks, which count the texts from
    `first_line`.
    """
    chosen, split = [*range(len(texts))], _splitter()
    if not all_texts:
        language = model.source_language
        chosen = [i for i in chosen if split and len(split(texts[i], language)) > 1]
        if not chosen:
            return {}, []
        _warn_once(
            "The model was trained on single sentences, so texts with several sentences are split. "
            "--nodocument (document=False) turns this off."
        )
    with needs_extra("documents", "--document"):
        from keras_transformer.extensions.documents.protection import translate_texts

    lines = [first_line + index for index in chosen]
    outputs, remarks = translate_texts(model, [texts[i] for i in chosen], source_tag, lines)
    return dict(zip(chosen, outputs, strict=True)), remarks


def translate_file(model: Any, *paths: Any, **options: Any) -> dict[str, int]:
    """Calls `files.translate_file`, which needs the extra `files`."""
    with needs_extra("files", "translate_file"):
        from keras_transformer.extensions.documents import files

    return files.translate_file(model, *paths, **options)
