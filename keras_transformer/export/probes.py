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
from typing import TYPE_CHECKING

from keras_transformer.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from keras_transformer.inference.translation_module import TranslationModule

_MIXED = 1000  # texts that mix words, symbols and characters of all classes
_PER_CLASS = 10  # characters of each Unicode category that are also texts by themselves
_TRANSLATED = 20  # texts whose translations are compared
_MAX_TOKENS = 40  # longer texts are not translated
_SHOWN = 12  # tokens that a message shows from the first difference on
_FILE = importlib.resources.files(__package__) / "probes.json"  # texts by kind
_TEXTS = [text for texts in json.loads(_FILE.read_text("utf-8")).values() for text in texts]
_LONG = ["a" * 1000, "\u2603" * 300, "a " * 300, "e" + "\u0301" * 300]


def probe_texts(vocabulary: Vocabulary, sentences: Sequence[str], seed: int = 1) -> list[str]:
    """Generates texts that cover the symbols of a vocabulary and all classes of characters.

    Words of the sentences are mixed with symbols and characters. Each source symbol occurs in
    several texts. The same arguments give the same texts.
    """
    random_ = random.Random(seed)
    some = random_.sample(list(sentences), min(len(sentences), 100))
    words = [word for sentence in some for word in sentence.split()[:20]] or ["a"]
    symbols = sorted(vocabulary.source_symbols)
    classes = [
        random_.sample(characters, min(len(characters), _PER_CLASS * 10))
        for characters in _characters_by_category().values()
    ]
    of_symbols = [
        text
        for symbol in symbols
        for text in _texts_with_symbol(symbol, random_.choice(words), random_.choice(symbols))
    ]
    alone = [character for characters in classes for character in characters[:_PER_CLASS]]
    pools = [words, words, [" ", "  ", "\u3000"], *([symbols] * 2 if symbols else [])]
    mixed = []
    for _ in range(_MIXED):
        sources = (random_.choice([*pools, random_.choice(classes)]) for _ in range(8))
        parts = [random_.choice(source) for source in sources]
        mixed.append(random_.choice(["", " "]).join(parts[: random_.randint(2, 8)]))
    return list(dict.fromkeys([*_TEXTS, *_LONG, *of_symbols, *alone, *mixed]))


def _texts_with_symbol(symbol: str, word: str, other: str) -> list[str]:
    texts = [symbol, f" {symbol} ", symbol + other, symbol * 2, symbol[:-1], symbol[1:]]
    texts += [f"{symbol} {word}", f"{word} {symbol}", f"{word} {symbol} {word}"]
    texts += [symbol + word, word + symbol, word + symbol + word]
    texts += [symbol.lower(), symbol.upper(), symbol + "\n", f"{symbol}\t{word}"]
    # Normalization composes these marks with the last character of the symbol.
    texts += [symbol + mark for mark in _marks_after(symbol[-1])]
    return texts


def texts_to_translate(vocabulary: Vocabulary, texts: Sequence[str]) -> list[str]:
    """Chooses a few short texts with at least one token, a third of them with symbols."""
    ids = vocabulary.encode_source([text.encode() for text in texts])
    short = [text for text, row in zip(texts, ids, strict=True) if 1 < len(row) <= _MAX_TOKENS]
    random.Random(1).shuffle(short)
    symbols = vocabulary.source_symbols
    chosen = [text for text in short if any(symbol in text for symbol in symbols)]
    return list(dict.fromkeys([*chosen[: _TRANSLATED // 3], *short]))[:_TRANSLATED]


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
    texts: Sequence[str], expected: Sequence[Sequence[int]], found: Sequence[Sequence[int]]
) -> str | None:
    """Describes the first text whose tokens are not as expected. Returns None if all are equal."""
    for text, own, other in zip(texts, expected, found, strict=True):
        if list(own) != list(other):
            pairs = enumerate(zip(own, other, strict=False))
            first = next((i for i, (a, b) in pairs if a != b), min(len(own), len(other)))
            own, other = own[first : first + _SHOWN], other[first : first + _SHOWN]
            return (
                f"after {first} equal tokens, the text {escaped(text)} has the tokens "
                f"{list(other)} instead of {list(own)}"
            )
    return None


def escaped(text: str) -> str:
    """Returns a text for a message: quoted, truncated, and with ASCII escapes."""
    return ascii(text if len(text) <= 60 else f"{text[:59]}…")


def plain_texts(translator: TranslationModule, texts: Sequence[str]) -> list[str]:
    """Returns the texts that engines with pieces can encode like the run.

    Such an engine takes an unknown word that is the name of a special token for that token. It may
    take `>>` at the beginning for a language token, and it does not truncate by bytes.
    """
    vocabulary = translator.tokenizer.vocabulary
    _, pieces = vocabulary.pieces()
    special = (vocabulary.pad_id, vocabulary.unknown_id, vocabulary.start_id, vocabulary.end_id)
    names = [pieces[i] for i in special]
    return [
        text
        for text in texts
        if not text.startswith(">>")
        and not any(name in text for name in names)
        and len(text.encode()) <= translator.config.max_source_bytes
    ]
