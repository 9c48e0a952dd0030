"""The signatures of an export: outputs of each row, and clamped request parameters."""

import dataclasses

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

from keras_transformer.config import MAX_LENGTH_PENALTY
from keras_transformer.decoding import SearchInputs
from keras_transformer.export.saved_model.signatures import Signatures
from keras_transformer.inference import Status, loading
from keras_transformer.inference.manifest import check_manifest
from keras_transformer.inference.scoring import Scorer
from tests import reference
from tests.builders import nan_weights, weekly
from tests.conftest import PHRASES
from tests.export.model_variants import make_run

K, S, L = 2, 40, 45  # n_best, max_source_tokens, and with max_extra_tokens
TEXTS = [*PHRASES, "", "ball " * 30]


@pytest.fixture(scope="module")
def translator(run_directory):
    return loading.load_translator(run_directory, {"decoding.n_best": K})


@pytest.fixture(scope="module")
def served(exported_run):
    return tf.saved_model.load(str(exported_run / "1"))


def ask(served, signature, **inputs):
    specs = served.signatures[signature].structured_input_signature[1]
    tensors = {name: tf.constant(value, specs[name].dtype) for name, value in inputs.items()}
    return {k: v.numpy() for k, v in served.signatures[signature](**tensors).items()}


def translate(served, texts, **given):
    """Calls `translate`. A single value applies to all texts."""
    asked = {"max_length": 0, "length_penalty": 0.6, "prefix": "", **given}
    asked = {k: v if isinstance(v, list) else [v] * len(texts) for k, v in asked.items()}
    return ask(served, "translate", text=texts, **asked)


def test_shapes_of_all_outputs(served, exported_run):
    B = None
    expected = {
        "serving_default": {"translations": [B, K], "scores": [B, K]},
        "translate": {
            "translations": [B, K], "scores": [B, K], "lengths": [B, K], "tokens": [B, K, L],
            "token_scores": [B, K, L], "alignments": [B, K, L], "source_tokens": [B, S],
            "truncated": [B], "status": [B],
        },
        "translate_ids": {"ids": [B, K, L], "lengths": [B, K], "scores": [B, K], "status": [B]},
        "score": {"log_probs": [B], "lengths": [B]},
        "embed": {"embeddings": [B, 16]},
        "attention": {
            "encoder": [B, 1, 2, S, S], "decoder": [B, 2, 2, L, L], "cross": [B, 2, 2, L, S],
            "source_tokens": [B, S], "target_tokens": [B, L], "predicted_tokens": [B, L],
            "source_lengths": [B], "target_lengths": [B], "target_text": [B], "status": [B],
        },
        "tokenize": {"ids": [B, S], "tokens": [B, S], "lengths": [B]},
        "detokenize": {"text": [B]},
        "lengths": {"tokens": [B], "unknown": [B], "used": [B]},
        "symbols": {"symbols": [B, 0]},
    }  # fmt: skip
    found = {
        name: {key: spec.shape.as_list() for key, spec in signature.structured_outputs.items()}
        for name, signature in served.signatures.items()
    }
    assert found == expected
    described = check_manifest(exported_run / "1")["signatures"]
    assert expected == {
        name: {key: tensor["shape"] for key, tensor in signature["outputs"].items()}
        for name, signature in described.items()
    }


def test_translate_returns_the_details_of_the_search(served, translator):
    found = translate(served, TEXTS)
    plain = ask(served, "serving_default", text=TEXTS)
    np.testing.assert_array_equal(found["translations"], plain["translations"])
    np.testing.assert_allclose(found["scores"], plain["scores"], atol=1e-5)
    details = translator.translate_verbose(tf.constant(TEXTS), tf.constant([""] * len(TEXTS)))
    details = {name: field.numpy() for name, field in details.items()}
    np.testing.assert_array_equal(found["lengths"], details["lengths"])
    used = translator.lengths(tf.constant(TEXTS))["used"].numpy()

    def padded(name, lengths, width, beyond):
        array = details[name]
        wide = np.full([*array.shape[:-1], width], beyond, array.dtype)
        wide[..., : array.shape[-1]] = array
        return np.where(np.arange(width) < lengths[..., None], wide, beyond)

    for name, expected in (
        ("source_tokens", padded("source_tokens", used, S, b"")),
        ("tokens", padded("tokens", details["lengths"], L, b"")),
        ("alignments", padded("alignments", details["lengths"], L, -1)),
    ):
        np.testing.assert_array_equal(found[name], expected)
    expected = padded("token_log_probs", details["lengths"], L, 0)
    np.testing.assert_allclose(found["token_scores"], expected, atol=1e-5)
    assert (found["alignments"] < used[:, None, None]).all()
    long = TEXTS.index("ball " * 30)
    assert found["truncated"].tolist() == [i == long for i in range(len(TEXTS))]
    assert found["status"].tolist() == [Status.SOURCE_CUT * (i == long) for i in range(len(TEXTS))]


