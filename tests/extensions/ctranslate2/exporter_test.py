"""CTranslate2 exports have the log-probabilities of the run, or are refused."""

import dataclasses
import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import ctranslate2
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

from keras_transformer.export import ExportOptions, ExportResult, export
from keras_transformer.extensions.ctranslate2.engine import CTranslate2Engine
from keras_transformer.extensions.ctranslate2.exporter import EXPORTER
from keras_transformer.inference import loading
from keras_transformer.runs.run_directory import RunDirectory
from tests.builders import refuses, weekly
from tests.conftest import PHRASES, random_shortlist
from tests.export.model_variants import MODELS, make_run
from tests.messages import tells

SENTENCES = [*PHRASES, "", "ball " * 30, "☃ 雪"]
PAIRS = [("a small dog", "ein kleiner Hund"), ("", "das Haus am Fluss"), ("☃ ball", "")]

LOADER = """
import sys
import ctranslate2, sentencepiece, keras_transformer as kt
model, *lines = sys.argv[1:]
tokenizer = sentencepiece.SentencePieceProcessor(model_file=f"{model}/joint.model")
translator = ctranslate2.Translator(model)
sources = [tokenizer.id_to_piece(tokenizer.encode(line)) for line in lines]
for result in translator.translate_batch(sources, beam_size=4, max_decoding_length=20):
    print(tokenizer.decode(result.hypotheses[0]))
kt.load(model)(lines)
assert not [name for name in sys.modules if name.startswith(("keras.", "tensorflow"))]
"""


Made = Callable[[str], tuple[RunDirectory, ExportResult]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Returns a run of `MODELS` and its export."""

    @functools.cache
    def get(name: str) -> tuple[RunDirectory, ExportResult]:
        folder = tmp_path_factory.mktemp(name)
        run = make_run(folder / "run", name)
        return run, export(run, folder / "export", SENTENCES, format="ctranslate2")

    return get


def processors(path: Path) -> list[sentencepiece.SentencePieceProcessor]:
    names = ["joint", "joint"] if (path / "joint.model").exists() else ["source", "target"]
    files = [str(path / f"{name}.model") for name in names]
    return [sentencepiece.SentencePieceProcessor(model_file=file) for file in files]


def test_symbols_that_no_source_has_are_not_written(made: Made) -> None:
    engine: Any = CTranslate2Engine(made("paper")[1].path)
    engine._model, engine._symbols = mock.Mock(wraps=engine._model), {"▁d", "eine"}
    engine.translate([b"a dog"])
    assert engine._model.translate_batch.call_args.kwargs["suppress_sequences"] == [["eine"]]


@pytest.mark.parametrize("name", ["paper", *map(weekly, sorted(MODELS.keys() - {"paper"}))])
def test_log_probabilities_equal_those_of_the_run(made: Made, name: str) -> None:
    run, result = made(name)
    assert len(result.translations) == len(SENTENCES)
    assert result.largest_difference is not None and result.largest_difference < 1e-4
    assert tells(str(result.warning), "early_stopping=marian") == (name == "converted")
    source, target = processors(result.path)
    module = loading.load_translator(run)
    transformer = module.transformer
    # The first source token of a model with languages, which the engine does not get.
    language = [*module.tokenizer.vocabulary.language_ids.values()][:1]
    translator = ctranslate2.Translator(str(result.path))
    for source_text, target_text in PAIRS:
        source_ids, target_ids = source.encode(source_text), target.encode(target_text)
        labels = [*target_ids, target.eos_id()]
        ids = [[*language, *source_ids, source.eos_id()]], [[target.bos_id(), *target_ids]]
        names = ("source_ids", "target_ids")
        logits = transformer(dict(zip(names, map(tf.constant, ids), strict=True)))
        (scores,) = translator.score_batch(
            [source.id_to_piece(source_ids)], [target.id_to_piece(target_ids)]
        )
        assert scores.tokens == target.id_to_piece(labels)
        if not source_ids and transformer.config.other_toolkits.mask_source_end:
            assert not any(scores.log_probs)  # the engine does not score without a source
            continue
        expected = tf.nn.log_softmax(logits)[0].numpy()[range(len(labels)), labels]
        np.testing.assert_allclose(scores.log_probs, expected, atol=1e-4)


@pytest.mark.long
def test_rounded_weights_and_shortlists_are_bounded(made, tmp_path, monkeypatch):
    run, _ = made("paper")
    options = ExportOptions(PHRASES, "int8", 100.0, shortlist=random_shortlist(run, 2))
    given = {"run": run, "output_dir": tmp_path, "sentences": PHRASES, "format": "ctranslate2"}
    assert (export(**given, options=options).path / "vmap.txt").exists()
    nothing = {"translations": np.full((6, 1), b"", object), "scores": np.zeros((6, 1), np.float32)}
    monkeypatch.setattr(CTranslate2Engine, "translate", lambda _, text: nothing)
    given["options"] = dataclasses.replace(options, max_bleu_loss=None)
    refuses(export, given, "int8", "shortlist", "BLEU", "chrF 0.00")


def test_translates_without_tensorflow(made: Made, tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    process = subprocess.run(
        [sys.executable, "-c", LOADER, str(made("paper")[1].path), *SENTENCES],
        capture_output=True, text=True, cwd=tmp_path, env=environment, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert len(process.stdout.splitlines()) == len(SENTENCES)


def test_rounded_weights(made: Made, tmp_path: Path) -> None:
    run, exact = made("paper")
    translator, original = loading.load_translator(run), exact.path / "model.bin"
    vocabulary = translator.tokenizer.vocabulary
    targets = vocabulary.encode_target([phrase.encode() for phrase in PHRASES])
    expected = np.array(EXPORTER.open(exact.path).log_probs(PHRASES, targets), float)
    for weights in [*EXPORTER.weights][1:]:
        folder = tmp_path / weights
        folder.mkdir()
        EXPORTER.write(translator, folder, ExportOptions(weights=weights))
        assert (folder / "model.bin").stat().st_size < original.stat().st_size
        found = np.array(EXPORTER.open(folder).log_probs(PHRASES, targets), float)
        assert 0 < np.abs(found - expected).max() < 5, weights
    # Rounding has not changed the weights of the run.
    EXPORTER.write(translator, tmp_path, ExportOptions(weights="float32"))
    assert (tmp_path / "model.bin").read_bytes() == original.read_bytes()


@pytest.mark.parametrize(
    ("name", "value", "needed"),
    [
        ("attention_window", 3, "None"),
        ("decoder_self_attention", "ssru", "attention"),
        ("value_dim", 4, 8),
    ],
)
def test_unsupported_models_are_refused(tmp_path: Path, name: str, value: Any, needed: Any) -> None:
    run = make_run(tmp_path / "run", **{f"model__{name}": value})
    given = {"run": run, "output_dir": tmp_path / "export", "sentences": SENTENCES}
    refuses(export, given | {"format": "ctranslate2"}, f"model.{name}", value, needed)
    assert not (tmp_path / "export").exists()
