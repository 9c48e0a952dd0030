"""The part of SentencePiece's model proto that this package reads and changes.

`sentencepiece.sentencepiece_model_pb2` needs a newer protobuf than TensorFlow allows. The fields
are from `sentencepiece_model.proto`; fields that are not listed here are kept unchanged.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}  # of TrainerSpec.model_type
UNIGRAM = 1
# Values of SentencePiece.type.
NORMAL, UNKNOWN, USER_DEFINED, UNUSED = 1, 2, 4, 5

_PACKAGE = "keras_transformer.sentencepiece"
_Field = descriptor_pb2.FieldDescriptorProto
# Message → its fields: name, number, type, and the default value or the type of the message.
_MESSAGES = {
    "SentencePiece": (
        ("piece", 1, _Field.TYPE_STRING, ""),
        ("score", 2, _Field.TYPE_FLOAT, "0"),
        ("type", 3, _Field.TYPE_INT32, "1"),
    ),
    "TrainerSpec": (
        ("model_type", 3, _Field.TYPE_INT32, "1"),
        ("split_by_whitespace", 22, _Field.TYPE_BOOL, "true"),
        ("treat_whitespace_as_suffix", 24, _Field.TYPE_BOOL, "false"),
        ("byte_fallback", 35, _Field.TYPE_BOOL, "false"),
        ("unk_surface", 44, _Field.TYPE_STRING, " \u2047 "),
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


def _model_proto() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="keras_transformer/sentencepiece_model.proto", package=_PACKAGE, syntax="proto2"
    )
    for message, fields in _MESSAGES.items():
        descriptor = file.message_type.add(name=message)
        for name, number, kind, other in fields:
            repeated = name == "pieces"
            label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
            field = descriptor.field.add(name=name, number=number, type=kind, label=label)
            if kind == _Field.TYPE_MESSAGE:
                field.type_name = f".{_PACKAGE}.{other}"
            else:
                field.default_value = other
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.ModelProto"))


ModelProto: Any = _model_proto()