def test_each_row_has_its_own_options(served, translator):
    texts, options = [PHRASES[0]] * 3, {"max_length": 3, "length_penalty": 2.0}
    found = translate(
        served, texts, max_length=[3, 0, 0], length_penalty=[2.0, 0.0, 0.6],
        prefix=["", "", "ein kleiner"],
    )  # fmt: skip
    assert (found["lengths"][0] <= 3).all() and (found["status"] == 0).all()
    assert found["translations"][2, 0].startswith(b"ein kleiner")
    own = translator.with_options(dataclasses.replace(translator.config, **options))
    source_ids, *_ = own.source_ids(tf.constant(texts[:1]))
    expected = own.translate_ids(source_ids, SearchInputs(own.max_lengths(source_ids)))
    np.testing.assert_allclose(found["scores"][0], expected.scores[0], atol=1e-4)
    assert found["translations"][0].tolist() == own.texts(expected)[0].numpy().tolist()
    # Without a length penalty, a score is the sum of the tokens' scores.
    np.testing.assert_allclose(found["scores"][1], found["token_scores"][1].sum(-1), atol=1e-4)


@pytest.mark.parametrize(
    ("asked", "as_if", "status"),
    [
        ({"max_length": -1}, {"max_length": 0}, Status.MAX_LENGTH_CHANGED),
        ({"max_length": 2**31 - 1}, {"max_length": 0}, Status.MAX_LENGTH_CHANGED),
        ({"max_length": L}, {"max_length": 0}, 0),
        ({"length_penalty": float("nan")}, {}, 0),
        ({"length_penalty": -1.0}, {"length_penalty": 0.0}, Status.LENGTH_PENALTY_CHANGED),
        ({"length_penalty": float("inf")}, {"length_penalty": MAX_LENGTH_PENALTY},
         Status.LENGTH_PENALTY_CHANGED),
        ({"prefix": "das alte " * 50}, {"prefix": "das alte " * 51}, Status.PREFIX_CUT),
        ({"prefix": "\0\ud7ff \x80"}, {"prefix": "\0\ud7ff \x80"}, 0),
    ],
)  # fmt: skip
def test_invalid_options_are_clamped_for_their_row_only(served, asked, as_if, status):
    texts = [PHRASES[0], PHRASES[1]]
    # Only the first row has the value. The other row must not change.
    rows = {name: [value, {"max_length": 0, "length_penalty": 0.6, "prefix": ""}[name]]
            for name, value in asked.items()}  # fmt: skip
    found = translate(served, texts, **rows)
    assert found["status"].tolist() == [status, 0]
    for row, given in ((0, as_if), (1, {})):
        alone = translate(served, texts[row : row + 1], **given)
        for name in ("translations", "lengths", "tokens", "alignments"):
            np.testing.assert_array_equal(found[name][row], alone[name][0])
        np.testing.assert_allclose(found["scores"][row], alone["scores"][0], atol=1e-4)


def test_ids_are_translated_like_their_text(served, translator):
    tokenized = ask(served, "tokenize", text=TEXTS)
    assert tokenized["lengths"].tolist()[-2:] == [1, S]
    ids = {"ids": tokenized["ids"], "lengths": tokenized["lengths"]}
    found = ask(served, "translate_ids", **ids)
    expected = translator.translate_to_ids(tf.constant(TEXTS))
    np.testing.assert_array_equal(found["lengths"], expected.lengths)
    width = expected.ids.shape[2]
    np.testing.assert_array_equal(found["ids"][:, :, :width], expected.ids)
    assert (found["ids"][:, :, width:] == translator.tokenizer.pad_id).all()
    np.testing.assert_allclose(found["scores"], expected.scores, atol=1e-5)
    assert (found["status"] == 0).all()

    # Without end tokens, and with other padding.
    behind = np.arange(S) >= ids["lengths"][:6, None] - 1
    less = {"ids": np.where(behind, 7, ids["ids"][:6]), "lengths": ids["lengths"][:6] - 1}
    np.testing.assert_array_equal(ask(served, "translate_ids", **less)["ids"], found["ids"][:6])
    texts = ask(served, "detokenize", ids=found["ids"][:, 0], lengths=found["lengths"][:, 0])
    assert found["ids"].shape[2] == L
    plain = ask(served, "serving_default", text=TEXTS)
    assert texts["text"].tolist() == plain["translations"][:, 0].tolist()


