"""The in-graph tokenizer equals the sentencepiece library, for any text and any ids."""

import itertools

import hypothesis
import hypothesis.strategies as st
import keras
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

from keras_transformer.text.tokenizer import Tokenizer, truncate_text
from keras_transformer.text.vocabulary import learn_vocabulary
from tests.builders import weekly

LINES = [
    f"{a} {b} sieht eine {c} Möwe < 1/2 & > 5".encode()
    for a in ("der", "ein")
    for b in ("alte Mann", "Hund")
    for c in ("große", "graue", "kleine")
]
UNKNOWN = "\u2047"
SPECIAL_NAMES = "<s> </s> <pad> <unk> a</s>b <0x41>"
SETTINGS = hypothesis.settings(max_examples=60)


def library(model):
    return sentencepiece.SentencePieceProcessor(model_proto=model)


@pytest.fixture(scope="module")
def models():
    return {
        (model_type, byte_fallback): learn_vocabulary(
            LINES, 330, model_type=model_type, byte_fallback=byte_fallback
        )
        for model_type in ("unigram", "bpe")
        for byte_fallback in (False, True)
    }


@pytest.fixture(scope="module")
def tokenizers(models):
    return {key: Tokenizer(model) for key, model in models.items()}


def ids_of(tokenize, texts):
    return tokenize(tf.constant(texts, tf.string)).to_list()


def test_rows_end_with_the_end_id_and_names_of_special_pieces_are_ordinary_text(models, tokenizers):
    for key, tokenizer in tokenizers.items():
        ids = tokenizer.tokenize_source(tf.constant([SPECIAL_NAMES, "", " "]))
        assert ids.dtype == tf.int32 and ids.to_list()[1:] == [[tokenizer.end_id]] * 2
        special = ids.to_list()[0]
        assert not {tokenizer.pad_id, tokenizer.start_id, tokenizer.end_id} & set(special[:-1])
        assert special == library(models[key]).encode(SPECIAL_NAMES, add_eos=True)
        assert tokenizer.tokenize_source(tf.zeros([0], tf.string)).to_list() == []


def test_seeds_and_cleared_sessions_leave_tokenizers_alone(models):
    tokenizer = Tokenizer(models["unigram", False])
    tokenize = tf.function(lambda text: tokenizer.tokenize_source(text).to_tensor())
    before = tokenize(tf.constant(["der Hund"])).numpy().tolist()
    for change in (lambda: keras.utils.set_random_seed(1), keras.utils.clear_session):
        change()
        assert tokenize(tf.constant(["der Hund"])).numpy().tolist() == before
        assert tokenizer.tokenize_source(tf.constant(["der Hund"])).to_list() == before


def test_each_side_has_the_model_of_its_language(models):
    source, target = models["unigram", False], models["bpe", True]
    tokenizer = Tokenizer(source, target)
    sides = (
        (tokenizer.tokenize_source, tokenizer.source_pieces, tokenizer.source_vocab_size, source),
        (tokenizer.tokenize_target, tokenizer.target_pieces, tokenizer.target_vocab_size, target),
    )
    for tokenize, pieces, size, model in sides:
        assert ids_of(tokenize, LINES) == library(model).encode(LINES, add_eos=True)
        assert size == library(model).get_piece_size()
        ids = tf.reshape(tf.range(size - size % 6), [2, 3, -1])  # any shape
        assert pieces(ids).shape == ids.shape
        expected = [library(model).id_to_piece(i) for i in range(size - size % 6)]
        assert [piece.decode() for piece in pieces(ids).numpy().ravel()] == expected
        assert pieces(tf.zeros([2, 0], tf.int32)).shape == [2, 0]
        # Ids outside the vocabulary give the piece of the nearest id.
        outside = pieces(tf.constant([-1, size, 2**31 - 1])).numpy().tolist()
        nearest = [library(model).id_to_piece(i).encode() for i in (0, size - 1, size - 1)]
        assert outside == nearest
    (ids,) = ids_of(tokenizer.tokenize_target, LINES[3:4])
    assert tokenizer.detokenize(tf.constant([ids]), [len(ids)]).numpy().tolist() == LINES[3:4]


def test_a_phrase_is_the_target_ids_of_its_words(models):
    target = models["bpe", False]
    tokenizer = Tokenizer(models["unigram", False], target)
    for phrase in ("große Möwe", "  der   Hund ", "</s>", ""):
        assert tokenizer.phrase_ids(phrase) == library(target).encode(phrase)
        (ids,) = ids_of(tokenizer.tokenize_target, [phrase])
        assert [*tokenizer.phrase_ids(phrase), tokenizer.end_id] == ids


@SETTINGS
@hypothesis.given(
    texts=st.lists(st.binary(max_size=20) | st.text(max_size=20).map(str.encode), max_size=4)
)
def test_any_bytes_are_segmented_as_by_the_library(models, tokenizers, texts):
    for key, tokenizer in tokenizers.items():
        expected = library(models[key]).encode(texts, add_eos=True)
        assert ids_of(tokenizer.tokenize_source, texts) == expected


