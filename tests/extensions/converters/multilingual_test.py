"""M2M-100, NLLB and mBART-50 give the results of transformers (`tests/fixtures/make.py`)."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece

import keras_transformer as kt
from keras_transformer.extensions.converters import make_options, read_model
from keras_transformer.extensions.converters.source import ConvertedModel
from keras_transformer.text.model_proto import MODEL_TYPES, ModelProto
from keras_transformer.text.vocabulary import Vocabulary
from tests.builders import refuses, weekly
from tests.extensions.converters.toolkits import (
    FIXTURES,
    LANGUAGES,
    change_json,
    check_close,
    convert,
    copy_of,
    write_torch_file,
)
from tests.fixtures.make import checksum, hostile_lines

pytest.importorskip("safetensors")
import safetensors.numpy

FOLDER = FIXTURES / "multilingual"
# transformers finds the names of special tokens in a text.
SPECIAL = re.compile("</?s>|<pad>|<unk>|<mask>")
# SentencePiece removes spaces at the end, and normalizes a character before a combining mark.
# transformers does neither for NLLB and mBART-50.
SPACES_AND_MARKS = re.compile("\u2581|\\s$|[\u00bd\ufb00-\ufb06\uff01-\uff5e][\u0300-\u036f]")
DIFFERENT_LINES = {"m2m_100": 195, "nllb": 238, "mbart": 238}  # of 4,000


@pytest.fixture(scope="module", params=LANGUAGES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(name: str) -> ConvertedModel:
    return convert(FOLDER / name, name)


@pytest.fixture(scope="module")
def results(name: str) -> dict[str, np.ndarray]:
    return dict(np.load(FOLDER / name / "results.npz"))


def both_ways(name: str) -> list[tuple[str, str]]:
    return [LANGUAGES[name], LANGUAGES[name][::-1]]


def texts_of(name: str, direction: tuple[str, str], results: dict[str, np.ndarray]) -> list[str]:
    """Returns the recorded texts, with tokens for languages that are not the default."""
    source, target = direction
    tokens = "" if direction == LANGUAGES[name] else f">>{target}<< >>{source}<< "
    return [tokens + text for text in results[f"{source}_{target}/texts"].tolist()]


def source_ids(vocabulary: Vocabulary, texts: list[str], size: int) -> list[list[int]]:
    """Returns ids of texts. Pieces that `vocab.json` lacks are unknown to transformers."""
    rows = vocabulary.encode_source([text.encode() for text in texts])
    return [[i if i < size else vocabulary.unknown_id for i in row] for row in rows]


def test_ids_are_those_of_transformers(
    name: str, model: ConvertedModel, results: dict[str, np.ndarray]
) -> None:
    vocabulary = model.vocabulary
    size = results["_".join(LANGUAGES[name]) + "/logits"].shape[-1]
    assert vocabulary.languages == LANGUAGES[name]
    assert len(vocabulary.language_ids) == {"m2m_100": 100, "nllb": 202, "mbart": 52}[name]
    for direction in both_ways(name):
        expected = results["_".join(direction) + "/source_ids"]
        found = source_ids(vocabulary, texts_of(name, direction, results), size)
        target = vocabulary.language_ids[direction[1]]
        for row, ids in zip(found, expected.tolist(), strict=True):
            assert row == [target, *(i for i in ids if i != vocabulary.pad_id)]


def test_ids_of_hostile_lines_are_those_of_sentencepiece_and_transformers(
    name: str, model: ConvertedModel, results: dict[str, np.ndarray]
) -> None:
    lines, size = hostile_lines(), len(model.vocabulary.pieces()[0])
    file = FOLDER / name / "sentencepiece.bpe.model"
    original = sentencepiece.SentencePieceProcessor(model_file=str(file))
    pieces = [original.id_to_piece(i) for i in range(original.get_piece_size())]
    own = ["<s>", "<pad>", "</s>", "<unk>", *pieces[3:]]
    if name == "m2m_100":
        ids = json.loads((FOLDER / name / "vocab.json").read_text("utf-8"))
    else:
        ids = {piece: i for i, piece in enumerate(own)}
    size = results["_".join(LANGUAGES[name]) + "/logits"].shape[-1]
    found = [row[2:-1] for row in source_ids(model.vocabulary, lines, size)]
    unknown = ids["<unk>"]
    expected = [[ids.get(pieces[i], unknown) for i in original.encode(line)] for line in lines]
    assert found == expected
    sums = [checksum(row) for row in found]
    assert len(sums) == 4_000
    different = [i for i, same in enumerate(sums == results["hostile"]) if not same]
    assert len(different) == DIFFERENT_LINES[name]
    for line in (lines[i] for i in different):
        reasons = [SPECIAL] if name == "m2m_100" else [SPECIAL, SPACES_AND_MARKS]
        assert any(reason.search(line) for reason in reasons)


def test_the_segmentation_stays_that_of_the_model(name: str, model: ConvertedModel) -> None:
    source, target = map(ModelProto.FromString, model.vocabulary.models().values())
    expected = "unigram" if name == "mbart" else "bpe"
    assert {MODEL_TYPES[proto.trainer_spec.model_type] for proto in (source, target)} == {expected}
    [code, *_] = LANGUAGES[name]
    i = model.vocabulary.language_ids[code]
    assert [proto.pieces[i].piece for proto in (source, target)] == [f"\u2581>>{code}<<"] * 2
    assert model.vocabulary.shares_ids  # so that prepared data fits to the shared embeddings
    assert model.vocabulary.target_text([i, *range(3), 10]) == model.vocabulary.target_text([10])


def test_logits_are_those_of_transformers(
    name: str, model: ConvertedModel, results: dict[str, np.ndarray]
) -> None:
    vocabulary, transformer = model.vocabulary, model.transformer()
    for source, target in both_ways(name):
        recorded = {
            key: results[f"{source}_{target}/{key}"][:2]
            for key in ("source_ids", "greedy", "logits")
        }
        ids, read, expected = recorded.values()
        forced = np.full([2, 1], vocabulary.language_ids[target])
        is_token = read != vocabulary.pad_id
        read[:, 0] = vocabulary.start_id  # transformers starts with the end token
        inputs = {"source_ids": np.concatenate([forced, ids], axis=1), "target_ids": read}
        logits, size = transformer(inputs).numpy(), expected.shape[-1]
        check_close(logits[is_token][:, :size], expected[is_token], 1e-5, f"{name}, logits")
        assert (logits[..., vocabulary.start_id] < -900).all()


@pytest.mark.parametrize(
    "name", ["m2m_100", weekly("nllb"), weekly("mbart")], indirect=True, scope="module"
)
def test_greedy_and_beam_search_are_those_of_transformers(
    name: str, results: dict[str, np.ndarray], tmp_path: Path
) -> None:
    """Both directions are in one batch."""
    source, target = LANGUAGES[name]
    converted = kt.convert(
        FOLDER / name, tmp_path / "run", source_format="huggingface",
        source_language=source, target_language=target,
    )  # fmt: skip
    directions = both_ways(name)
    texts = [text for direction in directions for text in texts_of(name, direction, results)]

    def recorded(key: str) -> list[Any]:
        return [row for pair in directions for row in results["_".join(pair) + f"/{key}"]]

    def expected_texts(key: str) -> list[str]:
        return [converted.tokenizer.vocabulary.target_text(row) for row in recorded(key)]

    found = kt.load(tmp_path / "run").translate(texts, n_best=4, unknown="allow")
    hypotheses = [hypothesis for line in found for hypothesis in line]
    assert [hypothesis.text for hypothesis in hypotheses] == expected_texts("beams")
    scores = [hypothesis.score for hypothesis in hypotheses]
    check_close(scores, recorded("scores"), 1e-5, f"{name}, scores")
    found = converted.translate(texts, beam_size=1, unknown="allow")
    assert [line[0].text for line in found] == expected_texts("greedy")


def test_options_of_the_search_are_those_of_the_model(name: str, tmp_path: Path) -> None:
    folder = copy_of(name, tmp_path)
    # The language of a text replaces the one that transformers would force.
    change_json(folder / "generation_config.json", forced_bos_token_id=9)
    found = convert(folder, name).config.decoding
    assert (found.beam_size, found.early_stopping) == (4, True)
    forces_end = name == "mbart"  # the end token is the last of the limit
    assert found.max_length == found.max_extra_tokens == 39 - forces_end


def test_each_file_may_name_the_languages(tmp_path: Path) -> None:
    folder = copy_of("nllb", tmp_path)
    expected = convert(folder, "nllb").vocabulary
    codes = [*expected.language_ids]
    ids = {**expected.language_ids, "<mask>": max(expected.language_ids.values()) + 1}
    decoder = {str(i): {"content": token, "special": True} for token, i in ids.items()}
    files = {
        # As on the Hugging Face Hub, with ids that follow from the order.
        "special_tokens_map.json": {"additional_special_tokens": ["<s>", *codes]},
        # As version 4 of transformers writes it.
        "tokenizer_config.json": {"added_tokens_decoder": decoder},
        "added_tokens.json": ids,
    }
    for file in folder.glob("*token*.json"):
        file.unlink()
    for file, content in files.items():
        (folder / file).write_text(json.dumps(content))
        assert convert(folder, "nllb").vocabulary.fingerprint == expected.fingerprint
        (folder / file).unlink()
    refuses(convert, (folder, "nllb"), "tokenizer.json", "special_tokens_map.json", "language")


@pytest.mark.parametrize("form", ["added_tokens", "tokenizer.json"])
def test_fine_tuned_models_have_more_languages_and_tokens(form: str, tmp_path: Path) -> None:
    """The new rows are those of `resize_token_embeddings`, which also adds padding."""
    folder = copy_of("nllb", tmp_path)
    old = convert(folder, "nllb")
    arrays = safetensors.numpy.load_file(folder / "model.safetensors")
    [name] = {"model.shared.weight", "lm_head.weight"} & arrays.keys()
    rows = np.random.default_rng(1).normal(size=(8, 16)).astype(np.float32)
    size = len(old.vocabulary.pieces()[0]) - 1 - 2  # without the start token and unused rows
    arrays[name] = np.concatenate([arrays[name][:size], rows])
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    added = {"nds_Latn": size, "<new>": size + 1}
    if form == "added_tokens":
        (folder / "added_tokens.json").write_text(json.dumps(added))
    else:
        content = json.loads((folder / form).read_text("utf-8"))
        content["added_tokens"] += [{"content": token, "id": i} for token, i in added.items()]
        (folder / form).write_text(json.dumps(content))
    options = make_options(source_language="eng_Latn", target_language="nds_Latn")
    model = read_model(folder, "huggingface", options)
    [ids] = model.vocabulary.encode_source([b"the <new> dog"])
    english = model.vocabulary.language_ids["eng_Latn"]
    [the, dog] = (old.vocabulary.encode_source([text])[0][2] for text in (b"the", b"dog"))
    assert ids == [size, english, the, size + 1, dog, 2]
    matrix = model.weights["embedding/embeddings"]
    np.testing.assert_array_equal(matrix[size : size + 8], rows)
    np.testing.assert_array_equal(matrix[:size], old.weights["embedding/embeddings"][:size])


def test_weights_of_pytorch_may_contain_sinusoids(tmp_path: Path) -> None:
    folder = copy_of("m2m_100", tmp_path)
    expected = convert(folder, "m2m_100").weights
    arrays = safetensors.numpy.load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    matrix = next(array for name, array in arrays.items() if len(array) == 356)
    # Files of version 4 contain all names of a tied matrix, and the sinusoids.
    names = ["model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head"]
    arrays |= {f"{name}.weight": matrix for name in names}
    arrays |= {
        f"model.{stack}.embed_positions.weights": np.ones([66, 16], np.float32)
        for stack in ("encoder", "decoder")
    }
    write_torch_file(folder / "pytorch_model.bin", arrays)
    found = convert(folder, "m2m_100").weights
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[path], expected[path]) for path in expected)


def test_untied_models(tmp_path: Path) -> None:
    folder = copy_of("m2m_100", tmp_path)
    tied = convert(folder, "m2m_100").weights["embedding/embeddings"]
    arrays = safetensors.numpy.load_file(folder / "model.safetensors")
    matrix = next(arrays.pop(name) for name, array in [*arrays.items()] if len(array) == 356)
    names = ["model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"]
    arrays |= {names[0]: matrix, names[1]: 2 * matrix, "lm_head.weight": 3 * matrix}
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    change_json(folder / "config.json", tie_word_embeddings=False)
    model = convert(folder, "m2m_100")
    model.transformer()  # checks the shapes
    assert (model.weights["source_embedding/embeddings"] == tied).all()
    assert (model.weights["target_embedding/embeddings"] == 2 * tied).all()
    kernel = model.weights["output_projection/kernel"]
    np.testing.assert_array_equal(kernel[:, :356], 3 * matrix.T)


def test_languages_are_required_and_must_exist(name: str, model: ConvertedModel) -> None:
    folder, [source, target] = FOLDER / name, LANGUAGES[name]
    for options in ({}, {"source_language": source}, {"target_language": target}):
        arguments = (folder, "huggingface", make_options(**options))
        refuses(read_model, arguments, "source_language", "target_language", source, target)
    [*_, last] = model.vocabulary.language_ids
    for code, hint in ((f"{target}x", target), ("77777", last)):
        options = make_options(source_language=source, target_language=code)
        refuses(read_model, (folder, "huggingface", options), code, hint)
    options = make_options(target_language="de")
    refuses(
        read_model, (FIXTURES / "marian_mt", "huggingface", options), "marian", "target_language"
    )
