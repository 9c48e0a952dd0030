"""Adapts a SentencePiece model for FastSentencepiece, the tokenizer inside a LiteRT graph.

FastSentencepiece differs from SentencePiece: it normalizes a text before it finds symbols, and
scores symbols differently. `fast_model` changes a model so that both return the same tokens. This
is impossible for some vocabularies. `text_problem` returns the reason.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import sentencepiece
import tensorflow as tf
import tensorflow_text

from keras_transformer.errors import InputError
from keras_transformer.export.probes import token_difference
from keras_transformer.text.charsmap import with_rules
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
    """Returns why FastSentencepiece cannot replace SentencePiece, or None if it can."""
    models = (vocabulary.source_model, vocabulary.target_model)
    source, target = map(ModelProto.FromString, models)
    problems = (_model_problems(source), _model_problems(target), _source_problems(source))
    for reason in itertools.chain(*problems):
        return reason
    try:
        tokenizer = tensorflow_text.FastSentencepieceTokenizer(fast_model(vocabulary.source_model))
    except InputError as error:
        return str(error)
    found = tokenizer.tokenize(tf.constant(texts, tf.string)).to_list()
    # `translate` adds languages to the tokens. The source model alone has none.
    source_tokens = Vocabulary(vocabulary.source_model)
    expected = source_tokens.encode_source([text.encode() for text in texts])
    with_ends = [[*ids, vocabulary.end_id] for ids in found]
    return token_difference(texts, expected, with_ends)


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
        # SentencePiece finds a symbol before it normalizes the text.
        kept = {symbol: symbol for symbol in symbols}
        spec.precompiled_charsmap = with_rules(spec.precompiled_charsmap, kept)
    return bytes(proto.SerializeToString(deterministic=True))


def fast_detokenizer_model(model: bytes) -> bytes:
    """Changes a SentencePiece model so that FastSentencepiece detokenizes unused pieces too.

    They become normal pieces. Ids and texts stay the same.
    """
    proto = ModelProto.FromString(model)
    unused = [piece for piece in proto.pieces if piece.type == UNUSED]
    for piece in unused:
        piece.type = NORMAL
    return bytes(proto.SerializeToString(deterministic=True)) if unused else model
