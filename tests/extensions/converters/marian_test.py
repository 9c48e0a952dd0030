"""Converted models give the results of Marian, which `make_marian.py` recorded."""

from __future__ import annotations

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
from keras_transformer.export import export
from keras_transformer.extensions.converters import (
    make_options,
    read_model,
    write_run,
)
from keras_transformer.extensions.converters.converted import ConvertedModel
from keras_transformer.inference.loading import load_model
from keras_transformer.inference.scoring import Scorer
from keras_transformer.inference.translate import translate_lines
from keras_transformer.inference.translation_module import TranslationModule
from keras_transformer.models.transformer import EXCLUDED_TOKEN_BIAS
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.text.model_proto import USER_DEFINED, ModelProto
from tests.conftest import ROOT
from tests.messages import mentions, tells

FIXTURE = ROOT / "tests" / "fixtures" / "marian"
MODELS = ("post_norm", "pre_norm", "untied")
TAGS = (">>deu<<", ">>neu<<")  # the second one is not in the vocabulary
RESULTS: dict[str, Any] = json.loads((FIXTURE / "results.json").read_text("utf-8"))


def read(name: str, folder: Path = FIXTURE) -> ConvertedModel:
    return read_model(folder / f"{name}.npz", "marian")


@pytest.fixture(scope="module", params=MODELS)
def named_module(request: pytest.FixtureRequest) -> tuple[str, TranslationModule]:
    model = read(request.param)
    decoding = model.config.replace(
        decoding__beam_size=4, decoding__n_best=4, decoding__length_penalty=0.0
    ).decoding
    return request.param, TranslationModule([model.transformer()], model.tokenizer(), decoding)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the model that a test may change, with the files of an OPUS-MT model."""
    for name in ("post_norm.npz", "vocab.yml", "source.spm", "target.spm"):
        shutil.copy(FIXTURE / name, tmp_path)
    return tmp_path


def marian_ids(text: str) -> list[int]:
    """Returns the ids of a source text as Marian finds them: pieces, then the table."""
    table = {
        piece: int(i)
        for piece, i in yaml.load(
            (FIXTURE / "vocab.yml").read_text("utf-8"), yaml.BaseLoader
        ).items()
    }
    model = sentencepiece.SentencePieceProcessor(str(FIXTURE / "source.spm"))
    tag, _, rest = text.partition(" ") if text.startswith(">>") else ("", "", text)
    pieces = [*filter(None, [tag]), *model.encode(rest, out_type=str), "</s>"]
    return [table.get(piece, table["<unk>"]) for piece in pieces]


class TestResults:
    def test_log_probabilities_are_marians(
        self, named_module: tuple[str, TranslationModule]
    ) -> None:
        name, module = named_module
        ids = module.tokenizer.tokenize_target(tf.constant(RESULTS["target"]))
        lengths = tf.cast(ids.row_lengths(), tf.int32)
        scorer = Scorer(module)
        scores = scorer.score_ids(
            tf.constant(RESULTS["source"]), ids.to_tensor(module.tokenizer.pad_id), lengths
        )
        np.testing.assert_allclose(
            scores["log_probs"], RESULTS["models"][name]["scores"], rtol=0, atol=1e-4
        )

    @pytest.mark.parametrize("alpha", [0, 1])
    def test_translations_are_marians(
        self, named_module: tuple[str, TranslationModule], alpha: int
    ) -> None:
        """The best translation is equal. Other places are at least as good.

        Marian's beam shrinks with each finished hypothesis, so it misses some of them.
        """
        name, module = named_module
        if name == "pre_norm":
            pytest.skip(
                "Marian 1.12.42 trains and scores with keys and values of normalized states. Its "
                "decoder computes those of the decoder's self-attention from states before the "
                "norm, so its translations are those of another model than its scores."
            )
        config = dataclasses.replace(module.config, length_penalty=float(alpha))
        module = TranslationModule(module.transformers, module.tokenizer, config)
        found = module.search(tf.constant(RESULTS["source"]))
        tokens = module.tokenizer.target_pieces(found.ids).numpy().tolist()
        for row, expected in enumerate(RESULTS["models"][name]["n_best"][str(alpha)]):
            length = int(found.lengths[row, 0]) - 1  # without the end token
            assert b" ".join(tokens[row][0][:length]).decode() == expected[0][0]
            scores = np.array([score for _, score in expected])
            np.testing.assert_allclose(found.scores[row, 0], scores[0], rtol=0, atol=1e-4)
            assert (found.scores[row].numpy() > scores - 1e-4).all()

    def test_settings_are_those_of_the_model(self) -> None:
        post, pre, untied = (read(name).config.model for name in MODELS)
        assert (post.norm_position, post.has_final_norm, post.activation) == ("post", False, "silu")
        assert (pre.norm_position, pre.has_final_norm, pre.activation) == ("pre", True, "relu")
        assert (post.tie_embeddings, pre.tie_embeddings, untied.tie_embeddings) == (
            "all", "target", "none",
        )  # fmt: skip
        assert (pre.d_ff, pre.decoder_sizes.d_ff, post.decoder_sizes.d_ff) == (24, 32, post.d_ff)
        assert (post.num_encoder_layers, post.num_decoder_layers, post.num_heads) == (1, 2, 2)
        assert post.other_toolkits.sinusoid_frequencies == "tensor2tensor"
        assert untied.other_toolkits.embedding_norm and not post.other_toolkits.embedding_norm


class TestVocabulary:
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
    def test_ids_are_marians(self, text: str) -> None:
        model = read("post_norm")
        [ids] = model.tokenizer().tokenize_source(tf.constant([text])).to_list()
        size = len(yaml.safe_load((FIXTURE / "vocab.yml").read_text("utf-8")))
        unknown = model.vocabulary.unknown_id
        # Pieces that the vocabulary lacks have ids with the vector of the unknown token.
        vectors = model.weights["embedding/embeddings"]
        assert all((vectors[i] == vectors[unknown]).all() for i in ids if i >= size)
        assert [i if i < size else unknown for i in ids] == marian_ids(text)

    def test_both_models_share_one_matrix(self) -> None:
        model = read("post_norm")
        assert model.vocabulary.shares_ids and not model.vocabulary.joint
        assert "embedding/embeddings" in model.weights
        assert not read("pre_norm").vocabulary.joint

    def test_a_new_language_token_is_read_like_the_others(self) -> None:
        """docs/convert.md says how to append it."""
        old = read("post_norm").vocabulary
        new = old.with_symbols(["\u2581>>neu<<"])
        [known], [added] = (new.encode_source([f"{tag} a tree".encode()]) for tag in TAGS)
        assert added == [len(old.pieces()[0]), *known[1:]]
        assert known == old.encode_source([f"{TAGS[0]} a tree".encode()])[0]

    def test_language_tokens_are_symbols(self) -> None:
        assert read("post_norm").vocabulary.source_symbols() == {">>deu<<", ">>gsw<<"}

    @pytest.mark.parametrize("space", ["", "\u2581"])
    def test_language_tokens_may_be_in_the_sentencepiece_model(
        self, folder: Path, space: str
    ) -> None:
        proto = ModelProto.FromString((folder / "source.spm").read_bytes())
        proto.pieces.add(piece=f"{space}>>deu<<", type=USER_DEFINED)
        (folder / "source.spm").write_bytes(proto.SerializeToString())
        vocabulary = read_model(folder, "marian").vocabulary
        assert vocabulary.source_vocab_size == read("post_norm").vocabulary.source_vocab_size
        text = ">>deu<< the old tree"
        assert vocabulary.encode_source([text.encode()]) == [marian_ids(text)]

    def test_tokens_that_marian_lacks_are_never_generated(self) -> None:
        model = read("post_norm")
        bias = model.weights["output_projection/bias"]
        size = len(yaml.safe_load((FIXTURE / "vocab.yml").read_text("utf-8")))
        assert (bias[size:] == EXCLUDED_TOKEN_BIAS).all() and (bias[:size] > -100).all()

    def test_the_start_token_is_a_vector_of_zeros(self) -> None:
        model = read("post_norm")
        assert not model.weights["embedding/embeddings"][model.vocabulary.start_id].any()

    def test_ids_without_a_piece_are_never_generated(self, folder: Path) -> None:
        lines = (folder / "vocab.yml").read_text("utf-8").splitlines()
        [gap] = [i for i, line in enumerate(lines) if line.startswith("d:")]
        text = "\n".join(line for i, line in enumerate(lines) if i != gap)
        (folder / "vocab.yml").write_text(text, "utf-8")
        model = read_model(folder, "marian")
        assert model.vocabulary.pieces()[1][gap] == f"<unused {gap}>"
        bias = model.weights["output_projection/bias"]
        assert bias[gap] == EXCLUDED_TOKEN_BIAS and (bias[gap + 1 : len(lines)] > -100).all()

    def test_dim_vocabs_may_be_less_than_the_table(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Marian uses the first entries: `--dim-vocabs 40 40` gives matrices of 40 rows."""
        change_config(folder / "post_norm.npz", "  - 46\n", "  - 40\n")
        arrays = dict(np.load(folder / "post_norm.npz"))
        arrays["Wemb"] = arrays["Wemb"][:40]
        arrays["decoder_ff_logit_out_b"] = arrays["decoder_ff_logit_out_b"][:, :40]
        np.savez(folder / "post_norm.npz", **arrays)
        model = read_model(folder, "marian")
        assert tells(capsys.readouterr().err, "vocab.yml", 46, 40, "dim-vocabs")
        lines = (folder / "vocab.yml").read_text("utf-8").splitlines()
        (folder / "vocab.yml").write_text("\n".join(lines[:40]), "utf-8")
        assert model.vocabulary.fingerprint == read_model(folder, "marian").vocabulary.fingerprint
        assert not capsys.readouterr().err
        assert model.vocabulary.pieces()[1][39] == read("post_norm").vocabulary.pieces()[1][39]

    def test_an_entry_with_the_name_of_a_special_token_is_kept(self, folder: Path) -> None:
        text = (folder / "vocab.yml").read_text("utf-8").replace("\nd:", "\n<s>:")
        (folder / "vocab.yml").write_text(text, "utf-8")
        vocabulary = read_model(folder, "marian").vocabulary
        place = yaml.safe_load(text)["<s>"]
        assert vocabulary.source_piece(place) == "<s>_"
        assert vocabulary.start_id > place


