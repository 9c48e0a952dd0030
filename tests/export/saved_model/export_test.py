"""A run exported: the same translations, nothing that a server lacks, nothing half done."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.export import ExportOptions, export
from keras_transformer.export.comparison import Comparison
from keras_transformer.export.manifest import check_manifest
from keras_transformer.export.saved_model import export as saved_model
from keras_transformer.export.saved_model.model_card import About
from keras_transformer.inference import loading, translate
from keras_transformer.inference.translator import Translator
from keras_transformer.runs.run_directory import RunDirectory
from tests.conftest import PHRASES
from tests.export.model_variants import make_run
from tests.messages import mentions, tells

SENTENCES = [*PHRASES, "", "ball " * 30]

LOADER = """
import sys
import tensorflow as tf
import tensorflow_text

model = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
outputs = model(text=tf.constant(sys.argv[2:]))
assert sorted(outputs) == ["scores", "translations"], outputs
for row in outputs["translations"].numpy():
    print("|".join(text.decode() for text in row))
assert not [name for name in sys.modules if name.startswith("keras_transformer")]
"""


@pytest.fixture(scope="module")
def exported(exported_run: Path) -> Path:
    return exported_run / "1"


@pytest.fixture(scope="module")
def loaded(exported: Path) -> loading.LoadedModel:
    return loading.load_model(exported)


@pytest.fixture(scope="module")
def of_run(run_directory: RunDirectory) -> loading.LoadedModel:
    """The model that was exported."""
    return loading.load_model(run_directory.path, {"decoding.n_best": "2"})


def test_two_vocabularies_and_an_activation_with_a_gradient_of_its_own(tmp_path: Path) -> None:
    translator = loading.load_translator(make_run(tmp_path / "run", "separate"))
    saved_model._save(translator, None, tmp_path / "1")
    own = translator.translate(tf.constant(PHRASES))
    other = loading.load_model(tmp_path / "1").translate(text=tf.constant(PHRASES))
    np.testing.assert_array_equal(other["translations"], own["translations"])
    np.testing.assert_allclose(other["scores"], own["scores"], atol=1e-5)


def test_loads_with_tensorflow_and_tensorflow_text_alone(
    run_directory: RunDirectory, of_run: loading.LoadedModel, exported: Path, tmp_path: Path
) -> None:
    own = of_run.translate(text=tf.constant(SENTENCES))["translations"].numpy()
    moved = run_directory.path.rename(tmp_path / "gone")
    try:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        process = subprocess.run(
            [sys.executable, "-c", LOADER, str(exported), *SENTENCES],
            capture_output=True, text=True, cwd=tmp_path, env=environment, check=False,
        )  # fmt: skip
    finally:
        moved.rename(run_directory.path)
    assert process.returncode == 0, process.stderr
    expected = ["|".join(text.decode() for text in row) for row in own]
    assert process.stdout.split("\n")[:-1] == expected


def test_all_is_there_to_be_deployed(exported: Path) -> None:
    check_manifest(exported)
    assert sorted(path.name for path in exported.parent.iterdir()) == [
        "1", "batching_parameters.txt", "models.config"
    ]  # fmt: skip
    assert {path.name for path in exported.iterdir()} >= {"README.md", "batching_params.pbtxt"}
    assert (exported / "assets.extra" / "tf_serving_warmup_requests").stat().st_size > 1000


def test_signature(exported: Path) -> None:
    signature = tf.saved_model.load(str(exported)).signatures["serving_default"]
    assert signature.structured_input_signature[1]["text"] == tf.TensorSpec(
        [None], tf.string, name="text"
    )
    assert signature.structured_outputs["translations"].shape.as_list() == [None, 2]
    assert signature.structured_outputs["scores"].shape.as_list() == [None, 2]
    assert signature.structured_outputs["scores"].dtype == tf.float32
    assert signature(text=tf.constant([], tf.string))["scores"].shape == (0, 2)


def test_is_a_model_like_the_run(of_run: loading.LoadedModel, loaded: loading.LoadedModel) -> None:
    assert loaded.n_best == 2
    assert translate.remarks(loaded, SENTENCES) == translate.remarks(of_run, SENTENCES) != []
    results = [translate.translate_lines(model, SENTENCES) for model in (of_run, loaded)]
    for own, other in zip(*results, strict=True):
        assert [t.text for t in own] == [t.text for t in other]
        np.testing.assert_allclose([t.score for t in own], [t.score for t in other], atol=1e-4)


def test_settings_are_fixed_at_export(exported: Path) -> None:
    with pytest.raises(InputError, match=mentions("decoding.beam_size", "export")):
        loading.load_model(exported, {"decoding.beam_size": "2"})


def test_details_are_those_of_the_run(
    of_run: loading.LoadedModel, loaded: loading.LoadedModel
) -> None:
    lines, prefixes = SENTENCES[:4], ["", "ein", "", "das"]
    ours, theirs = (
        translate.translate_in_detail(model, lines, prefixes, attention=True)
        for model in (of_run, loaded)
    )
    for own, other in zip(ours, theirs, strict=True):
        assert own["source_tokens"] == other["source_tokens"]
        assert len(own["translations"]) == len(other["translations"]) == 2
        for one, same in zip(own["translations"], other["translations"], strict=True):
            assert one.keys() == same.keys()
            for name, value in one.items():
                if name in ("text", "tokens", "ids", "finished", "alignment"):
                    assert value == same[name]
                else:
                    np.testing.assert_allclose(value, same[name], atol=2e-4)


def test_an_ensemble_is_one_saved_model(run_directory: RunDirectory, tmp_path: Path) -> None:
    run = RunDirectory(shutil.copytree(run_directory.path, tmp_path / "run"))
    report = {"train": {"source": {"max_length": 25}}}
    (run.path / "data_report.json").write_text(json.dumps(report))
    members = f"{run.path}@step-00000100,{run.path}@step-00000300"
    path = export(members, tmp_path / "export", SENTENCES).path
    ensemble, exported = loading.load_model(members), loading.load_model(path)
    assert exported.trained_tokens == ensemble.trained_tokens == 25
    assert any(tells(remark, "longest source", "25")
               for remark in translate.remarks(exported, ["ball " * 16]))  # fmt: skip
    together, theirs, alone = (
        [best for best, *_ in translate.translate_lines(model, SENTENCES)]
        for model in (ensemble, exported, loading.load_model(run.path))
    )
    assert [best.text for best in theirs] == [best.text for best in together]
    assert [best.text for best in theirs] != [best.text for best in alone]
    scores = [[best.score for best in found] for found in (theirs, together)]
    np.testing.assert_allclose(*scores, atol=1e-4)

    inside = [weight.numpy() for weight in exported.owner.weights]
    both = [run.named_weights(name) for name in ("step-00000100", "step-00000300")]
    assert len(inside) == sum(map(len, both))
    for weight in (weight for member in both for weight in member.values()):
        assert any(np.array_equal(weight, each) for each in inside)


def test_bfloat16_is_what_is_stored_and_computed(
    run_directory: RunDirectory, exported: Path, loaded: loading.LoadedModel, tmp_path: Path
) -> None:
    settings = {"decoding.n_best": "2"}
    exported_half = export(
        run_directory,
        tmp_path / "half",
        SENTENCES,
        ExportOptions(SENTENCES, precision="bfloat16", about=About(("en", "de"), "cc0-1.0")),
        settings=settings,
    )
    path = exported_half.path
    assert exported_half.scores is not None
    card = (path / "README.md").read_text("utf-8")
    assert exported_half.scores.signature.replace("|", "\\|") in card and "cc0-1.0" in card
    half = loading.load_model(path)
    scores = half.translate(text=tf.constant(SENTENCES))["scores"]
    assert scores.dtype == tf.float32
    run = loading.load_model(run_directory.path, settings, precision="bfloat16")
    ours, theirs, exact = (
        translate.translate_lines(model, SENTENCES) for model in (run, half, loaded)
    )
    for own, other in zip(ours, theirs, strict=True):
        assert [best.text for best in own] == [best.text for best in other]
        np.testing.assert_allclose([t.score for t in own], [t.score for t in other], atol=1e-4)
    assert [best.score for best, *_ in theirs] != [best.score for best, *_ in exact]

    dtypes = [weight.dtype for weight in half.owner.weights if weight.shape.rank > 1]
    assert set(dtypes) == {tf.bfloat16}
    assert stored_bytes(path) < 0.6 * stored_bytes(exported)


def stored_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in (path / "variables").glob("*.data-*"))


def test_what_is_fixed_cannot_be_asked_of_a_saved_model(exported: Path) -> None:
    for asked in ({"precision": "bfloat16"}, {"jit_compile": True}):
        with pytest.raises(InputError, match=mentions("precision", "export")):
            loading.load_model(exported, **asked)


def test_an_export_of_before_there_were_details(
    run_directory: RunDirectory, tmp_path: Path
) -> None:
    translator = loading.load_translator(run_directory, {"decoding.beam_size": 1})
    module = tf.Module()
    module.translate, module.lengths = translator.translate, translator.lengths
    module.tokenizer, module.transformer = translator.tokenizer, translator.transformer
    signatures = {"serving_default": module.translate, "lengths": module.lengths}
    tf.saved_model.save(module, str(tmp_path), signatures=signatures)
    model = loading.load_model(tmp_path)
    assert model.in_detail is None and model.trained_tokens is None
    (found,) = translate.translate_lines(model, PHRASES[:1])
    (expected,) = translate.translate_lines(
        loading.load_model(run_directory.path, {"decoding.beam_size": 1}), PHRASES[:1]
    )
    assert [best.text for best in found] == [best.text for best in expected]
    with pytest.raises(InputError, match=mentions("details", "prefixes")):
        translate.translate_in_detail(model, PHRASES)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Leaves out what makes an export and looks at it; all but the order and the publishing."""
    monkeypatch.setattr(saved_model, "_save", lambda translator, longest, path, extra: path.mkdir())
    monkeypatch.setattr(saved_model.serving_checks, "check", lambda path: None)
    monkeypatch.setattr(
        saved_model, "compare", lambda translator, path, texts, _: Comparison([], list(texts))
    )
    monkeypatch.setattr(saved_model, "_make_ready", lambda *_: None)
    monkeypatch.setattr(saved_model, "write_base_files", lambda *_: None)
    return monkeypatch


