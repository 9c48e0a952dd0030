"""Translates the text of files. Everything else in a file stays the same, byte for byte."""

from __future__ import annotations

import bisect
import codecs
import functools
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import regex

from keras_transformer import console
from keras_transformer.errors import InputError, require
from keras_transformer.extensions.documents import protection, text_formats, xml_formats
from keras_transformer.extensions.documents.placement import Word
from keras_transformer.extensions.documents.protection import with_entities, without_entities
from keras_transformer.extensions.documents.spans import compile_patterns, find_spans, spliced
from keras_transformer.extensions.documents.text_formats import Unit
from keras_transformer.inference.batching import token_counts, unknown_token_remark
from keras_transformer.inference.engine import Engine
from keras_transformer.inference.translate import changed_numbers
from keras_transformer.runs.atomic import output_file

# Each format has a function that finds its texts, one that writes a word, and its suffixes.
_FORMATS: dict[str, tuple[Callable[[str, str], Iterable[Unit]], Callable[[Word], str], str]] = {
    "android": (xml_formats.android_units, xml_formats.android_word, ".xml"),
    "docx": (xml_formats.docx_units, with_entities, ".docx"),
    "html": (text_formats.html_units, with_entities, ".html .htm .xhtml"),
    "json": (text_formats.json_units, without_entities, ".json"),
    "markdown": (text_formats.markdown_units, without_entities, ".md .markdown"),
    "po": (text_formats.po_units, without_entities, ".po .pot"),
    "srt": (text_formats.subtitle_units, without_entities, ".srt"),
    "strings": (text_formats.strings_units, without_entities, ".strings"),
    "text": (text_formats.plain_units, without_entities, ".txt .text"),
    "vtt": (text_formats.subtitle_units, with_entities, ".vtt"),
    "xliff": (xml_formats.xliff_units, with_entities, ".xlf .xliff"),
}
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
    exists = os.path.isfile(output) and not overwrite
    require(not exists, f"{output} exists. Choose another name, or allow to overwrite it.")
    compile_patterns(spans)  # reports an invalid pattern first
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from error
    data, counts, remarks = translate_bytes(model, data, path.name, format or "", spans, source_tag)
    for remark in remarks:
        console.warn(f"{path.name}: {remark}")
    with output_file(os.fspath(output)) as file:
        file.write(data)
    return counts


def file_suffixes() -> list[str]:
    """Returns the suffixes of the files that can be translated, such as ".html"."""
    return [suffix for *_, suffixes in _FORMATS.values() for suffix in suffixes.split()]


def _format_of(name: str) -> str:
    suffix = Path(name).suffix.lower()
    known = (format for format, fields in _FORMATS.items() if suffix in fields[2].split())
    return next(known, "")


def file_texts(data: bytes, name: str) -> list[str]:
    """Returns the texts of the content of a file with this name."""
    *_, units = _read(data, name)
    return ["".join(t.text for t in unit.tokens) for found in units.values() for unit in found]


def _read(
    data: bytes, name: str, format: str = ""
) -> tuple[str, bytes, str, dict[str, str], dict[str, list[Unit]]]:
    """Returns the format, the byte order mark, the encoding, the parts and the texts of a file."""
    format, names = format or _format_of(name), ", ".join(_FORMATS)
    require(format in _FORMATS, f"The format of {name} is unknown. Give one of {names}.")
    find_units, written, _ = _FORMATS[format]
    bom, encoding = next(item for item in _MARKS if data.startswith(item[0]))
    if format == "docx":
        parts = xml_formats.docx_parts(data, name)
    else:
        has_entities = written is not without_entities
        declared = _DECLARED.search(data[:2048]) if has_entities and not bom else None
        encoding = (declared[1] or declared[2]).decode() if declared else encoding
        parts = {name: _decoded(data[len(bom) :], name, encoding)}
    units = {label: [*find_units(text, label)] for label, text in parts.items()}
    return format, bom, encoding, parts, units


def translate_bytes(
    model: Engine,
    data: bytes,
    name: str,
    format: str = "",
    spans: Sequence[str] = (),
    source_tag: str = "",
) -> tuple[bytes, dict[str, int], list[str]]:
    """Translates the content of a file with this name. Returns counts and remarks, too."""
    format, bom, encoding, parts, units = _read(data, name, format)
    written = _FORMATS[format][1]
    fragments = [unit.tokens for found in units.values() for unit in found]
    lines = [line for label, found in units.items() for line in _lines(parts[label], found)]
    texts = ["".join(token.text for token in fragment) for fragment in fragments]
    others = [spliced(text, [(*span, "") for span in find_spans(text, spans)]) for text in texts]
    counts = token_counts(model.lengths, others)
    translate = functools.partial(protection.translate_tokens, model, fragments, spans)
    outputs, statuses, remarks = translate(source_tag, written, lines)
    remarks += [f"Line {lines[i]}: {remark}" for i, remark in changed_numbers(model, texts)[:1]]
    unknown = unknown_token_remark(counts, lines)
    remaining = iter(outputs)
    is_changed = False
    for label, found in units.items():
        changes = [
            (unit.start, unit.end, unit.opening + unit.render(new) + unit.ending)
            for unit, new in zip(found, remaining, strict=False)
            if unit.is_new or new != "".join(token.raw for token in unit.tokens)
        ]
        parts[label] = spliced(parts[label], changes)
        is_changed |= bool(changes)
    if is_changed and format == "docx":
        data = xml_formats.with_docx_parts(data, parts, name)
    elif is_changed:
        errors = "strict" if written is without_entities else "xmlcharrefreplace"
        data = bom + parts[name].encode(encoding, errors)
    used = {status: statuses[status] for status in protection.STATUSES}
    return data, {"texts": len(fragments), **used}, [*remarks, *([unknown] if unknown else [])]


def _lines(text: str, units: Sequence[Unit]) -> list[int]:
    """Returns the line of each unit."""
    breaks = [match.start() for match in regex.finditer("\n", text)]
    return [bisect.bisect(breaks, unit.start) + 1 for unit in units]


def _decoded(data: bytes, label: str, encoding: str) -> str:
    try:
        return data.decode(encoding)
    except (UnicodeError, LookupError) as error:
        line = data.count(b"\n", 0, getattr(error, "start", 0)) + 1
        raise InputError(
            f"{label}, line {line}: the text is not {encoding}. Convert the file to UTF-8."
        ) from error
