"""The recipe that fine-tunes a converted model, from the files of Marian to scores."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest

from keras_transformer.errors import InputError
from keras_transformer.export import ExportResult
from keras_transformer.extensions.converters import read_model, write_run
from keras_transformer.extensions.paper.recipes import models as recipe_models
from keras_transformer.extensions.paper.recipes.recipe import Recipe
from keras_transformer.extensions.paper.recipes.run import (
    GivenModels,
    run_recipe,
    summary,
)
from keras_transformer.inference.loading import load_model
from keras_transformer.runs.run_directory import RunDirectory
from tests.conftest import ROOT
from tests.extensions.paper.recipes.recipes import (
    no_export,
    refuse_to_train,
    write_corpus,
    write_recipe,
)
from tests.messages import mentions

pytestmark = pytest.mark.usefixtures("one_replica")

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
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs of another language, whose words have another order."""
    folder = tmp_path_factory.mktemp("pairs")
    lines = [
        (f"{TAG} the {a} {b} sees the {c} {d}.", f"den {y} {x}n sieht der {v} {u}.")
        for a, u in ADJECTIVES.items()
        for b, v in NOUNS.items()
        for c, x in ADJECTIVES.items()
        for d, y in NOUNS.items()
    ]
    (folder / "train.source").write_text("".join(f"{source}\n" for source, _ in lines))
    (folder / "train.target").write_text("".join(f"{target}\n" for _, target in lines))
    return folder


@pytest.fixture(scope="module")
def recipe() -> Recipe:
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
    recipe: Recipe,
    converted: Path,
    pairs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exported: list[str] = []

    def record(*args: Any, format: str = "saved_model", **kwargs: Any) -> ExportResult:
        exported.append(format)
        return no_export(*args, **kwargs)

    monkeypatch.setattr(recipe_models, "export", record)
    work = tmp_path / "work"
    converted = Path(shutil.copytree(converted, tmp_path / "converted"))
    with_language = recipe.with_symbols([f"▁{TAG}"])
    results = run_recipe(with_language, pairs, work, given=GivenModels(init_from=str(converted)))
    assert exported == ["saved_model", "litert"]
    initial, tuned = results["initial"], results["seeds"]["1"]
    before, after = (each["tests"]["held_out"]["bleu"] for each in (initial, tuned))
    assert before < 20 and after > before + 30
    assert "initial    held_out" in summary(results) and "seed 1     held_out" in summary(results)
    assert f"--model_dir={converted}" in initial["tests"]["held_out"]["repeat"]

    run, old = RunDirectory(work / "seed-1" / "run"), RunDirectory(converted)
    assert run.init_from == str(converted)
    assert run.config.model.num_decoder_layers == old.config.model.num_decoder_layers == 2
    assert run.config.decoding == old.config.decoding
    vocabulary = run.tokenizer().vocabulary
    assert vocabulary.extends(old.tokenizer().vocabulary)
    assert load_model(run.path).symbols == (">>deu<<", ">>gsw<<", TAG)

    monkeypatch.setattr(recipe_models.training_run, "train", refuse_to_train)
    assert (
        run_recipe(with_language, pairs, work, given=GivenModels(init_from=str(converted)))
        == results
    )
    monkeypatch.chdir(converted.parent)
    assert (
        run_recipe(with_language, pairs, work, given=GivenModels(init_from=f"{converted.name}/"))
        == results
    )
    with pytest.raises(InputError, match=mentions("symbols")):
        run_recipe(recipe, pairs, work, given=GivenModels(init_from=str(converted)))
    with pytest.raises(InputError, match="work was started with init_from "):
        run_recipe(with_language, pairs, work, given=GivenModels(init_from=f"{converted}@last"))
    other = RunDirectory(converted).config.replace(decoding__beam_size=2)
    (converted / "config.json").write_text(other.to_json())
    with pytest.raises(InputError, match="work was started with init_from_sha256 "):
        run_recipe(with_language, pairs, work, given=GivenModels(init_from=str(converted)))


def test_an_unsuitable_run_is_reported_before_anything_is_written(
    recipe: Recipe, converted: Path, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    for init_from, message in (
        (None, mentions("finetune_opus_mt", "--init_from")),
        (
            str(ROOT / "tests/fixtures/marian"),
            mentions("fixtures/marian", "keras-transformer convert"),
        ),
        (f"{converted}@step-00000007", mentions("step-00000007")),
    ):
        with pytest.raises(InputError, match=message):
            run_recipe(recipe, pairs, work, given=GivenModels(init_from=init_from))
    with pytest.raises(InputError, match=mentions("symbol", "<s>")):
        recipe.with_symbols(["<s>"])
    animals = Recipe.load(write_recipe(tmp_path / "recipes"), "animals")
    corpus = write_corpus(tmp_path / "corpus")
    with pytest.raises(InputError, match=mentions("animals", "--init_from")):
        run_recipe(animals, corpus, work, given=GivenModels(init_from=str(converted)))
    write_recipe(tmp_path / "recipes", "tuned", fine_tune=True)
    write_recipe(
        tmp_path / "recipes", "taught", synthetic={"distillation": {"recipe": "tuned"}}, variants={}
    )
    with pytest.raises(InputError, match=mentions("tuned", "distillation", "--synthetic_from")):
        run_recipe(Recipe.load(tmp_path / "recipes", "taught"), corpus, work)
    assert not work.exists()
