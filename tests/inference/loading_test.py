"""Loading of runs, ensembles and exports."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.inference import loading, manifest, translate
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.vocabulary import learn_vocabulary
from tests.builders import refuses
from tests.conftest import PHRASES
from tests.messages import mentions, tells


class TestLoadModel:
    @pytest.mark.parametrize(
        ("arguments", "facts"),
        [
            ({"settings": {"decoding.beam_size": "0"}}, ("decoding.beam_size", "0", "1")),
            ({"settings": {"decoding.beams": "2"}}, ("decoding.beams", "setting")),
            ({"settings": {"model.d_model": "8"}}, ("model.d_model", "training")),
            ({"threads": 2}, ("threads=2", "a run")),
        ],
    )
    def test_unusable_arguments_are_refused(
        self, run_directory: RunDirectory, arguments: dict[str, Any], facts: tuple[str, ...]
    ) -> None:
        refuses(loading.load_model, {"model_dir": run_directory.path, **arguments}, *facts)

    def test_no_model(self, tmp_path: Path) -> None:
        refuses(loading.load_model, (tmp_path / "missing",), "missing", "keras-transformer train")
        refuses(loading.load_model, (tmp_path,), "run", "directory", "SavedModel")
        fixed = {"model_dir": tmp_path, "precision": "int8"}
        refuses(loading.load_model, fixed, "precision=int8", "SavedModel")

    def test_foreign_saved_models_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "broken").mkdir()
        (tmp_path / "broken" / "saved_model.pb").write_bytes(b"no proto")
        refuses(loading.load_model, (tmp_path / "broken",), "broken", "SavedModel")
        tf.saved_model.save(tf.Module(), str(tmp_path / "other"))
        refuses(loading.load_model, (tmp_path / "other",), "other", "SavedModel", "serving_default")


class TestLoadTranslator:
    def test_weights_by_name(self, run_directory: RunDirectory) -> None:
        named = loading.load_translator(f"{run_directory.path}@step-00000100")
        expected = run_directory.read_weights(run_directory.checkpoints()[0])
        assert_weights(named.transformer, expected)
        with pytest.raises(InputError, match=mentions("run", "weights", "bets", "last", "best")):
            loading.load_translator(f"{run_directory.path}@bets")

    def test_an_ensemble_of_different_vocabularies(self, own_run: RunDirectory) -> None:
        other = Path(shutil.copytree(own_run.path, own_run.path.with_name("other")))
        capitals = Tokenizer(learn_vocabulary((p.upper().encode() for p in PHRASES), 60))
        capitals.save(other / "tokenizer")  # the same size, but different pieces
        with pytest.raises(InputError, match=mentions("run", "other", "vocabularies")):
            loading.load_translator(f"{own_run.path},{other}")

    def test_at_signs_in_the_name_of_a_run(self, own_run: RunDirectory) -> None:
        at = Path(shutil.copytree(own_run.path, own_run.path.with_name("run@best")))
        last, first = (own_run.named_weights(name) for name in ("last", "step-00000100"))
        for model_dir, weights in ((at, [last]), (f"{at},{at}@step-00000100", [last, first])):
            transformers = loading.load_translator(model_dir).transformers
            for transformer, expected in zip(transformers, weights, strict=True):
                assert_weights(transformer, expected)

    def test_precision(self, run_directory: RunDirectory) -> None:
        half = loading.load_translator(run_directory.path, precision="bfloat16").transformer
        kernels = [path for path in half.weights_by_path() if path.endswith("kernel")]
        assert {half.weights_by_path()[path].dtype for path in kernels} == {"bfloat16"}
        with pytest.raises(InputError, match=mentions("precision", "int4", "int8", "bfloat16")):
            loading.load_translator(run_directory.path, precision="int4")


def assert_weights(transformer: Any, expected: dict[str, np.ndarray]) -> None:
    weights = transformer.weights_by_path()
    assert weights.keys() == expected.keys()
    for path, weight in weights.items():
        np.testing.assert_array_equal(weight, expected[path])


class TestMaxTrainSourceLength:
    @pytest.fixture
    def reported_run(self, own_run: RunDirectory) -> RunDirectory:
        write_report(own_run, max_length=9)
        return own_run

    def test_max_train_source_length_comes_from_the_report_of_the_run(
        self, reported_run: RunDirectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = loading.load_model(reported_run.path)
        assert model.max_train_source_length == 9
        outputs = {"translations": np.array([[b"a"]] * 2, object), "scores": np.zeros([2, 1])}
        monkeypatch.setattr(model, "translate", lambda text: outputs)
        _, (warning,), _ = translate.translate_to_text(model, ["a", "ball " * 9])
        assert tells(warning, "line 2", "longest source", "9")

    def test_an_ensemble_has_the_smallest_length(
        self, reported_run: RunDirectory, run_directory: RunDirectory
    ) -> None:
        longer = RunDirectory(
            shutil.copytree(reported_run.path, reported_run.path.with_name("longer"))
        )
        write_report(longer, max_length=12)
        members = [longer.path, reported_run.path, run_directory.path]  # unknown for the last one
        ensemble = loading.load_translator(",".join(map(str, members)))
        assert ensemble.max_train_source_length == 9
        assert loading.load_translator(run_directory).max_train_source_length is None


def write_report(run: RunDirectory, max_length: int) -> None:
    report = {"train": {"source": {"max_length": max_length}}}
    (run.path / "data_report.json").write_text(json.dumps(report))


def test_a_run_without_a_checkpoint(own_run: RunDirectory) -> None:
    shutil.rmtree(own_run.path / "checkpoints")
    refuses(loading.load_model, (own_run.path,), "checkpoint")
    # Wrong settings are reported before weights are read.
    refuses(loading.load_model, (own_run.path, {"decoding.beams": 2}), "decoding.beams", "setting")


def test_settings_replace_those_that_a_run_cannot_have(own_run: RunDirectory) -> None:
    config = json.loads((own_run.path / "config.json").read_text())
    config["model"]["attention_window"] = 4
    config["decoding"]["unknown"] = "replace"
    (own_run.path / "config.json").write_text(json.dumps(config))
    refuses(loading.load_model, (own_run.path,), "decoding.unknown", "replace", "allow")
    engine: Any = loading.load_model(own_run.path, {"decoding.unknown": "allow"})
    assert engine.module.config.unknown == "allow"


def test_weights_of_another_configuration(own_run: RunDirectory) -> None:
    config = json.loads((own_run.path / "config.json").read_text())
    config["model"]["d_ff"] = 48
    (own_run.path / "config.json").write_text(json.dumps(config))
    refuses(loading.load_model, (own_run.path,), "weights", "48")


def test_runs_know_the_symbols_of_their_vocabulary(tagged_run: RunDirectory) -> None:
    assert loading.load_model(tagged_run.path).symbols == ("<2de>", "<2fr>", "<number>")


def test_exports_inside_a_run_and_foreign_manifests(own_run: RunDirectory, tmp_path: Path) -> None:
    (own_run.path / "1").mkdir()
    (own_run.path / "1" / "saved_model.pb").touch()
    assert loading.find_loader(str(own_run.path))[0] is loading.RUN_LOADER
    (tmp_path / "manifest.json").write_text('{"name": "of another program"}')
    assert manifest.read(tmp_path) == {}
