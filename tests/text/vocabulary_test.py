"""Vocabularies are learned reproducibly, and checked when they are loaded."""

import io

import pytest
import sentencepiece

from keras_transformer.errors import InputError
from keras_transformer.text.vocabulary import Vocabulary, learn_vocabulary
from tests.builders import refuses
from tests.messages import mentions

LINES = [f"the {a} {b} sees a {a}er {b}".encode() for a in ("red", "big", "old") for b in "xyzü"]


def pieces(model):
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(i) for i in range(processor.get_piece_size())]


def model_with(**ids):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=model,
        vocab_size=25,
        hard_vocab_limit=False,
        minloglevel=2,
        **ids,
    )
    return model.getvalue()


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_learning_is_deterministic_and_has_the_promised_ids(model_type):
    model = learn_vocabulary(LINES, 30, model_type=model_type)
    assert model == learn_vocabulary(LINES, 30, model_type=model_type)
    learned = Vocabulary(model)
    assert (learned.pad_id, learned.unknown_id, learned.start_id, learned.end_id) == (0, 1, 2, 3)
    assert (
        learned.joint
        and learned.source_vocab_size == learned.target_vocab_size == len(pieces(model)) <= 30
    )


def test_unigram_scores_are_rounded_so_that_their_sums_are_exact():
    model = learn_vocabulary([b"000 00 10 200 4000 30"] * 9 + LINES, 45)
    scores = sentencepiece.SentencePieceProcessor(model_proto=model)
    assert all((scores.get_score(i) * 1024).is_integer() for i in range(scores.get_piece_size()))


def test_learning_prints_nothing_and_short_texts_have_smaller_vocabularies(capfd):
    learned = Vocabulary(learn_vocabulary([b"hello world"], 8000))
    assert 4 < learned.source_vocab_size < 40
    assert tuple(capfd.readouterr()) == ("", "")


def test_normalization_keeps_numbers_and_joiners_apart():
    texts = ["10³ liters", "2½ m", "25 m²", "2ⁿ", "①1", "1ª"]
    texts += ["می\u200cخواهم", "\u200f5", "👩\u200d🔬"]
    model = learn_vocabulary([*map(str.encode, texts)] * 9, 300)
    vocabulary = Vocabulary(model)
    assert vocabulary.rewritten("source", texts) == {}
    assert [vocabulary.target_text(ids[:-1]) for ids in vocabulary.encode_source(texts)] == texts
    # Digits in another form are digits, and all other characters are those of NFKC.
    others = ["１２％", "e\u0301", "ﬁ", "Ⅷ", "\u30ab\u3099"]
    forms = ["12%", "é", "fi", "VIII", "ガ"]
    assert vocabulary.rewritten("source", others) == dict(enumerate(forms))
    old = Vocabulary(learn_vocabulary([b"10 liters"] * 9, 40, normalization="nmt_nfkc"))
    assert old.rewritten("source", ["10³ liters"]) == {0: "103 liters"}


def test_byte_fallback_has_no_unknown_tokens():
    text = "Ω→日本".encode()
    for byte_fallback in (False, True):
        learned = Vocabulary(learn_vocabulary(LINES, 300, byte_fallback=byte_fallback))
        (ids,) = learned.encode_target([text])
        assert (learned.unknown_id in ids) != byte_fallback
    assert len([p for p in pieces(learned.target_model) if p.startswith("<0x")]) == 256


def test_texts_that_are_too_small_are_refused():
    for lines, facts in (
        ([], ["no text"]),
        ([b"", b" "], ["no text"]),
        (LINES, [8, "at least 21"]),
    ):
        refuses(learn_vocabulary, (lines, 8), *facts)


@pytest.mark.parametrize("byte_fallback", [False, True])
def test_symbols_may_look_like_byte_pieces(byte_fallback):
    symbols = ["<0x4a>", "<0x041>", "<0x>"] + ["<0x41>"] * (not byte_fallback)
    learned = Vocabulary(learn_vocabulary(LINES, 300, byte_fallback=byte_fallback, symbols=symbols))
    assert learned.source_symbols == set(symbols)


def test_saved_vocabularies_are_read_back(tmp_path):
    joint = Vocabulary(learn_vocabulary(LINES, 40, model_type="bpe"))
    separate = Vocabulary(joint.source_model, learn_vocabulary(LINES, 25))
    joint.save(tmp_path / "joint")
    separate.save(tmp_path / "data" / "tokenizer")
    assert {path.name for path in (tmp_path / "joint").iterdir()} == {"joint.model"}
    assert Vocabulary.load(tmp_path / "joint").fingerprint == joint.fingerprint
    for directory in (tmp_path / "data", tmp_path / "data" / "tokenizer"):
        loaded = Vocabulary.load(directory)
        assert not loaded.joint and loaded.fingerprint == separate.fingerprint
        assert (loaded.source_vocab_size, loaded.target_vocab_size) == (40, 25)
        assert loaded.encode_source(LINES) == joint.encode_source(LINES)
    assert joint.fingerprint != separate.fingerprint


def test_special_ids_are_read_from_the_model():
    ids = {"unk_id": 0, "bos_id": 5, "eos_id": 1, "pad_id": 2}
    learned = Vocabulary(model_with(**ids))
    assert (learned.pad_id, learned.unknown_id, learned.start_id, learned.end_id) == (2, 0, 5, 1)
    assert learned.encode_source([b"the"])[0][-1] == 1


def test_unusable_models_are_refused(tmp_path):
    good = learn_vocabulary(LINES, 40)
    refuses(Vocabulary, (model_with(),), "pad", "pad_id")
    with pytest.raises(InputError, match=mentions("'pad': 0", "'pad': 4", "source", "target")):
        Vocabulary(good, model_with(unk_id=1, bos_id=2, eos_id=3, pad_id=4))
    for garbage in (b"", b"garbage", good[:500]):
        refuses(Vocabulary, (garbage,), len(garbage), "SentencePiece")
    refuses(Vocabulary.load, (tmp_path,), "vocabulary", "joint.model")
    (tmp_path / "joint.model").write_bytes(good[:500])
    refuses(Vocabulary.load, (tmp_path,), "joint.model", "500")