def test_invalid_ids_and_lengths_are_replaced(served, translator):
    (good,) = ask(served, "tokenize", text=PHRASES[:1])["ids"]
    length, unknown = int((good != 0).sum()), translator.tokenizer.unknown_id
    second = np.arange(S) == 1
    impossible = (2**31 - 1, -5, translator.tokenizer.pad_id)
    rows = [good, *(np.where(second, value, good) for value in impossible)]
    found = ask(served, "translate_ids", ids=rows, lengths=[length] * 4)
    assert found["status"].tolist() == [0, *[Status.IDS_REPLACED] * 3]
    as_unknown = ask(
        served, "translate_ids", ids=[np.where(second, unknown, good)], lengths=[length]
    )
    for row in (1, 2, 3):
        np.testing.assert_array_equal(found["ids"][row], as_unknown["ids"][0])

    full = np.full([3, S], good[0])
    found = ask(served, "translate_ids", ids=full, lengths=[S, 2**31 - 1, -7])
    cut, changed = Status.SOURCE_CUT, Status.LENGTHS_CHANGED
    assert found["status"].tolist() == [cut, cut | changed, changed]
    assert found["lengths"][2].tolist()[0] == 0
    none = ask(served, "translate_ids", ids=np.zeros([0, S]), lengths=np.zeros([0]))
    assert none["ids"].shape == (0, K, L)


def test_samples_for_ids_are_those_of_the_text(run_directory):
    settings = {"decoding.sample": True, "decoding.temperature": 3.0, "decoding.n_best": 3}
    drawing = loading.load_translator(run_directory, settings)
    signatures = Signatures(drawing).by_name()
    text = tf.constant([PHRASES[0], PHRASES[3]])
    tokenized, expected = signatures["tokenize"](text), drawing.translate_to_ids(text)
    found = signatures["translate_ids"](tokenized["ids"], tokenized["lengths"])
    np.testing.assert_array_equal(found["lengths"], expected.lengths)
    np.testing.assert_array_equal(found["ids"][..., : expected.ids.shape[2]], expected.ids)


def test_score_equals_the_scorer(served, translator):
    targets = [*PHRASES[3:], *PHRASES[:3], "", "Ball " * 60]
    found = ask(served, "score", source=TEXTS, target=targets)
    scorer = Scorer(translator)
    expected = scorer.score(tf.constant(TEXTS), tf.constant(targets))
    np.testing.assert_array_equal(found["lengths"], expected["lengths"])
    np.testing.assert_allclose(found["log_probs"][:-1], expected["log_probs"][:-1], rtol=1e-5)
    assert found["lengths"][-1] > L and found["log_probs"][-1] == np.float32(-1e9)


def test_embeddings_are_means_without_padding(served, translator):
    found = ask(served, "embed", text=TEXTS)["embeddings"]
    for row, text in enumerate(TEXTS):
        ids, *_ = translator.source_ids(tf.constant([text]))
        states = translator.transformer.encode(ids, training=False).states.numpy()[0]
        np.testing.assert_allclose(found[row], states.mean(0), atol=1e-5)


@pytest.mark.parametrize(
    "name", "serving_default translate score embed attention tokenize lengths symbols".split()
)
def test_an_empty_batch(served, name):
    specs = served.signatures[name].structured_input_signature[1]
    for output in ask(served, name, **{key: [] for key in specs}).values():
        assert output.shape[0] == 0


@pytest.mark.parametrize("name", ["serving_default", "translate"])
@pytest.mark.parametrize("shape", [[], [2, 1], [1, 2]])
def test_texts_of_another_rank_are_an_error(served, name, shape):
    specs = served.signatures[name].structured_input_signature[1]
    inputs = {key: tf.zeros(shape, spec.dtype) for key, spec in specs.items()}
    with pytest.raises(tf.errors.InvalidArgumentError, match="not compatible with expected shape"):
        served.signatures[name](**inputs)


def test_status_reports_missing_translations(served, translator):
    shape = translator.transformer.weights_by_path()["embedding/embeddings"].shape
    [table] = [weight for weight in served.weights if weight.shape == shape]
    with nan_weights(table):
        found = translate(served, ["a", ""])
    assert found["status"].tolist() == [Status.NOT_TRANSLATED, 0]


def test_lengths_of_truncated_texts(served, translator):
    texts = [*TEXTS, " " * 100_000, "a" + " " * 100_000, "a\u0301" * 300_000]
    found = ask(served, "lengths", text=texts)
    expected = translator.lengths(tf.constant(TEXTS))
    for name in ("tokens", "used"):
        np.testing.assert_array_equal(found[name][: len(TEXTS)], expected[name])
    assert (found["used"] < found["tokens"]).tolist()[-4:] == [True] * 4
    assert found["used"].tolist()[-3:-1] == [1, 2]


