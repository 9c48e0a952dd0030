"""The tokenizer inside a LiteRT graph, FastSentencepiece, and where it differs from SentencePiece.

FastSentencepiece normalizes a text before it finds symbols, and gives symbols another score.
`fast_model` changes a SentencePiece model so that both find the same tokens. For some vocabularies
that is not possible. `text_problem` names the reason.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import sentencepiece
import tensorflow as tf
import tensorflow_text

from keras_transformer.errors import InputError
from keras_transformer.export.probes import token_difference
from keras_transformer.text.model_proto import (
    MODEL_TYPES,
    NORMAL,
    UNIGRAM,
    UNUSED,
    USER_DEFINED,
    ModelProto,
)
from keras_transformer.text.vocabulary import Vocabulary

_UNKNOWN_TEXT = " \u2047 "  # FastSentencepiece has no other
_SPACE = "\u2581"
# FastSentencepiece treats these as spaces, so the normalization must not keep them.
_SPACES = {
    "\t": "tabs",
    "\n": "line feeds",
    "\r": "carriage returns",
    _SPACE: "the character U+2581",
}


def text_problem(vocabulary: Vocabulary, texts: Sequence[str]) -> str | None:
    """Returns why FastSentencepiece cannot replace SentencePiece, or None if it can.

    Args:
        vocabulary: the vocabulary.
        texts: source texts on which both are compared, in addition to the known differences.

    Example:
    >>> from keras_transformer.text.vocabulary import learn_vocabulary
    >>> lines = [b"the cat sees the dog"]
    >>> text_problem(Vocabulary(learn_vocabulary(lines, 30)), ["a cat"]) is None
    True
    >>> text_problem(Vocabulary(learn_vocabulary(lines, 30, model_type="bpe")), ["a cat"])
    'the vocabulary is a bpe model, not unigram'
    """
    models = dict.fromkeys((vocabulary.source_model, vocabulary.target_model))
    for proto in map(ModelProto.FromString, models):
        reason = next(_model_problems(proto), None)
        if reason is not None:
            return reason
    reason = next(_source_problems(ModelProto.FromString(vocabulary.source_model)), None)
    if reason is not None:
        return reason
    try:
        tokenizer = tensorflow_text.FastSentencepieceTokenizer(fast_model(vocabulary.source_model))
    except InputError as error:
        return str(error)
    found = tokenizer.tokenize(tf.constant(texts, tf.string)).to_list()
    expected = vocabulary.encode_source([text.encode() for text in texts])
    with_ends = [[*ids, vocabulary.end_id] for ids in found]
    return token_difference(texts, expected, with_ends, "SentencePiece", "LiteRT's tokenizer")


def _model_problems(proto: Any) -> Iterator[str]:
    """Yields the options of a model that FastSentencepiece ignores or refuses."""
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    if trainer.model_type != UNIGRAM:
        name = MODEL_TYPES.get(trainer.model_type, "unknown")
        yield f"the vocabulary is a {name} model, not unigram"
    if trainer.byte_fallback:
        yield "the vocabulary has byte fallback"
    if trainer.treat_whitespace_as_suffix:
        yield "spaces are at the end of pieces (treat_whitespace_as_suffix)"
    for name in ("add_dummy_prefix", "remove_extra_whitespaces", "escape_whitespaces"):
        if not getattr(normalizer, name):
            yield f"{name} of the vocabulary is false"
    if trainer.unk_surface != _UNKNOWN_TEXT:
        yield f"the text of the unknown piece is {trainer.unk_surface!r}"
    if proto.denormalizer_spec.precompiled_charsmap:
        yield "the vocabulary has rules of denormalization"
    if any(piece.type == UNUSED for piece in proto.pieces):
        yield "the vocabulary has unused pieces"


def _source_problems(proto: Any) -> Iterator[str]:
    """Yields the differences in normalization, symbols and unknown characters."""
    symbols = _symbols(proto)
    for symbol in symbols:
        if _SPACE in symbol or any(character.isspace() for character in symbol):
            yield f"the symbol {symbol!a} contains a space"
    begins = {symbol[:size] for symbol in symbols for size in range(1, len(symbol))}
    for symbol in symbols:
        if any(symbol[start:] in begins for start in range(1, len(symbol))):
            yield f"the symbol {symbol!a} ends like a symbol begins"
    normalizer = _without_symbols(proto)
    kept = {normalizer.normalize("a b"), normalizer.normalize("ab")}
    for character, name in _SPACES.items():
        if normalizer.normalize(f"a{character}b") not in kept:
            yield f"the normalization of the vocabulary keeps {name}"
    texts = [piece.piece for piece in proto.pieces if piece.type == NORMAL]
    single = {text for text in texts if len(text) == 1} | {_SPACE}
    for text in texts:
        if "\ufffd" in text or not single.issuperset(text):
            yield f"a character of the piece {text!a} has no piece"


def _symbols(proto: Any) -> list[str]:
    return [piece.piece for piece in proto.pieces if piece.type == USER_DEFINED]


def _without_symbols(proto: Any) -> sentencepiece.SentencePieceProcessor:
    """Returns the model with normal pieces instead of symbols, which normalizes their texts."""
    changed = ModelProto()
    changed.CopyFrom(proto)
    for piece in changed.pieces:
        if piece.type == USER_DEFINED:
            piece.type = NORMAL
    return sentencepiece.SentencePieceProcessor(model_proto=changed.SerializeToString())


def fast_model(model: bytes) -> bytes:
    """Returns a SentencePiece model with which FastSentencepiece finds SentencePiece's tokens.

    Each symbol gets the score that SentencePiece uses, and a rule of normalization that keeps it.

    Args:
        model: a serialized model without the differences that `text_problem` names.

    Raises:
        InputError: if there are too many symbols.

    Example:
    >>> from keras_transformer.text.vocabulary import learn_vocabulary
    >>> model = learn_vocabulary([b"the cat"], 30, symbols=["<2DE>"], normalization="nmt_nfkc_cf")
    >>> tokenizer = tensorflow_text.FastSentencepieceTokenizer(fast_model(model))
    >>> ids = tokenizer.tokenize(["<2DE> the"]).to_list()
    >>> [[*row, 3] for row in ids] == Vocabulary(model).encode_source([b"<2DE> the"])
    True
    """
    proto = ModelProto.FromString(model)
    symbols = _symbols(proto)
    if not symbols:
        return model
    highest = max((piece.score for piece in proto.pieces if piece.type == NORMAL), default=0.0)
    for piece in proto.pieces:
        if piece.type == USER_DEFINED:  # `unigram_model.cc` of SentencePiece has this formula
            piece.score = len(piece.piece.encode()) * max(highest, 0.0) - 0.1
    spec = proto.normalizer_spec
    spec.precompiled_charsmap = _with_symbols(spec.precompiled_charsmap, symbols)
    return bytes(proto.SerializeToString(deterministic=True))


def _with_symbols(charsmap: bytes, symbols: Iterable[str]) -> bytes:
    """Adds a rule to compiled normalization rules for each symbol: the symbol stays as it is.

    The rules are the size of a double-array trie in bytes, the trie, and the texts that its leaves
    refer to. Rules for texts that begin with a symbol are removed, because SentencePiece finds the
    symbol first.
    """
    (size,) = struct.unpack_from("<I", charsmap)
    trie = _Trie(list(struct.unpack_from(f"<{size // 4}I", charsmap, 4)))
    texts = bytearray(charsmap[4 + size :])
    root: dict[int, Any] = {}
    for symbol in symbols:
        branch = root
        for byte in symbol.encode():
            branch = branch.setdefault(byte, {})
        branch[0] = len(texts)  # no symbol contains the byte 0
        texts += symbol.encode() + b"\0"
    trie.graft(0, root, is_new=False)
    units = struct.pack(f"<{len(trie.units)}I", *trie.units)
    return struct.pack("<I", len(units)) + units + bytes(texts)


class _Trie:
    """A double-array trie of Darts-clone, whose children of a node can be replaced.

    The child of a node for a byte is at `base ^ byte`. The base is the node's own index XOR an
    offset in its bits 10 to 31. Bits 0 to 7 are the node's byte. Bit 8 says that there is a leaf at
    the base. Bit 31 marks leaves, whose other bits are the value.
    """

    _IS_LEAF = 1 << 31
    _HAS_LEAF = 1 << 8
    _BLOCK = 256

    def __init__(self, units: list[int]):
        self.units = units
        self._free: set[int] = set()
        self._bases: set[int] = set()  # a base belongs to one node, or children would be confused
        self._next = len(units)  # the first base to try

    def graft(self, index: int, branch: dict[int, Any], is_new: bool) -> None:
        """Adds `branch` (byte to branch, 0 to a value) below a node, which may be a new one."""
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
            raise InputError("the vocabulary has too many symbols")
        self.units[index] = offset << 10 | flags

    def _place(self, labels: set[int]) -> int:
        """Returns a base whose children of all labels are free, and takes their places."""
        base = self._next
        while True:
            while base >= len(self.units):
                self._free.update(range(len(self.units), len(self.units) + self._BLOCK))
                self.units += [self._IS_LEAF] * self._BLOCK  # matches no byte
            places = {base ^ label for label in labels}
            if base not in self._bases and places <= self._free:
                self._bases.add(base)
                self._free -= places
                if base - self._next > self._BLOCK:  # few places are left in the blocks before
                    self._next += self._BLOCK
                return base
            base += 1
