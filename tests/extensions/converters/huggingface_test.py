"""MarianMT models give the results of transformers, which `tests/fixtures/make.py` recorded."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.extensions.converters import make_options, read_model
from keras_transformer.extensions.huggingface.directory import write_directory
from keras_transformer.inference.translation_module import TranslationModule
from keras_transformer.models.transformer import EXCLUDED_TOKEN_BIAS
from tests.builders import refuses
from tests.extensions.converters.toolkits import (
    FIXTURES,
    change_json,
    check_close,
    copy_of,
    write_torch_file,
)
from tests.messages import tells

pytest.importorskip("safetensors")
import safetensors.numpy

FIXTURE = FIXTURES / "marian_mt"


@pytest.fixture(scope="module")
def results() -> dict[str, np.ndarray]:
    return dict(np.load(FIXTURE / "results.npz"))


@pytest.fixture(scope="module")
def translator() -> kt.Translator:
    return kt.convert(FIXTURE, source_format="huggingface", positions="huggingface")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the model that a test may change."""
    return copy_of("huggingface", tmp_path)


def source_ids(translator: kt.Translator, results: dict[str, np.ndarray]) -> np.ndarray:
    ids = translator.tokenizer.tokenize_source(tf.constant(results["texts"].tolist()))
    return ids.to_tensor(translator.tokenizer.pad_id).numpy()


def test_ids_are_those_of_the_tokenizer(
    translator: kt.Translator, results: dict[str, np.ndarray]
) -> None:
    ids = source_ids(translator, results)
    size = len(json.loads((FIXTURE / "vocab.json").read_text("utf-8")))
    # Pieces that the vocabulary lacks are unknown to transformers.
    ids = np.where(ids < size, ids, translator.tokenizer.unknown_id)
    np.testing.assert_array_equal(ids, results["source_ids"])


def test_logits_are_those_of_transformers(
    translator: kt.Translator, results: dict[str, np.ndarray]
) -> None:
    read = results["target_ids"].copy()
    is_pad = read == translator.tokenizer.pad_id
    is_pad[:, 0] = False
    read[:, 0] = translator.tokenizer.start_id  # transformers starts with the pad token
    logits = translator.transformer(
        {"source_ids": source_ids(translator, results), "target_ids": read}
    )
    size = results["logits"].shape[-1]
    found, expected = logits.numpy()[~is_pad][:, :size], results["logits"][~is_pad]
    check_close(found, expected, 1e-5, "MarianMT, logits")
    assert (logits.numpy()[..., size:] < -900).all()  # tokens that only this package has


def test_beams_are_those_of_transformers(
    translator: kt.Translator, results: dict[str, np.ndarray]
) -> None:
    found = translator.translate(results["texts"].tolist(), n_best=3)
    texts = [[hypothesis.text for hypothesis in line] for line in found]
    assert texts == results["translations"].reshape(-1, 3).tolist()
    scores = [[hypothesis.score for hypothesis in line] for line in found]
    np.testing.assert_allclose(scores, results["scores"].reshape(-1, 3), rtol=0, atol=1e-5)


def test_positions_are_an_option() -> None:
    by_default = read_model(FIXTURE, "huggingface").config.model
    assert by_default.other_toolkits.sinusoid_frequencies == "tensor2tensor"  # of Marian
    given = {"path": FIXTURE, "source_format": "huggingface"}
    refuses(kt.convert, {**given, "positions": "paper"}, "positions", "paper", "huggingface")
    refuses(kt.convert, {**given, "position": "marian"}, "position", "positions")


def test_both_forms_of_a_model_have_the_same_weights() -> None:
    from_marian = read_model(FIXTURE.with_name("marian") / "post_norm.npz", "marian")
    from_hub = read_model(FIXTURE, "huggingface")
    assert from_hub.vocabulary.fingerprint == from_marian.vocabulary.fingerprint
    for path, array in from_marian.weights.items():
        np.testing.assert_array_equal(from_hub.weights[path], array)
    assert from_hub.config.model == from_marian.config.model


