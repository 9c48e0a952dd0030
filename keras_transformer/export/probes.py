"""Generates texts to compare an export with its run, in addition to real sentences.

Validation sentences contain few symbols, few scripts and no rare spaces. The generated texts
contain many of each, so that users do not have to find differences in tokenization.
"""

from __future__ import annotations

import functools
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
_TEXTS = (
    # Spaces and invisible characters.
    *("", " ", "  ", "\t", "\n", "\r", "\v", "\f", "\x1c", "\x85", "\xa0", "\u1680", "\u2003"),
    *("\u200b", "\u2028", "\u2029", "\u202f", "\u205f", "\u2060", "\u3000", "\ufeff", "\u3164"),
    *(" a", "a ", " a  b ", "a\tb", "a\r\nb"),
    *("a\xa0b", "a\u2003b", "a\u200bb", "a\u3000b", "\ufeffa"),
    *("a\u200db", "a\xadb", "\u202eabc\u202c", "a\x00b"),
    *("\x00", "\x01", "\x7f", "\ufffd", "a\ufffdb"),
    # SentencePiece's symbol for a space, U+2581.
    *("\u2581", "\u2581\u2581", "a\u2581b", "a \u2581 b", "\u2581a"),
    # Names of special tokens.
    *("</s>", "<s> <pad> <unk>", "<0x41>", "a</s>b"),
    # Composed and decomposed characters, marks, compatibility forms and ligatures.
    *("\xe9", "e\u0301", "\u0301", "e\u0323\u0302"),
    *("a\u0308\u0308", ">\u0338", "<\u0338", "=\u0338"),
    *("\u1100\u1161\u11a8", "\uac01", "\ufb01n", "\u01c6", "\u2460", "\u2122", "\xbd", "\u2026"),
    *("\uff21\uff22\uff23", "\uff11\uff12\uff13", "\uff76\uff9e"),
    *("\xdf", "\u0130", "\u017f", "\u03a3\u03c2"),
    # Emoji: sequences with joiners, skin tones, flags and keycaps.
    *("\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f44d\U0001f3fd", "\U0001f1e9\U0001f1ea"),
    *("1\ufe0f\u20e3", "\u2764\ufe0f", "\u2603"),
    # Scripts.
    *("Gr\xfc\xdfe", "\u041f\u0440\u0438\u0432\u0435\u0442"),
    *("\u0393\u03b5\u03b9\u03ac", "\u05e9\u05dc\u05d5\u05dd"),
    *("\u0645\u0631\u062d\u0628\u0627"),
    *("\u0928\u092e\u0938\u094d\u0924\u0947", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35"),
    *("\u4f60\u597d\u3002", "\u3053\u3093\u306b\u3061\u306f"),
    *("\uc548\ub155", "\U00020000\U0001d400"),
    # Numbers and punctuation.
    *("0000", "1,000.50", "10^-3", "a...b", "\u201ca\u201d", "\xbfa?", "a-b", "--", "!?!?"),
    # Long words and texts.
    *("a" * 1000, "\u2603" * 300, "a " * 300, "e" + "\u0301" * 300),
)  # fmt: skip


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
    texts = list(dict.fromkeys([*_TEXTS, *of_symbols, *alone, *mixed]))
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
