"""MarianMT directories compute in `transformers` what the run computes, or are refused."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.config import DecodingConfig, ModelConfig
from keras_transformer.export import ExportOptions, ExportResult, KerasEngine, export
from keras_transformer.extensions.converters import read_model
from keras_transformer.extensions.huggingface import directory, tensors
from keras_transformer.extensions.huggingface.exporter import EXPORTER
from keras_transformer.inference import loading
from keras_transformer.runs.run_directory import RunDirectory
from tests.builders import SHARED_RUNS, refuses, weekly
from tests.conftest import PHRASES, ROOT
from tests.export.model_variants import make_run
from tests.messages import tells

FIXTURE = ROOT / "tests" / "fixtures" / "exported_marian_mt.json"
MARIAN_MT = FIXTURE.parent / "marian_mt"
# Files that determine what transformers computes. Those of SentencePiece also have fields that
# change nothing; the ids of texts are compared instead.
WEIGHTS = ("model.safetensors", "vocab.json")
EPSILON = {"model__layer_norm_epsilon": 1e-5}
VARIANTS: dict[str, dict[str, Any]] = {
    "paper": EPSILON,
    "untied": {
        **EPSILON,
        "model__tie_embeddings": "none",
        "model__scale_embeddings": False,
        "model__sinusoid_layout": "halves",
        "model__activation": "gelu",
        "model__attention_bias": True,
        "model__output_bias": True,
        "model__num_encoder_layers": 2,
        "decoding__early_stopping": "marian",
    },
    "separate": {
        **EPSILON,
        "model__sinusoid_frequencies": "tensor2tensor",
        "model__final_norm": None,
        "model__decoder_d_ff": 24,
        "model__decoder_num_heads": 1,
        "model__positions": "sinusoidal",
        "model__key_dim": 8,
        "model__value_dim": 8,
    },
}
# Unknown characters, names of special tokens, spaces and an empty text.
TEXTS = [*PHRASES, "a small ☃ 雪 ball", "a  \tdog", "the a</s>b <pad>", "ball " * 6, ""]
PAIRS = [("a small dog", "ein kleiner Hund"), ("☃ ball", "das Haus am Fluss"), ("the dog", "")]


def make_marian_run(path: Path, name: str, **changes: Any) -> RunDirectory:
    """A run of a tiny model with random weights that MarianMT can express."""
    kind = "separate" if name == "separate" else "paper"
    # The length limit of `generate` does not depend on the source.
    search = {
        "decoding__max_length": 12,
        "decoding__max_extra_tokens": 50,
        "decoding__max_source_tokens": 50,
        "decoding__length_penalty": 1.0,
        "decoding__length_penalty_formula": "power",
    }
    return make_run(path, kind, **{**search, **VARIANTS[name], **changes})


@pytest.fixture(scope="module", params=[weekly("paper"), "untied", weekly("separate")])
def exported(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, RunDirectory, ExportResult]:
    """The name of a variant, its run, and the export."""
    folder = tmp_path_factory.mktemp(request.param)
    run = make_marian_run(folder / "run", request.param)
    SHARED_RUNS.add(run.path)
    options = ExportOptions(TEXTS, languages=("en", "de"), license="cc-by-4.0", test_set="PHRASES")
    result = export(run, folder / "export", TEXTS, options, format="huggingface")
    return request.param, run, result


def test_transformers_computed_the_logits_and_translations_of_the_run(
    exported: tuple[str, RunDirectory, ExportResult],
) -> None:
    name, run, result = exported
    theirs = json.loads(FIXTURE.read_bytes())[name]
    assert result.largest_difference is not None and result.largest_difference < 1e-4
    # The files are those that transformers was given, byte for byte.
    for file, digest in theirs["sha256"].items():
        assert hashlib.sha256((result.path / file).read_bytes()).hexdigest() == digest, file
    translator = loading.load_translator(run)
    vocabulary = translator.tokenizer.vocabulary
    assert vocabulary.encode_source([text.encode() for text in TEXTS]) == theirs["ids"]
    for (source, target), logits in zip(PAIRS, theirs["logits"], strict=True):
        [source_ids] = vocabulary.encode_source([source.encode()])
        [target_ids] = vocabulary.encode_target([target.encode()])
        own = translator.transformer(
            {
                "source_ids": tf.constant([source_ids]),
                "target_ids": tf.constant([[vocabulary.start_id, *target_ids[:-1]]]),
            }
        )
        np.testing.assert_allclose(own[0], logits, rtol=0, atol=1e-5)
    found = translator.translate(tf.constant(TEXTS))["translations"].numpy()
    texts = [row[0].decode() for row in found]
    # An empty text has an empty translation here.
    assert texts == [*theirs["translations"][:-1], ""]


def test_weights_and_vocabularies_come_back_with_the_same_bits(
    exported: tuple[str, RunDirectory, ExportResult],
) -> None:
    _, run, result = exported
    config, weights = tensors.to_marian(run.config.model, run.read_weights(run.checkpoints()[-1]))
    converted = read_model(result.path, "huggingface")
    assert converted.weights.keys() == weights.keys()
    for path, each in weights.items():
        assert each.tobytes() == converted.weights[path].tobytes(), path
    assert converted.vocabulary.models() == run.tokenizer().vocabulary.models()
    ours, theirs = (model.as_dict() for model in (config, converted.config.model))
    unknown = {name for name in ours if name.endswith("_dropout")} | {"max_positions", "final_norm"}
    assert {name for name in ours if ours[name] != theirs[name]} <= unknown
    assert converted.config.model.has_final_norm == config.has_final_norm


def test_language_tokens_keep_the_names_of_marian(tmp_path: Path) -> None:
    translator = kt.convert(MARIAN_MT, source_format="huggingface", positions="huggingface")
    EXPORTER.write(translator._module, tmp_path, ExportOptions())
    assert ">>deu<<" in json.loads((tmp_path / "vocab.json").read_bytes())
    engines = EXPORTER.open(tmp_path), KerasEngine(translator._module)
    found, expected = (engine.tokenize([">>deu<< a small dog"]) for engine in engines)
    assert found == expected
    converted = read_model(tmp_path, "huggingface")
    assert converted.vocabulary.models() == translator.tokenizer.vocabulary.models()


def test_a_version_has_a_model_card_and_the_search(
    exported: tuple[str, RunDirectory, ExportResult],
) -> None:
    name, _, (*_, path, _, warning) = exported
    assert tells(str(warning), "early_stopping=marian") == (name == "untied")
    card = (path / "README.md").read_text()
    for known in (
        'library_name: "transformers"', 'language: ["en", "de"]', 'license: "cc-by-4.0"',
        "MarianMTModel.from_pretrained", "On PHRASES:",
    ):  # fmt: skip
        assert known in card, known
    search = json.loads((path / "generation_config.json").read_text())
    assert (search["num_beams"], search["length_penalty"], search["max_length"]) == (4, 1.0, 13)
    assert search["suppress_tokens"] == [0, 1, 2]
    assert (path / "model.safetensors").stat().st_mode & 0o444 == 0o444


MODEL: dict[str, Any] = {
    "norm_position": "pre", "positions": "learned", "embedding_norm": True, "final_norm": True,
    "first_position": 2, "attention_window": 3, "key_dim": 5, "value_dim": 4,
    "decoder_self_attention": "ssru",
}  # fmt: skip
SEARCH: dict[str, Any] = {
    "banned": "dog", "unknown": "replace", "sample": True,
}  # fmt: skip


def test_models_and_searches_that_marian_mt_cannot_express_are_refused() -> None:
    for name, value in MODEL.items():
        config = ModelConfig(9, 9).replace(**{name: value})
        refuses(tensors.check_expressible, {"config": config}, f"model.{name}", value)
    for name, value in SEARCH.items():
        config = dataclasses.replace(DecodingConfig(), **{name: value})
        refuses(directory.check_search, {"decoding": config}, f"decoding.{name}", "generation")


@pytest.mark.long  # every change: contract_test compares the version with another run
def test_another_epsilon_that_changes_translations_is_refused(tmp_path: Path) -> None:
    run = make_marian_run(tmp_path / "run", "paper", model__layer_norm_epsilon=0.1)
    given = {"run": run, "output_dir": tmp_path / "export", "sentences": PHRASES}
    facts = ("sentence 1", "layer_norm_epsilon=1e-05")
    refuses(export, given | {"format": "huggingface"}, *facts)
    assert list((tmp_path / "export").iterdir()) == []
