"""Runs all command lines of `evaluate` in one process, which loads TensorFlow once."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from keras_transformer.runs.run_directory import RunDirectory
from tests.conftest import PHRASES
from tests.driver import Driver, Ended
from tests.evaluation.test_sets_test import sacrebleu_folder, sgml
from tests.messages import mentions

FILES = "--source=six.en --reference=six.de"
SCORED = {
    "a file": "--hypothesis=six.en --reference=six.de --tokenize=none",
    "a model": f"--model_dir=run {FILES} --output=out.de --paper_bleu",
    "its output": "--hypothesis=out.de --reference=six.de --baseline=six.en --paper_bleu",
    "a test set": "--model_dir=run --test_set=wmt14/full --language_pair=en-de --beam_size=1",
}
MISTAKES = {
    "--reference=six.de": mentions("--model_dir", "--hypothesis", "neither"),
    f"--model_dir=run --hypothesis=six.de {FILES}": mentions("--model_dir", "--hypothesis", "both"),
    "--model_dir=run --source=six.en": mentions("--test_set", "--reference", "neither"),
    "--model_dir=run --test_set=wmt14 --reference=six.de": mentions(
        "--test_set", "--reference", "both"
    ),
    "--model_dir=run --test_set=wmt14 --source=six.en": mentions("--test_set", "--source", "both"),
    f"--model_dir=run {FILES} --language_pair=en-de": mentions(
        "--reference", "--language_pair", "both"
    ),
    f"--hypothesis=six.en {FILES} --output=new": mentions("--hypothesis", "--output", "both"),
    "--model_dir=run --reference=six.de": mentions("--source", "missing", "--model_dir"),
    f"--model_dir=run {FILES} --baseline=two.de": mentions("two.de", "2", "reference", "6"),
    "--hypothesis=two.de --reference=six.de": mentions("two.de", "2", "reference", "6"),
    "--model_dir=none --test_set=wmt14": mentions("wmt14", "language pair", "''"),
    "--model_dir=none --test_set=wmt14/full --language_pair=en-fr --paper_bleu": mentions(
        "wmt14/full", "en-fr"
    ),
    "--hypothesis=latin1.de --reference=six.de": mentions("latin1.de", "line 2", "0xe4"),
}


@pytest.fixture(scope="module")
def folder(run_directory: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluate")
    shutil.copytree(run_directory.path, folder / "run")
    phrases = "".join(f"{phrase}\n" for phrase in PHRASES)
    raw = folder / "sacrebleu/wmt14/full/raw/test-full"
    files = {
        "six.en": phrases,
        "six.de": phrases.upper(),
        "two.de": "eins\nzwei\n",
        f"{raw}/newstest2014-deen-src.en.sgm": sgml(PHRASES),
        f"{raw}/newstest2014-deen-ref.de.sgm": sgml([phrase.upper() for phrase in PHRASES]),
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "latin1.de").write_bytes(b"gut\nsch\xe4del\n")
    return folder


@pytest.fixture(scope="module")
def ended(driver: Driver, folder: Path) -> dict[str, Ended]:
    lines = (*SCORED.values(), *MISTAKES)
    with sacrebleu_folder(folder / "sacrebleu"):
        results = driver.run_all(folder, [("evaluate", line, "") for line in lines])
    return dict(zip((*SCORED, *MISTAKES), results, strict=True))


@pytest.mark.parametrize("arguments", MISTAKES)
def test_invalid_input_gives_a_one_line_error_and_no_output(ended, arguments) -> None:
    code, out, err, left = ended[arguments]
    assert (code, out, left) == (1, "", [])
    assert err.startswith("error: ") and re.search(MISTAKES[arguments], err)
    assert err.count("\n") == 1


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


def test_lines_without_a_tag_are_counted_unless_source_tag_adds_it(
    driver: Driver, folder: Path, tagged_run: RunDirectory
) -> None:
    (folder / "tagged.en").write_text("".join(f"<2de> {phrase}\n" for phrase in PHRASES))
    model = f"--model_dir={tagged_run.path} --reference=six.de --beam_size=1"
    lines = [
        f"{model} --source=tagged.en --output=tagged.de",
        f"{model} --source=six.en --output=given.de --source_tag=<2de>",
        f"{model} --source=six.en --output=none.de",
        f"{model} --source=six.en --source_tag=<2it>",
    ]
    tagged, given, none, unknown = driver.run_all(folder, [("evaluate", a, "") for a in lines])
    assert tagged.err == given.err == ""
    tagged_text, given_text, none_text = (
        (folder / f"{name}.de").read_text() for name in ("tagged", "given", "none")
    )
    assert tagged_text == given_text != none_text
    assert none.err.count("6 of 6 lines have no target-language tag") == 1
    assert unknown.code == 1 and re.search(mentions("<2it>", "<2de>, <2fr>"), unknown.err)
