"""Malformed texts, by kind: each kind is a function of a random generator."""

import sys
import unicodedata
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.stress.fuzz.model import Random


class Material(NamedTuple):
    """The parts of malformed texts."""

    sentences: Sequence[str]  # normal sentences
    max_bytes: int  # limits of the export
    max_tokens: int


Kind = Callable[[Random, Material], bytes]

_SPACES = [c for c in map(chr, range(sys.maxunicode + 1)) if c.isspace()]
_NO_WIDTH = [*"\u200b\u200c\u200d\u2060\ufeff\u180e\u3164\u2800\u00ad\u034f\u115f"]
_CONTROLS = [*map(chr, (*range(0x20), *range(0x7F, 0xA0)))]
_LINE_BREAKS = [*"\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029", "\r\n"]
_BIDI = [*"\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"]
_RIGHT_TO_LEFT = [*map(chr, (*range(0x5D0, 0x5EB), *range(0x620, 0x64B)))]
_MARKS = [c for c in map(chr, range(0x300, 0x20F1)) if unicodedata.combining(c)]
_PIECES = (
    "</s> <s> <pad> <unk> <0x41> <0x0A> <0xFF> ▁ ▁▁ ⁇ <mask> [CLS] {{}} %s \\0 ${PATH}".split()
)
# Compatibility characters: normalization turns one into up to 18.
_EXPANDING = [*"ﷺ㌀㎒ﬃ½㈠Ａΐẛ̣가ᄀㅎ①𝟘İŉ\u1100\u1161\u11a8\ufdfa\u3300\U0001d15e\u0344\u0958"]
_EMOJI = [
    "👨‍👩‍👧‍👦", "🏳️‍🌈", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "👩🏿‍🚀", "👍🏽", "1️⃣", "❤️", "🇩🇪", "🇺🇳", "🇦", "🏻", "\u200d", "\ufe0f",
]  # fmt: skip
_NOT_CHARACTERS = [(0xFDD0, 0xFDF0), (0xE000, 0xF8FF), (0xFFFE, 0x10000), (0x10FFF0, 0x110000)]
_SCRIPTS = [
    (0x41, 0x5B), (0xC0, 0x180), (0x391, 0x3C9), (0x410, 0x450), (0x5D0, 0x5EB), (0x620, 0x64B),
    (0x905, 0x93A), (0xE01, 0xE31), (0x1100, 0x1200), (0x3041, 0x3097), (0x4E00, 0x9FFF),
    (0xAC00, 0xD7A4), (0x12000, 0x123A0), (0x1D400, 0x1D7FF), (0x20000, 0x2A6DF),
]  # fmt: skip
# Overlong encodings, numbers beyond Unicode, and bytes that start no character.
_OVERLONG = [
    b"\xc0\x80", b"\xc1\xbf", b"\xe0\x80\x80", b"\xe0\x80\xaf", b"\xe0\x9f\xbf",
    b"\xf0\x80\x80\x80", b"\xf0\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf7\xbf\xbf\xbf",
    b"\xf8\x88\x80\x80\x80", b"\xfc\x84\x80\x80\x80\x80", b"\xfe", b"\xff",
]  # fmt: skip


def _some(random: Random, choices: Sequence[str], most: int = 40) -> str:
    """Returns 1 to `most` of `choices`, joined."""
    return "".join(random.choice(choices, random.integers(1, most + 1)))


def _characters(random: Random, begin: int, end: int, most: int = 40) -> str:
    return "".join(map(chr, random.integers(begin, end, random.integers(1, most + 1))))


def _sentence(random: Random, material: Material) -> str:
    return str(random.choice(material.sentences))


def _within(random: Random, material: Material, make_part: Callable[[], str | bytes]) -> bytes:
    """Returns malformed parts, mostly between the words of a normal sentence."""
    words: list[str | bytes] = [*_sentence(random, material).split(" ")]
    if random.integers(4) == 0:
        words = []
    for _ in range(random.integers(1, 4)):
        words.insert(random.integers(len(words) + 1), make_part())
    joined = " " if random.integers(2) else ""
    return joined.encode().join(w if isinstance(w, bytes) else utf8(w) for w in words)


def utf8(text: str) -> bytes:
    """Encodes any text, including surrogates."""
    return text.encode("utf-8", "surrogatepass")


