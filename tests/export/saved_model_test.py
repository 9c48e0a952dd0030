"""A run exported: the same translations, nothing that a server lacks, nothing half done."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import inference
from keras_transformer.errors import InputError
from keras_transformer.export import export, saved_model
from keras_transformer.run_directory import RunDirectory
from tests.conftest import PHRASES

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
def exported(run_directory: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {"decoding.n_best": "2"}
    return export(
        run_directory, tmp_path_factory.mktemp("export"), SENTENCES, settings=settings
    ).path


def test_loads_with_tensorflow_and_tensorflow_text_alone(
    run_directory: RunDirectory, exported: Path, tmp_path: Path
) -> None:
    run = inference.load_model(run_directory.path, {"decoding.n_best": "2"})
    own = run.translate(text=tf.constant(SENTENCES))["translations"].numpy()
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


def test_signature(exported: Path) -> None:
    signature = tf.saved_model.load(str(exported)).signatures["serving_default"]
    assert signature.structured_input_signature[1]["text"] == tf.TensorSpec(
        [None], tf.string, name="text"
    )
    assert signature.structured_outputs["translations"].shape.as_list() == [None, 2]
    assert signature.structured_outputs["scores"].shape.as_list() == [None, 2]
    assert signature.structured_outputs["scores"].dtype == tf.float32
    assert signature(text=tf.constant([], tf.string))["scores"].shape == (0, 2)


def test_is_a_model_like_the_run(run_directory: RunDirectory, exported: Path) -> None:
    ours, theirs = (
        inference.load_model(path, settings)
        for path, settings in (
            (run_directory.path, {"decoding.n_best": "2"}),
            (exported, None),
        )
    )
    assert theirs.n_best == 2
    assert inference.remarks(theirs, SENTENCES) == inference.remarks(ours, SENTENCES) != []
    results = [inference.translate_lines(model, SENTENCES) for model in (ours, theirs)]
    for own, other in zip(*results, strict=True):
        assert [t.text for t in own] == [t.text for t in other]
        np.testing.assert_allclose([t.score for t in own], [t.score for t in other], atol=1e-4)


def test_settings_are_fixed_at_export(exported: Path) -> None:
    with pytest.raises(InputError, match=r"decoding.beam_size were fixed at export"):
        inference.load_model(exported, {"decoding.beam_size": "2"})


def test_the_next_export_is_the_next_version(run_directory: RunDirectory, tmp_path: Path) -> None:
    for name in ("2", "notes", f".exporting-{os.getpid()}"):  # the last: of a killed process
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("")
    result = export(run_directory, tmp_path, SENTENCES)
    assert (result.path, result.sentences, result.ties) == (tmp_path / "3", len(SENTENCES), [])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["2", "3", "notes"]
    assert inference.load_model(tmp_path).place == str(tmp_path / "3")


def test_other_weights_are_not_published(
    run_directory: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = tf.saved_model.load

    def tampered(path: str) -> Any:
        loaded = load(path)
        loaded.weights[0].assign(loaded.weights[0] * 1.1)
        return loaded

    monkeypatch.setattr(tf.saved_model, "load", tampered)
    with pytest.raises(InputError, match=r"the export translates sentence \d .* nothing was exp"):
        export(run_directory, tmp_path / "export", SENTENCES)
    assert list((tmp_path / "export").iterdir()) == []


def test_ties_are_listed_and_pass(run_directory: RunDirectory) -> None:
    translator = inference.load_translator(run_directory)
    result = translator.search(tf.constant(["a"]))

    class Exchanged:
        def search(self, text: tf.Tensor) -> Any:
            return result._replace(ids=result.ids + 1, scores=result.scores + difference)

    difference = 5e-5
    (tie,) = saved_model._differences(translator, Exchanged(), ["a"])
    assert tie.startswith("sentence 1: 'a', score ")
    difference = 2e-4
    with pytest.raises(InputError, match="the export translates sentence 1 "):
        list(saved_model._differences(translator, Exchanged(), ["a"]))
    difference = float("nan")
    with pytest.raises(InputError, match="with the score nan"):
        list(saved_model._differences(translator, Exchanged(), ["a"]))


@pytest.mark.parametrize("forbidden", ["jit", "xla_op", "python", "assertion"])
def test_what_a_server_cannot_run_is_found(tmp_path: Path, forbidden: str) -> None:
    @tf.function(jit_compile=forbidden == "jit")
    def inner(x: tf.Tensor) -> tf.Tensor:
        if forbidden == "xla_op":
            return keras.ops.slice_update(x, [0], x[:1])
        if forbidden == "python":
            return tf.ensure_shape(tf.numpy_function(lambda x: x, [x], tf.float32), [3])
        if forbidden == "assertion":
            tf.debugging.assert_positive(x)
        return x + 1

    module = tf.Module()
    module.call = tf.function(inner, input_signature=[tf.TensorSpec([3])])
    tf.saved_model.save(module, str(tmp_path), signatures=module.call)
    messages = {
        "jit": "compiled by XLA",
        "xla_op": "is XlaDynamicUp",
        "python": "PyFunc",
        "assertion": "is an assertion, which fails a whole batch",
    }
    with pytest.raises(RuntimeError, match=messages[forbidden]):
        saved_model.check_ops(tmp_path)


def test_mistakes(run_directory: RunDirectory, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'onnx' is no format; expected one of saved_model"):
        export(run_directory, tmp_path, SENTENCES, format="onnx")
    with pytest.raises(InputError, match="no sentences to compare"):
        export(run_directory, tmp_path, [])
    with pytest.raises(InputError, match="beam_size is 0"):
        export(run_directory, tmp_path, SENTENCES, settings={"decoding.beam_size": 0})
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file cannot be written"):
        export(run_directory, tmp_path / "file", SENTENCES)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
