"""Recipes from text files to scores: resuming, seeds, generated pairs, fine-tuning, errors."""

import dataclasses
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from keras_transformer.data.corpus import Corpus, ParallelFiles
from keras_transformer.data.token_store import TokenStore
from keras_transformer.errors import InputError
from keras_transformer.export import ExportResult
from keras_transformer.extensions.converters import read_model, write_run
from keras_transformer.extensions.paper import recipe_models, recipe_run
from keras_transformer.extensions.paper.recipe import Recipe, Synthetic
from keras_transformer.extensions.paper.recipe_run import run_recipe, summary
from keras_transformer.inference import loading, translate
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.training import training_run
from tests.builders import refuses
from tests.conftest import ROOT
from tests.extensions.paper import recipes
from tests.messages import mentions

pytestmark = pytest.mark.usefixtures("one_replica")


@pytest.mark.long
def test_a_run_stopped_by_time_resumes_and_is_not_repeated(
    recipe: Recipe, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe_models, "export", recipes.no_export)
    work = tmp_path / "work"
    stopped = run_recipe(recipe, corpus, work, max_minutes=1e-9)
    result = stopped["rows"]["seed-1"]
    assert not stopped["finished"] and 0 < result["steps"] < 6
    # One checkpoint cannot be averaged.
    assert result["validation"].keys() == {"last", "last, length penalty 1"}
    assert result["tests"] == {}, "tests are scored only after training"
    assert "| seed-1 | validation, at step " in summary(stopped)

    finished = run_recipe(recipe, corpus, work, num_microbatches=2)
    assert finished["finished"] and (finished["recipe"], finished["variant"]) == ("animals", "")
    assert {path.name for path in work.iterdir()} == {
        "data", "tests", "seed-1", "results.jsonl", "table.md", "experiment.json",
    }  # fmt: skip
    assert (work / "table.md").read_text() == summary(finished)
    run, result = RunDirectory(work / "seed-1" / "run"), finished["rows"]["seed-1"]
    assert run.config.training.num_microbatches == 2
    # The checkpoint of the interruption is removed.
    assert [checkpoint.step for checkpoint in run.checkpoints()] == [2, 4, 6]
    assert result["steps"] == 6 and result["weights"] == run.selected
    penalized = f"{run.selected}, length penalty 1"
    assert result["validation"].keys() == {"last", "average-last-2-step-6", penalized}
    chosen = run.selected if result["length_penalty"] == 0.6 else penalized
    assert result["validation"][chosen] == max(result["validation"].values())
    scores = result["tests"]["animals"]
    assert scores["published"] == {"bleu": 99.5, "source": "nobody"}
    model = loading.load_model(run.path, {"decoding.length_penalty": result["length_penalty"]})
    sources, references = zip(*recipes.PAIRS[14:], strict=True)
    again = translate.evaluate(model, sources, references, tokenize="none", lowercase=True)
    assert (scores["bleu"], scores["chrf"]) == (again.scores.bleu, again.scores.chrf)
    translations = (work / "seed-1" / "animals.translations").read_text().splitlines()
    assert translations == again.hypotheses

    monkeypatch.setattr(training_run, "train", recipes.refuse_to_train)
    assert run_recipe(recipe, tmp_path / "gone", work) == finished
    changed = recipes.write_corpus(tmp_path / "changed")
    (changed / "test.de").write_text("der Hund sieht\ndie Kuh\n")
    with pytest.raises(InputError, match=mentions("animals.reference", "corpus")):
        run_recipe(recipe, changed, work, seeds=[1, 2])


