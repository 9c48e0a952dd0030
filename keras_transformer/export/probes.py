"""Generates texts to compare an export with its run, in addition to real sentences.

Validation sentences contain few symbols, few scripts and no rare spaces. The generated texts
contain many of each, so that users do not have to find differences in tokenization.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
import random
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from keras_transformer.text.vocabulary import Vocabulary

_MIXED = 1000  # texts that mix words, symbols and characters of all classes
_PER_CLASS = 10  # characters of each Unicode category that are also texts by themselves
_TRANSLATED = 20  # texts whose translations are compared
_MAX_TRANSLATED_LENGTH = 40  # tokens
_SHOWN = 12  # tokens that a message shows around the first difference
_FILE = importlib.resources.files(__package__) / "probes.json"  # texts by kind
_TEXTS = [text for texts in json.loads(_FILE.read_text("utf-8")).values() for text in texts]
_LONG = ["a" * 1000, "\u2603" * 300, "a " * 300, "e" + "\u0301" * 300]


class ProbeTexts(NamedTuple):
    """Generated source texts.

    Attributes:
        tokenized: texts whose tokens are compared.
        translated: the few texts whose translations are compared too.
    """

    tokenized: list[str]
    translated: list[str]


def probe_texts(vocabulary: Vocabulary, sentences: Sequence[str], seed: int = 1) -> ProbeTexts:
    """Generates texts that cover the symbols of a vocabulary and all classes of characters.

    The same arguments give the same texts.

    Args:
        vocabulary: the vocabulary. Each of its source symbols occurs in several texts.
        sentences: source of words, which are mixed with symbols and characters.
        seed: seed of the random choices.
    """
    random_ = random.Random(seed)
    some = random_.sample(list(sentences), min(len(sentences), 100))
    words = [word for sentence in some for word in sentence.split()[:20]] or ["a"]
    symbols = sorted(vocabulary.source_symbols())
    classes = [
        random_.sample(characters, min(len(characters), _PER_CLASS * 10))
        for characters in _characters_by_category().values()
    ]
    of_symbols = [
        text
        for symbol in symbols
        for text in _texts_with_symbol(symbol, random_.choice(words), random_.choice(symbols))
    ]
    alone = [character for each in classes for character in each[:_PER_CLASS]]
    pools = [words, words, [" ", "  ", "\u3000"], *([symbols] * 2 if symbols else [])]
    mixed = []
    for _ in range(_MIXED):
        sources = (random_.choice([*pools, random_.choice(classes)]) for _ in range(8))
        parts = [random_.choice(source) for source in sources]
        mixed.append(random_.choice(["", " "]).join(parts[: random_.randint(2, 8)]))
    texts = list(dict.fromkeys([*_TEXTS, *_LONG, *of_symbols, *alone, *mixed]))
    return ProbeTexts(texts, _to_translate(vocabulary, of_symbols, texts, random_))


def _texts_with_symbol(symbol: str, word: str, other: str) -> list[str]:
    texts = [symbol, f" {symbol} ", symbol + other, symbol * 2, symbol[:-1], symbol[1:]]
    texts += [f"{symbol} {word}", f"{word} {symbol}", f"{word} {symbol} {word}"]
    texts += [symbol + word, word + symbol, word + symbol + word]
    texts += [symbol.lower(), symbol.upper(), symbol + "\n", f"{symbol}\t{word}"]
    # Normalization composes these marks with the last character of the symbol.
    texts += [symbol + mark for mark in _marks_after(symbol[-1])]
    return texts


def _to_translate(
    vocabulary: Vocabulary, of_symbols: list[str], texts: list[str], random_: random.Random
) -> list[str]:
    """Returns a few short texts with at least one token, a third of them with symbols."""

    def short(texts: list[str], count: int) -> list[str]:
        texts = random_.sample(texts, min(len(texts), 4 * count))
        ids = vocabulary.encode_source([text.encode() for text in texts])
        pairs = zip(texts, ids, strict=True)
        usable = (text for text, row in pairs if 1 < len(row) <= _MAX_TRANSLATED_LENGTH)
        return [text for text, _ in zip(usable, range(count), strict=False)]

    chosen = short(of_symbols, _TRANSLATED // 3)
    others = [text for text in texts if text not in set(chosen)]
    return chosen + short(others, _TRANSLATED - len(chosen))


@functools.cache
def _characters_by_category() -> dict[str, list[str]]:
    """Returns the characters of the first three planes by category, except surrogates."""
    found: dict[str, list[str]] = {}
    for character in map(chr, range(0x30000)):
        found.setdefault(unicodedata.category(character), []).append(character)
    del found["Cs"]  # UTF-8 cannot encode surrogates
    return dict(sorted(found.items()))


@functools.cache
def _marks_after(character: str) -> list[str]:
    """Returns the characters that Unicode normalization composes with the given one."""
    composed = (unicodedata.decomposition(chr(code)).split() for code in range(0xC0, 0x30000))
    first = f"{ord(character):04X}"
    return [chr(int(pair[1], 16)) for pair in composed if len(pair) == 2 and pair[0] == first]


def token_difference(
    texts: Sequence[str],
    expected: Sequence[Sequence[int]],
    found: Sequence[Sequence[int]],
    expected_by: str = "the run",
    found_by: str = "the export",
) -> str | None:
    r"""Describes the first text whose tokens differ. Returns None if all tokens are equal.

    Args:
        texts: the texts.
        expected: the correct ids of each text.
        found: the ids to compare with `expected`.
        expected_by: the origin of `expected`, for the message.
        found_by: the origin of `found`.
    """
    for text, own, other in zip(texts, expected, found, strict=True):
        if list(own) != list(other):
            pairs = enumerate(zip(own, other, strict=False))
            first = next((i for i, (a, b) in pairs if a != b), min(len(own), len(other)))
            begin = max(first - _SHOWN // 2, 0)
            return (
                f"for the text {escaped(text)} {expected_by} finds the tokens "
                f"{_shown(own, begin)}, but {found_by} finds {_shown(other, begin)}"
            )
    return None


def escaped(text: str) -> str:
    """Returns a text for a message: quoted, truncated, and with ASCII escapes."""
    return ascii(text if len(text) <= 60 else f"{text[:59]}…")


def _shown(ids: Sequence[int], begin: int) -> str:
    parts = ["…"] * (begin > 0) + list(map(str, ids[begin : begin + _SHOWN]))
    return " ".join(parts + ["…"] * (begin + _SHOWN < len(ids))) or "none"
