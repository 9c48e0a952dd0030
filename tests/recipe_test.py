"""A recipe followed from text files to scores; its mistakes are told before anything is trained."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from keras_transformer import experiment, inference, loading
from keras_transformer.data.prepare import PrepareOptions
from keras_transformer.errors import InputError
from keras_transformer.presets import preset
from keras_transformer.recipe import Recipe, run_recipe
from keras_transformer.run_directory import RunDirectory
from keras_transformer.training.platform import Platform, choose_platform

ROOT = Path(__file__).resolve().parents[1]
ANIMALS = [("dog", "Hund"), ("cow", "Stier"), ("bird", "Vogel"), ("fish", "Fisch")]
PAIRS = [
    (f"the {a} sees the {b}", f"der {x} sieht den {y}") for a, x in ANIMALS for b, y in ANIMALS
]
FIELDS: dict[str, Any] = {
    "description": "invented sentences",
    "corpus": {split: [f"{split}.en", f"{split}.de"] for split in ("train", "valid", "test")},
    "prepare": {"vocab_size": 40},
    "preset": "tiny",
    "settings": {
        "model.num_encoder_layers": 1,
        "model.num_decoder_layers": 1,
        "model.d_model": 16,
        "model.d_ff": 32,
        "model.num_heads": 2,
        "training.max_steps": 6,
        "training.batch_tokens": 128,
        "training.warmup_steps": 4,
        "training.checkpoint_steps": 2,
        "training.jit_compile": "false",
        "training.mixed_precision": "float32",
        "decoding.beam_size": 2,
        "decoding.max_extra_tokens": 5,
    },
    "average_last": 2,
    "evaluate": {"tokenize": "none", "lowercase": True},
}


def write_recipe(folder: Path, name: str = "animals", **changes: Any) -> Path:
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "recipe.json").write_text(json.dumps({**FIELDS, **changes}))
    return folder


def write_corpus(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for split, pairs in (("train", PAIRS[:12]), ("valid", PAIRS[12:14]), ("test", PAIRS[14:])):
        for side, language in enumerate(("en", "de")):
            lines = "".join(f"{pair[side]}\n" for pair in pairs)
            (folder / f"{split}.{language}").write_text(lines)
    return folder


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    return Recipe.load(write_recipe(tmp_path_factory.mktemp("recipes")), "animals")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(autouse=True, scope="module")
def one_replica() -> Iterator[None]:
    """Takes one of the test process's two logical CPUs, which halves the time to trace."""

    def choose(config: Any, num_shapes: int, device: str, strategy: None) -> Platform:
        return choose_platform(config, num_shapes, device, strategy)._replace(
            strategy=tf.distribute.MirroredStrategy(["CPU:0"])
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "choose_platform", choose)
        yield


def refuse_to_train(*_: Any, **__: Any) -> None:
    pytest.fail("training began")


