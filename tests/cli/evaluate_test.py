"""Runs all command lines of `evaluate` in one process, which loads TensorFlow once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from keras_transformer.runs.run_directory import RunDirectory
from tests.builders import PHRASES
from tests.driver import Driver, Ended
from tests.evaluation.test_sets_test import sacrebleu_folder, sgml
from tests.messages import tells

FILES = "--source=six.en --reference=six.de"
TAGGED = "--model_dir=tagged --reference=six.de --beam_size=1"
SCORED = {
    "a file": "--hypothesis=six.en --reference=six.de --tokenize=none",
    "a model": f"--model_dir=run {FILES} --output=out.de --paper_bleu",
    "its output": "--hypothesis=out.de --reference=six.de --baseline=six.en --paper_bleu",
    "a test set": "--model_dir=run --test_set=wmt14/full --language_pair=en-de --beam_size=1",
    "a given tag": f"{TAGGED} --source=six.en --output=given.de --source_tag=<2de>",
    "no tag": f"{TAGGED} --source=six.en --output=none.de",
}
MISTAKES = [
    ("--reference=six.de", "--model_dir", "--hypothesis", "neither"),
    (f"--model_dir=run --hypothesis=six.de {FILES}", "--model_dir", "--hypothesis", "both"),
    ("--model_dir=run --test_set=wmt14 --source=six.en", "--test_set", "--source", "both"),
    ("--model_dir=run --reference=six.de", "--source", "missing", "--model_dir"),
    (f"--model_dir=run {FILES} --baseline=two.de", "two.de", "2", "reference", "6"),
    ("--model_dir=none --test_set=wmt14", "wmt14", "language pair", "''"),
    ("--model_dir=none --test_set=wmt14/full --language_pair=en-fr --paper_bleu", "wmt14/full"),
    ("--hypothesis=latin1.de --reference=six.de", "latin1.de", "line 2", "0xe4"),
    (f"{TAGGED} --source=six.en --source_tag=<2it>", "<2it>", "<2de>, <2fr>"),
]


@pytest.fixture(scope="module")
def folder(
    run_directory: RunDirectory, tagged_run: RunDirectory, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("evaluate")
    shutil.copytree(run_directory.path, folder / "run")
    shutil.copytree(tagged_run.path, folder / "tagged")
    raw = folder / "sacrebleu/wmt14/full/raw/test-full"
    raw.mkdir(parents=True)
    targets = [phrase.upper() for phrase in PHRASES]
    files = {
        "six.en": "".join(f"{phrase}\n" for phrase in PHRASES),
        "six.de": "".join(f"{target}\n" for target in targets),
        "two.de": "eins\nzwei\n",
        f"{raw}/newstest2014-deen-src.en.sgm": sgml(PHRASES),
        f"{raw}/newstest2014-deen-ref.de.sgm": sgml(targets),
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    (folder / "latin1.de").write_bytes(b"gut\nsch\xe4del\n")
    return folder


@pytest.fixture(scope="module")
def ended(driver: Driver, folder: Path) -> dict[str, Ended]:
    with sacrebleu_folder(folder / "sacrebleu"):
        results = driver.run_all(folder, [("evaluate", line, "") for line in SCORED.values()])
    return dict(zip(SCORED, results, strict=True))


@pytest.mark.parametrize(("arguments", "facts"), [(line, facts) for line, *facts in MISTAKES])
def test_invalid_input_gives_a_one_line_error_and_no_output(
    driver: Driver, folder: Path, arguments: str, facts: list[str]
) -> None:
    with sacrebleu_folder(folder / "sacrebleu"):
        code, out, err, left = driver.run(folder, "evaluate", arguments.split(), "")
    assert (code, out, left) == (1, "", [])
    assert err.startswith("error: ") and tells(err, *facts) and err.count("\n") == 1


def of(ended: dict[str, Ended], name: str) -> tuple[list[str], dict[str, Any]]:
    """Returns the lines for the user, and the JSON object."""
    assert (ended[name].code, ended[name].err) == (0, "")
    *lines, last = ended[name].out.splitlines()
    return lines, json.loads(last)


def test_a_file_is_scored_without_a_model(ended: dict[str, Ended]) -> None:
    [line], scores = of(ended, "a file")
    assert line.startswith("BLEU 0.00, chrF ")
    assert (scores["bleu"], scores["sentences"]) == (0, len(PHRASES))
    assert not {"seconds", "dataset", "paper_bleu", "comparison"} & set(scores)
    assert ended["a file"].left == []


def test_a_models_translations_are_scored_and_written(ended, folder: Path) -> None:
    lines, scores = of(ended, "a model")
    assert [line.split(" ")[0] for line in lines] == ["BLEU", "BLEU", "translated"]
    assert scores["seconds"] > 0 and "smooth:none" in scores["paper_signature"]
    assert (folder / "out.de").read_text().count("\n") == len(PHRASES)
    lines, again = of(ended, "its output")
    comparison = again.pop("comparison")
    assert again == {name: value for name, value in scores.items() if name != "seconds"}
    assert comparison["bleu"] == again["bleu"]
    assert "seed:12345" in comparison["comparison_signature"]
    assert lines[-1].startswith(f"BLEU {again['bleu']:.2f} ± ")


def test_a_test_set_of_sacrebleu_is_translated_and_named(ended: dict[str, Ended]) -> None:
    _, scores = of(ended, "a test set")
    assert scores["dataset"] == "wmt14/full en-de"
    assert "|test:wmt14/full|lang:en-de|" in scores["signature"]


def test_lines_without_a_tag_are_counted_unless_source_tag_adds_it(ended, folder: Path) -> None:
    assert (folder / "given.de").read_text() != (folder / "none.de").read_text()
    assert ended["a given tag"].err == ""
    assert ended["no tag"].err.count("6 of 6 lines have no target-language tag") == 1