def test_a_sentencepiece_vocabulary_keeps_its_ids(folder: Path, tmp_path: Path) -> None:
    """Marian also takes a SentencePiece model as its vocabulary."""
    size = len(yaml.safe_load((folder / "vocab.yml").read_text("utf-8")))
    pieces = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*RESULTS["source"], *RESULTS["target"]]),
        model_writer=pieces, vocab_size=size, bos_id=-1, eos_id=0, unk_id=1, minloglevel=2,
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


class TestDecoderYml:
    def write(self, folder: Path, text: str) -> None:
        (folder / "decoder.yml").write_text(text, "utf-8")

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            (None, (6, 1.0, False)),  # OPUS-MT
            ("models: [post_norm.npz]", (12, 0.0, False)),  # Marian's defaults
            ("{beam-size: 5, normalize: 0.6, allow-unk: true}", (5, 0.6, True)),
            ("normalize: true", (12, 1.0, False)),
        ],
    )
    def test_it_sets_the_search(
        self, folder: Path, text: str | None, expected: tuple[int, float, bool]
    ) -> None:
        if text is not None:
            self.write(folder, text)
        decoding = read_model(folder, "marian").config.decoding
        found = (decoding.beam_size, decoding.length_penalty, decoding.unknown)
        assert found == expected

    def test_options_without_a_counterpart_are_named(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.write(folder, "{word-penalty: 0.5, max-length-factor: 3, mini-batch: 8}")
        read_model(folder, "marian")
        [line] = capsys.readouterr().err.splitlines()
        assert tells(line, "decoder.yml", "word-penalty", "0.5")

    @pytest.mark.parametrize(
        ("text", "facts"),
        [
            ("normalize: [1]", ("decoder.yml",)),
            ("normalize: nan", ("length_penalty", "nan")),
            ("beam-size: many", ("decoder.yml", "many")),
            ("beam-size: 0", ("beam_size", 0)),
            ("vocabs: [{a: b}]", ("decoder.yml", "vocabs")),
            ("models: post_norm.npz", ("decoder.yml", "models")),
            ("models: [/training/gone.npz]", ("decoder.yml", "gone.npz", "not exist")),
            ("vocabs: [vocab.yml, gone.yml]", ("decoder.yml", "gone.yml", "not exist")),
            ("vocabs: [vocab.yml]", ("decoder.yml", 1, "vocabularies")),
            ("models: [post_norm.npz, post_norm.npz]", ("ensemble", 2, "separately")),
        ],
    )
    def test_bad_content_is_refused(
        self, folder: Path, text: str, facts: tuple[object, ...]
    ) -> None:
        self.write(folder, text)
        with pytest.raises(InputError, match=mentions(*facts)):
            read_model(folder, "marian")


def test_a_written_run_has_everything(tmp_path: Path) -> None:
    model = read("post_norm")
    write_run(model, tmp_path / "run")
    run = RunDirectory(tmp_path / "run")
    assert run.config == model.config
    assert run.tokenizer().fingerprint == model.vocabulary.fingerprint
    weights = run.selected_weights()
    assert weights.keys() == model.weights.keys()
    assert all((weights[path] == model.weights[path]).all() for path in weights)
    with pytest.raises(InputError, match=mentions("run", "exists")):
        write_run(model, tmp_path / "run")


def change_config(file: Path, old: str, new: str) -> None:
    """Replaces a part of the configuration inside a model."""
    arrays = dict(np.load(file))
    text = arrays["special:model.yml"].tobytes()
    assert old.encode() in text
    arrays["special:model.yml"] = np.frombuffer(text.replace(old.encode(), new.encode()), np.int8)
    np.savez(file, **arrays)


class TestBadInput:
    @pytest.mark.parametrize("name", ["source.spm", "target.spm"])
    def test_a_sentencepiece_model_without_its_end_is_refused(
        self, folder: Path, name: str
    ) -> None:
        proto = ModelProto.FromString((folder / name).read_bytes())
        for field in ("normalizer_spec", "trainer_spec"):
            proto.ClearField(field)
            (folder / name).write_bytes(proto.SerializeToString())
            with pytest.raises(InputError, match=mentions(name, "end is missing")):
                read_model(folder, "marian")

    @pytest.mark.parametrize("side", ["source", "target"])
    def test_the_sentencepiece_model_of_another_model_is_refused(
        self, folder: Path, side: str
    ) -> None:
        shutil.copy(FIXTURE.parent / "opennmt_tf/shared/joint.model", folder / f"{side}.spm")
        with pytest.raises(InputError, match=mentions(side, "24 of the 72 pieces")):
            read_model(folder, "marian")

    @pytest.mark.parametrize(
        ("dtype", "name"), [(np.int8, "int8"), (np.str_, "<U"), (bool, "bool")]
    )
    def test_weights_of_another_type(self, folder: Path, dtype: type, name: str) -> None:
        file = folder / "post_norm.npz"
        arrays = dict(np.load(file))
        arrays["encoder_l1_self_Wq"] = np.ones([16, 16]).astype(np.int8).astype(dtype)
        np.savez(file, **arrays)
        with pytest.raises(InputError, match=mentions(file, "encoder_l1_self_Wq")) as error:
            read_model(folder, "marian")
        assert name in str(error.value)

    def test_the_vocabulary_of_another_model(self, folder: Path) -> None:
        lines = (folder / "vocab.yml").read_text("utf-8").splitlines()
        (folder / "vocab.yml").write_text("\n".join(lines[:-1]), "utf-8")
        with pytest.raises(InputError, match=mentions(45, 46, "vocabulary")):
            read_model(folder, "marian")
        (folder / "vocab.yml").write_text("\n".join([*lines[:-1], "more: 300"]), "utf-8")
        change_config(folder / "post_norm.npz", "  - 46\n", "  - 0\n")
        with pytest.raises(InputError, match=mentions(300, 46, "vocabulary")):
            read_model(folder, "marian")

    def test_several_models_need_a_choice(self, folder: Path) -> None:
        shutil.copy(folder / "post_norm.npz", folder / "other.npz")
        with pytest.raises(InputError, match=mentions("other.npz, post_norm.npz", "decoder.yml")):
            read_model(folder, "marian")
        assert read("other", folder).config == read("post_norm").config

    def test_binary_models_and_factored_vocabularies(self, folder: Path) -> None:
        (folder / "decoder.yml").write_text("vocabs: [vocab.fsv, vocab.fsv]\n")
        (folder / "vocab.fsv").write_text("")
        with pytest.raises(InputError, match=mentions("vocab.fsv", "factored")):
            read_model(folder, "marian")
        (folder / "post_norm.npz").rename(folder / "model.bin")
        for path in (folder, folder / "model.bin"):
            with pytest.raises(InputError, match=mentions("binary format", "int8")):
                read_model(path, "marian")

    def test_unknown_formats_and_paths(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=mentions("onnx", "marian")):
            read_model(tmp_path, "onnx")
        with pytest.raises(InputError, match=mentions("missing", "not exist")):
            read_model(tmp_path / "missing", "marian")

    def test_options_of_other_formats(self) -> None:
        options = {"positions": "huggingface", "source_vocabulary": "vocab.yml", "num_heads": 2}
        for name, value in options.items():
            with pytest.raises(InputError, match=mentions(name, "marian")):
                read_model(FIXTURE / "post_norm.npz", "marian", make_options(**{name: value}))


@pytest.mark.long
@pytest.mark.parametrize("format", ["saved_model", "litert", "ctranslate2"])
def test_exports_give_the_translations_of_marian(format: str, tmp_path: Path) -> None:
    sources = RESULTS["source"]
    pieces = [best[0][0] for best in RESULTS["models"]["post_norm"]["n_best"]["1"]]
    expected = [text.replace(" ", "").replace("\u2581", " ").strip() for text in pieces]
    write_run(read("post_norm"), tmp_path / "run")
    search = {"beam_size": 4, "length_penalty": 1.0}
    if format != "ctranslate2":
        settings = {f"decoding.{name}": value for name, value in search.items()}
        exported = export(
            tmp_path / "run", tmp_path / "export", sources, settings=settings, format=format
        )
        found = translate_lines(load_model(exported.path), sources)
        assert [best.text for best, *_ in found] == expected
        return
    exported = export(tmp_path / "run", tmp_path / "export", sources, format=format)
    translator = pytest.importorskip("ctranslate2").Translator(str(exported.path))
    source, target = (
        sentencepiece.SentencePieceProcessor(str(exported.path / f"{side}.model"))
        for side in ("source", "target")
    )
    results = translator.translate_batch(source.encode(sources, out_type=str), **search)
    assert [target.decode(each.hypotheses[0]) for each in results] == expected
