"""Translates the text of files. Everything else in a file stays the same, byte for byte."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import regex

from keras_transformer import console
from keras_transformer.errors import InputError, require
from keras_transformer.extensions.documents import text_formats, xml_formats
from keras_transformer.extensions.documents.markup import translate_tokens
from keras_transformer.extensions.documents.protection import STATUSES
from keras_transformer.extensions.documents.spans import compile_patterns, spliced
from keras_transformer.extensions.documents.text_formats import Unit
from keras_transformer.inference.engine import Engine
from keras_transformer.inference.translate import changed_numbers
from keras_transformer.runs.atomic import output_file

# Functions that find the texts of a format.
_FINDERS: dict[str, Callable[[str, str], Iterable[Unit]]] = {
    "android": xml_formats.android_units,
    "docx": xml_formats.docx_units,
    "html": text_formats.html_units,
    "json": text_formats.json_units,
    "markdown": text_formats.markdown_units,
    "po": text_formats.po_units,
    "srt": text_formats.subtitle_units,
    "strings": text_formats.strings_units,
    "text": text_formats.plain_units,
    "vtt": text_formats.subtitle_units,
    "xliff": xml_formats.xliff_units,
}
_FORMATS = {f".{name}": name for name in _FINDERS} | {".htm": "html", ".xhtml": "html"}
_FORMATS |= {".md": "markdown", ".pot": "po", ".txt": "text", ".xlf": "xliff", ".xml": "android"}
_WITH_ENTITIES = frozenset({"android", "docx", "html", "vtt", "xliff"})
# Byte order marks, and the encodings that they stand for.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (b"", "utf-8"),
)
# The encoding that XML or HTML declares.
_DECLARED = regex.compile(
    rb"<\?xml[^>]*\bencoding\s*=\s*[\"']([\w.-]+)|<meta\b[^>]*\bcharset\s*=\s*[\"']?([\w.-]+)",
    regex.IGNORECASE,
)


def translate_file(
    model: Engine,
    input: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    format: str | None = None,
    spans: Sequence[str] = (),
    source_tag: str = "",
    overwrite: bool = False,
) -> dict[str, int]:
    """Translates the text of a file. `Translator.translate_file` describes the arguments."""
    path = Path(input)
    format = format or _FORMATS.get(path.suffix.lower(), "")
    known = ", ".join(_FINDERS)
    require(format in _FINDERS, f"The format of {path.name} is unknown. Give one of {known}.")
    exists = os.path.isfile(output) and not overwrite
    require(not exists, f"{output} exists. Choose another name, or allow to overwrite it.")
    require(
        model.n_best == 1,
        f"{model.label} returns {model.n_best} translations per sentence, but a file needs 1 "
        "(decoding.n_best).",
    )
    compile_patterns(spans)  # reports an invalid pattern first
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from error
    has_entities = format in _WITH_ENTITIES
    bom, encoding = next(item for item in _MARKS if data.startswith(item[0]))
    if format == "docx":
        parts = xml_formats.docx_parts(data, path.name)
    else:
        declared = _DECLARED.search(data[:2048]) if has_entities and not bom else None
        encoding = (declared[1] or declared[2]).decode() if declared else encoding
        parts = {path.name: _decoded(data[len(bom) :], path.name, encoding)}
    units = [
        (name, unit)
        for name, text in parts.items()
        for unit in _FINDERS[format](text, name if name == path.name else f"{path.name}: {name}")
    ]
    fragments = [unit.tokens for _, unit in units]
    texts = ["".join(token.text for token in fragment) for fragment in fragments]
    for _, remark in changed_numbers(model, texts)[:1]:
        console.warn(f"{path.name}: {remark}")
    outputs, statuses = translate_tokens(model, fragments, spans, source_tag, has_entities)
    changes: dict[str, list[tuple[int, int, str]]] = {}
    for (name, unit), new in zip(units, outputs, strict=True):
        if unit.is_new or new != "".join(token.raw for token in unit.tokens):
            content = unit.opening + unit.render(new) + unit.ending
            changes.setdefault(name, []).append((unit.start, unit.end, content))
    parts |= {name: spliced(parts[name], changed) for name, changed in changes.items()}
    if changes and format == "docx":
        data = xml_formats.with_docx_parts(data, parts)
    elif changes:
        errors = "xmlcharrefreplace" if has_entities else "strict"
        data = bom + parts[path.name].encode(encoding, errors)
    with output_file(os.fspath(output)) as file:
        file.write(data)
    return {"texts": len(units), **{status: statuses[status] for status in STATUSES}}


def _decoded(data: bytes, label: str, encoding: str) -> str:
    try:
        return data.decode(encoding)
    except (UnicodeError, LookupError) as error:
        line = data.count(b"\n", 0, getattr(error, "start", 0)) + 1
        raise InputError(
            f"{label}, line {line}: the text is not {encoding}. Convert the file to UTF-8."
        ) from error
