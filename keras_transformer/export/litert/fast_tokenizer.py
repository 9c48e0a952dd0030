"""Adapts a SentencePiece model for FastSentencepiece, the tokenizer inside a LiteRT graph.

FastSentencepiece differs from SentencePiece: it normalizes a text before it finds symbols, and
scores symbols differently. `fast_model` changes a model so that both return the same tokens. This
is impossible for some vocabularies. `text_problem` returns the reason.
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
    CONTROL,
    MODEL_TYPES,
    NORMAL,
    UNIGRAM,
    UNUSED,
    USER_DEFINED,
    ModelProto,
)
from keras_transformer.text.vocabulary import Vocabulary

_UNKNOWN_TEXT = " \u2047 "  # the only value that FastSentencepiece supports
_SPACE = "\u2581"
# FastSentencepiece treats these characters as spaces, so normalization must remove them.
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
        texts: source texts. Both tokenizers must return the same tokens for them.

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
    """Describes each option of a model that FastSentencepiece ignores or rejects."""
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
        yield "the vocabulary has denormalization rules"


def _source_problems(proto: Any) -> Iterator[str]:
    """Describes each difference in normalization, symbols and unknown characters."""
    symbols = _symbols(proto)
    for symbol in symbols:
        if _SPACE in symbol or any(character.isspace() for character in symbol):
            yield f"the symbol {symbol!a} contains a space"
    begins = {symbol[:size] for symbol in symbols for size in range(1, len(symbol))}
    for symbol in symbols:
        if any(symbol[start:] in begins for start in range(1, len(symbol))):
            yield f"the end of the symbol {symbol!a} is also the start of a symbol"
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
    """Returns the symbols that SentencePiece finds before it normalizes a text.

    A symbol with a space, such as "\u2581>>deu<<", can only match after the normalization.
    """
    symbols = (piece.piece for piece in proto.pieces if piece.type == USER_DEFINED)
    return [symbol for symbol in symbols if not symbol.startswith(_SPACE)]


def _without_symbols(proto: Any) -> sentencepiece.SentencePieceProcessor:
    """Returns a tokenizer whose symbols are normal pieces, so that their texts are normalized."""
    changed = ModelProto()
    changed.CopyFrom(proto)
    for piece in changed.pieces:
        if piece.type == USER_DEFINED:
            piece.type = NORMAL
    return sentencepiece.SentencePieceProcessor(model_proto=changed.SerializeToString())


def fast_model(model: bytes) -> bytes:
    """Changes a SentencePiece model so that FastSentencepiece returns the original tokens.

    Each symbol gets the score that SentencePiece uses, and a normalization rule that keeps it.
    Unused pieces become control pieces, which no text contains either.

    Args:
        model: a serialized model for which `text_problem` returns None.

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
    types = {piece.type for piece in proto.pieces}
    if not types & {USER_DEFINED, UNUSED}:
        return model
    highest = max((piece.score for piece in proto.pieces if piece.type == NORMAL), default=0.0)
    for piece in proto.pieces:
        if piece.type == UNUSED:
            piece.type = CONTROL
        if piece.type == USER_DEFINED:  # the formula is from SentencePiece's `unigram_model.cc`
            piece.score = len(piece.piece.encode()) * max(highest, 0.0) - 0.1
    if symbols := _symbols(proto):
        spec = proto.normalizer_spec
        spec.precompiled_charsmap = _with_symbols(spec.precompiled_charsmap, symbols)
    return bytes(proto.SerializeToString(deterministic=True))


def fast_detokenizer_model(model: bytes) -> bytes:
    """Changes a SentencePiece model so that FastSentencepiece detokenizes unused pieces too.

    They become normal pieces. Ids and texts stay the same.

    Args:
        model: a serialized model for which `text_problem` returns None.

    Example:
    >>> from keras_transformer.text.vocabulary import learn_vocabulary
    >>> model = learn_vocabulary([b"the cat"], 30)
    >>> fast_detokenizer_model(model) == model
    True
    """
    proto = ModelProto.FromString(model)
    unused = [piece for piece in proto.pieces if piece.type == UNUSED]
    for piece in unused:
        piece.type = NORMAL
    return bytes(proto.SerializeToString(deterministic=True)) if unused else model


def _with_symbols(charsmap: bytes, symbols: Iterable[str]) -> bytes:
    """Adds a rule that keeps each symbol unchanged to compiled normalization rules.

    Compiled rules consist of the size of a double-array trie in bytes, the trie, and the texts to
    which its leaves refer. Rules for longer texts that begin with a symbol are removed, because
    SentencePiece finds the symbol first.
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

    def __init__(self, units: list[int]):
        self.units = units
        self._free: set[int] = set()
        self._bases: set[int] = set()  # nodes must not share a base, or their children would mix
        self._next = len(units)  # the first base to try

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
            raise InputError("the vocabulary has too many symbols")
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
