"""The protocol buffer of this package against the `sentencepiece` library."""

import pytest
import sentencepiece

from keras_transformer.text.model_proto import MODEL_TYPES, UNIGRAM, USER_DEFINED, ModelProto
from keras_transformer.text.vocabulary import learn_vocabulary

LINES = [b"the small dog runs over the green field", b"das alte Haus steht am Fluss"] * 3


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
@pytest.mark.parametrize("byte_fallback", [False, True])
def test_fields_equal_those_of_the_library(model_type, byte_fallback):
    model = learn_vocabulary(
        LINES, 300, model_type=model_type, byte_fallback=byte_fallback, symbols=["<2de>"]
    )
    proto = ModelProto.FromString(model)
    library = sentencepiece.SentencePieceProcessor(model_proto=model)
    assert [piece.piece for piece in proto.pieces] == [
        library.id_to_piece(i) for i in range(library.get_piece_size())
    ]
    scores = [library.get_score(i) for i in range(library.get_piece_size())]
    assert [piece.score for piece in proto.pieces] == pytest.approx(scores)
    symbols = [piece.piece for piece in proto.pieces if piece.type == USER_DEFINED]
    assert symbols == ["<2de>"]
    assert MODEL_TYPES[proto.trainer_spec.model_type] == model_type
    assert (proto.trainer_spec.model_type == UNIGRAM) == (model_type == "unigram")
    assert proto.trainer_spec.byte_fallback == byte_fallback
    assert proto.trainer_spec.split_by_whitespace and proto.normalizer_spec.add_dummy_prefix


def test_the_library_reads_changed_fields_and_unlisted_fields_stay():
    model = learn_vocabulary(LINES, 60, normalization="nmt_nfkc_cf")
    proto = ModelProto.FromString(model)
    for piece in proto.pieces[4:]:
        piece.score = -2.5
    changed = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
    assert {changed.get_score(i) for i in range(4, changed.get_piece_size())} == {-2.5}
    assert changed.normalize("ÄB") == "▁äb", (
        "the normalizer's tables, which are not named, are there"
    )
