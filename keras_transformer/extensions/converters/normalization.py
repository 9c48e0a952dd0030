"""Normalization rules of SentencePiece: compiled rules, and rules that do what Moses does.

Compiled rules (`precompiled_charsmap`) consist of the size of a double-array trie in bytes, the
trie, and the texts that its leaves point to. SentencePiece looks for the longest rule at each
position of a text, and continues after it.

Models of OPUS-MT were trained on text whose punctuation other programs had normalized. Here the
same replacements become rules of the SentencePiece model, so they run in the graph. A rule replaces
a text of a few characters, and SentencePiece joins spaces afterwards. Moses has regular expressions
instead. They change runs of punctuation and spaces, and rarely depend on the text around a run. So
all short runs are normalized with sacremoses, and become rules unless shorter rules give the same
result.
"""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sentencepiece

from keras_transformer.errors import InputError, needs_extra
from keras_transformer.text.model_proto import ModelProto
from keras_transformer.text.vocabulary import Vocabulary

UNICODE = "unicode"  # the name of the rules that only replace single characters

_SPACE = "\u2581"
# Characters that normalize-punctuation.perl replaces, or looks for next to others.
_ASCII = " ().!:?;,%'\""
_PUNCTUATION = _ASCII + "\u00a0`„“”–—´‘‚’…«»"
_MAX_RUN = 4  # characters


# Compiled rules.


def with_rules(charsmap: bytes, rules: Mapping[str, str]) -> bytes:
    """Adds rules to compiled normalization rules.

    Existing rules for longer texts that begin with the text of a new rule are removed, unless a
    new rule has the longer text too.
    """
    size = struct.unpack_from("<I", charsmap)[0] if charsmap else 0
    trie = _Trie(list(struct.unpack_from(f"<{size // 4}I", charsmap, 4)) if size else None)
    texts = bytearray(charsmap[4 + size :])
    root: dict[int, Any] = {}
    for text, replacement in rules.items():
        branch = root
        for byte in text.encode():
            branch = branch.setdefault(byte, {})
        branch[0] = len(texts)  # no text contains the byte 0
        texts += replacement.encode() + b"\0"
    trie.graft(0, root, is_new=False)
    units = struct.pack(f"<{len(trie.units)}I", *trie.units)
    return struct.pack("<I", len(units)) + units + bytes(texts)


class _Trie:
    """A double-array trie in the format of Darts-clone, in which children can be replaced.

    - The child of a node for a byte is at `base ^ byte`. The base is the index of the node XOR an
      offset.
    - Each node is an integer. Bits 0 to 7 are its byte, bits 10 to 31 its offset. Bit 8 is set if
      there is a leaf at the base.
    - Bit 31 marks a leaf. The other bits of a leaf are its value.
    """

    _IS_LEAF = 1 << 31
    _HAS_LEAF = 1 << 8
    _BLOCK = 256

    def __init__(self, units: list[int] | None):
        self.units = units or [0] + [self._IS_LEAF] * (self._BLOCK - 1)  # None: an empty trie
        self._free: set[int] = set()
        self._bases: set[int] = set()  # nodes must not share a base, or their children would mix
        self._next = len(self.units)  # the first base to try

    def graft(self, index: int, branch: dict[int, Any], is_new: bool) -> None:
        """Adds a branch, which maps bytes to branches and 0 to a value, below a node."""
        unit, units = self.units[index], self.units
        base = index ^ ((unit >> 10) << ((unit & 1 << 9) >> 6))
        values = dict.fromkeys([0], branch[0]) if 0 in branch else {}
        old: dict[int, int] = {}
        if not is_new and not values:
            labels = range(1, self._BLOCK)
            mask = self._IS_LEAF | 0xFF
            old = {byte: base ^ byte for byte in labels if units[base ^ byte] & mask == byte}
            if unit & self._HAS_LEAF:
                values = {0: units[base] & ~self._IS_LEAF}
        moved = self._reserve({*values, *old, *branch})
        for byte, position in old.items():
            child = units[position]
            its_base = position ^ ((child >> 10) << ((child & 1 << 9) >> 6))
            self._set(moved ^ byte, its_base, byte | child & self._HAS_LEAF)
        has_leaf = self._HAS_LEAF if values else 0
        self._set(index, moved, (unit & 0xFF) | has_leaf)
        for value in values.values():
            units[moved] = value | self._IS_LEAF
        below = {byte: child for byte, child in branch.items() if byte != 0}
        for byte in below.keys() - old.keys():
            units[moved ^ byte] = byte
        for byte, children in below.items():
            self.graft(moved ^ byte, children, is_new=byte not in old)

    def _set(self, index: int, base: int, flags: int) -> None:
        offset = index ^ base
        if offset >= 1 << 21:
            raise InputError("the vocabulary has too many symbols or normalization rules")
        self.units[index] = offset << 10 | flags

    def _reserve(self, labels: set[int]) -> int:
        """Reserves the positions of children with these labels, and returns their base."""
        base = self._next
        while True:
            while base >= len(self.units):
                self._free.update(range(len(self.units), len(self.units) + self._BLOCK))
                self.units += [self._IS_LEAF] * self._BLOCK  # a free unit does not match any byte
            positions = {base ^ label for label in labels}
            if base not in self._bases and positions <= self._free:
                self._bases.add(base)
                self._free -= positions
                if base - self._next > self._BLOCK:  # earlier blocks are almost full
                    self._next += self._BLOCK
                return base
            base += 1


