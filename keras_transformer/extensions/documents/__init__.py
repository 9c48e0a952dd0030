"""What commands and the library call: texts of several sentences, glossaries, and files."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from typing import Any

from keras_transformer import console
from keras_transformer.errors import needs_extra, require
from keras_transformer.inference.translate import with_fallback, with_languages
from keras_transformer.text.symbols import TERM_SYMBOLS

# Each message is printed once in a process.
_warn_once = functools.cache(console.warn)


def _splitter() -> Any:
    """Returns `sentences.segment`, or None without the package sentencex."""
    try:
        from keras_transformer.extensions.documents.sentences import segment
    except ImportError:
        return None
    return segment


def with_options(
    model: Any, glossary: Any = None, terms: str | None = None, casing: str | None = None
) -> Any:
    """Returns a model with options for texts, if any is given.

    A glossary is a mapping, pairs or a file. `terms` is "hard" (None) or "soft".
    """
    if not any((glossary, terms, casing)):
        return model
    with needs_extra("documents", "A glossary or casing"):
        from keras_transformer.extensions.documents.glossary import Glossary

    require(
        model.n_best == 1,
        f"{model.label} returns {model.n_best} translations, but a glossary or casing needs 1.",
    )
    require(casing in (None, "auto", "keep"), f"casing is {casing!r}. Use auto or keep.")
    require(terms in (None, "hard", "soft"), f"terms is {terms!r}. Use hard or soft.")
    require(terms is None or glossary is not None, f"terms={terms} needs a glossary.")
    is_soft = terms == "soft" and {*TERM_SYMBOLS} <= {*(model.symbols or ())}
    if terms == "soft" and not is_soft:
        _warn_once(
            f"{model.label} was not trained for soft terms (prepare --augment=terms:0.4), so the "
            "translations have the terms of the glossary in exactly their form."
        )
    model = copy.copy(model)
    model.casing = casing or model.casing
    if glossary is not None:
        model.glossary = Glossary(glossary, model.source_language, model.target_language, is_soft)
    return model


def share_of_several(texts: Sequence[str]) -> float | None:
    """Returns the share of texts with several sentences; None without the package sentencex."""
    split = _splitter()
    return split and sum(len(split(text)) > 1 for text in texts) / len(texts)


def translate(
    model: Any, texts: Sequence[str], document: bool | None, source_tag: str, first_line: int
) -> tuple[dict[int, str], list[str], str]:
    """Translates all texts, or those with several sentences or to which other options apply.

    `document` is as in `inference.translate.split_texts`. Returns the translations by the indices
    of the texts, remarks, which count the texts from `first_line`, and a sentence on the ways of
    the spans, if there are any.
    """
    chosen, split = {*range(len(texts))} if document else set[int](), _splitter()
    if not document and (model.glossary is not None or model.casing == "auto"):
        from keras_transformer.extensions.documents.protection import has_option

        chosen = {i for i, text in enumerate(texts) if has_option(model, text)}
    if split and document is None and model.single_sentences and model.n_best == 1:
        others = (i for i in range(len(texts)) if i not in chosen)
        several = {i for i in others if len(split(texts[i], model.source_language)) > 1}
        if several:
            _warn_once(
                "The model was trained on single sentences, so texts with several sentences "
                "are split. --nodocument (document=False) turns this off."
            )
        chosen |= several
    if not chosen:
        return {}, [], ""
    model = _for_documents(model) if document else model
    with needs_extra("documents", "--document"):
        from keras_transformer.extensions.documents.protection import translate_texts, ways

    indices = sorted(chosen)
    lines = [first_line + index for index in indices]
    chosen_texts = [texts[index] for index in indices]
    outputs, statuses, remarks = translate_texts(model, chosen_texts, source_tag, lines)
    kept = ways(statuses) if statuses.total() else ""
    return dict(zip(indices, outputs, strict=True)), remarks, kept


def _for_documents(model: Any) -> Any:
    """Returns a model that keeps sentences of low quality, because a text would lose empty ones."""
    action, least = model.fallback
    return with_fallback(model, "source", least) if action == "empty" else model


def translate_file(model: Any, *paths: Any, **options: Any) -> dict[str, int]:
    """Calls `files.translate_file`, which needs the extra `files`, after the other options."""
    with needs_extra("files", "translate_file"):
        from keras_transformer.extensions.documents import files

    def taken(*names: str) -> dict[str, Any]:
        return {name: options.pop(name) for name in names if name in options}

    model = with_languages(model, **taken("source_language", "target_language"))
    model = _for_documents(with_fallback(model, **taken("on_low_quality", "min_quality")))
    model = with_options(model, **taken("glossary", "terms", "casing"))
    return files.translate_file(model, *paths, **options)
