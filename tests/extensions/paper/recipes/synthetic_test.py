"""Models that generate pairs are checked and trained first, and only once."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from keras_transformer.data.corpus import Corpus, ParallelFiles
from keras_transformer.data.token_store import TokenStore
from keras_transformer.errors import InputError
from keras_transformer.extensions.paper import experiment
from keras_transformer.extensions.paper.recipes import models as recipe_models
from keras_transformer.extensions.paper.recipes import run as recipe_run
from keras_transformer.extensions.paper.recipes import texts
from keras_transformer.extensions.paper.recipes.recipe import Recipe, Synthetic
from keras_transformer.extensions.paper.recipes.run import (
    GivenModels,
    run_recipe,
    summary,
)
from keras_transformer.training import training_run
from tests.extensions.paper.recipes.recipes import (
    FIELDS,
    REVERSED,
    TAUGHT,
    no_export,
    refuse_to_train,
    write_corpus,
    write_recipe,
)
from tests.messages import mentions

pytestmark = pytest.mark.usefixtures("one_replica")


@pytest.fixture
def taught(tmp_path: Path) -> Recipe:
    """A recipe with two generators: one for the other direction, and an ensemble of two
    seeds."""
    folder = write_recipe(tmp_path / "recipes", "reversed", **REVERSED)
    brief = {"tests": {}, "settings": {"training.max_steps": 2}}
    variants = {"taught": {"synthetic": TAUGHT}, "brief": brief}
    return Recipe.load(write_recipe(folder, variants=variants), "animals").with_variant("taught")


@pytest.fixture
def shouting(monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Generates pairs in capitals, and records the model of each kind."""
    asked: dict[str, Path] = {}

    def shout(kind: Synthetic, pairs: Corpus, model_dir: Path, directory: Path) -> ParallelFiles:
        asked[kind] = model_dir
        (directory / "written").mkdir(parents=True, exist_ok=True)
        (directory / "generator").write_text(f"the hash of {model_dir}")
        for side, name in enumerate(("en", "de")):
            lines = [pair[side].upper() + b"\n" for pair in pairs.pairs()]
            (directory / name).write_bytes(b"".join(lines))
        return ParallelFiles(directory / "en", directory / "de")

    monkeypatch.setattr(recipe_run, "synthetic_pairs", shout)
    monkeypatch.setattr(recipe_run, "check_generator", lambda *_: None)
    monkeypatch.setattr(recipe_models, "export", no_export)
    return asked


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Records recipe, variant and seed instead of training."""
    seeds: list[tuple[str, int]] = []

    def exported(self: Any, directory: Path) -> dict[str, Any]:
        (directory / "export" / "1").mkdir(parents=True, exist_ok=True)
        path = str((directory / "export" / "1").relative_to(self._work_dir))
        return {"finished": True, "tests": {}, "weights": "last", "export": path}

    def train(self: Any, directory: Path, minutes: float | None, seed: int) -> dict[str, Any]:
        seeds.append((f"{self._recipe.name} {self._recipe.variant}".strip(), seed))
        return exported(self, directory)

    def ensemble(self: Any, directory: Path, _: None, weights: dict[int, str]) -> dict[str, Any]:
        return exported(self, directory)

    monkeypatch.setattr(recipe_models.RecipeModels, "train", train)
    monkeypatch.setattr(recipe_models.RecipeModels, "ensemble", ensemble)
    return seeds


@pytest.mark.long
def test_synthetic_pairs_are_added_to_the_training_text(
    taught: Recipe, corpus: Path, tmp_path: Path, shouting: dict[str, Path]
) -> None:
    work = tmp_path / "work"
    given: dict[Synthetic, Path] = {"back_translation": tmp_path / "reverse"}
    results = run_recipe(taught, corpus, work, given=GivenModels(synthetic_from=given))
    assert results["finished"] and results["seeds"]["1"]["steps"] == 6
    trained = TokenStore(work / "data" / "train").source_text()
    assert len(trained) == 3 * 12
    assert sum(line.isupper() for line in trained) == 2 * 12
    generated_by = {
        "back_translation": "an export that was given",
        "distillation": "animals brief, seeds 3,4",
    }
    assert results["generated_by"] == results["seeds"]["1"]["generated_by"] == generated_by
    assert [path.name for path in (work / "generators").iterdir()] == ["distillation"]
    generator = json.loads((work / "generators/distillation/results.json").read_text())
    assert generator["finished"] and generator["variant"] == "brief"
    assert [seed["steps"] for seed in generator["seeds"].values()] == [2, 2]
    assert shouting == {
        "back_translation": tmp_path / "reverse",
        "distillation": work / "generators/distillation" / generator["ensemble"]["export"],
    }
    hashes = {kind: f"the hash of {model_dir}" for kind, model_dir in shouting.items()}
    assert results["generators_sha256"] == results["seeds"]["1"]["generators_sha256"] == hashes


def test_generators_are_trained_first_and_once(
    taught: Recipe,
    corpus: Path,
    tmp_path: Path,
    shouting: dict[str, Path],
    followed: list[tuple[str, int]],
) -> None:
    work = tmp_path / "work"
    generators = work / "generators"
    run_recipe(taught, corpus, work)
    teachers = [("reversed", 1), ("animals brief", 3), ("animals brief", 4)]
    assert followed == [*teachers, ("animals taught", 1)]
    assert shouting == {
        "back_translation": generators / "back_translation/seed-1/export/1",
        "distillation": generators / "distillation/ensemble/export/1",
    }
    run_recipe(taught, corpus, work, seeds=[1, 2])
    assert followed[4:] == [("animals taught", 2)]
    # The generating model may be removed when all pairs exist.
    generators.rename(tmp_path / "removed")
    run_recipe(taught, corpus, work, seeds=[1, 2, 3])
    assert followed[5:] == [("animals taught", 3)]


def test_no_generator_starts_when_time_is_over(
    taught: Recipe,
    corpus: Path,
    tmp_path: Path,
    shouting: dict[str, Path],
    followed: list[tuple[str, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, minutes = [0.0], []
    monkeypatch.setattr(experiment.time, "monotonic", lambda: clock[0])
    follow, opened = recipe_models.RecipeModels.train, recipe_run.open_texts

    def slow(*args: Any, **kwargs: Any) -> Any:
        clock[0] += 600  # the limit applies to training
        return opened(*args, **kwargs)

    def train(self: Any, directory: Path, max_minutes: float, seed: int) -> dict[str, Any]:
        minutes.append(max_minutes)
        clock[0] += 60
        return follow(self, directory, max_minutes, seed)

    monkeypatch.setattr(recipe_run, "open_texts", slow)
    monkeypatch.setattr(recipe_models.RecipeModels, "train", train)
    work = tmp_path / "work"
    results = run_recipe(taught, corpus, work, max_minutes=1.5)
    assert followed == [("reversed", 1), ("animals brief", 3)] and minutes == [1.5, 0.5]
    assert not results["finished"] and results["seeds"] == {}
    assert summary(results) == "" and not shouting
    assert json.loads((work / "results.json").read_text()) == results


def test_results_of_seeds_are_kept_if_time_is_over_for_a_generator(
    taught: Recipe, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe_run._RecipeExperiment, "_train_generators", lambda *_: False)
    run_recipe(taught, corpus, tmp_path / "work", max_minutes=1)
    path = tmp_path / "work" / "results.json"
    seeds = {"1": {"finished": True}}
    path.write_text(json.dumps({**json.loads(path.read_text()), "seeds": seeds}))
    assert run_recipe(taught, corpus, tmp_path / "work", max_minutes=1)["seeds"] == seeds


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        ("written", mentions("distillation", "model", "no longer exists")),
        ("export", mentions("ensemble/export/1", "does not exist")),
    ],
)
@pytest.mark.usefixtures("shouting")
def test_a_missing_generator_is_reported_before_another_is_trained(
    taught: Recipe,
    corpus: Path,
    tmp_path: Path,
    followed: list[tuple[str, int]],
    monkeypatch: pytest.MonkeyPatch,
    gone: str,
    message: str,
) -> None:
    work = tmp_path / "work"

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as stopped, pytest.raises(KeyboardInterrupt):
        stopped.setattr(recipe_run, "synthetic_pairs", stop)
        run_recipe(taught, corpus, work)
    if gone == "written":
        shutil.rmtree(work / "generators" / "distillation")
        (work / "synthetic" / "distillation").mkdir(parents=True)
        (work / "synthetic" / "distillation" / "generator").write_text("0123")
    else:
        shutil.rmtree(work / "generators/distillation/ensemble/export")
    monkeypatch.setattr(recipe_run, "check_generator", texts.check_generator)
    monkeypatch.setattr(texts, "load_model", lambda _: None)
    followed.clear()
    with pytest.raises(InputError, match=message):
        run_recipe(taught, corpus, work)
    assert not followed


@pytest.mark.parametrize(
    ("generator", "message"),
    [
        ({"recipe": "nobody"}, mentions("distillation", "animals", "nobody")),
        ({"recipe": "reversed", "variant": "x"}, mentions("animals", "reversed", "variant", "x")),
        ({"recipe": "animals", "variant": "taught"}, mentions("animals", "learns")),
        ({"recipe": "reversed"}, mentions("animals", "translates", "direction")),
        (
            {"recipe": "animals", "variant": "rehearsal"},
            mentions("animals", "pairs", "held"),
        ),
    ],
)
def test_an_unsuitable_generator_is_reported_before_training(
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    generator: dict[str, str],
    message: str,
) -> None:
    monkeypatch.setattr(training_run, "train", refuse_to_train)
    folder = write_recipe(tmp_path / "recipes", "reversed", **REVERSED)
    variants = {**FIELDS["variants"], "taught": {"synthetic": {"distillation": generator}}}
    recipe = Recipe.load(write_recipe(folder, variants=variants), "animals").with_variant("taught")
    with pytest.raises(InputError, match=message):
        run_recipe(recipe, corpus, tmp_path / "work")
    assert not (tmp_path / "work").exists()


def test_errors_of_any_generator_are_reported_before_training(
    taught: Recipe,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(training_run, "train", refuse_to_train)
    work = tmp_path / "work"
    (work / "generators" / "distillation").mkdir(parents=True)
    other = {"name": "plants"}
    (work / "generators/distillation/experiment.json").write_text(json.dumps(other))
    with pytest.raises(InputError, match="distillation was started with name 'plants', not 'an"):
        run_recipe(taught, corpus, work)
    assert [path.name for path in work.iterdir()] == ["generators"]
    with pytest.raises(InputError, match=mentions("a,b/generators/distillation", "comma", "@")):
        run_recipe(taught, corpus, tmp_path / "a,b")
    for wrong in ({"distillation": tmp_path}, {"back_translation": tmp_path}):
        plain = Recipe.load(tmp_path / "recipes", "animals")
        with pytest.raises(InputError, match=mentions("synthetic", "pairs", "--synthetic_from")):
            run_recipe(plain, corpus, tmp_path / "plain", given=GivenModels(synthetic_from=wrong))  # type: ignore[arg-type]


@pytest.mark.usefixtures("shouting")
def test_another_generator_does_not_resume_pairs(
    taught: Recipe,
    corpus: Path,
    tmp_path: Path,
    followed: list[tuple[str, int]],
) -> None:
    work = tmp_path / "work"
    given: dict[Synthetic, Path] = {"distillation": tmp_path, "back_translation": tmp_path}
    run_recipe(taught, corpus, work, given=GivenModels(synthetic_from=given))
    assert followed == [("animals taught", 1)]
    with pytest.raises(
        InputError,
        match="generated_by: back_translation 'an export that was given', not 'reversed, seeds 1'",
    ):
        run_recipe(taught, corpus, work)
    assert followed == [("animals taught", 1)]


def test_the_fingerprint_includes_the_generators(taught: Recipe, tmp_path: Path) -> None:
    before = taught.fingerprint
    again = Recipe.load(tmp_path / "recipes", "animals").with_variant("taught")
    assert again.fingerprint == before
    write_recipe(tmp_path / "recipes", "reversed", **{**REVERSED, "preset": "small"})
    assert again.fingerprint != before


def test_an_invalid_text_is_reported_before_a_generator_is_trained(
    taught: Recipe,
    tmp_path: Path,
    shouting: dict[str, Path],
    followed: list[tuple[str, int]],
) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    (corpus / "valid.de").write_text("nur eine\n")
    with pytest.raises(InputError, match=r"valid\.(en|de)"):
        run_recipe(taught, corpus, tmp_path / "work")
    write_corpus(tmp_path / "corpus")
    (corpus / "train.de").write_text("nur eine\n")
    with pytest.raises(InputError, match=r"train\.(en|de)"):
        run_recipe(taught, corpus, tmp_path / "work")
    assert not (tmp_path / "work").exists() and not followed and not shouting


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        ([], mentions("seeds", "[]")),
        ([1, 1], mentions("seeds", "[1, 1]")),
        ([1, 2**31], mentions("training.seed", "2147483648")),
    ],
)
def test_seeds_must_be_distinct_and_in_range(
    recipe: Recipe, tmp_path: Path, seeds: list[int], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        run_recipe(recipe, tmp_path, tmp_path / "work", seeds=seeds)


def test_seeds_of_a_generator_are_checked_before_another_is_trained(
    taught: Recipe, corpus: Path, tmp_path: Path, followed: list[tuple[str, int]]
) -> None:
    large = {**TAUGHT, "distillation": {**TAUGHT["distillation"], "seeds": [2**31]}}
    with pytest.raises(InputError, match=mentions("training.seed", "2147483648")):
        run_recipe(dataclasses.replace(taught, synthetic=large), corpus, tmp_path / "work")
    assert not followed


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), mentions("test.de", "missing")),
        (lambda path: path.write_bytes(b"a\n\xff\n"), mentions("test.de", "line 2", "0xff")),
    ],
)
def test_an_invalid_test_set_is_reported_before_training(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Any, message: str
) -> None:
    monkeypatch.setattr(training_run, "train", refuse_to_train)
    damage(write_corpus(tmp_path / "corpus") / "test.de")
    with pytest.raises(InputError, match=message):
        run_recipe(recipe, tmp_path / "corpus", tmp_path / "work")
    assert not (tmp_path / "work").exists()
