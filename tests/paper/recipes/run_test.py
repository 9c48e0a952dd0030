"""A recipe followed from text files to scores; its mistakes are told before anything is trained."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from keras_transformer.data.corpora.corpus import Corpus, ParallelFiles
from keras_transformer.data.token_store import TokenStore
from keras_transformer.errors import InputError
from keras_transformer.export import Exported
from keras_transformer.inference import evaluate, loading
from keras_transformer.paper import experiment
from keras_transformer.paper.recipes import models as recipe_models
from keras_transformer.paper.recipes import run as recipe_run
from keras_transformer.paper.recipes import synthetic
from keras_transformer.paper.recipes.recipe import Recipe, Synthetic
from keras_transformer.paper.recipes.results import summary
from keras_transformer.paper.recipes.run import run_recipe
from keras_transformer.runs.atomic import exclusive_lock
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.training import training_run
from keras_transformer.training.data import data_fingerprint
from tests.messages import mentions, tells
from tests.paper.recipes.recipes import FIELDS, PAIRS, write_corpus, write_recipe

pytestmark = pytest.mark.usefixtures("one_replica")

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    return Recipe.load(write_recipe(tmp_path_factory.mktemp("recipes")), "animals")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def refuse_to_train(*_: Any, **__: Any) -> None:
    pytest.fail("training began")


def no_export(run: RunDirectory | str, *_: Any, **__: Any) -> Exported:
    """In place of `export`, whose other process takes seconds: the run itself."""
    return Exported(Path(run.path if isinstance(run, RunDirectory) else run), 0, [])


def test_stopped_by_time_continued_and_then_left_alone(
    recipe: Recipe, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe_models, "export", no_export)
    work = tmp_path / "work"
    stopped = run_recipe(recipe, corpus, work, max_minutes=1e-9)
    assert not stopped["finished"] and 0 < stopped["seeds"]["1"]["steps"] < 6
    assert stopped == json.loads((work / "results.json").read_text())
    validated = stopped["seeds"]["1"]["validation"]
    assert validated.keys() == {"last", "last, length penalty 1"}, "one checkpoint has no average"
    assert stopped["seeds"]["1"]["tests"] == {}, "nothing is chosen by tests"
    assert summary(stopped).startswith("seed 1     validation           BLEU ")

    finished = run_recipe(recipe, corpus, work, accumulate_steps=2)
    assert finished == json.loads((work / "results.json").read_text())
    assert finished["finished"] and not finished["variant"]
    assert {path.name for path in work.iterdir()} == {
        "data", "tests", "seed-1", "results.json", "experiment.json",
    }  # fmt: skip
    assert (work / "data" / "report.json").is_file()
    run = RunDirectory(work / "seed-1" / "run")
    assert run.config.training.accumulate_steps == 2
    assert run.data_fingerprint == data_fingerprint(work / "data")
    result = finished["seeds"]["1"]
    steps = [checkpoint.step for checkpoint in run.checkpoints()]
    assert steps == [2, 4, 6] and result["steps"] == 6, "that of the stop counts for no average"

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
    again = evaluate.evaluate(model, sources, references, tokenize="none", lowercase=True)
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
    with pytest.raises(InputError, match="work was begun with name 'animals', not 'plants'"):
        run_recipe(other, corpus, work)
    edited = dataclasses.replace(recipe, average_last=[3])
    with pytest.raises(InputError, match=r"work was begun with average_last \[2\], not \[3\]"):
        run_recipe(edited, corpus, work)
    reworded = dataclasses.replace(recipe, description="the same in other words")
    assert run_recipe(reworded, corpus, work) == finished


def test_a_rehearsal_with_parts_held_out_and_two_seeds(
    recipe: Recipe,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recipe_models, "export", no_export)
    work = tmp_path / "work"
    rehearsed = recipe.varied("rehearsal")
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
    # Chosen for the ensemble itself, not taken from its members.
    assert [model["length_penalty"] for model in models] == [0.6, 0.6, 1.0]
    assert list(results["ensemble"]["validation"]) == ["length penalty 0.6", "length penalty 1"]
    both = loading.load_model(
        f"{work / 'seed-3/run'},{work / 'seed-4/run'}", {"decoding.length_penalty": 1.0}
    )
    sources = (work / "tests" / "rest.source").read_text().splitlines()
    references = (work / "tests" / "rest.reference").read_text().splitlines()
    assert set(zip(sources, references, strict=True)) <= set(PAIRS)
    again = evaluate.evaluate(both, sources, references, tokenize="none", lowercase=True)
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
        pytest.raises(InputError, match=mentions("another process", "ensemble")),
    ):
        run_recipe(rehearsed, corpus, work, seeds=[3, 4])
    more = run_recipe(rehearsed, corpus, work, seeds=[3])
    assert more["seeds"]["3"] == results["seeds"]["3"] and "ensemble" not in more
    assert json.loads((work / "ensemble" / "results.json").read_text()) == results["ensemble"]
    with pytest.raises(InputError, match="work was begun with "):
        run_recipe(recipe, corpus, work)


def test_what_scoring_needs_is_missed_before_training(
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


def test_a_directory_that_was_begun_with_is_of_its_recipe(
    recipe: Recipe, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(training_run, "train", stop)
    with pytest.raises(KeyboardInterrupt):
        run_recipe(recipe, corpus, tmp_path / "work")
    with pytest.raises(InputError, match="work was begun with "):
        run_recipe(recipe.varied("rehearsal"), corpus, tmp_path / "work")
    with pytest.raises(InputError, match=mentions("a,b", "comma", "@")):
        run_recipe(recipe, corpus, tmp_path / "a,b", seeds=[1, 2])
    (tmp_path / "work" / "results.json").write_text(
        json.dumps({"recipe": "animals", "recipe_sha256": recipe.fingerprint, "finished": True})
    )
    with pytest.raises(KeyboardInterrupt):
        run_recipe(recipe, corpus, tmp_path / "work")


def test_a_directory_that_cannot_be_written_is_one_sentence(
    recipe: Recipe, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file cannot be read or written .*same command continues"):
        run_recipe(recipe, corpus, tmp_path / "file")

    def full(*_: Any, **__: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(recipe_run, "write_data_page", full)
    with pytest.raises(InputError, match="work cannot be read or written .No space.*continues"):
        run_recipe(recipe, corpus, tmp_path / "work")


def test_a_corpus_that_cannot_be_read_is_one_sentence(recipe: Recipe, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    (corpus / "train.en").unlink()
    (corpus / "train.en").symlink_to("train.en")
    with pytest.raises(InputError, match=mentions("corpus/train.en", "read")):
        run_recipe(recipe, corpus, tmp_path / "work")


REVERSED = {
    "train": {"source": "train.de", "target": "train.en"},
    "valid": {"source": "valid.de", "target": "valid.en"},
    "tests": {},
    "published": {},
    "variants": {},
}
TAUGHT = {
    "back_translation": {"recipe": "reversed"},
    "distillation": {"recipe": "animals", "variant": "brief", "seeds": [3, 4]},
}


def test_published_figures_stand_beside_what_is_like_them() -> None:
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


def test_seeds_of_two_commits_are_told() -> None:
    machine = {"processor": "p"}
    seeds = {
        seed: {"tests": {}, "validation": {"last": 40.0}, "commit": commit, "machine": machine}
        for seed, commit in (("1", "abc"), ("2", "def"))
    }
    assert summary({"seeds": seeds}).endswith("one processor: seed 1: abc on p; seed 2: def on p")
    assert summary({"seeds": {"1": seeds["1"]}}).endswith("validation           BLEU  40.00")


@pytest.fixture
def taught(tmp_path: Path) -> Recipe:
    """A recipe with a writer of the other direction, and one of two seeds of its own."""
    folder = write_recipe(tmp_path / "recipes", "reversed", **REVERSED)
    brief = {"tests": {}, "settings": {"training.max_steps": 2}}
    variants = {"taught": {"synthetic": TAUGHT}, "brief": brief}
    return Recipe.load(write_recipe(folder, variants=variants), "animals").varied("taught")


@pytest.fixture
def shouting(monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Has pairs written in capitals; which model should have, by kind."""
    asked: dict[str, Path] = {}

    def shout(kind: Synthetic, pairs: Corpus, model_dir: Path, directory: Path) -> ParallelFiles:
        asked[kind] = model_dir
        (directory / "written").mkdir(parents=True, exist_ok=True)
        (directory / "writer").write_text(f"the hash of {model_dir}")
        for side, name in enumerate(("en", "de")):
            lines = [pair[side].upper() + b"\n" for pair in pairs.pairs()]
            (directory / name).write_bytes(b"".join(lines))
        return ParallelFiles(directory / "en", directory / "de")

    monkeypatch.setattr(recipe_run, "synthetic_pairs", shout)
    monkeypatch.setattr(recipe_run, "check_writer", lambda *_: None)
    monkeypatch.setattr(recipe_models, "export", no_export)
    return asked


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Seeds that are followed, in place of training: which variant of which recipe, and which."""
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


def test_synthetic_pairs_are_trained_on_beside_the_real_ones(
    taught: Recipe, corpus: Path, tmp_path: Path, shouting: dict[str, Path]
) -> None:
    work = tmp_path / "work"
    given: dict[Synthetic, Path] = {"back_translation": tmp_path / "reverse"}
    results = run_recipe(taught, corpus, work, synthetic_from=given)
    assert results["finished"] and results["seeds"]["1"]["steps"] == 6
    trained = TokenStore(work / "data" / "train").source_text()
    assert len(trained) == 3 * 12
    assert sum(line.isupper() for line in trained) == 2 * 12
    written_by = {
        "back_translation": "an export that was given",
        "distillation": "animals brief, seeds 3,4",
    }
    assert results["written_by"] == results["seeds"]["1"]["written_by"] == written_by
    assert [path.name for path in (work / "writers").iterdir()] == ["distillation"]
    writer = json.loads((work / "writers/distillation/results.json").read_text())
    assert writer["finished"] and writer["variant"] == "brief"
    assert [seed["steps"] for seed in writer["seeds"].values()] == [2, 2]
    assert shouting == {
        "back_translation": tmp_path / "reverse",
        "distillation": work / "writers/distillation" / writer["ensemble"]["export"],
    }
    hashes = {kind: f"the hash of {model_dir}" for kind, model_dir in shouting.items()}
    assert results["writers_sha256"] == results["seeds"]["1"]["writers_sha256"] == hashes


def test_writers_are_trained_first_and_once(
    taught: Recipe,
    corpus: Path,
    tmp_path: Path,
    shouting: dict[str, Path],
    followed: list[tuple[str, int]],
) -> None:
    work = tmp_path / "work"
    writers = work / "writers"
    run_recipe(taught, corpus, work)
    teachers = [("reversed", 1), ("animals brief", 3), ("animals brief", 4)]
    assert followed == [*teachers, ("animals taught", 1)]
    assert shouting == {
        "back_translation": writers / "back_translation/seed-1/export/1",
        "distillation": writers / "distillation/ensemble/export/1",
    }
    run_recipe(taught, corpus, work, seeds=[1, 2])
    assert followed[4:] == [("animals taught", 2)]
    # What has written all may be removed.
    writers.rename(tmp_path / "removed")
    run_recipe(taught, corpus, work, seeds=[1, 2, 3])
    assert followed[5:] == [("animals taught", 3)]


def test_no_writer_is_begun_when_no_time_is_left(
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
        clock[0] += 600  # the minutes are of training
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


def test_seeds_that_have_results_keep_them_when_a_writer_has_no_time(
    taught: Recipe, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe_run._RecipeExperiment, "_train_writers", lambda *_: False)
    run_recipe(taught, corpus, tmp_path / "work", max_minutes=1)
    path = tmp_path / "work" / "results.json"
    seeds = {"1": {"finished": True}}
    path.write_text(json.dumps({**json.loads(path.read_text()), "seeds": seeds}))
    assert run_recipe(taught, corpus, tmp_path / "work", max_minutes=1)["seeds"] == seeds


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        ("written", mentions("distillation", "model", "gone")),
        ("export", mentions("ensemble/export/1", "not there")),
    ],
)
@pytest.mark.usefixtures("shouting")
def test_a_writer_that_is_gone_is_told_before_another_is_trained(
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
        shutil.rmtree(work / "writers" / "distillation")
        (work / "synthetic" / "distillation").mkdir(parents=True)
        (work / "synthetic" / "distillation" / "writer").write_text("0123")
    else:
        shutil.rmtree(work / "writers/distillation/ensemble/export")
    monkeypatch.setattr(recipe_run, "check_writer", synthetic.check_writer)
    monkeypatch.setattr(synthetic, "load_model", lambda _: None)
    followed.clear()
    with pytest.raises(InputError, match=message):
        run_recipe(taught, corpus, work)
    assert not followed


@pytest.mark.parametrize(
    ("writer", "message"),
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
def test_a_writer_that_cannot_be_is_told_before_training(
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    writer: dict[str, str],
    message: str,
) -> None:
    monkeypatch.setattr(training_run, "train", refuse_to_train)
    folder = write_recipe(tmp_path / "recipes", "reversed", **REVERSED)
    variants = {**FIELDS["variants"], "taught": {"synthetic": {"distillation": writer}}}
    recipe = Recipe.load(write_recipe(folder, variants=variants), "animals").varied("taught")
    with pytest.raises(InputError, match=message):
        run_recipe(recipe, corpus, tmp_path / "work")
    assert not (tmp_path / "work").exists()


def test_mistakes_of_any_writer_show_before_one_is_trained(
    taught: Recipe,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(training_run, "train", refuse_to_train)
    work = tmp_path / "work"
    (work / "writers" / "distillation").mkdir(parents=True)
    other = {"name": "plants"}
    (work / "writers/distillation/experiment.json").write_text(json.dumps(other))
    with pytest.raises(InputError, match="distillation was begun with name 'plants', not 'an"):
        run_recipe(taught, corpus, work)
    assert [path.name for path in work.iterdir()] == ["writers"]
    with pytest.raises(InputError, match=mentions("a,b/writers/distillation", "comma", "@")):
        run_recipe(taught, corpus, tmp_path / "a,b")
    for wrong in ({"distillation": tmp_path}, {"back_translation": tmp_path}):
        plain = Recipe.load(tmp_path / "recipes", "animals")
        with pytest.raises(InputError, match=mentions("synthetic", "pairs", "--synthetic_from")):
            run_recipe(plain, corpus, tmp_path / "plain", synthetic_from=wrong)  # type: ignore[arg-type]


@pytest.mark.usefixtures("shouting")
def test_what_one_writer_has_begun_is_not_continued_by_another(
    taught: Recipe,
    corpus: Path,
    tmp_path: Path,
    followed: list[tuple[str, int]],
) -> None:
    work = tmp_path / "work"
    given: dict[Synthetic, Path] = {"distillation": tmp_path, "back_translation": tmp_path}
    run_recipe(taught, corpus, work, synthetic_from=given)
    assert followed == [("animals taught", 1)]
    with pytest.raises(
        InputError,
        match="written_by: back_translation 'an export that was given', not 'reversed, seeds 1'",
    ):
        run_recipe(taught, corpus, work)
    assert followed == [("animals taught", 1)]


def test_a_recipe_is_another_when_a_writer_is(taught: Recipe, tmp_path: Path) -> None:
    before = taught.fingerprint
    again = Recipe.load(tmp_path / "recipes", "animals").varied("taught")
    assert again.fingerprint == before
    write_recipe(tmp_path / "recipes", "reversed", **{**REVERSED, "preset": "small"})
    assert again.fingerprint != before


def test_a_mistake_in_a_text_shows_before_a_writer_is_trained(
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
def test_seeds_are_different_ones(
    recipe: Recipe, tmp_path: Path, seeds: list[int], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        run_recipe(recipe, tmp_path, tmp_path / "work", seeds=seeds)


@pytest.mark.usefixtures("shouting")
def test_results_of_a_writer_without_an_export_are_one_sentence(
    taught: Recipe,
    corpus: Path,
    tmp_path: Path,
    followed: list[tuple[str, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: dict[Synthetic, Path] = {"back_translation": tmp_path}

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as stopped, pytest.raises(KeyboardInterrupt):
        stopped.setattr(recipe_run, "synthetic_pairs", stop)
        run_recipe(taught, corpus, tmp_path / "work", synthetic_from=given)
    path = tmp_path / "work" / "writers" / "distillation" / "results.json"
    results = json.loads(path.read_text())
    del results["ensemble"]
    path.write_text(json.dumps(results))
    followed.clear()
    with pytest.raises(InputError, match="distillation/results.json is finished and names no"):
        run_recipe(taught, corpus, tmp_path / "work", synthetic_from=given)
    assert not followed


def test_seeds_of_a_writer_are_checked_before_another_is_trained(
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
        (lambda path: path.write_bytes(b""), mentions("test.de", "empty")),
        (lambda path: path.write_bytes(b"a\n"), mentions("test.en", "2", "test.de", "1")),
        (lambda path: path.write_bytes(b"a\n\xff\n"), mentions("test.de", "line 2", "0xff")),
    ],
)
def test_a_mistake_in_the_test_set_shows_before_training(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Any, message: str
) -> None:
    monkeypatch.setattr(training_run, "train", refuse_to_train)
    damage(write_corpus(tmp_path / "corpus") / "test.de")
    with pytest.raises(InputError, match=message):
        run_recipe(recipe, tmp_path / "corpus", tmp_path / "work")
    assert not (tmp_path / "work").exists()


def test_the_binary_without_a_corpus_is_one_sentence(tmp_path: Path) -> None:
    process = subprocess.run(
        [
            sys.executable, str(ROOT / "bin" / "recipe.py"), "--recipe=multi30k_en_de",
            "--corpus_dir=nowhere", "--work_dir=work",
        ],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (process.returncode, process.stdout) == (1, "")
    sentence = process.stderr.splitlines()[-1]
    assert sentence.startswith("error: nowhere/") and tells(sentence, "missing")
    assert "Traceback" not in process.stderr
    assert list(tmp_path.iterdir()) == []
