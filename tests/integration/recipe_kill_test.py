"""A recipe is killed at each stage. The same command resumes and gives the same results."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.extensions.paper.recipes import write_corpus, write_recipe

ROOT = Path(__file__).resolve().parents[2]
CLOCK_FIELDS = {"seconds", "training_minutes", "tokens_per_second", "peak_memory_mb"}
PROGRAM = """
import os, pathlib, signal, sys, threading, time
from keras_transformer.tf_import import load_tensorflow
load_tensorflow()  # twice as fast as importing it
from keras_transformer.runs import averaging
from keras_transformer.extensions.paper import recipe, recipe_models, recipe_run

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def die_at(pattern):
    def watch():
        while not list(pathlib.Path("work/seed-1").glob(pattern)):
            time.sleep(0.01)
        die()
    threading.Thread(target=watch, daemon=True).start()

match sys.argv[1]:
    case "training":
        die_at("run/checkpoints/step-*2")
    case "averaging":
        average = averaging.average_checkpoints
        averaging.average_checkpoints = lambda *args: die(average(*args))
    case "exporting":
        die_at("export/.*.unfinished/*")
    case "scored":
        score = recipe_models.RecipeModels._score_tests
        recipe_models.RecipeModels._score_tests = lambda *args: die(score(*args))
results = recipe_run.run_recipe(
    recipe.Recipe.load(pathlib.Path("recipes"), "animals"), "corpus", "work"
)
assert results["finished"]
"""


def run_recipe(folder: Path, stage: str) -> int:
    command = [sys.executable, "-c", PROGRAM, stage]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


def make_folder(folder: Path) -> Path:
    folder.mkdir()
    write_recipe(folder / "recipes")
    write_corpus(folder / "corpus")
    return folder


def stable_results(folder: Path) -> dict[str, Any]:
    """Returns the results of the seed that do not depend on the clock."""
    results = json.loads((folder / "work" / "results.jsonl").read_text())
    assert (folder / "work" / results["export"] / "saved_model.pb").is_file()
    (scores,) = results.pop("tests").values()
    del (
        results["export"],
        scores["repeat"],
    )  # they name a version, and exports are never overwritten
    return {k: v for k, v in {**results, **scores}.items() if k not in CLOCK_FIELDS}


@pytest.mark.long
def test_a_recipe_killed_at_every_stage_has_the_same_results(tmp_path: Path) -> None:
    killed, whole = make_folder(tmp_path / "killed"), make_folder(tmp_path / "whole")
    for stage in ("training", "averaging", "exporting", "scored"):
        assert run_recipe(killed, stage) == -signal.SIGKILL, stage
        assert not (killed / "work" / "results.jsonl").exists(), stage
        if stage == "training":
            assert not (
                killed / "work" / "seed-1" / "run" / "checkpoints" / "step-00000006"
            ).exists()
    assert run_recipe(killed, "") == 0
    assert run_recipe(whole, "") == 0
    assert stable_results(killed) == stable_results(whole)
