"""Runs recipes from text files to scores, and tests that errors are reported before training."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from keras_transformer.errors import InputError
from keras_transformer.extensions.paper.recipes import models as recipe_models
from keras_transformer.extensions.paper.recipes.recipe import Recipe
from keras_transformer.extensions.paper.recipes.run import run_recipe, summary
from keras_transformer.inference import loading, translate
from keras_transformer.runs.atomic import exclusive_lock
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.training import training_run
from keras_transformer.training.data import TrainingData
from tests.extensions.paper.recipes.recipes import (
    PAIRS,
    no_export,
    refuse_to_train,
    write_corpus,
    write_recipe,
)
from tests.messages import mentions

pytestmark = pytest.mark.usefixtures("one_replica")


@pytest.mark.long
def test_a_run_stopped_by_time_resumes_and_is_not_repeated(
    recipe: Recipe, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe_models, "export", no_export)
    work = tmp_path / "work"
    stopped = run_recipe(recipe, corpus, work, max_minutes=1e-9)
    assert not stopped["finished"] and 0 < stopped["seeds"]["1"]["steps"] < 6
    assert stopped == json.loads((work / "results.json").read_text())
    validated = stopped["seeds"]["1"]["validation"]
    assert validated.keys() == {"last", "last, length penalty 1"}, (
        "one checkpoint cannot be averaged"
    )
    assert stopped["seeds"]["1"]["tests"] == {}, "tests are scored only after training"
    assert summary(stopped).startswith("seed 1     validation           BLEU ")

    finished = run_recipe(recipe, corpus, work, num_microbatches=2)
    assert finished == json.loads((work / "results.json").read_text())
    assert finished["finished"] and not finished["variant"]
    assert {path.name for path in work.iterdir()} == {
        "data", "tests", "seed-1", "results.json", "experiment.json",
    }  # fmt: skip
    assert (work / "data" / "report.json").is_file()
    run = RunDirectory(work / "seed-1" / "run")
    assert run.config.training.num_microbatches == 2
    assert run.data_fingerprint == TrainingData.open(work / "data").fingerprint
    result = finished["seeds"]["1"]
    steps = [checkpoint.step for checkpoint in run.checkpoints()]
    assert steps == [2, 4, 6] and result["steps"] == 6, (
        "the checkpoint of the interruption is removed"
    )

    assert finished["recipe"] == "animals"
    assert result["weights"] == run.selected
    penalized = f"{run.selected}, length penalty 1"
    assert result["validation"].keys() == {"last", "average-last-2-step-6", penalized}
    best = max(result["validation"].values())
    chosen = run.selected if result["length_penalty"] == 0.6 else penalized
    assert result["validation"][chosen] == best
    assert result["parameters"] == run.config.model.num_parameters()
    assert result["tokens_per_second"] > 0 and result["peak_memory_mb"] > 0
    assert finished["versions"].keys() == {"tensorflow", "keras", "tensorflow-text", "sacrebleu"}

    scores = result["tests"]["animals"]
    assert scores["sentences"] == 2 and 0 <= scores["bleu"] <= 100
    assert scores["published"] == {"bleu": 99.5, "source": "nobody"}
    assert "tok:none" in scores["signature"] and "case:lc" in scores["signature"]
    model = loading.load_model(run.path, {"decoding.length_penalty": result["length_penalty"]})
    sources, references = zip(*PAIRS[14:], strict=True)
    again = translate.evaluate(model, sources, references, tokenize="none", lowercase=True)
    assert (scores["bleu"], scores["chrf"]) == (again.scores.bleu, again.scores.chrf)
    translations = (work / "seed-1" / "animals.translations").read_text().splitlines()
    assert translations == again.hypotheses
    assert "seed 1     animals" in summary(finished) and "published: 99.5" in summary(finished)

    monkeypatch.setattr(training_run, "train", refuse_to_train)
    assert run_recipe(recipe, tmp_path / "gone", work) == finished
    changed = write_corpus(tmp_path / "changed")
    (changed / "test.de").write_text("der Hund sieht\ndie Kuh\n")
    with pytest.raises(InputError, match=mentions("animals.reference", "corpus")):
        run_recipe(recipe, changed, work, seeds=[1, 2])
    other = Recipe.load(write_recipe(tmp_path / "recipes", "plants"), "plants")
    with pytest.raises(InputError, match="work was started with name 'animals', not 'plants'"):
        run_recipe(other, corpus, work)
    edited = dataclasses.replace(recipe, average_last=[3])
    with pytest.raises(InputError, match=r"work was started with average_last \[2\], not \[3\]"):
        run_recipe(edited, corpus, work)
    reworded = dataclasses.replace(recipe, description="the same in other words")
    assert run_recipe(reworded, corpus, work) == finished


@pytest.mark.long
def test_a_rehearsal_with_held_out_data_and_two_seeds(
    recipe: Recipe,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recipe_models, "export", no_export)
    work = tmp_path / "work"
    rehearsed = recipe.with_variant("rehearsal")
    validate = recipe_models.RecipeModels._validate

    def validated(self: Any, model_dir: str | Path, penalty: float) -> float:
        bleu = validate(self, model_dir, penalty)
        return bleu + penalty if "," in str(model_dir) else bleu - penalty

    monkeypatch.setattr(recipe_models.RecipeModels, "_validate", validated)
    results = run_recipe(rehearsed, corpus, work, seeds=[3, 4])
    assert results["finished"] and results["variant"] == "rehearsal"
    assert {path.name for path in work.iterdir()} == {
        "text", "data", "tests", "seed-3", "seed-4", "ensemble", "results.json", "experiment.json",
    }  # fmt: skip
    models = [results["seeds"]["3"], results["seeds"]["4"], results["ensemble"]]
    assert [model["tests"].keys() for model in models] == [{"rest"}] * 3
    assert all(model["tests"]["rest"]["sentences"] == 2 for model in models)
    bleu = [model["tests"]["rest"]["bleu"] for model in models]
    assert results["mean"]["rest"] == round((bleu[0] + bleu[1]) / 2, 2)
    assert results["standard_deviation"]["rest"] == round(abs(bleu[0] - bleu[1]) / 2**0.5, 2)
    assert [results["seeds"][seed]["steps"] for seed in ("3", "4")] == [2, 2]
    # The length penalty of the ensemble is chosen for it, not copied from its members.
    assert [model["length_penalty"] for model in models] == [0.6, 0.6, 1.0]
    assert list(results["ensemble"]["validation"]) == ["length penalty 0.6", "length penalty 1"]
    both = loading.load_model(
        f"{work / 'seed-3/run'},{work / 'seed-4/run'}", {"decoding.length_penalty": 1.0}
    )
    sources = (work / "tests" / "rest.source").read_text().splitlines()
    references = (work / "tests" / "rest.reference").read_text().splitlines()
    assert set(zip(sources, references, strict=True)) <= set(PAIRS)
    again = translate.evaluate(both, sources, references, tokenize="none", lowercase=True)
    assert again.scores.bleu == bleu[2]
    assert results["ensemble"]["weights"] == {
        seed: results["seeds"][seed]["weights"] for seed in ("3", "4")
    }
    command = f"--model_dir={work / 'seed-3/run'}@{results['seeds']['3']['weights']},"
    assert command in results["ensemble"]["tests"]["rest"]["repeat"]
    assert run_recipe(rehearsed, tmp_path / "gone", work, seeds=[4, 3]) == results
    (work / "results.json").unlink()
    with (
        exclusive_lock(work / "ensemble"),
        pytest.raises(InputError, match=mentions("another training process", "ensemble")),
    ):
        run_recipe(rehearsed, corpus, work, seeds=[3, 4])
    more = run_recipe(rehearsed, corpus, work, seeds=[3])
    assert more["seeds"]["3"] == results["seeds"]["3"] and "ensemble" not in more
    assert json.loads((work / "ensemble" / "results.json").read_text()) == results["ensemble"]
    with pytest.raises(InputError, match="work was started with "):
        run_recipe(recipe, corpus, work)


def test_a_missing_package_for_scoring_is_reported_before_training(
    recipe: Recipe, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_run, "train", refuse_to_train)
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    as_in_paper = dataclasses.replace(recipe, evaluate={"as_in_paper": True})
    with pytest.raises(InputError, match=mentions("sacremoses")):
        run_recipe(as_in_paper, corpus, tmp_path / "work")
    with pytest.raises(InputError, match=mentions("max_minutes", "0")):
        run_recipe(recipe, corpus, tmp_path / "work", max_minutes=0)
    assert not (tmp_path / "work").exists()


def test_an_unreadable_corpus_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    (corpus / "train.en").unlink()
    (corpus / "train.en").symlink_to("train.en")
    with pytest.raises(InputError, match=mentions("corpus/train.en", "read")):
        run_recipe(recipe, corpus, tmp_path / "work")


def test_published_bleu_is_printed_next_to_bleu_of_the_same_measure() -> None:
    def said(measure: dict[str, str], **paper: Any) -> list[str]:
        published = {"bleu": 27.3, "source": "", **measure}
        test = {"bleu": 26.6, "signature": "tok:13a", "published": published, **paper}
        result = {"tests": {"news": test}, "commit": "a", "machine": {"processor": "b"}}
        return summary({"seeds": {"1": result}}).splitlines()

    [line] = said({})
    assert line == "seed 1     news                 BLEU  26.60  tok:13a  (published: 27.3)"
    paper = {"paper_bleu": 27.4, "paper_signature": "split"}
    first, second = said({"measure": "paper_bleu"}, **paper)
    assert first.endswith("BLEU  26.60  tok:13a")
    assert second.endswith("BLEU  27.40  split  (published: 27.3)")
    [line] = said({"measure": "another script"})
    assert line.endswith("26.60  tok:13a  (published by another script: 27.3)")


def test_summary_reports_seeds_of_two_commits() -> None:
    machine = {"processor": "p"}
    seeds = {
        seed: {"tests": {}, "validation": {"last": 40.0}, "commit": commit, "machine": machine}
        for seed, commit in (("1", "abc"), ("2", "def"))
    }
    assert summary({"seeds": seeds}).endswith("processors: seed 1: abc on p; seed 2: def on p")
    assert summary({"seeds": {"1": seeds["1"]}}).endswith("validation           BLEU  40.00")