@pytest.mark.long
def test_held_out_data_and_an_ensemble_of_two_seeds(
    recipe: Recipe, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe_models, "export", recipes.no_export)
    work, rehearsed = tmp_path / "work", recipe.with_variant("rehearsal")
    validate = recipe_models.RecipeModels._validate

    def validated(self: Any, model_dir: str | Path, penalty: float) -> float:
        bleu = validate(self, model_dir, penalty)
        return bleu + penalty if "," in str(model_dir) else bleu - penalty

    monkeypatch.setattr(recipe_models.RecipeModels, "_validate", validated)
    results = run_recipe(rehearsed, corpus, work, seeds=[3, 4])
    assert list(results["rows"]) == ["seed-3", "seed-4", "ensemble-3-4"]
    *seeds, ensemble = results["rows"].values()
    # The length penalty of the ensemble is chosen for it, not copied from its members.
    assert [model["length_penalty"] for model in (*seeds, ensemble)] == [0.6, 0.6, 1.0]
    both = loading.load_model(
        f"{work / 'seed-3/run'},{work / 'seed-4/run'}", {"decoding.length_penalty": 1.0}
    )
    sources = (work / "tests" / "rest.source").read_text().splitlines()
    references = (work / "tests" / "rest.reference").read_text().splitlines()
    assert set(zip(sources, references, strict=True)) <= set(recipes.PAIRS)
    again = translate.evaluate(both, sources, references, tokenize="none", lowercase=True)
    assert again.scores.bleu == ensemble["tests"]["rest"]["bleu"]
    assert ensemble["weights"] == {"3": seeds[0]["weights"], "4": seeds[1]["weights"]}
    assert "| mean of the seeds | rest |" in summary(results)
    assert run_recipe(rehearsed, tmp_path / "gone", work, seeds=[4, 3])["finished"]
    more = run_recipe(rehearsed, corpus, work, seeds=[3])
    assert more["rows"] == {"seed-3": seeds[0]}


def row(tests: dict[str, Any], **others: Any) -> dict[str, Any]:
    """Returns the record of a row, without training."""
    origin = {"finished": True, "commit": "a", "machine": {"processor": "p"}}
    return {**origin, "validation": {"last": 40.0}, "tests": tests, **others}


def test_the_summary_has_published_bleu_next_to_bleu_of_the_same_measure() -> None:
    def said(measure: dict[str, str], **paper: Any) -> list[str]:
        published = {"bleu": 27.3, "source": "", **measure}
        test = {"bleu": 26.6, "signature": "tok:13a", "published": published, **paper}
        return summary({"rows": {"seed-1": row({"news": test})}}).splitlines()[2:]

    assert said({}) == ["| seed-1 | news | 26.60 | tok:13a | 27.3 |"]
    paper = {"paper_bleu": 27.4, "paper_signature": "split"}
    assert said({"measure": "paper_bleu"}, **paper) == [
        "| seed-1 | news | 26.60 | tok:13a |  |",
        "| seed-1 | news | 27.40 | split | 27.3 |",
    ]
    assert said({"measure": "a script"}) == [
        "| seed-1 | news | 26.60 | tok:13a | 27.3 (a script) |"
    ]
    test = {"signature": "s", "published": None}
    rows = {
        f"seed-{i}": row({"news": {**test, "bleu": bleu}}, commit=f"c{i}")
        for i, bleu in enumerate((40.0, 41.0, 43.0))
    }
    table = summary({"rows": rows})
    assert "| mean of the seeds | news | 41.33 ± 1.53 |" in table
    assert "Results from different commits" in table


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({}, {"seeds": []}, mentions("seeds", "[]")),
        ({}, {"seeds": [1, 1]}, mentions("seeds", "[1, 1]")),
        ({}, {"seeds": [1, 2**31]}, mentions("training.seed", "2147483648")),
        ({}, {"max_minutes": 0}, mentions("max_minutes", "0")),
        ({}, {"synthetic_from": {"distillation": "x"}}, mentions("animals", "--synthetic_from")),
        (
            {"synthetic": {"distillation": {"recipe": "x", "variant": "y", "seeds": [3, 4]}}},
            {},
            mentions("distillation", "--recipe=x", "--variant=y", "--seeds=3,4"),
        ),
        ({}, {"runs": {"init_from": "x"}}, mentions("animals", "--init_from")),
        ({}, {"runs": {"teacher": "x"}}, mentions("animals", "--teacher")),
        ({"teacher": True}, {}, mentions("animals", "--teacher")),
        ({"evaluate": {"as_in_paper": True}}, {}, mentions("sacremoses")),
        ({"valid": {"source": "valid.en", "target": "short"}}, {}, "valid.en"),
        ({"tests": {"x": {"source": "missing", "target": "test.de"}}}, {}, mentions("missing")),
        ({"tests": {"x": {"source": "bad", "target": "bad"}}}, {}, mentions("line 2", "0xff")),
        ({"train": {"source": "loop", "target": "loop"}}, {}, mentions("loop", "read")),
    ],
)
def test_errors_are_reported_before_anything_is_written(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any],
    arguments: dict[str, Any], message: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(training_run, "train", recipes.refuse_to_train)
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    corpus = recipes.write_corpus(tmp_path / "corpus")
    (corpus / "short").write_text("nur eine\n")
    (corpus / "bad").write_bytes(b"a\n\xff\n")
    (corpus / "loop").symlink_to("loop")
    with pytest.raises(InputError, match=message):
        run_recipe(dataclasses.replace(recipe, **changes), corpus, tmp_path / "work", **arguments)
    assert "train" in changes or not (tmp_path / "work").exists()


