from collections.abc import Sequence
from typing import Any, Literal, TypedDict

from keras_transformer.config.options import SearchOptions
from keras_transformer.decoding.shortlist import Shortlist

# The options of every export (`ExportOptions`), and those of the formats of this package.
class ExportSettings(TypedDict, total=False):
    references: Sequence[str] | None
    max_bleu_loss: float | None
    tokenize: str | None
    languages: tuple[str, str] | None
    license: str | None
    source_language: str | None
    target_language: str | None
    test_set: str
    shortlist: Shortlist | None
    quality: bool
    text_signature: bool

class FileSettings(TypedDict, total=False):
    format: str | None
    spans: Sequence[str]
    source_tag: str
    source_language: str | None
    target_language: str | None
    glossary: Any
    terms: Literal["hard", "soft"] | None
    on_low_quality: str
    min_quality: float
    casing: Literal["auto", "keep"] | None
    overwrite: bool

class LineOptions(SearchOptions, total=False):
    source_language: str | None
    target_language: str | None
    terms: Literal["hard", "soft"] | None
    casing: Literal["auto", "keep"] | None

class TextOptions(LineOptions, total=False):
    document: bool | None
    glossary: Any
    on_low_quality: str
    min_quality: float