def _among(choices: Sequence[str], most: int = 40) -> Kind:
    return lambda random, material: _within(random, material, lambda: _some(random, choices, most))


def _ranges(*ranges: tuple[int, int]) -> Kind:
    def one(random: Random) -> str:
        return _characters(random, *ranges[random.integers(len(ranges))])

    return lambda random, material: _within(random, material, lambda: one(random))


def _truncated(random: Random, material: Material) -> bytes:
    def piece() -> bytes:
        text = utf8(_some(random, [*_EXPANDING, *_EMOJI], 8))
        return text[random.integers(4) : len(text) - random.integers(1, 4)]

    return _within(random, material, piece)


def _overlong(random: Random, material: Material) -> bytes:
    def piece() -> bytes:
        numbers = random.integers(len(_OVERLONG), size=random.integers(1, 20))
        return b"".join(_OVERLONG[n] for n in numbers)

    return _within(random, material, piece)


def _megabyte(random: Random, material: Material) -> bytes:
    word = _characters(random, *_SCRIPTS[random.integers(len(_SCRIPTS))], most=12)
    return (utf8(word) * 2**20)[: 2**20]


def _combining_marks(random: Random, material: Material) -> bytes:
    return utf8("e" + "".join(random.choice(_MARKS, 1000)) * 100)


def _long_words(random: Random, material: Material) -> bytes:
    words = (_characters(random, 0x61, 0x7B, 3) * random.integers(30, 300) for _ in range(5))
    return " ".join(words).encode()


def _near_max_bytes(random: Random, material: Material) -> bytes:
    text = _within(random, material, lambda: _some(random, [*"aä€😀 "], 4)) + b" "
    size = max(material.max_bytes + int(random.integers(-6, 7)), 0)
    return (text * (size // len(text) + 1))[:size]


def _near_max_tokens(random: Random, material: Material) -> bytes:
    word = random.choice(["a ", "€ ", *map("{} ".format, _sentence(random, material).split())])
    return utf8(word) * max(material.max_tokens + int(random.integers(-4, 5)), 1)


def mutate(random: Random, original: bytes) -> bytes:
    """Flips, drops, repeats and inserts bytes."""
    text = bytearray(original)
    for _ in range(random.integers(1, 8)):
        at = int(random.integers(len(text) + 1))
        part = text[at : at + int(random.integers(1, 9))]
        match random.integers(4):
            case 0 if part:
                text[at] ^= 1 << int(random.integers(8))
            case 1:
                del text[at : at + len(part)]
            case 2:
                text[at:at] = part * int(random.integers(1, 20))
            case _:
                text[at:at] = random.bytes(int(random.integers(1, 4)))
    return bytes(text)


KINDS: dict[str, Kind] = {
    "random bytes": lambda random, material: random.bytes(int(random.integers(1, 300))),
    "truncated UTF-8": _truncated,
    "overlong UTF-8": _overlong,
    "NUL": _among(["\0", "\0\0", "a\0b"]),
    "surrogates": _ranges((0xD800, 0xE000)),
    "1 MB without a space": _megabyte,
    "1 MB of random bytes": lambda random, material: random.bytes(2**20),
    "100,000 combining marks": _combining_marks,
    "few combining marks": _among(["a", "e", "א", *_MARKS], 200),
    "emoji": _among(_EMOJI, 60),
    "pictographs": _ranges((0x1F000, 0x1FB00), (0xE0020, 0xE0080), (0x1F1E6, 0x1F200)),
    "right-to-left": _among([*_BIDI, *_RIGHT_TO_LEFT]),
    "empty": lambda random, material: b"",
    "only spaces": lambda random, material: utf8(_some(random, _SPACES)),
    "without width": _among(_NO_WIDTH),
    "controls": _among(_CONTROLS),
    "line breaks": _among(_LINE_BREAKS),
    "special tokens": _among(_PIECES, 5),
    "long words": _long_words,
    "mixed scripts": _ranges(*_SCRIPTS),
    "expanding": _among(_EXPANDING),
    "not characters": _ranges(*_NOT_CHARACTERS),
    "any character": _ranges((0, 0x110000), (0, 0x3000)),
    "near max_source_bytes": _near_max_bytes,
    "near max_source_tokens": _near_max_tokens,
    "mutated sentence": lambda random, material: mutate(random, utf8(_sentence(random, material))),
    "a sentence": lambda random, material: utf8(_sentence(random, material)),
}  # fmt: skip
