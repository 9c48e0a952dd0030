"""Marian's binary models, and a directory like a download of Firefox.

`fxtranslate`, which runs the files of Firefox, has recorded the translations of the fixture
(`tests/fixtures/make.py`).
"""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.errors import InputError
from keras_transformer.export import ExportOptions, export
from keras_transformer.extensions.converters import read_model
from keras_transformer.extensions.converters.marian_binary import read_binary_model
from keras_transformer.extensions.converters.source import ConvertedModel
from keras_transformer.extensions.litert.convert import load_text_signature
from keras_transformer.inference.translation_module import TranslationModule
from keras_transformer.text.model_proto import ModelProto
from tests.builders import refuses, weekly
from tests.damage import at_random
from tests.extensions.converters.toolkits import FIXTURES, change_marian, copy_of
from tests.extensions.serving.running_server import running_server
from tests.messages import tells

NAME = "model.ende.intgemm.alphas.bin"
VOCABULARY = "vocab.ende.spm"
RESULTS: dict[str, str] = json.loads((FIXTURES / "firefox/results.json").read_text("utf-8"))
ORDINARY = [*RESULTS][: len(RESULTS) // 2]  # the others are sentences backwards


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the fixture, as Firefox downloads it."""
    for name in (NAME, VOCABULARY):
        shutil.copy(FIXTURES / "firefox" / name, tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def model() -> ConvertedModel:
    return read_model(FIXTURES / "firefox", "marian")


def translate(model: ConvertedModel, transformer: Any, texts: list[str]) -> list[str]:
    module = TranslationModule([transformer], model.tokenizer(), model.config.decoding)
    found = module.texts(module.translate_to_ids(tf.constant(texts)))
    return [text.decode() for text in found[:, 0].numpy()]


# Results.


def test_translations_are_firefoxs(model: ConvertedModel) -> None:
    assert model.config.model.decoder_self_attention == "ssru"
    found = translate(model, model.transformer(), ORDINARY)
    assert found == [RESULTS[text] for text in ORDINARY]


def test_with_products_of_integers_all_translations_are_firefoxs(model: ConvertedModel) -> None:
    """Sentences that the model cannot translate show differences that ordinary ones hide."""
    weights = read_binary_model(FIXTURES / "firefox" / NAME)
    matrices = {name: weights[name] for name in weights if f"{name}_QuantMultA" in weights}
    names = {matrix.tobytes(): name for name, matrix in matrices.items() if name != "Wemb"}
    table = model.weights["embedding/embeddings"]

    def make_product(matrix: np.ndarray) -> Callable[[tf.Tensor], tf.Tensor]:
        parts = [("none", matrix)]
        if matrix.shape[1] != len(table):  # several projections, which have the same width
            blocks = np.split(matrix, matrix.shape[1] // matrix.shape[0], axis=1)
            parts = [(names[np.ascontiguousarray(block).tobytes()], block) for block in blocks]
        integers = [
            (weights[f"{name}_QuantMultA"].item(), *quantized(block)) for name, block in parts
        ]

        def multiply(rows: tf.Tensor) -> tf.Tensor:
            products = [
                tf.clip_by_value(tf.round(rows * scale), -127, 127) @ steps / (scale * multiplier)
                for scale, steps, multiplier in integers
            ]
            return tf.concat(products, axis=-1)

        return multiply

    transformer = model.transformer()
    transformer.replace_products(make_product)
    rows, scales = (w for w in transformer.weights if "/embeddings" in w.path)
    steps, multiplier = quantized(table)  # with one multiplier for all rows
    rows.assign(steps)
    scales.assign(np.full(len(table), multiplier))
    assert translate(model, transformer, [*RESULTS]) == [*RESULTS.values()]


def quantized(matrix: np.ndarray) -> tuple[np.ndarray, np.float32]:
    """Returns the integers of a matrix as float32, and their multiplier."""
    multiplier = np.float32(127) / np.abs(matrix).max()
    return np.rint(matrix * multiplier), multiplier


@pytest.mark.parametrize("format", ["litert", weekly("cpu")])
def test_a_download_becomes_a_litert_model_and_a_server(
    format: str, folder: Path, tmp_path: Path
) -> None:
    # LiteRT's tokenizer needs a normalization without tabs. For these texts it changes nothing.
    vocabulary = ModelProto.FromString((folder / VOCABULARY).read_bytes())
    normalizer: Any = sentencepiece.SentencePieceNormalizer(rule_name="nmt_nfkc")
    spec = ModelProto.FromString(normalizer.serialized_model_proto()).normalizer_spec
    vocabulary.normalizer_spec.CopyFrom(spec)
    (folder / VOCABULARY).write_bytes(vocabulary.SerializeToString())

    kt.convert(folder, tmp_path / "run", source_format="marian")
    expected = [RESULTS[text] for text in ORDINARY]
    assert kt.load(tmp_path / "run")(ORDINARY) == expected
    options = ExportOptions(ORDINARY[:2], max_bleu_loss=100.0)
    path = export(tmp_path / "run", tmp_path / "new", ORDINARY[:2], options, format=format).path
    assert kt.load(path)(ORDINARY) == expected
    if format == "litert":  # from text to text in the graph
        translate_text = load_text_signature(path / "model.tflite")
        assert [translate_text(text)[0][0] for text in ORDINARY] == expected
    with running_server(path.parent) as server:
        rows = server.predict({"instances": ORDINARY}).json()["predictions"]
    assert [row["translations"][0] for row in rows] == expected


# Files.


@pytest.mark.parametrize(("name", "count"), [("ssru", 22), ("output", 1)])
def test_matrices_of_marian_are_those_of_its_float_model(name: str, count: int) -> None:
    """`pymarian convert` has written the files. It leaves embeddings in float32."""
    expected = np.load(FIXTURES / f"marian/{name}.npz")
    found = read_binary_model(FIXTURES / f"marian/{name}.bin")
    assert {*found} == {*expected.files}
    rounded = 0
    for name, array in found.items():
        if name.rpartition("_")[2].startswith("W") and name != "Wemb":
            largest = np.abs(expected[name]).max()
            np.testing.assert_allclose(array, expected[name], rtol=0, atol=largest / 127 * 0.501)
            rounded += not np.array_equal(array, expected[name])
        elif name != "special:model.yml":
            np.testing.assert_array_equal(array, expected[name])
    assert rounded == count


def test_vocabularies_of_source_and_target(model: ConvertedModel, folder: Path) -> None:
    shutil.copy(folder / VOCABULARY, folder / "srcvocab.ende.spm")
    (folder / VOCABULARY).rename(folder / "trgvocab.ende.spm")
    assert read_model(folder, "marian").vocabulary.fingerprint == model.vocabulary.fingerprint
    (folder / "trgvocab.ende.spm").unlink()
    refuses(read_model, (folder, "marian"), "srcvocab*.spm", "trgvocab*.spm", "none")
    (folder / "srcvocab.ende.spm").unlink()
    shutil.copy(FIXTURES / "opennmt_tf/shared/joint.model", folder / VOCABULARY)
    refuses(read_model, (folder, "marian"), folder, "vocabulary", 75, 48)


def test_shortlists_are_ignored_with_one_warning(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "lex.50.50.ende.s2t.bin").write_bytes(b"")
    decoding = read_model(folder, "marian").config.decoding
    [line] = capsys.readouterr().err.splitlines()
    assert tells(line, "lex.50.50.ende.s2t.bin", "ignores", "--shortlist")
    found = (decoding.beam_size, decoding.length_penalty, decoding.max_extra_tokens)
    assert found == (1, 1.0, -1)
    text = (
        f"models: [{NAME}]\nvocabs: [{VOCABULARY}, {VOCABULARY}]\nbeam-size: 1\nskip-cost: true\n"
        "shortlist: [lex.50.50.ende.s2t.bin, false]\ngemm-precision: int8shiftAlphaAll\n"
    )
    (folder / "config.intgemm8bitalpha.yml").write_text(text, "utf-8")
    assert read_model(folder, "marian").config.decoding.max_extra_tokens == -2
    [line] = capsys.readouterr().err.splitlines()
    assert tells(line, "config.intgemm8bitalpha.yml", "shortlist")
    (folder / "config.intgemm8bit.yml").write_text(text, "utf-8")
    facts = ("config.intgemm8bit.yml", "config.intgemm8bitalpha.yml", "at most one")
    refuses(read_model, (folder, "marian"), *facts)
    (folder / "decoder.yml").write_text("beam-size: 3\n", "utf-8")
    assert read_model(folder, "marian").config.decoding.beam_size == 3


@pytest.mark.parametrize(
    ("old", "new", "facts"),
    [
        ("dec-cell: ssru", "dec-cell: gru", ["dec-cell", "gru", "ssru"]),
        ("layer-normalization: false", "layer-normalization: true", ["layer-normalization"]),
        ("rnn-projection: false", "rnn-projection: true", ["transformer-rnn-projection"]),
        ("autoreg: rnn", "autoreg: average-attention", ["average-attention", "rnn"]),
        ("autoreg: rnn", "autoreg: self-attention", ["decoder_l1_self_Wq"]),
    ],
)
def test_other_recurrent_decoders(old: str, new: str, facts: list[str], tmp_path: Path) -> None:
    file = Path(shutil.copy(FIXTURES / "marian/ssru.npz", copy_of("marian", tmp_path)))
    change_marian(file, old, new)
    refuses(read_model, (file, "marian"), "ssru.npz", *facts)


# The index of a number in the header, its new value, and the facts that the message must contain.
# The first weight is Wemb. Each has a header of the numbers NAME LENGTH, TYPE, RANK and SIZE.
SIZE = 48 * 64 + 4
BAD = {
    "version": (0, 2, ["version", 2]),
    "other file": (0, 0x04034B50, ["version"]),
    "weights": (1, 2**60, ["headers", "bytes"]),
    "name": (2, 2**62, ["name", "bytes"]),
    "a text": (3, 0x101, ["Wemb", "0x101"]),
    "unknown type": (3, 0x77, ["Wemb", "0x77", "intgemm8"]),
    "type for a CPU": (3, 0x11001, ["Wemb", "intgemm8avx2"]),
    "intgemm16": (3, 0x4102, ["Wemb", "intgemm16"]),
    "larger numbers": (3, 0x404, ["Wemb", f"{48 * 64 * 4:,}"]),
    "rank": (4, 2**40, ["Wemb", "dimensions"]),
    "size": (5, 2**63, ["Wemb", "bytes"]),
    "multiplier": (5, SIZE - 1, ["multiplier", "Wemb"]),
    "oversized": (5, 8192, ["Wemb", "more", "48, 64"]),
}


@pytest.mark.parametrize("name", BAD)
def test_headers_that_do_not_fit_are_named(name: str, folder: Path) -> None:
    index, number, facts = BAD[name]
    content = bytearray((folder / NAME).read_bytes())
    struct.pack_into("<Q", content, 8 * index, number)
    (folder / NAME).write_bytes(content)
    refuses(read_model, (folder, "marian"), NAME, *facts)


def test_damaged_models_are_refused_or_harmless(folder: Path) -> None:
    file = folder / NAME
    content = file.read_bytes()
    for changed, facts in ((content + b"\0", ["follow"]), (content[:-1], ["bytes", "left"])):
        file.write_bytes(changed)
        refuses(read_binary_model, (file,), NAME, *facts)
    refused = 0
    for end in (3000, None):  # the headers, the names and the shapes, or all bytes
        file.write_bytes(content)
        for _ in at_random(file, end):
            try:
                read_model(folder, "marian").transformer()
            except InputError as error:
                assert str(error).isprintable()
                refused += 1
    assert refused > 40


def test_matrices_that_marian_writes_wrongly_are_refused(folder: Path) -> None:
    """Its conversion to int8 mixes up the rows of matrices with 24 rows or columns."""
    file = folder / NAME
    old, new = (struct.pack("<2i", *shape) for shape in ((64, 64), (64, 24)))
    file.write_bytes(file.read_bytes().replace(old, new, 1))
    refuses(read_model, (file, "marian"), NAME, "decoder_l1_context_Wk", "[64, 24]", 16)