@pytest.mark.usefixtures("quick")
def test_the_next_export_is_the_next_version(run_directory: RunDirectory, tmp_path: Path) -> None:
    for name in ("2", "notes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("")
    result = export(run_directory, tmp_path, SENTENCES)
    assert (result.path, result.sentences, result.ties) == (tmp_path / "3", len(SENTENCES), [])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["2", "3", "notes"]


def test_the_highest_version_is_read(exported: Path, tmp_path: Path) -> None:
    for name in ("2", "10", "notes"):
        (tmp_path / name).mkdir()
    shutil.copytree(exported, tmp_path / "3")
    assert loading.load_model(tmp_path).place == str(tmp_path / "3")


def test_other_weights_are_not_published(
    run_directory: RunDirectory, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(translator: Translator, longest: int | None, path: Path, extra: None) -> None:
        shutil.copytree(exported, path)  # of the last checkpoint

    monkeypatch.setattr(saved_model, "_save", other)
    with pytest.raises(InputError, match=r"sentence \d\b.*nothing was exported"):
        export(
            f"{run_directory.path}@step-00000100", tmp_path / "export", SENTENCES,
            settings={"decoding.n_best": 2},
        )  # fmt: skip
    assert list((tmp_path / "export").iterdir()) == []


def test_a_precision_may_cost_only_so_much(
    run_directory: RunDirectory, tmp_path: Path, quick: pytest.MonkeyPatch
) -> None:
    evaluate, scores = saved_model.metrics.evaluate, iter([20.0, 20.2, 20.0, 20.2])

    def scored(*arguments: Any) -> Any:
        return dataclasses.replace(evaluate(*arguments), bleu=next(scores))

    quick.setattr(saved_model.metrics, "evaluate", scored)
    asked = ExportOptions(PHRASES, precision="bfloat16")
    with pytest.raises(InputError, match=mentions("bfloat16", "BLEU", "20.00")):
        export(run_directory, tmp_path, PHRASES, asked)
    assert list(tmp_path.iterdir()) == []
    asked = dataclasses.replace(asked, max_bleu_loss=0.3)
    assert export(run_directory, tmp_path, PHRASES, asked).scores.bleu == 20
    with pytest.raises(InputError, match=mentions("precision", "bfloat16", "references")):
        export(run_directory, tmp_path, PHRASES, ExportOptions(precision="bfloat16"))
    with pytest.raises(InputError, match=mentions("6", "sentences", "1", "references")):
        export(run_directory, tmp_path, PHRASES, ExportOptions(PHRASES[:1]))
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


def test_runs_that_cannot_be_exported(run_directory: RunDirectory, tmp_path: Path) -> None:
    half = RunDirectory(shutil.copytree(run_directory.path, tmp_path / "half"))
    shutil.rmtree(half.path / "checkpoints")
    other = RunDirectory(shutil.copytree(run_directory.path, tmp_path / "other"))
    config = json.loads((other.path / "config.json").read_text())
    config["model"]["d_model"] = 32
    (other.path / "config.json").write_text(json.dumps(config))
    torn = RunDirectory(shutil.copytree(run_directory.path, tmp_path / "torn"))
    (torn.path / "checkpoints" / "step-00000300" / "weights.npz").write_bytes(b"PK")
    for run, message in (
        (half, mentions("half", "checkpoint")),
        (other, mentions("weights", "model")),
        (torn, "step-00000300"),
    ):
        with pytest.raises(InputError, match=message):
            export(run.path, tmp_path / "export", SENTENCES)
        assert not (tmp_path / "export").exists() or not list((tmp_path / "export").iterdir())


def test_a_disk_that_fills_publishes_nothing(
    run_directory: RunDirectory, tmp_path: Path, quick: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name in ("_make_ready", "compare"):
        with quick.context() as patch:
            patch.setattr(saved_model, name, full)
            with pytest.raises(InputError, match=mentions("No space left on device")):
                export(run_directory, tmp_path / "export", PHRASES[:1])
        assert list((tmp_path / "export").iterdir()) == []


def test_mistakes(run_directory: RunDirectory, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=mentions("onnx", "format", "saved_model")):
        export(run_directory, tmp_path, SENTENCES, format="onnx")
    for format, precision, message in (
        ("ctranslate2", "bfloat16", mentions("precision", "bfloat16", "ctranslate2")),
        ("saved_model", "int8", mentions("precision", "int8", "float32", "bfloat16")),
    ):
        with pytest.raises(InputError, match=message):
            options = ExportOptions(precision=precision)
            export(run_directory, tmp_path, SENTENCES, options, format=format)
    with pytest.raises(InputError, match=mentions("precision", "float16", "float32", "bfloat16")):
        options = ExportOptions(SENTENCES, precision="float16")
        export(run_directory, tmp_path, SENTENCES, options)
    with pytest.raises(InputError, match=mentions("weights", "bets")):
        export(f"{run_directory.path}@bets", tmp_path, SENTENCES)
    with pytest.raises(InputError, match=mentions("sentences")):
        export(run_directory, tmp_path, [])
    with pytest.raises(InputError, match=mentions("beam_size", "0")):
        export(run_directory, tmp_path, SENTENCES, settings={"decoding.beam_size": 0})
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=mentions("file", "written")):
        export(run_directory, tmp_path / "file", SENTENCES)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
