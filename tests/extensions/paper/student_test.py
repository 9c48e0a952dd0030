"""The recipe of a student, from its teacher to the table of quality and speed."""

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.data.token_store import TokenStore
from keras_transformer.errors import InputError
from keras_transformer.evaluation.test_sets import EvaluationSet
from keras_transformer.export import ExportOptions, ExportResult
from keras_transformer.extensions.paper import recipe_models, student
from keras_transformer.extensions.paper.recipe import Recipe
from keras_transformer.extensions.paper.recipe_run import run_recipe, summary
from keras_transformer.inference.loading import load_model
from keras_transformer.inference.translate import translate_lines
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.training import training_run
from tests.conftest import PHRASES
from tests.extensions.paper.recipes import FIELDS, no_export, refuse_to_train, write_recipe

pytestmark = pytest.mark.usefixtures("one_replica")

FILES = {
    "train": {"source": "train.source"},
    "valid": {"source": "valid.source", "target": "valid.target"},
    "tests": {"own": {"source": "test.source", "target": "test.target"}},
    "prepare": {},
    "teacher": True,
    "settings": {**FIELDS["settings"], "training.max_steps": 2},
    "average_last": [],
    "length_penalties": [],
    "published": {},
    "variants": {},
}


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """The recipe of a small student, whose text has no targets."""
    return Recipe.load(write_recipe(tmp_path / "recipes", **FILES), "animals")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    english, german = PHRASES[:3], PHRASES[3:]
    (folder / "train.source").write_text("".join(f"{line}\n" for line in english * 5))
    for part in ("valid", "test"):
        for side, lines in (("source", english), ("target", german)):
            (folder / f"{part}.{side}").write_text("".join(f"{line}\n" for line in lines))
    return folder


@pytest.fixture
def exported(litert_version: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, Any]]:
    """Copies the same version for each export, which takes seconds, and records the exports.

    Greedy int8 exports of the student are refused.
    """
    calls = []

    def copy(
        run: str,
        output_dir: Path,
        sentences: Sequence[str],
        options: ExportOptions,
        *,
        format: str,
        settings: dict[str, Any],
    ) -> ExportResult:
        assert format == "cpu" and list(sentences) == list(PHRASES[:3])
        assert options.references == list(PHRASES[3:])
        calls.append((run, str(options.weights), settings))
        if output_dir.parts[-2:] == ("student", "int8_greedy"):
            raise InputError("it loses too much")
        shutil.copytree(litert_version, output_dir / "1")
        return ExportResult([], [], path=output_dir / "1")

    monkeypatch.setattr(student, "export", copy)
    monkeypatch.setattr(recipe_models, "export", no_export)
    return calls


@pytest.mark.long
def test_a_student_learns_the_translations_of_its_teacher(
    recipe: Recipe,
    text: Path,
    run_directory: RunDirectory,
    litert_version: Path,
    exported: list[tuple[str, str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work, teacher = tmp_path / "work", str(run_directory.path)
    results = run_recipe(recipe, text, work, runs={"teacher": teacher})
    written = TokenStore(work / "data" / "train")
    assert written.source.text() == list(PHRASES[:3]) * 5
    taught = [best.text for best, *_ in translate_lines(load_model(litert_version), PHRASES[:3])]
    assert written.target.text() == taught * 5
    run = RunDirectory(work / "seed-1" / "run")
    assert run.tokenizer().fingerprint == run_directory.tokenizer().fingerprint
    assert run.init_from is None

    trained = results["rows"]["seed-1"]
    own = f"{run.path}@{trained['weights']}"
    search = {"decoding.length_penalty": trained["length_penalty"]}
    greedy = {"decoding.beam_size": 1, "decoding.n_best": 1}
    assert exported == [
        (teacher, "int8", {}),
        *((teacher, *export) for export in (("float32", {}), ("int8", {}), ("int8", greedy))),
        *((own, *export) for export in (("float32", search), ("int8", search))),
        (own, "int8", {**search, **greedy}),
    ]
    compared = results["rows"]["comparison-1"]
    *rows, refused = compared["models"]
    assert [row["model"] for row in rows] == ["teacher"] * 3 + ["student"] * 2
    assert [row["beam_size"] for row in rows] == [4, 4, 1, 2, 2]
    assert compared["words"] == sum(len(line.split()) for line in PHRASES[:3])
    for row in rows:
        speed = compared["words"] / np.median(row["seconds"])
        assert row["words_per_second"] == pytest.approx(speed, rel=0.01)
        assert row["tests"]["own"]["sentences"] == 3
        assert (work / row["export"] / "model.tflite").is_file()
    assert refused["refused"] == "it loses too much"
    shown = summary(results)
    assert "| student | 1 + 1 | 16 | int8 | 2 | " in shown and shown.count("| int8 | 1 |") == 1
    svg = (work / "comparison-1" / "chart.svg").read_text()
    assert svg.count("student, int8, beam 2") == 1 and svg.count("words per second") == 1

    monkeypatch.setattr(training_run, "train", refuse_to_train)
    assert run_recipe(recipe, text, work, runs={"teacher": teacher}) == results
    with pytest.raises(InputError, match="work was started with teacher "):
        run_recipe(recipe, text, work, runs={"teacher": f"{teacher}@step-00000100"})


def test_real_pairs_are_added_if_the_text_has_targets(
    recipe: Recipe,
    text: Path,
    run_directory: RunDirectory,
    exported: list[tuple[str, str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stop(*_: Any) -> None:
        raise InputError("enough")

    monkeypatch.setattr(recipe_models.RecipeModels, "train", stop)
    parallel = {"source": "valid.source", "target": "valid.target"}
    recipe = dataclasses.replace(recipe, train=parallel)
    with pytest.raises(InputError, match="enough"):
        run_recipe(recipe, text, tmp_path / "work", runs={"teacher": str(run_directory.path)})
    written = TokenStore(tmp_path / "work" / "data" / "train")
    assert written.source.text() == list(PHRASES[:3]) * 2
    assert written.target.text()[:3] == list(PHRASES[3:])


@pytest.mark.parametrize(
    ("gpus", "expected"), [([], "teacher/float32/1"), (["GPU:0"], "teacher/export/1")]
)
def test_the_translating_export_fits_the_machine_and_the_model(
    gpus: list[str],
    expected: str,
    run_directory: RunDirectory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse_int8(run: str, output_dir: Path, *args: Any, **kwargs: Any) -> ExportResult:
        if output_dir.name == "int8":
            raise InputError("it loses too much")
        assert kwargs.get("format", "saved_model") == ("saved_model" if gpus else "cpu")
        (output_dir / "1").mkdir(parents=True)
        (output_dir / "1" / "model.tflite").touch()
        return ExportResult([], [], path=output_dir / "1")

    monkeypatch.setattr(student, "export", refuse_int8)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
    valid = EvaluationSet([["Hund"]], ["dog"])
    distillation = student.Distillation(str(run_directory.path), tmp_path, valid, {}, {})
    found = distillation.export_teacher(tmp_path / "teacher", None)
    assert found == {"finished": True, "export": expected}
