"""The part of SentencePiece's model proto that this package reads and changes.

`sentencepiece.sentencepiece_model_pb2` needs a newer protobuf than TensorFlow allows. The names and
numbers of the fields are from `sentencepiece_model.proto`. Fields that are not listed here are kept
unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from keras_transformer.errors import InputError

MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}  # values of TrainerSpec.model_type
UNIGRAM, BPE, WORD = 1, 2, 3
# Values of SentencePiece.type.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5

_PACKAGE = "keras_transformer.sentencepiece"
_Field = descriptor_pb2.FieldDescriptorProto
# The fields of each message: name, number, type, and default value (for messages: message type;
# None for a list of values).
_MESSAGES = {
    "SentencePiece": (
        ("piece", 1, _Field.TYPE_STRING, ""),
        ("score", 2, _Field.TYPE_FLOAT, "0"),
        ("type", 3, _Field.TYPE_INT32, "1"),
    ),
    "TrainerSpec": (
        ("model_type", 3, _Field.TYPE_INT32, "1"),
        ("accept_language", 5, _Field.TYPE_STRING, None),
        ("split_by_whitespace", 22, _Field.TYPE_BOOL, "true"),
        ("treat_whitespace_as_suffix", 24, _Field.TYPE_BOOL, "false"),
        ("byte_fallback", 35, _Field.TYPE_BOOL, "false"),
        ("unk_id", 40, _Field.TYPE_INT32, "0"),
        ("bos_id", 41, _Field.TYPE_INT32, "1"),
        ("eos_id", 42, _Field.TYPE_INT32, "2"),
        ("pad_id", 43, _Field.TYPE_INT32, "-1"),
        ("unk_surface", 44, _Field.TYPE_STRING, " \u2047 "),
        ("unk_piece", 45, _Field.TYPE_STRING, "<unk>"),
        ("bos_piece", 46, _Field.TYPE_STRING, "<s>"),
        ("eos_piece", 47, _Field.TYPE_STRING, "</s>"),
        ("pad_piece", 48, _Field.TYPE_STRING, "<pad>"),
    ),
    "NormalizerSpec": (
        ("name", 1, _Field.TYPE_STRING, ""),
        ("precompiled_charsmap", 2, _Field.TYPE_BYTES, ""),
        ("add_dummy_prefix", 3, _Field.TYPE_BOOL, "true"),
        ("remove_extra_whitespaces", 4, _Field.TYPE_BOOL, "true"),
        ("escape_whitespaces", 5, _Field.TYPE_BOOL, "true"),
        ("normalization_rule_tsv", 6, _Field.TYPE_STRING, ""),
    ),
    "ModelProto": (
        ("pieces", 1, _Field.TYPE_MESSAGE, "SentencePiece"),
        ("trainer_spec", 2, _Field.TYPE_MESSAGE, "TrainerSpec"),
        ("normalizer_spec", 3, _Field.TYPE_MESSAGE, "NormalizerSpec"),
        ("denormalizer_spec", 5, _Field.TYPE_MESSAGE, "NormalizerSpec"),
    ),
}
_SPECIAL_FIELDS = ("pad_piece", "bos_piece", "eos_piece")  # fields of TrainerSpec


def _model_proto() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="keras_transformer/sentencepiece_model.proto", package=_PACKAGE, syntax="proto2"
    )
    for message, fields in _MESSAGES.items():
        descriptor = file.message_type.add(name=message)
        for name, number, kind, other in fields:
            repeated = name == "pieces" or other is None
            label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
            field = descriptor.field.add(name=name, number=number, type=kind, label=label)
            if kind == _Field.TYPE_MESSAGE:
                field.type_name = f".{_PACKAGE}.{other}"
            elif other is not None:
                field.default_value = other
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.ModelProto"))


ModelProto: Any = _model_proto()


def add_missing_special_pieces(model: bytes) -> bytes:
    """Returns a serialized model with a pad, a start and an end piece.

    Many models lack some of these. Missing pieces are appended, so old ids and the segmentation of
    text stay the same. A model with all three is returned unchanged.
    """
    proto = ModelProto.FromString(model)
    types = {piece.piece: piece.type for piece in proto.pieces}
    missing = [
        field
        for field in _SPECIAL_FIELDS
        if types.get(getattr(proto.trainer_spec, field)) != CONTROL
    ]
    for field in missing:
        name = getattr(proto.trainer_spec, field)
        while name in types:  # another piece has this name, and must keep its id
            name += "_"
        proto.pieces.add(piece=name, type=CONTROL)
        types[name] = CONTROL
        setattr(proto.trainer_spec, field, name)
    return bytes(proto.SerializeToString(deterministic=True)) if missing else model


def append_symbols(model: bytes, symbols: Iterable[str]) -> bytes:
    """Adds symbols, which are never split, to a serialized model.

    Symbols are appended after all other pieces, so old ids stay the same. Existing symbols are
    skipped, also those that are only symbols at the start of a word, such as "\u2581>>deu<<".
    """
    proto = ModelProto.FromString(model)
    types = {piece.piece: piece.type for piece in proto.pieces}
    for symbol in symbols:
        if types.setdefault(symbol, USER_DEFINED) != USER_DEFINED:
            raise InputError(
                f"The symbol {symbol} is already an ordinary or special token of the vocabulary. "
                "Choose another name, such as <2de>."
            )
    new = [name for name in list(types)[len(proto.pieces) :] if f"\u2581{name}" not in types]
    for symbol in new:
        proto.pieces.add(piece=symbol, type=USER_DEFINED)
    return bytes(proto.SerializeToString(deterministic=True)) if new else model


def is_extension(model: bytes, old: bytes) -> bool:
    """Returns True if a serialized model is an older model, possibly with symbols appended."""
    new_proto, old_proto = ModelProto.FromString(model), ModelProto.FromString(old)
    added = new_proto.pieces[len(old_proto.pieces) :]
    del new_proto.pieces[len(old_proto.pieces) :]
    return new_proto == old_proto and all(piece.type == USER_DEFINED for piece in added)
