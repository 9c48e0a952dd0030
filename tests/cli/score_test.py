"""Runs all command lines of keras-transformer score in one process, which loads TensorFlow once."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from keras_transformer.runs.run_directory import RunDirectory
from tests.conftest import PHRASES
from tests.driver import Driver, Ended
from tests.messages import mentions, tells

MODEL = "--model_dir=run "
FILES = MODEL + "--source=six.en --target=six.de"
PAIRS = [f"{source}\t{target}" for source, target in zip(PHRASES, reversed(PHRASES), strict=True)]
STDIN = "".join(f"{pair}\n" for pair in PAIRS)

SCORED = {
    "files": (FILES, ""),
    "standard input": (MODEL, STDIN),
    "one file": (MODEL + "--pairs=six.tsv --output=scores.tsv", ""),
    "JSON lines": (FILES + " --format=jsonl --length_penalty=0", ""),
    "empty and long": (MODEL, f"\tein\na\t\n{'ball ' * 100}\tein\n"),
}
MISTAKES = {
    "different numbers of lines": (
        MODEL + "--source=six.en --target=two.de", "",
        mentions("six.en", "6", "two.de", "2"),
    ),
    "no UTF-8": (
        MODEL + "--source=six.en --target=latin1.de", "",
        mentions("latin1.de", "line 2", "0xe4", "7", "UTF-8"),
    ),
    "no tab": (MODEL, "a\tb\na b\n", mentions("standard input", "line 2", "tabs")),
    "two tabs": (
        MODEL + "--pairs=three.tsv", "", mentions("three.tsv", "line 1", "2", "tabs")
    ),
    "no pairs": (MODEL, "", mentions("standard input", "empty", "tab")),
    "a source alone": (
        MODEL + "--source=six.en", "",
        mentions("pairs", "--source", "--target", "--pairs"),
    ),
    "too many files": (
        FILES + " --pairs=six.tsv", "", mentions("--pairs", "--source", "--target")
    ),
    "a SavedModel": (
        "--model_dir=export", STDIN,
        mentions("export", "keras-transformer train"),
    ),
    "a field of the model": (
        MODEL + "--set=model.d_ff=8", STDIN, mentions("model.d_ff", "training")
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def results(
    driver: Driver, run_directory: RunDirectory, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Ended]:
    """Exit code, output, errors and new files of every command line."""
    folder = tmp_path_factory.mktemp("score")
    shutil.copytree(run_directory.path, folder / "run")
    (folder / "export" / "1").mkdir(parents=True)
    (folder / "export" / "1" / "saved_model.pb").touch()
    sources, targets = zip(*(pair.split("\t") for pair in PAIRS), strict=True)
    files = {
        "six.en": "".join(f"{source}\n" for source in sources).encode(),
        "six.de": "".join(f"{target}\n" for target in targets).encode(),
        "six.tsv": STDIN.encode(),
        "two.de": b"ein\nzwei\n",
        "three.tsv": b"a\tb\tc\n",
        "latin1.de": b"a dog\nb\xe4r\n",
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    cases = {**SCORED, **MISTAKES}
    commands = [("score", flags, text) for flags, text, *_ in cases.values()]
    answers = dict(zip(cases, driver.run_all(folder, commands), strict=True))
    in_file = (folder / "scores.tsv").read_text()
    return {**answers, "one file": answers["one file"]._replace(out=in_file)}


@pytest.mark.parametrize("name", MISTAKES)
def test_invalid_input_gives_a_one_line_error_and_no_output(
    results: dict[str, Ended], name: str
) -> None:
    code, out, err, left = results[name]
    assert (code, out, left) == (1, "", [])
    assert err.startswith("error: ") and re.search(MISTAKES[name][2], err) and err.count("\n") == 1


def test_two_files_one_file_and_standard_input_have_equal_scores(results: dict[str, Ended]) -> None:
    code, out, err, _ = results["files"]
    assert code == 0 and len(out.splitlines()) == len(PHRASES)
    assert results["standard input"][1] == results["one file"][1] == out
    rows = [row.split("\t") for row in out.splitlines()]
    assert all(float(log_prob) < 0 for log_prob, *_ in rows)
    tokens = sum(int(tokens) for _, tokens, *_ in rows)
    assert err.startswith("perplexity ")
    assert tells(err, f"{tokens} tokens", f"{len(PHRASES)} sentences")


def test_json_lines_tell_the_same(results: dict[str, Ended]) -> None:
    _, out, _, _ = results["JSON lines"]
    rows = [row.split("\t") for row in results["files"][1].splitlines()]
    for line, row in zip(out.splitlines(), rows, strict=True):
        fields = json.loads(line)
        assert (fields["log_prob"], fields["tokens"]) == (float(row[0]), int(row[1]))
        assert fields["score"] == fields["log_prob"]  # a length penalty of 0
        assert len(fields["pieces"]) == len(fields["token_log_probs"]) == fields["tokens"]


def test_empty_and_truncated_sources_are_scored_and_reported(results: dict[str, Ended]) -> None:
    code, out, err, _ = results["empty and long"]
    assert code == 3 and len(out.splitlines()) == 3
    empty, cut, summary = err.splitlines()
    assert tells(empty, "line 1", "source", "empty")
    assert tells(cut, "line 3", "source", "40")
    assert tells(summary, "3 sentences")
    assert out.splitlines()[1].split("\t")[1] == "1"  # the end token
