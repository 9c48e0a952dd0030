"""Converted models give the results of Marian, which `tests/fixtures/make.py` recorded."""

import dataclasses
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
import yaml

from keras_transformer.errors import InputError
from keras_transformer.extensions.converters import make_options, read_model, write_run
from keras_transformer.extensions.converters.source import ConvertedModel
from keras_transformer.inference import updated_decoding
from keras_transformer.inference.scoring import Scorer
from keras_transformer.inference.translation_module import TranslationModule
from keras_transformer.models.transformer import EXCLUDED_TOKEN_BIAS
from keras_transformer.text.model_proto import USER_DEFINED, ModelProto
from tests.builders import refuses
from tests.extensions.converters.toolkits import (
    FIXTURES,
    change_marian,
    change_npz,
    check_close,
    copy_of,
)
from tests.messages import mentions, tells

FIXTURE = FIXTURES / "marian"
MODELS = ("post_norm", "pre_norm", "untied", "ssru", "ssru_pre_norm")
TAGS = (">>deu<<", ">>neu<<")  # the second one is not in the vocabulary
RESULTS: dict[str, Any] = json.loads((FIXTURE / "results.json").read_text("utf-8"))
TABLE: dict[str, int] = yaml.safe_load((FIXTURE / "vocab.yml").read_text("utf-8"))


def read(name: str = "post_norm") -> ConvertedModel:
    return read_model(FIXTURE / f"{name}.npz", "marian")


@pytest.fixture(scope="module")
def post_norm() -> ConvertedModel:
    return read()


