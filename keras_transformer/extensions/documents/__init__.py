"""The flag --document of `translate`: the sentences of a line are translated separately."""

from __future__ import annotations

from typing import Any

from keras_transformer.errors import needs_extra

help = "lines may contain several sentences; see above"


def translate(model: Any, text: str, source_tag: str) -> tuple[str, list[str]]:
    """Returns the translated text, and warnings."""
    with needs_extra("documents", "--document"):
        from keras_transformer.extensions.documents.sentences import translate_document

    return translate_document(model, text, source_tag)