def test_options_of_the_search_are_those_of_the_model(folder: Path) -> None:
    found = read_model(folder, "huggingface").config.decoding
    assert (found.beam_size, found.length_penalty) == (3, 0.8)
    assert found.length_penalty_formula == "power"
    # Without the start token, and without the end token, which transformers forces at the limit.
    # The limit does not depend on the source.
    assert (found.max_length, found.max_extra_tokens) == (58, 58)
    change_json(
        folder / "generation_config.json", max_new_tokens=20, min_new_tokens=2, num_beams=None,
        no_repeat_ngram_size=3, repetition_penalty=1.2, suppress_tokens=[46],
        do_sample=True, temperature=0.5, num_return_sequences=2, early_stopping=True,
    )  # fmt: skip
    found = read_model(folder, "huggingface").config.decoding
    assert (found.max_length, found.min_length) == (19, 3)
    assert (found.beam_size, found.n_best, found.no_repeat_ngram) == (1, 2, 3)
    assert (found.repetition_penalty, found.unknown) == (1.2, "allow")
    assert (found.sample, found.temperature, found.top_k, found.top_p) == (True, 0.5, 50, 1.0)
    assert not found.early_stopping  # transformers does not read it when it samples

    # An old model has the options in config.json.
    (folder / "generation_config.json").unlink()
    options = {"num_beams": 6, "bad_words_ids": [[46]], "min_length": 4, "max_length": 30}
    for value in ("never", False, True):
        change_json(folder / "config.json", early_stopping=value, **options)
        found = read_model(folder, "huggingface").config.decoding
        assert found.early_stopping == (value is True)
    assert (found.beam_size, found.min_length, found.max_length) == (6, 4, 28)
    change_json(folder / "config.json", forced_eos_token_id=None, do_sample="false")
    found = read_model(folder, "huggingface").config.decoding
    assert (found.max_length, found.max_extra_tokens) == (29, 29)
    assert not found.sample and found.unknown == "forbid"


def test_stored_positions_are_those_of_marian_or_transformers(folder: Path) -> None:
    name = "model.encoder.embed_positions.weight"
    angles = np.arange(64)[:, None] * 10_000.0 ** (-np.arange(0, 16, 2) / 16)
    table = np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
    change_weights(folder, **{name: table})
    read_model(folder, "huggingface")
    for other in (table[:, ::-1].copy(), table[1:], table[:, :8], table + 0.1):
        change_weights(folder, **{name: other})
        refuses(read_model, (folder, "huggingface"), name, "learned positions")


def test_an_export_of_a_converted_model_comes_back(tmp_path: Path) -> None:
    model = read_model(FIXTURE.with_name("marian") / "post_norm.npz", "marian")
    search = dataclasses.replace(
        model.config.decoding, min_length=2, max_length=30, no_repeat_ngram=3,
        repetition_penalty=1.2, unknown="allow", early_stopping=True,
    )  # fmt: skip
    module = TranslationModule([model.transformer()], model.tokenizer(), search)
    (tmp_path / "model").mkdir()
    write_directory(tmp_path / "model", module, module.transformers[0], None)
    ids = json.loads((tmp_path / "model" / "vocab.json").read_text("utf-8"))
    [text_ids] = model.vocabulary.encode_source([b">>deu<< the"])
    # MarianTokenizer removes the token from the text and looks it up without the space.
    assert ids[">>deu<<"] == text_ids[0]
    again = read_model(tmp_path / "model", "huggingface")
    assert again.vocabulary.fingerprint == model.vocabulary.fingerprint
    assert again.config.decoding == dataclasses.replace(search, length_penalty=1.0)
    for path, array in model.weights.items():
        np.testing.assert_array_equal(again.weights[path], array)


def test_weights_of_pytorch_are_those_of_safetensors(folder: Path) -> None:
    expected = read_model(folder, "huggingface").weights
    arrays = safetensors.numpy.load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    write_torch_file(folder / "pytorch_model.bin", arrays)
    found = read_model(folder, "huggingface").weights
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[path], expected[path]) for path in expected)