@pytest.fixture(scope="module", params=MODELS)
def named_module(request: pytest.FixtureRequest) -> tuple[str, TranslationModule]:
    model = read(request.param)
    decoding = model.config.updated(
        decoding__beam_size=4, decoding__n_best=4, decoding__length_penalty=0.0,
        decoding__max_extra_tokens=-9,
    ).decoding  # fmt: skip
    return request.param, TranslationModule([model.transformer()], model.tokenizer(), decoding)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the model that a test may change, with the files of an OPUS-MT model."""
    return copy_of("marian", tmp_path)


def marian_ids(text: str) -> list[int]:
    """Returns the ids of a source text as Marian finds them: pieces, then the table."""
    model = sentencepiece.SentencePieceProcessor(str(FIXTURE / "source.spm"))
    tag, _, rest = text.partition(" ") if text.startswith(">>") else ("", "", text)
    pieces = [*filter(None, [tag]), *model.encode(rest, out_type=str), "</s>"]
    return [TABLE.get(piece, TABLE["<unk>"]) for piece in pieces]


# Results.


def test_log_probabilities_are_marians(named_module: tuple[str, TranslationModule]) -> None:
    name, module = named_module
    ids = module.tokenizer.tokenize_target(tf.constant(RESULTS["target"]))
    lengths = tf.cast(ids.row_lengths(), tf.int32)
    targets = ids.to_tensor(module.tokenizer.pad_id)
    source_ids, *_ = module.source_ids(tf.constant(RESULTS["source"]))
    found = Scorer(module).search_result(source_ids, targets, lengths)  # without a graph
    expected = RESULTS["models"][name]["scores"]
    check_close(found.log_probs[:, 0], expected, 1e-4, f"{name}, log-probabilities")


@pytest.mark.parametrize("alpha", [0, 1])
def test_n_best_lists_are_marians(named_module: tuple[str, TranslationModule], alpha: int) -> None:
    name, module = named_module
    if name == "pre_norm":
        pytest.skip(
            "Marian 1.12.42 trains and scores with keys and values of normalized states. Its "
            "decoder computes those of the decoder's self-attention from states before the norm, "
            "so its translations are those of another model than its scores."
        )
    config = dataclasses.replace(module.config, length_penalty=float(alpha))
    module = TranslationModule(module.transformers, module.tokenizer, config)
    found = module.translate_to_ids(tf.constant(RESULTS["source"]))
    tokens = module.tokenizer.target_pieces(found.ids).numpy().tolist()
    for row, expected in enumerate(RESULTS["models"][name]["n_best"][str(alpha)]):
        lengths = found.lengths[row].numpy() - 1  # without the end token
        pairs = zip(tokens[row], lengths, strict=True)
        texts = [b" ".join(pieces[:length]).decode() for pieces, length in pairs]
        assert texts == [text for text, _ in expected]
        scores = [score for _, score in expected]
        np.testing.assert_allclose(found.scores[row], scores, rtol=0, atol=1e-4)


def test_a_run_is_never_overwritten(post_norm: ConvertedModel, tmp_path: Path) -> None:
    refuses(write_run, (post_norm, tmp_path), tmp_path, "exists")


# The vocabulary.


@pytest.mark.parametrize(
    "text",
    [
        *RESULTS["source"][:3],
        ">>gsw<< the old tree",
        "the ü tree",  # SentencePiece does not know ü, but the vocabulary has it
        "a > b >> c",
        "the x 漢字 tree",  # unknown characters next to each other are one token
        "",
    ],
)
def test_ids_are_marians(post_norm: ConvertedModel, text: str) -> None:
    [ids] = post_norm.tokenizer().tokenize_source(tf.constant([text])).to_list()
    unknown = post_norm.vocabulary.unknown_id
    # Pieces that the vocabulary lacks have ids with the vector of the unknown token.
    vectors = post_norm.weights["embedding/embeddings"]
    assert all((vectors[i] == vectors[unknown]).all() for i in ids if i >= len(TABLE))
    assert [i if i < len(TABLE) else unknown for i in ids] == marian_ids(text)


def test_added_tokens_are_never_generated(post_norm: ConvertedModel) -> None:
    vocabulary = post_norm.vocabulary
    assert vocabulary.shares_ids and not vocabulary.joint
    bias, vectors = (
        post_norm.weights[path] for path in ("output_projection/bias", "embedding/embeddings")
    )
    assert (bias[len(TABLE) :] == EXCLUDED_TOKEN_BIAS).all() and (bias[: len(TABLE)] > -100).all()
    assert not vectors[vocabulary.start_id].any()


def test_language_tokens_are_symbols(post_norm: ConvertedModel) -> None:
    old = post_norm.vocabulary
    assert old.source_symbols == {">>deu<<", ">>gsw<<"}
    # docs/convert.md says how to append one.
    new = old.with_symbols(["\u2581>>neu<<"])
    [known], [added] = (new.encode_source([f"{tag} a tree".encode()]) for tag in TAGS)
    assert added == [len(old.pieces()[0]), *known[1:]]
    assert known == old.encode_source([f"{TAGS[0]} a tree".encode()])[0]


@pytest.mark.parametrize("space", ["", "\u2581"])
def test_language_tokens_may_be_in_the_sentencepiece_model(
    post_norm: ConvertedModel, folder: Path, space: str
) -> None:
    proto = ModelProto.FromString((folder / "source.spm").read_bytes())
    proto.pieces.add(piece=f"{space}>>deu<<", type=USER_DEFINED)
    (folder / "source.spm").write_bytes(proto.SerializeToString())
    vocabulary = read_model(folder, "marian").vocabulary
    assert vocabulary.source_vocab_size == post_norm.vocabulary.source_vocab_size
    text = ">>deu<< the old tree"
    assert vocabulary.encode_source([text.encode()]) == [marian_ids(text)]


def test_ids_without_a_piece_are_never_generated(folder: Path) -> None:
    lines = (folder / "vocab.yml").read_text("utf-8").splitlines()
    [gap] = [i for i, line in enumerate(lines) if line.startswith("d:")]
    (folder / "vocab.yml").write_text("\n".join(lines[:gap] + lines[gap + 1 :]), "utf-8")
    model = read_model(folder, "marian")
    assert model.vocabulary.pieces()[1][gap] == f"<unused {gap}>"
    bias = model.weights["output_projection/bias"]
    assert bias[gap] == EXCLUDED_TOKEN_BIAS and (bias[gap + 1 : len(lines)] > -100).all()


def test_dim_vocabs_may_be_less_than_the_table(
    post_norm: ConvertedModel, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Marian uses the first entries: `--dim-vocabs 40 40` gives matrices of 40 rows."""
    file = folder / "post_norm.npz"
    change_marian(file, "  - 46\n", "  - 40\n")
    arrays = np.load(file)
    bias = arrays["decoder_ff_logit_out_b"][:, :40]
    change_npz(file, Wemb=arrays["Wemb"][:40], decoder_ff_logit_out_b=bias)
    model = read_model(folder, "marian")
    assert tells(capsys.readouterr().err, "vocab.yml", 46, 40, "dim-vocabs")
    lines = (folder / "vocab.yml").read_text("utf-8").splitlines()
    (folder / "vocab.yml").write_text("\n".join(lines[:40]), "utf-8")
    assert model.vocabulary.fingerprint == read_model(folder, "marian").vocabulary.fingerprint
    assert not capsys.readouterr().err
    assert model.vocabulary.pieces()[1][39] == post_norm.vocabulary.pieces()[1][39]


def test_an_entry_with_the_name_of_a_special_token_is_kept(folder: Path) -> None:
    text = (folder / "vocab.yml").read_text("utf-8").replace("\nd:", "\n<s>:")
    (folder / "vocab.yml").write_text(text, "utf-8")
    vocabulary = read_model(folder, "marian").vocabulary
    index = yaml.safe_load(text)["<s>"]
    assert vocabulary.pieces()[0][index] == "<s>_"
    assert vocabulary.start_id > index


