"""Models of others get the special pieces they lack, and segment text as before."""

import io
from pathlib import Path

import pytest
import sentencepiece
import tensorflow as tf

from keras_transformer.text.model_proto import add_missing_special_pieces
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.vocabulary import Vocabulary, learn_vocabulary
from tests.builders import refuses

LINES = [f"the {a} {b} sees a {a}er {b}" for a in ("red", "big", "old") for b in "xyzü"]
TEXTS = [
    *LINES, "", " two  spaces ", "Ω unknown 漢字 🙂", "<pad> <s> </s> <unk>", "<2de> the",
    "<2fr>the",
    "½ … ① ﬁ", "\u200b\u2581", "<0x0A>", "the redder x" * 20,
]  # fmt: skip
IDS = {
    "library": {},
    "no pad": {"pad_id": -1, "unk_id": 0, "bos_id": 1, "eos_id": 2},
    "no start": {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    "no start and pad": {"eos_id": 0, "unk_id": 1, "bos_id": -1, "pad_id": -1},
    "only unknown": {"unk_id": 3, "bos_id": -1, "eos_id": -1, "pad_id": -1},
    "unusual ids": {"unk_id": 7, "bos_id": 11, "eos_id": 5, "pad_id": -1},
    "other names": {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "pad_id": 3},
    "names that are taken": {"user_defined_symbols": ["<pad>", "<2de>"], "bos_id": -1},
    "control symbols": {"control_symbols": ["<mask>", "<lang>"], "pad_id": -1},
}
KINDS = {
    "unigram": {"model_type": "unigram"},
    "bpe": {"model_type": "bpe"},
    "unigram with bytes": {"model_type": "unigram", "byte_fallback": True, "vocab_size": 320},
    "bpe with bytes": {"model_type": "bpe", "byte_fallback": True, "vocab_size": 320},
    "characters": {"model_type": "char"},
}


def learn(**options: object) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        **{"vocab_size": 40, **options},
        sentence_iterator=iter(LINES),
        model_writer=model,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return model.getvalue()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ids", IDS)
def test_text_is_segmented_as_by_the_original_model(tmp_path: Path, kind: str, ids: str) -> None:
    model = learn(**KINDS[kind], **IDS[ids])
    (tmp_path / "x.model").write_bytes(model)
    original = sentencepiece.SentencePieceProcessor(model_proto=model)
    tokenizer = Tokenizer.load(tmp_path / "x.model")
    vocabulary = tokenizer.vocabulary
    size = original.get_piece_size()
    pieces, _ = vocabulary.pieces()
    assert pieces[:size] == [original.id_to_piece(i) for i in range(size)]
    own = (vocabulary.pad_id, vocabulary.unknown_id, vocabulary.start_id, vocabulary.end_id)
    given = (original.pad_id(), original.unk_id(), original.bos_id(), original.eos_id())
    assert len(set(own)) == 4 and vocabulary.source_vocab_size == size + given.count(-1)
    for new, old in zip(own, given, strict=True):
        assert new == old if old >= 0 else new >= size, "old ids stay, and new ones come last"
    expected = [[*original.encode(text), vocabulary.end_id] for text in TEXTS]
    assert vocabulary.encode_source([text.encode() for text in TEXTS]) == expected
    assert tokenizer.tokenize_source(tf.constant(TEXTS)).to_list() == expected
    assert [vocabulary.target_text(row) for row in expected] == [
        original.decode(row[:-1]) for row in expected
    ]
    vocabulary.save(tmp_path / "saved")
    assert Vocabulary.load(tmp_path / "saved").fingerprint == vocabulary.fingerprint


def test_a_model_that_lacks_nothing_is_unchanged_and_another_file_is_refused(
    tmp_path: Path,
) -> None:
    model = learn_vocabulary([line.encode() for line in LINES], 40)
    assert add_missing_special_pieces(model) == model
    (tmp_path / "x.model").write_bytes(model)
    assert Vocabulary.load(tmp_path / "x.model").fingerprint == Vocabulary(model).fingerprint
    (tmp_path / "x.model").write_bytes(b"garbage")
    refuses(Vocabulary.load, (tmp_path / "x.model",), "x.model", 7, "SentencePiece")


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_symbols_are_appended(tmp_path: Path, kind: str, separate: bool) -> None:
    (tmp_path / "x.model").write_bytes(learn(**KINDS[kind]))
    old = Vocabulary.load(tmp_path / "x.model")
    if separate:
        old = Vocabulary(old.source_model, old.source_model)
    new = old.with_symbols(["<2fr>", "<2es>"])
    size = old.source_vocab_size
    assert new.joint == old.joint and new.target_vocab_size == size + 2
    assert new.encode_source([b"<2es>"])[0][-2:] == [size + 1, old.end_id]
    texts = [text.encode() for text in TEXTS if "<2fr>" not in text]
    assert new.encode_source(texts) == old.encode_source(texts)
    assert new.encode_target(texts) == old.encode_target(texts)
    tokenizer = Tokenizer(new.source_model, None if new.joint else new.target_model)
    in_graph = tokenizer.tokenize_source(tf.constant(TEXTS)).to_list()
    assert in_graph == new.encode_source([text.encode() for text in TEXTS])
    assert new.extends(old) and not old.extends(new) and old.extends(old)
    assert new.with_symbols(["<2fr>"]).fingerprint == new.fingerprint
    other = Vocabulary(learn_vocabulary([b"another text"], 40))
    assert not new.extends(other) and not other.extends(old)


def test_a_symbol_that_is_an_ordinary_token_is_refused() -> None:
    vocabulary = Vocabulary(learn_vocabulary([b"ab ab ab ab"], 30))
    refuses(vocabulary.with_symbols, (["▁"],), "▁", "token")