# Pairs that another model generates.

TAUGHT = {
    "back_translation": {"recipe": "reversed"},
    "distillation": {"recipe": "animals", "variant": "brief", "seeds": [3, 4]},
}


def test_generated_pairs_are_added_to_the_training_text(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Path | None] = {}

    def shout(
        kind: str, pairs: Corpus, model_dir: Path | None, directory: Path, workers: int
    ) -> ParallelFiles:
        """Generates pairs in capitals."""
        asked[kind] = model_dir
        (directory / "written").mkdir(parents=True, exist_ok=True)
        (directory / "generator").write_text(f"sha256 of {kind}")
        for side, name in enumerate(("en", "de")):
            lines = [pair[side].upper() + b"\n" for pair in pairs.pairs()]
            (directory / name).write_bytes(b"".join(lines))
        return ParallelFiles(directory / "en", directory / "de")

    def train(*_: Any) -> dict[str, Any]:
        return {"finished": False, "steps": 1, "validation": {"last": 0.0}, "tests": {}}

    monkeypatch.setattr(recipe_run, "synthetic_pairs", shout)
    monkeypatch.setattr(recipe_run, "check_generator", lambda *_: None)
    monkeypatch.setattr(recipe_models.RecipeModels, "train", train)
    folder = recipes.write_recipe(tmp_path / "recipes", synthetic=TAUGHT, variants={})
    recipe, work = Recipe.load(folder, "animals"), tmp_path / "work"
    given: dict[Synthetic, Path] = {kind: tmp_path / kind for kind in ("distillation",)}
    with pytest.raises(InputError, match=mentions("back_translation", "--recipe=reversed")):
        run_recipe(recipe, corpus, work, synthetic_from=given)
    given["back_translation"] = tmp_path / "reverse"
    row = run_recipe(recipe, corpus, work, synthetic_from=given)["rows"]["seed-1"]
    assert asked == given
    assert row["generators_sha256"] == {kind: f"sha256 of {kind}" for kind in TAUGHT}
    trained = TokenStore(work / "data" / "train").source.text()
    assert len(trained) == 3 * 12 and sum(line.isupper() for line in trained) == 2 * 12
    again = run_recipe(recipe, corpus, work)  # the models may be removed after that
    assert again["rows"]["seed-1"] == row
    changed = dataclasses.replace(recipe, settings={**recipe.settings, "training.seed": 7})
    with pytest.raises(InputError, match="work was started with settings: training.seed .*7"):
        run_recipe(changed, corpus, work)


# Fine-tuning, from the files of Marian to scores.

