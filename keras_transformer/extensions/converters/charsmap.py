"""Compiled normalization rules of SentencePiece (`precompiled_charsmap`).

SentencePiece looks for the longest rule at each place of a text, and continues after it. Compiled
rules consist of the size of a double-array trie in bytes, the trie, and the texts to which its
leaves refer.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from keras_transformer.errors import InputError


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
            old = {byte: base ^ byte for byte in labels if self._label(base ^ byte) == byte}
            if unit & self._HAS_LEAF:
                values = {0: units[base] & ~self._IS_LEAF}
        moved = self._place({*values, *old, *branch})
        for byte, place in old.items():
            child = units[place]
            its_base = place ^ ((child >> 10) << ((child & 1 << 9) >> 6))
            self._set(moved ^ byte, its_base, byte | child & self._HAS_LEAF)
        has_leaf = self._HAS_LEAF if values else 0
        self._set(index, moved, (unit & 0xFF) | has_leaf)
        for value in values.values():
            units[moved] = value | self._IS_LEAF
        below = {byte: each for byte, each in branch.items() if byte != 0}
        for byte in below.keys() - old.keys():
            units[moved ^ byte] = byte
        for byte, each in below.items():
            self.graft(moved ^ byte, each, is_new=byte not in old)

    def _label(self, index: int) -> int:
        return self.units[index] & (self._IS_LEAF | 0xFF)

    def _set(self, index: int, base: int, flags: int) -> None:
        offset = index ^ base
        if offset >= 1 << 21:
            raise InputError("the vocabulary has too many symbols or normalization rules")
        self.units[index] = offset << 10 | flags

    def _place(self, labels: set[int]) -> int:
        """Reserves the places of children with these labels, and returns their base."""
        base = self._next
        while True:
            while base >= len(self.units):
                self._free.update(range(len(self.units), len(self.units) + self._BLOCK))
                self.units += [self._IS_LEAF] * self._BLOCK  # a free unit does not match any byte
            places = {base ^ label for label in labels}
            if base not in self._bases and places <= self._free:
                self._bases.add(base)
                self._free -= places
                if base - self._next > self._BLOCK:  # earlier blocks are almost full
                    self._next += self._BLOCK
                return base
            base += 1
