"""Text in capitals, which most models translate badly.

A sentence in capitals is translated with only one capital, at its start. Its translation is
written in capitals again. Protected spans, tags and terms keep their letters.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import regex

from keras_transformer.extensions.documents.placement import Word

_FEWEST_LETTERS, _LONGEST_WORD, _ENOUGH_LETTERS = 8, 5, 16
_CAPITALS = regex.compile(r"[\p{Lu}\p{M}ß]+")  # ß is often written in words in capitals
_ENGLISH_I = regex.compile(r"(?<!\p{L})i(?=$|['’])")


def is_in_capitals(text: str) -> bool:
    """Returns whether a text has 8 letters, all capitals, and either a word of 5 or 16 in all.

    So NATO, USA! and UK, US, EU are not enough.
    """
    words = regex.findall(r"[\p{L}\p{M}]+", text)
    letters = "".join(words)
    is_long = len(letters) >= _FEWEST_LETTERS and max(map(len, words)) >= _LONGEST_WORD
    return (is_long or len(letters) >= _ENOUGH_LETTERS) and _CAPITALS.fullmatch(letters) is not None


def sentence_case(words: list[Word], language: str | None) -> list[Word]:
    """Returns the words of a sentence, with one capital if all letters are capitals."""
    if not is_in_capitals(" ".join(word.text for word in words if word.kind == "word")):
        return words
    changed, capital = list[Word](), True
    for word in words:
        if word.kind == "word":
            lower, first = (to_lower(text, language) for text in (word.text, word.text[:1]))
            if capital:
                lower = word.text[:1] + lower[len(first) :]
            word = word._replace(text=lower)
        capital = capital and (word.is_tag or not regex.search(r"\p{L}", word.text))
        changed.append(word)
    return changed


def in_capitals(words: Sequence[Word], language: str | None) -> list[Word]:
    """Returns words in capitals."""
    return [
        word._replace(text=dotted(word.text, language).upper()) if word.kind == "word" else word
        for word in words
    ]


def dotted(text: str, language: str | None) -> str:
    """Returns a text whose capitals Python knows: with İ for i, if the language has a dotless i."""
    return text.replace("i", "İ") if _has_dotless_i(language) else text


def folded(text: str, language: str | None) -> str:
    """Returns what texts that differ only in their case have in common."""
    return unicodedata.normalize("NFKC", _with_small_i(text, language).casefold())


def _with_small_i(text: str, language: str | None) -> str:
    return text.replace("İ", "i").replace("I", "ı") if _has_dotless_i(language) else text


def _has_dotless_i(language: str | None) -> bool:
    return (language or "").lower().replace("_", "-").split("-")[0] in ("tr", "az")


def to_lower(text: str, language: str | None) -> str:
    """Returns a text without capitals, except for the English word I."""
    text = _with_small_i(text, language).lower()
    return _ENGLISH_I.sub("I", text) if (language or "").lower().startswith("en") else text