def test_stopped_by_time_continued_and_then_left_alone(
    recipe: Recipe, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    stopped = run_recipe(recipe, corpus, work, max_minutes=1e-9)
    assert not stopped["finished"] and 0 < stopped["steps"] < 6
    assert stopped == json.loads((work / "results.json").read_text())
    assert stopped["validation"].keys() == {"last"}, "one checkpoint has no average"
    assert (work / "export" / "1" / "saved_model.pb").is_file()

    finished = run_recipe(recipe, corpus, work)
    assert finished["finished"] and finished["steps"] == 6
    assert finished == json.loads((work / "results.json").read_text())
    assert {path.name for path in work.iterdir()} == {"data", "run", "export", "results.json"}
    assert (work / "data" / "report.json").is_file()
    run = RunDirectory(work / "run")
    steps = [checkpoint.step for checkpoint in run.checkpoints()]
    assert steps[0] == stopped["steps"] and steps[-1] == 6

    assert finished["recipe"] == "animals"
    assert finished["weights"] == run.selected
    assert finished["validation"].keys() == {"last", "average-last-2-step-6"}
    assert finished["validation"][run.selected] == max(finished["validation"].values())
    assert finished["parameters"] == run.config.model.num_parameters()
    assert finished["tokens_per_second"] > 0 and finished["peak_memory_mb"] > 0
    assert finished["versions"].keys() == {"tensorflow", "keras", "tensorflow-text", "sacrebleu"}

    scores = finished["test"]
    assert scores["sentences"] == 2 and 0 <= scores["bleu"] <= 100
    assert "tok:none" in scores["signature"] and "case:lc" in scores["signature"]
    export = loading.load_model(work / finished["export"])
    sources, references = zip(*PAIRS[14:], strict=True)
    again = inference.evaluate(export, sources, references, tokenize="none", lowercase=True).scores
    assert (scores["bleu"], scores["chrf"]) == (again.bleu, again.chrf), "the export was scored"

    monkeypatch.setattr(experiment, "train", refuse_to_train)
    assert run_recipe(recipe, tmp_path / "gone", work) == finished
    other = Recipe.load(write_recipe(tmp_path / "recipes", "plants"), "plants")
    with pytest.raises(
        InputError, match="results.json is of animals, not of the recipe plants; exp"
    ):
        run_recipe(other, corpus, work)
    edited = dataclasses.replace(recipe, average_last=1)
    with pytest.raises(InputError, match="is of another version of the recipe animals; expected"):
        run_recipe(edited, corpus, work)
    reworded = dataclasses.replace(recipe, description="the same in other words")
    assert run_recipe(reworded, corpus, work) == finished


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "test.de is missing; expected a text file"),
        (lambda path: path.write_bytes(b""), "test.de is empty; expected one sentence a line"),
        (lambda path: path.write_bytes(b"a\n"), "test.en has 2 lines and .*test.de has 1; exp"),
        (lambda path: path.write_bytes(b"a\n\xff\n"), "test.de, line 2: byte 0xff at byte offset"),
    ],
)
def test_a_mistake_in_the_test_set_shows_before_training(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Any, message: str
) -> None:
    monkeypatch.setattr(experiment, "train", refuse_to_train)
    damage(write_corpus(tmp_path / "corpus") / "test.de")
    with pytest.raises(InputError, match=message):
        run_recipe(recipe, tmp_path / "corpus", tmp_path / "work")
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 3}, "has other fields than average_last, corpus, description, evaluate, prep"),
        ({"corpus": {"train": ["a", "b"]}}, "other splits than train, valid and test"),
        ({"corpus": ["a", "b"]}, "other splits than train, valid and test"),
        (
            {"corpus": {**FIELDS["corpus"], "valid": ["a.en"]}},
            r"valid is \['a.en'\]; expected a source and a target",
        ),
        ({"prepare": {"vocab": 40}}, "'vocab'"),
        ({"prepare": {"max_tokens": 1}}, "max_tokens is 1; expected"),
        ({"preset": "huge"}, "'huge' is no preset"),
        ({"settings": {"training.steps": 3}}, "'training.steps' is no setting"),
        ({"settings": [1]}, "recipe.json: "),
        ({"average_last": 0}, "average_last is 0; expected 1 or more"),
        ({"average_last": "5"}, "average_last is '5'; expected 1 or more"),
        ({"evaluate": {"tokenize": "14a"}}, "'14a' is no tokenizer"),
        ({"evaluate": {"case": "lc"}}, "'case'"),
    ],
)
def test_a_wrong_recipe_names_its_file(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    write_recipe(tmp_path, **changes)
    with pytest.raises(InputError, match=message) as error:
        Recipe.load(tmp_path, "animals")
    assert str(error.value).startswith(str(tmp_path / "animals" / "recipe.json"))
    assert "\n" not in str(error.value)


def test_a_recipe_that_is_not_there_or_no_json(tmp_path: Path) -> None:
    write_recipe(tmp_path, "plants")
    write_recipe(tmp_path)
    with pytest.raises(InputError, match="no recipe 'stones'; expected one of animals, plants"):
        Recipe.load(tmp_path, "stones")
    for text in (b'{"description": ', b"\xff", b"[]", b"null"):
        (tmp_path / "animals" / "recipe.json").write_bytes(text)
        with pytest.raises(InputError, match=r"animals/recipe.json (is no JSON|has other fields)"):
            Recipe.load(tmp_path, "animals")
    fields = {name: value for name, value in FIELDS.items() if name != "preset"}
    (tmp_path / "animals" / "recipe.json").write_text(json.dumps(fields))
    with pytest.raises(InputError, match="has other fields than"):
        Recipe.load(tmp_path, "animals")


@pytest.mark.parametrize(
    "name", sorted(path.parent.name for path in (ROOT / "recipes").glob("*/recipe.json"))
)
def test_recipes_of_the_project_fit_the_code(name: str) -> None:
    recipe = Recipe.load(ROOT / "recipes", name)
    config = preset(recipe.preset).updated(recipe.settings)
    assert config.training.keep_checkpoints >= recipe.average_last
    assert config.training.max_steps >= recipe.average_last * config.training.checkpoint_steps
    assert PrepareOptions(**recipe.prepare).vocab_size > 0


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
    assert sentence.startswith("error: nowhere/") and "is missing; expected a text" in sentence
    assert "Traceback" not in process.stderr
    assert list(tmp_path.iterdir()) == []
