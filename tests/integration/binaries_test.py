"""The commands that use a run, one after the other in a single process."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from keras_transformer.inference import loading, translate
from keras_transformer.runs.run_directory import RunDirectory
from tests.conftest import PHRASES
from tests.driver import Driver
from tests.messages import tells

TEXT = "".join(f"{phrase}\n" for phrase in PHRASES)
PREFIXES = ("", "ein", "das", "", "zwei", "mit")
COMMANDS = {
    "plain": "translate --model_dir=run",
    "details": "translate --model_dir=run --format=jsonl --n_best=2 --attention --prefix=prefixes "
    "--output=details",
    "evaluation": "evaluate --model_dir=run --precision=bfloat16 --source=text --reference=text "
    "--output=evaluated",
    "selection": "average --run_dir=run --select=step-00000200",
    "selected": "translate --model_dir=run",
    "average": "average --run_dir=run --last=3",
}


@pytest.fixture(scope="module")
def folder(run_directory: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("binaries")
    shutil.copytree(run_directory.path, folder / "run")
    (folder / "text").write_text(TEXT)
    (folder / "prefixes").write_text("".join(f"{prefix}\n" for prefix in PREFIXES))
    return folder


@pytest.fixture(scope="module")
def out(driver: Driver, folder: Path) -> dict[str, str]:
    """The standard output of each command."""
    commands = [(*command.split(" ", 1), TEXT) for command in COMMANDS.values()]
    results = dict(zip(COMMANDS, driver.run_all(folder, commands), strict=True))
    assert {(name, ended.code, ended.err) for name, ended in results.items()} == {
        (name, 0, "") for name in COMMANDS
    }
    return {name: ended.out for name, ended in results.items()}


def test_the_selected_weights_are_used(folder: Path, out: dict[str, str]) -> None:
    model = loading.load_model(f"{folder / 'run'}@step-00000200")
    found = translate.translate_lines(model, PHRASES)
    assert out["selected"] == translate.format_translations(model, found) != out["plain"]
    assert out["selection"] == "run now uses step-00000200\n"
    assert tells(out["average"], "run", "average-last-3-step-300")


def test_prefixes_and_attention_in_a_file(folder: Path, out: dict[str, str]) -> None:
    assert out["details"] == ""
    lines = (folder / "details").read_text().split("\n")[:-1]
    for line, prefix, free in zip(lines, PREFIXES, out["plain"].split("\n")[:-1], strict=True):
        result = json.loads(line)
        first, _ = result["translations"]
        assert first["text"].startswith(prefix) and (prefix or first["text"] == free)
        assert np.shape(first["attention"]) == (len(first["tokens"]), len(result["source_tokens"]))


def test_evaluation_in_bfloat16(folder: Path, out: dict[str, str]) -> None:
    evaluated = (folder / "evaluated").read_text()
    assert evaluated != out["plain"] and evaluated.count("\n") == len(PHRASES)
    assert json.loads(out["evaluation"].splitlines()[-1])["sentences"] == len(PHRASES)
