"""The commands that use a run, one after the other in a single process."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from keras_transformer.inference import loading, translate
from keras_transformer.runs.run_directory import RunDirectory
from tests.conftest import PHRASES
from tests.driver import Driver
from tests.messages import tells

AVERAGE = "average-last-3-step-300"
TEXT = "".join(f"{phrase}\n" for phrase in PHRASES)
PREFIXES = ("", "ein", "das", "", "zwei", "mit")
COMMANDS = {
    "plain": "translate --model_dir=run",
    "details": "translate --model_dir=run --format=jsonl --n_best=2 --prefix=prefixes",
    "attention": "translate --model_dir=run --format=jsonl --attention --output=attention.jsonl",
    "evaluation": "evaluate --model_dir=run --precision=bfloat16 --source=text --reference=text "
    "--output=evaluated",
    "selection": "average --run_dir=run --select=step-00000200",
    "selected": "translate --model_dir=run",
    "average": "average --run_dir=run --last=3",
}


class Results(NamedTuple):
    """The folder of the commands, and their standard output by name."""

    folder: Path
    out: dict[str, str]

    def objects(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out[name].removesuffix("\n").split("\n")]


@pytest.fixture(scope="module")
def results(
    driver: Driver, run_directory: RunDirectory, tmp_path_factory: pytest.TempPathFactory
) -> Results:
    folder = tmp_path_factory.mktemp("binaries")
    shutil.copytree(run_directory.path, folder / "run")
    (folder / "text").write_text(TEXT)
    (folder / "prefixes").write_text("".join(f"{prefix}\n" for prefix in PREFIXES))
    commands = [(*command.split(" ", 1), TEXT) for command in COMMANDS.values()]
    out = {}
    for name, ended in zip(COMMANDS, driver.run_all(folder, commands), strict=True):
        assert (name, ended.code, ended.err) == (name, 0, "")
        out[name] = ended.out
    return Results(folder, out)


def test_the_selected_weights_are_used(results: Results) -> None:
    for name, weights in (("plain", "last"), ("selected", "step-00000200")):
        model = loading.load_model(f"{results.folder / 'run'}@{weights}")
        found = translate.translate_lines(model, PHRASES)
        assert results.out[name] == translate.format_translations(model, found)
    assert results.out["plain"] != results.out["selected"]
    assert results.out["selection"] == "run now uses step-00000200\n"
    assert tells(results.out["average"], "run", AVERAGE, "3")


def test_prefixes_and_details(results: Results) -> None:
    details = results.objects("details")
    texts = [result["translations"][0]["text"] for result in details]
    for prefix, text, free in zip(PREFIXES, texts, results.out["plain"].split("\n"), strict=False):
        assert text.startswith(prefix) and (prefix or text == free)
    assert [len(result["translations"]) for result in details] == [2] * len(PHRASES)
    assert "attention" not in details[0]["translations"][0]


def test_attention_in_a_file(results: Results) -> None:
    assert results.out["attention"] == ""
    texts = []
    for line in (results.folder / "attention.jsonl").read_text().split("\n")[:-1]:
        result = json.loads(line)
        (best,) = result["translations"]
        assert np.shape(best["attention"]) == (len(best["tokens"]), len(result["source_tokens"]))
        texts.append(best["text"])
    assert texts == results.out["plain"].split("\n")[:-1]


def test_evaluation_in_bfloat16(results: Results) -> None:
    evaluated = (results.folder / "evaluated").read_text()
    assert evaluated != results.out["plain"] and evaluated.count("\n") == len(PHRASES)
    assert json.loads(results.out["evaluation"].splitlines()[-1])["sentences"] == len(PHRASES)