# Punctuation.


def normalize_punctuation(vocabulary: Vocabulary, language: str) -> Vocabulary:
    """Returns a vocabulary whose source model normalizes punctuation first, as Moses does.

    Ids stay the same. Only source texts are normalized.
    """
    if language != UNICODE and not re.fullmatch("[a-z]{2,3}", language):
        raise InputError(
            f"normalize_punctuation is {language!r}. It must be {UNICODE}, or a language code such "
            "as en."
        )
    rules = _unicode_rules() if language == UNICODE else _moses_rules(language)
    proto = ModelProto.FromString(vocabulary.source_model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.source_model)

    def then_normalized(text: str) -> str:
        """Applies the old rules to the result of a new one, but keeps spaces around it."""
        text = text.replace("\u00a0", " ")  # the old rules would remove it at the end
        core = text.strip(" ")
        if not core:
            return text
        normal = processor.normalize(core).strip(_SPACE).replace(_SPACE, " ")
        return text.replace(core, normal)

    spec = proto.normalizer_spec
    spec.precompiled_charsmap = with_rules(
        spec.precompiled_charsmap,
        {text: then_normalized(replacement) for text, replacement in rules.items()},
    )
    source_model = bytes(proto.SerializeToString(deterministic=True))
    return Vocabulary(source_model, vocabulary.target_model)


def _unicode_rules() -> dict[str, str]:
    """Returns the replacements of replace-unicode-punctuation.perl."""
    normalizer = _moses("en")
    characters = (pattern[0] for pattern, _ in normalizer.REPLACE_UNICODE_PUNCTUATION)
    return {char: normalizer.replace_unicode_punct(char) for char in characters}


def _moses_rules(language: str) -> dict[str, str]:
    """Returns rules that normalize a text as both scripts do, if the longest match wins."""
    normalizer = _moses(language, pre_replace_unicode_punct=True)
    rules: dict[str, str] = {}
    wide = [*_PUNCTUATION, *(char for char in _unicode_rules() if char not in _PUNCTUATION)]
    for size, characters in enumerate([wide, wide, _PUNCTUATION, _ASCII], start=1):
        runs = ["".join(run) for run in itertools.product(characters, repeat=size)]
        _add_rules(rules, runs, normalizer.normalize)
    for first, space, last in itertools.product("0123456789", " \u00a0", "%0123456789"):
        text = f"{first}{space}{last}"
        if (normal := normalizer.normalize(text)) != text:
            rules[text] = normal
    return rules


def _moses(language: str, **options: bool) -> Any:
    with needs_extra("moses", "normalize_punctuation"):
        import sacremoses
    return sacremoses.MosesPunctNormalizer(language, **options)


def _add_rules(rules: dict[str, str], runs: Sequence[str], normalize: Callable[[str], str]) -> None:
    """Adds a rule for each run of punctuation that shorter rules do not normalize."""

    def normalized(after: str) -> list[str]:
        """Normalizes each run after a letter and before another character."""
        text = "\n".join(f"x{run}{after}" for run in runs)
        return [line[1:-1] for line in normalize(text).split("\n")]

    new = {}
    # To Moses, "<" is like the end of a text: quotation marks stay after a full stop.
    for run, inside, at_end in zip(runs, normalized("x"), normalized("<"), strict=True):
        # A run without a space after it is more often at the end of a text than before a letter.
        is_same = run[-1] in " \u00a0" or inside.rstrip() == at_end.rstrip()
        wanted = inside if is_same else at_end
        if _joined(_apply(rules, run)) != _joined(wanted):
            new[run] = wanted
    rules.update(new)


def _apply(rules: dict[str, str], text: str) -> str:
    """Replaces the longest rule at each position of a text."""
    parts, start = [], 0
    while start < len(text):
        sizes = range(min(_MAX_RUN, len(text) - start), 0, -1)
        size = next((size for size in sizes if text[start : start + size] in rules), 0)
        found = text[start : start + size]
        parts.append(rules[found] if size else text[start])
        start += max(size, 1)
    return "".join(parts)


def _joined(run: str) -> str:
    """Joins the spaces of a run between two letters, as SentencePiece does."""
    return re.sub("[ \u00a0]+", " ", run)