def test_the_limit_of_bytes(run_directory):
    translator = loading.load_translator(run_directory, {"decoding.max_source_tokens": 20})
    spaces = " " * 308  # the limit is 320 bytes
    found = ["a small dog", " a small dog", " a small dog runs", "läuft läuft läuft"]
    text = tf.constant([spaces + line for line in found])
    ids, lengths, is_cut = translator.source_ids(text)
    assert is_cut.numpy().tolist() == [False, False, True, True]
    whole, _, _ = translator.source_ids(tf.constant(["a small dog", "", "", "läuft läuf"]))
    np.testing.assert_array_equal(ids[2, : lengths[0]], whole[0, : lengths[0]])
    counts = translator.lengths(text)
    assert (counts["used"].numpy() == lengths.numpy()).all()
    assert counts["tokens"][2] > counts["used"][2]


KINDS = ("encoder", "decoder", "cross")
SOURCES = [PHRASES[0], PHRASES[2], PHRASES[1], PHRASES[1], "", "b"]
TARGETS = [PHRASES[3], "", PHRASES[5], "  ", "", "x"]
GIVEN = [True, False, True, False, False, True]  # spaces give no tokens


def ask_attention(signature, sources, targets):
    texts = tf.constant(sources, tf.string), tf.constant(targets, tf.string)
    found = signature.attention(*texts)
    return {name: each.numpy() for name, each in found.items()}


def read(pieces, length):
    return [piece.decode() for piece in pieces[:length]]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        weekly("paper", {"model__attention_window": 8}),
        ("separate", {}),
        weekly("separate", {"model__decoder_self_attention": "ssru"}),
    ],
)
def test_weights_and_positions_equal_the_reference(name, changes, tmp_path):
    run = make_run(tmp_path / "run", name, **changes)
    translator = loading.load_translator(run)
    tokenizer, config = translator.tokenizer, run.config.model
    weights = {
        k: v.numpy().astype(float) for k, v in translator.transformer.weights_by_path().items()
    }
    signature = Signatures(translator)
    check_positions(signature, weights, config)
    found = ask_attention(signature, SOURCES, TARGETS)
    pieces = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.vocabulary.target_model)
    for row, source in enumerate(SOURCES):
        s, t = found["source_lengths"][row], found["target_lengths"][row]
        source_ids, _, source_cut = translator.source_ids(tf.constant([source]))
        source_ids = source_ids.numpy()
        if GIVEN[row]:
            target_ids = tokenizer.tokenize_target(tf.constant(TARGETS[row : row + 1])).numpy()
        else:  # the model's own translation
            own = read(found["predicted_tokens"][row], t)
            target_ids = np.array([[pieces.piece_to_id(piece) for piece in own]], np.int32)
            assert source or own == ["</s>"]
        is_cut = target_ids.size > translator.max_output_tokens
        target_ids = target_ids[:, : translator.max_output_tokens]
        assert (s, t) == (source_ids.size, target_ids.size)
        read_ids = np.insert(target_ids[:, :-1], 0, tokenizer.start_id, axis=1)
        expected = reference.attention_weights(source_ids, read_ids, weights, config)
        for kind, (rows, columns) in zip(KINDS, ((s, s), (t, t), (t, s)), strict=True):
            each = found[kind][row]
            assert each.dtype == np.float32
            np.testing.assert_allclose(
                each[:, :, :rows, :columns], expected[kind][0], atol=1e-5, err_msg=kind
            )
            np.testing.assert_allclose(each[:, :, :rows].sum(-1), 1, atol=1e-5)
            assert not each[:, :, rows:].any() and not each[:, :, :, columns:].any()
        for tokens, ids, pieces_of in (
            ("source_tokens", source_ids, tokenizer.source_pieces),
            ("target_tokens", read_ids, tokenizer.target_pieces),
            ("predicted_tokens", target_ids, tokenizer.target_pieces),
        ):
            length = ids.size
            assert read(found[tokens][row], length) == read(pieces_of(ids[0]).numpy(), length)
            assert set(found[tokens][row][length:]) <= {b""}
        text = tokenizer.detokenize(target_ids, [t])[0]
        assert found["target_text"][row] == text.numpy()
        cut = Status.SOURCE_CUT * int(source_cut[0]) + Status.TARGET_CUT * is_cut
        assert not GIVEN[row] or found["status"][row] == cut


def test_positions_of_sinusoids(translator, run_directory):
    check_positions(Signatures(translator), {}, run_directory.config.model)


def check_positions(signature, weights, config):
    found = signature.positions(tf.constant(30))
    learned = config.positions == "learned"  # 20 of them
    expected = (
        [weights[f"{side}_positions/embeddings"] for side in ("source", "target")]
        if learned
        else [reference.positions_of(config, 30)] * 2
    )
    assert bool(found["learned"]) == learned
    np.testing.assert_allclose(found["source"], expected[0], atol=1e-6)
    np.testing.assert_allclose(found["target"], expected[1], atol=1e-6)
