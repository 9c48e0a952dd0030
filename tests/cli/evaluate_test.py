"""Runs all command lines of `evaluate` in one process, which loads TensorFlow once."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.builders import PHRASES
from tests.driver import CommandResult, Driver
from tests.evaluation.test_sets_test import sacrebleu_folder

FILES = "--source=six.en --reference=six.de"
TAGGED = "--model_dir=tagged --reference=six.de --beam_size=1"
SCORED = {
    "a file": "--hypothesis=six.en --reference=six.de --tokenize=none",
    "a model": f"--model_dir=run {FILES} --output=out.de --paper_bleu",
    "its output": "--hypothesis=out.de --reference=six.de --baseline=six.en --paper_bleu",
    "a test set": "--model_dir=run --test_set=wmt14/full --language_pair=en-de --beam_size=1",
    "a given tag": f"{TAGGED} --source=six.en --output=given.de --source_tag=<2de>",
    "careless text": f"{TAGGED} --source=six.en --source_tag=<2de> --robustness",
    "no tag": f"{TAGGED} --source=six.en --output=none.de",
}


@pytest.fixture(scope="module")
def ended(driver: Driver, folder: Path) -> dict[str, CommandResult]:
    with sacrebleu_folder(folder / "sacrebleu"):
        results = driver.run_all(folder, [("evaluate", line, "") for line in SCORED.values()])
    return dict(zip(SCORED, results, strict=True))


def of(ended: dict[str, CommandResult], name: str) -> tuple[list[str], dict[str, Any]]:
    """Returns the lines for the user, and the JSON object."""
    assert (ended[name].code, ended[name].err) == (0, "")
    *lines, last = ended[name].out.splitlines()
    return lines, json.loads(last)


def test_a_file_is_scored_without_a_model(ended: dict[str, CommandResult]) -> None:
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


def test_a_test_set_of_sacrebleu_is_translated_and_named(ended: dict[str, CommandResult]) -> None:
    _, scores = of(ended, "a test set")
    assert scores["dataset"] == "wmt14/full en-de"
    assert "|test:wmt14/full|lang:en-de|" in scores["signature"]


def test_lines_without_a_tag_are_counted_unless_source_tag_adds_it(ended, folder: Path) -> None:
    assert (folder / "given.de").read_text() != (folder / "none.de").read_text()
    assert ended["a given tag"].err == ""
    assert ended["no tag"].err.count("6 of 6 lines have no target-language tag") == 1


def test_careless_sources_are_scored_with_their_difference(ended: dict[str, CommandResult]) -> None:
    lines, scores = of(ended, "careless text")
    kinds = [line.partition(": BLEU")[0] for line in lines[-len(scores["robustness"]) :]]
    assert kinds == [*scores["robustness"]] and {"upper", "typos", "merge"} < {*kinds}
    for line, score in zip(lines[-len(kinds) :], scores["robustness"].values(), strict=True):
        assert f"chrF {score['chrf']:.2f} ({score['chrf'] - scores['chrf']:+.2f})" in line
    assert scores["robustness"]["upper"]["chrf"] != scores["chrf"]
