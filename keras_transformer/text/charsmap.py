"""Normalization rules of SentencePiece, compiled (`precompiled_charsmap`).

Compiled rules consist of the size of a double-array trie in bytes, the trie, and the texts that its
leaves point to. SentencePiece looks for the longest rule at each position of a text, and continues
after it.
"""

from __future__ import annotations

import functools
import struct
import sys
import unicodedata
from collections.abc import Mapping
from typing import Any

import sentencepiece

from keras_transformer.errors import InputError
from keras_transformer.text.model_proto import ModelProto

_BRACKETS = "\uff5f\uff60"  # of symbols for spans and tags
# Zero-width joiners, which are part of words and emoji, and marks of the direction.
_FORMAT_CHARACTERS = "\u200c\u200d\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e" + (
    "\u2066\u2067\u2068\u2069"
)
_APART = ("<super>", "<sub>", "<fraction>", "<circle>")


@functools.cache
def kept_characters() -> frozenset[str]:
    """Returns the characters that `default_normalizer` keeps as they are.

    Without them, NFKC turns 10³ into 103, 2½ into 21⁄2 and 25 m² into 25 m2. Full-width and
    mathematical digits are not among them: they are digits of a number in another form.
    """
    kept = set(_FORMAT_CHARACTERS + _BRACKETS)
    for character in map(chr, range(0x80, sys.maxunicode + 1)):
        form = unicodedata.decomposition(character)
        if form.startswith("<") and unicodedata.category(character) != "Nd":
            normal = unicodedata.normalize("NFKC", character)
            if form.startswith(_APART) or any(map(str.isdecimal, normal)):
                kept.add(character)
    return frozenset(kept)


@functools.cache
def default_normalizer(**changes: bool) -> sentencepiece.SentencePieceNormalizer:
    """Returns the normalizer nfkc_numbers: nmt_nfkc without its rules for `kept_characters`.

    The changes are flags of SentencePiece, such as `add_dummy_prefix`.
    """
    normalizer: Any = sentencepiece.SentencePieceNormalizer
    proto = ModelProto.FromString(normalizer(rule_name="nmt_nfkc").serialized_model_proto())
    spec = proto.normalizer_spec
    spec.name = "nfkc_numbers"
    kept = {character: character for character in sorted(kept_characters())}
    spec.precompiled_charsmap = with_rules(spec.precompiled_charsmap, kept)
    return normalizer(normalizer_spec=spec, **changes)


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


def _base(index: int, unit: int) -> int:
    return index ^ ((unit >> 10) << ((unit & 1 << 9) >> 6))


class _Trie:
    """A double-array trie in the format of Darts-clone, in which children can be replaced.

    - The child of a node for a byte is at `base ^ byte`. The base is the index of the node XOR an
      offset.
    - Each node is an integer. Bits 0 to 7 are its byte, bits 10 to 31 its offset, in units of 256
      if bit 9 is set. Bit 8 is set if there is a leaf at the base.
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
        base = _base(index, unit)
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
            flags = byte | child & self._HAS_LEAF
            self._set(moved ^ byte, _base(position, child), flags)
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