TAG = ">>nds<<"
NOUNS = {"dog": "Hund", "bird": "Vogel", "boy": "Junge", "man": "Mann", "tree": "Baum"}
ADJECTIVES = {"small": "kleine", "old": "alte", "good": "gute", "green": "grüne"}


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of Marian, as a run. It knows two languages."""
    run = tmp_path_factory.mktemp("converted") / "run"
    write_run(read_model(ROOT / "tests/fixtures/marian/post_norm.npz", "marian"), run)
    return run


@pytest.fixture(scope="module")
def tuning() -> Recipe:
    rehearsal = Recipe.load(ROOT / "recipes", "finetune_opus_mt").with_variant("rehearsal")
    settings = {
        **rehearsal.settings,
        "training.learning_rate": 0.02,  # for a model with 16 features
        "training.checkpoint_steps": 100,
        "training.jit_compile": "false",
        "training.mixed_precision": "float32",
    }
    return dataclasses.replace(rehearsal, settings=settings, average_last=[])


@pytest.mark.long
def test_a_converted_model_learns_a_language(
    tuning: Recipe, converted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported: list[str] = []

    def record(*args: Any, format: str = "saved_model", **kwargs: Any) -> ExportResult:
        exported.append(format)
        return recipes.no_export(*args, **kwargs)

    monkeypatch.setattr(recipe_models, "export", record)
    lines = [  # of another language, whose words have another order
        (f"{TAG} the {a} {b} sees the {c} {d}.", f"den {y} {x}n sieht der {v} {u}.")
        for a, u in ADJECTIVES.items()
        for b, v in NOUNS.items()
        for c, x in ADJECTIVES.items()
        for d, y in NOUNS.items()
    ]
    for side, name in enumerate(("train.source", "train.target")):
        (tmp_path / name).write_text("".join(f"{pair[side]}\n" for pair in lines))
    work, runs = tmp_path / "work", {"init_from": str(converted)}
    with_language = tuning.with_symbols([f"▁{TAG}"])
    results = run_recipe(with_language, tmp_path, work, runs=runs)
    assert exported == ["saved_model", "litert"]
    initial, tuned = results["rows"]["initial"], results["rows"]["seed-1"]
    before, after = (record["tests"]["held_out"]["bleu"] for record in (initial, tuned))
    assert before < 20 and after > before + 30
    assert f"--model_dir={converted}" in initial["tests"]["held_out"]["repeat"]
    run, old = RunDirectory(work / "seed-1" / "run"), RunDirectory(converted)
    assert run.init_from == str(converted) and run.config.decoding == old.config.decoding
    assert run.tokenizer().vocabulary.extends(old.tokenizer().vocabulary)
    assert loading.load_model(run.path).symbols == (">>deu<<", ">>gsw<<", TAG)
    monkeypatch.setattr(training_run, "train", recipes.refuse_to_train)
    monkeypatch.chdir(converted.parent)
    assert run_recipe(with_language, tmp_path, work, runs={"init_from": "run/"}) == results
    refuses(lambda: run_recipe(tuning, tmp_path, work, runs=runs), (), "symbols")
    with pytest.raises(InputError, match="work was started with init_from "):
        run_recipe(with_language, tmp_path, work, runs={"init_from": f"{converted}@last"})
    other = Path(shutil.copytree(converted, tmp_path / "converted"))
    config = RunDirectory(other).config.updated(decoding__beam_size=2)
    (other / "config.json").write_text(config.to_json())
    found = json.loads((work / "experiment.json").read_text())
    found["init_from"] = str(other)
    (work / "experiment.json").write_text(json.dumps(found))
    with pytest.raises(InputError, match="work was started with init_from_sha256 "):
        run_recipe(with_language, tmp_path, work, runs={"init_from": str(other)})


def test_an_unsuitable_run_is_reported_before_anything_is_written(
    tuning: Recipe, converted: Path, tmp_path: Path
) -> None:
    marian = str(ROOT / "tests/fixtures/marian")
    for init_from, message in (
        (None, mentions("finetune_opus_mt", "--init_from")),
        (marian, mentions("fixtures/marian", "keras-transformer convert")),
        (f"{converted}@step-00000007", mentions("step-00000007")),
    ):
        runs = {} if init_from is None else {"init_from": init_from}
        with pytest.raises(InputError, match=message):
            run_recipe(tuning, tmp_path, tmp_path / "work", runs=runs)
    refuses(tuning.with_symbols, (["<s>"],), "symbol", "<s>")
    assert not (tmp_path / "work").exists()