@pytest.mark.parametrize("file", ["added_tokens.json", "tokenizer_config.json"])
def test_fine_tuned_models_have_more_tokens_and_padding(
    folder: Path, file: str, caplog: pytest.LogCaptureFixture
) -> None:
    """transformers looks up an added token, and then tokenizes the texts around it."""
    arrays = safetensors.numpy.load_file(folder / "model.safetensors")
    old = read_model(folder, "huggingface")
    rows = np.random.default_rng(1).normal(size=(9, 16)).astype(np.float32)
    matrix = np.concatenate([arrays["model.shared.weight"], rows])
    bias = np.pad(arrays["final_logits_bias"], ((0, 0), (0, 9)), constant_values=3)
    change_weights(folder, **{"model.shared.weight": matrix, "final_logits_bias": bias})
    change_json(folder / "config.json", vocab_size=56, decoder_vocab_size=56)
    read_model(folder, "huggingface")
    assert tells(caplog.text, "9 rows", "padding", "added_tokens.json")
    caplog.clear()
    added = {"<new>": 47, ">>neu<<": 48, "</s>": 0}
    decoder = {str(i): {"content": token} for token, i in added.items()}
    content = added if file == "added_tokens.json" else {"added_tokens_decoder": decoder}
    (folder / file).write_text(json.dumps(content))
    model = read_model(folder, "huggingface")
    assert not caplog.text
    [first], [second] = (
        model.vocabulary.encode_source([text])
        for text in (b"the old tree", b">>neu<< the <new> old tree")
    )
    assert first == old.vocabulary.encode_source([b"the old tree"])[0]
    the = len(old.vocabulary.encode_source([b"the"])[0]) - 1
    assert second == [48, *first[:the], 47, *first[the:]]
    for path in ("embedding/embeddings", "output_projection/bias"):
        np.testing.assert_array_equal(model.weights[path][:47], old.weights[path][:47])
    np.testing.assert_array_equal(model.weights["embedding/embeddings"][47:49], rows[:2])
    bias = model.weights["output_projection/bias"]
    assert (bias[47:49] == 3).all() and (bias[49:] < -900).all()  # padding is never generated


def test_the_start_token_is_that_of_the_search(folder: Path) -> None:
    matrix = safetensors.numpy.load_file(folder / "model.safetensors")["model.shared.weight"]
    for start in (5, 7):
        change_json(folder / "generation_config.json", decoder_start_token_id=[start])
        model = read_model(folder, "huggingface")
        vector = model.weights["embedding/embeddings"][model.vocabulary.start_id]
        np.testing.assert_array_equal(vector, matrix[start])


def test_normalized_probabilities_leave_out_the_pad_token(folder: Path) -> None:
    options = make_options(positions="huggingface")
    for normalized, bias in {False: 0.0, True: EXCLUDED_TOKEN_BIAS}.items():
        change_json(folder / "generation_config.json", renormalize_logits=normalized)
        model = read_model(folder, "huggingface", options)
        assert model.weights["output_projection/bias"][model.vocabulary.pad_id] == bias


def test_true_and_false_may_be_texts(folder: Path) -> None:
    expected = read_model(folder, "huggingface").config.model
    change_json(folder / "config.json", scale_embedding="true", tie_word_embeddings="true")
    assert read_model(folder, "huggingface").config.model == expected
    change_json(folder / "config.json", scale_embedding="false")
    found = read_model(folder, "huggingface").config.model
    assert not found.other_toolkits.scale_embeddings


def change_weights(folder: Path, **changes: np.ndarray | None) -> None:
    arrays = safetensors.numpy.load_file(folder / "model.safetensors")
    arrays = {k: v for k, v in {**arrays, **changes}.items() if v is not None}
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")


def test_untied_models(folder: Path) -> None:
    tied = read_model(folder, "huggingface").weights["embedding/embeddings"]
    matrix = safetensors.numpy.load_file(folder / "model.safetensors")["model.shared.weight"]
    names = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
    change_weights(folder, **{"model.shared.weight": None, **dict.fromkeys(names, matrix)})
    change_json(folder / "config.json", share_encoder_decoder_embeddings=False)
    separate = read_model(folder, "huggingface")
    assert separate.config.model.tie_embeddings == "target"
    change_weights(folder, **{"lm_head.weight": 2 * matrix})
    change_json(folder / "config.json", tie_word_embeddings=False)
    untied = read_model(folder, "huggingface")
    assert untied.config.model.tie_embeddings == "none"
    for model in (separate, untied):
        assert (model.weights["source_embedding/embeddings"] == tied).all()
        np.testing.assert_array_equal(model.weights["target_embedding/embeddings"][:47], tied[:47])
    assert (untied.weights["output_projection/kernel"][:, :47] == 2 * matrix.T).all()
    model.transformer()  # checks the shapes
