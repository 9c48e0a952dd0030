"""The flag --document of `translate`: lines that contain several sentences."""

from __future__ import annotations

from typing import Any


class DocumentOption:
    """Translates the sentences of a text separately; see `sentences.translate_document`."""

    help = "lines may contain several sentences; see above"

    def translate(self, model: Any, text: str, source_tag: str) -> tuple[str, list[str]]:
        """Returns the translated text, and warnings."""
        from keras_transformer.extensions.documents.sentences import translate_document

        return translate_document(model, text, source_tag)


OPTION = DocumentOption()