def test_a_sentencepiece_vocabulary_keeps_its_ids(folder: Path) -> None:
    """Marian also takes a SentencePiece model as its vocabulary."""
    pieces = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*RESULTS["source"], *RESULTS["target"]]),
        model_writer=pieces, vocab_size=len(TABLE), bos_id=-1, eos_id=0, unk_id=1, minloglevel=2,
    )  # fmt: skip
    (folder / "vocab.yml").unlink()
    (folder / "vocab.spm").write_bytes(pieces.getvalue())
    (folder / "decoder.yml").write_text(
        "models: [/training/post_norm.npz]\nvocabs: [vocab.spm, vocab.spm]\nbeam-size: 5\n"
    )
    model = read_model(folder, "marian")
    assert model.vocabulary.joint
    assert model.config.decoding.beam_size == 5
    [ids] = model.vocabulary.encode_source([b"the old tree"])
    original = sentencepiece.SentencePieceProcessor(model_proto=pieces.getvalue())
    assert ids == original.encode("the old tree", add_eos=True)


# decoder.yml and other files.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, (6, 1.0, "forbid", 78)),  # OPUS-MT
        ("models: [post_norm.npz]", (12, 0.0, "forbid", 78)),  # Marian's defaults
        ("{beam-size: 5, normalize: 0.6, allow-unk: true}", (5, 0.6, "allow", 78)),
        ("{normalize: true, max-length-factor: 1.5}", (12, 1.0, "forbid", 52)),
    ],
)
def test_decoder_yml_sets_the_search(
    folder: Path, text: str | None, expected: tuple[int, float, str, int]
) -> None:
    """The last value is the longest translation of a source with 26 tokens."""
    if text is not None:
        (folder / "decoder.yml").write_text(text, "utf-8")
    model = read_model(folder, "marian")
    decoding = model.config.decoding
    module = TranslationModule([model.transformer()], model.tokenizer(), decoding)
    longest = int(module.max_lengths(tf.fill([1, 26], module.tokenizer.end_id))[0])
    assert module.max_output_tokens == expected[3] // 26 * decoding.max_source_tokens
    found = (decoding.beam_size, decoding.length_penalty, decoding.unknown, longest)
    assert found == expected


def test_converted_models_can_sample(post_norm: ConvertedModel) -> None:
    decoding = post_norm.config.decoding
    assert decoding.early_stopping == "marian"
    sampling = updated_decoding(decoding, {"decoding.sample": "true"})
    assert sampling == dataclasses.replace(decoding, sample=True, early_stopping=False)
    assert updated_decoding(decoding, {"decoding.sample": "false"}) == decoding
    both = {"decoding.sample": True, "decoding.early_stopping": "marian"}
    refuses(updated_decoding, (decoding, both), "early_stopping", "marian", "sample")


def test_options_of_the_search_without_a_counterpart_are_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "{word-penalty: 0.5, max-length-factor: 3, mini-batch: 8}"
    (folder / "decoder.yml").write_text(text, "utf-8")
    read_model(folder, "marian")
    [line] = capsys.readouterr().err.splitlines()
    assert tells(line, "decoder.yml", "word-penalty", "0.5")


def test_several_models_need_a_choice(folder: Path) -> None:
    shutil.copy(folder / "post_norm.npz", folder / "other.npz")
    refuses(read_model, (folder, "marian"), "other.npz, post_norm.npz", "decoder.yml")
    assert read_model(folder / "other.npz", "marian").config == read().config


def test_other_files_and_factored_vocabularies(folder: Path) -> None:
    (folder / "decoder.yml").write_text("vocabs: [vocab.fsv, vocab.fsv]\n")
    (folder / "vocab.fsv").write_text("")
    refuses(read_model, (folder, "marian"), "vocab.fsv", "factored")
    (folder / "decoder.yml").unlink()
    (folder / "post_norm.npz").rename(folder / "model.bin")
    for path in (folder, folder / "model.bin"):
        refuses(read_model, (path, "marian"), "model.bin", "binary model", "version")
    (folder / "model.bin").unlink()
    refuses(read_model, (folder, "marian"), "*.npz", "model*.bin", "none")


def test_unknown_formats_paths_and_options(tmp_path: Path) -> None:
    refuses(read_model, {"path": tmp_path, "source_format": "onnx"}, "onnx", "marian")
    path = tmp_path / "missing"
    refuses(read_model, {"path": path, "source_format": "marian"}, "missing", "not exist")
    options = {"positions": "huggingface", "source_vocabulary": "vocab.yml", "num_heads": 2}
    for name, value in options.items():
        with pytest.raises(InputError, match=mentions(name, "marian")):
            read_model(FIXTURE / "post_norm.npz", "marian", make_options(**{name: value}))
