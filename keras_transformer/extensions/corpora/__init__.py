"""Readers of corpora in other formats, for `prepare`."""

from __future__ import annotations

import dataclasses
from typing import Any


def option(default: Any, help_: str) -> Any:
    """Returns a field of the options of a reader: its default and the help of its flag."""
    return dataclasses.field(default=default, metadata={"help": help_})


@dataclasses.dataclass(frozen=True)
class LanguageOptions:
    """The languages of corpora with several languages."""

    source_language: str | None = option(None, "source language, as in de")
    target_language: str | None = option(None, "target language, as in en")