@SETTINGS
@hypothesis.example(rows=[[198, 0, 132]], cut=3)  # padding between the bytes of a character
@hypothesis.given(
    rows=st.lists(
        st.lists(st.integers(-5, 340) | st.integers(-(2**31), 2**31 - 1), max_size=8), max_size=4
    ),
    cut=st.integers(-1, 9),
)
def test_any_ids_give_one_line_of_text(models, tokenizers, rows, cut):
    width = max(map(len, rows), default=0)
    ids = tf.constant(
        [row + [7] * (width - len(row)) for row in rows], tf.int32, [len(rows), width]
    )
    lengths = [min(len(row), cut) for row in rows]
    for key, tokenizer in tokenizers.items():
        model = library(models[key])
        texts = tokenizer.detokenize(ids, tf.constant(lengths, tf.int32)).numpy().tolist()
        assert len(texts) == len(rows)
        for row, length, text in zip(rows, lengths, texts, strict=True):
            known = [i for i in row[: max(length, 0)] if 0 <= i < model.get_piece_size()]
            breaks = [f"<0x{code:02X}>" for code in (*range(32), 127)]
            # Padding is removed first, also between two bytes of a character.
            pieces = [i for i in known if not model.is_control(i)]
            written = [i for i in pieces if model.id_to_piece(i) not in breaks]
            assert text.decode() == model.decode(written)
            assert not set(b"\n\r\0") & set(text)


def test_a_saved_model_of_two_vocabularies_uses_one_per_side(tmp_path, models):
    class Service(tf.Module):
        def __init__(self, tokenizer):
            self.tokenizer = tokenizer

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def ids(self, text):
            own = self.tokenizer
            return own.tokenize_source(text).to_tensor(), own.tokenize_target(text).to_tensor()

    Tokenizer(models["unigram", False], models["bpe", True]).save(tmp_path / "tokenizer")
    service = Service(Tokenizer.load(tmp_path / "tokenizer"))
    tf.saved_model.save(service, tmp_path / "saved")
    for path in (tmp_path / "tokenizer").iterdir():
        path.unlink()
    (tmp_path / "saved").rename(tmp_path / "moved")
    loaded = tf.saved_model.load(tmp_path / "moved")
    for own, other in zip(service.ids(LINES), loaded.ids(LINES), strict=True):
        assert own.numpy().tolist() == other.numpy().tolist()


@pytest.mark.parametrize(
    ("patterns", "model_type", "byte_fallback"),
    [
        (["multi30k/*", "newstest/*"], "unigram", False),
        # Any bytes and ids are compared for both types at every change.
        weekly(["multi30k/*.en", "multi30k/*.de", "multi30k/*.fr"], "bpe", True),
    ],
)
def test_agrees_with_the_library_on_every_line(test_data, patterns, model_type, byte_fallback):
    paths = sorted(
        path for pattern in patterns for path in test_data.glob(pattern) if path.is_file()
    )
    lines = [line for path in paths for line in path.read_bytes().split(b"\n")]
    assert len(lines) > 90_000
    sample = lines[::20]
    model = learn_vocabulary(sample, 4000, model_type=model_type, byte_fallback=byte_fallback)
    tokenizer, processor = Tokenizer(model), library(model)
    for start in range(0, len(lines), 20_000):
        batch = lines[start : start + 20_000]
        ids = tokenizer.tokenize_source(tf.constant(batch))
        expected = processor.encode(batch, add_eos=True)
        np.testing.assert_array_equal(ids.row_lengths(), [len(row) for row in expected])
        np.testing.assert_array_equal(
            ids.flat_values, np.fromiter(itertools.chain.from_iterable(expected), np.int32)
        )


@hypothesis.given(st.lists(st.text(max_size=12), max_size=4), st.integers(4, 12))
@hypothesis.settings(max_examples=200)
def test_texts_are_truncated_between_characters(texts, limit):
    data = [text.encode("utf-8", "replace") for text in texts]
    cut_texts, is_cut = truncate_text(tf.constant(data, tf.string), limit)
    for whole, short, said in zip(data, cut_texts.numpy(), is_cut.numpy(), strict=True):
        expected = whole[:limit].decode("utf-8", "ignore").encode()
        assert (short, said) == (expected, len(whole) > limit)


@hypothesis.given(st.lists(st.binary(max_size=12), max_size=4), st.integers(4, 12))
@hypothesis.settings(max_examples=100)
def test_invalid_utf_8_is_also_truncated(data, limit):
    cut_texts, _ = truncate_text(tf.constant(data, tf.string), limit)
    for whole, short in zip(data, cut_texts.numpy(), strict=True):
        assert whole.startswith(short)
        assert min(len(whole), limit - 3) <= len(short) <= limit


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_unknown_tokens_are_replaced_by_the_text_of_the_source(models, model_type):
    tokenizer = Tokenizer(models[model_type, False])
    texts = ["der 7 Hund", "", "Ω", "der Ω\u2126 und 7", "ｄer alte 漢字"]
    source = tokenizer.source_texts(tf.constant(texts))
    assert ["".join(row).strip() for row in np.char.decode(source.numpy().astype("S"))] == texts
    rows = tokenizer.tokenize_source(tf.constant(texts))
    ids, lengths = rows.to_tensor(), tf.cast(rows.row_lengths(), tf.int32)
    written = tokenizer.detokenize(ids, lengths)
    assert sum(UNKNOWN in text.decode() for text in written.numpy()) == 4
    replaced = tokenizer.replace_unknown(written, ids, lengths, source)
    assert [text.decode() for text in replaced.numpy()] == [*texts[:-1], "der alte 漢字"]
    shorter = tokenizer.replace_unknown(written, ids, tf.minimum(lengths, 1), source)
    np.testing.assert_array_equal(shorter, written)  # as many as the ids say
