"""The flag --document of `translate`, for lines with several sentences, and `translate_file`."""

from __future__ import annotations

from typing import Any

from keras_transformer.errors import needs_extra

help = "lines may contain several sentences; see above"


def translate(model: Any, text: str, source_tag: str) -> tuple[str, list[str]]:
    """Returns the translated text, and warnings."""
    with needs_extra("documents", "--document"):
        from keras_transformer.extensions.documents.sentences import translate_document

    return translate_document(model, text, source_tag)


def translate_file(model: Any, *paths: Any, **options: Any) -> dict[str, int]:
    """Calls `files.translate_file`, which needs the extra `files`."""
    with needs_extra("files", "translate_file"):
        from keras_transformer.extensions.documents import files

    return files.translate_file(model, *paths, **options)
