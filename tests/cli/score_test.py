"""Runs all command lines of keras-transformer score in one process, which loads TensorFlow once."""

import json
from pathlib import Path
from typing import Any

import pytest

from keras_transformer.cli import score
from tests.builders import PHRASES
from tests.driver import CommandResult, Driver
from tests.messages import tells

MODEL = "--model_dir=run "
FILES = MODEL + "--source=six.en --target=six.de"
STDIN = "".join(f"{phrase}\t{phrase.upper()}\n" for phrase in PHRASES)
SCORED = {
    "files": (FILES, ""),
    "one file": (MODEL + "--output=scores --format=jsonl --length_penalty=0", STDIN),
    "too long": (MODEL, "a\tein\n" * 4097 + "a\t" + "ball " * 4096),
    "empty and long": (MODEL, f"\tein\na\t\n{'ball ' * 100}\tein\n"),
}


@pytest.fixture(scope="module")
def results(driver: Driver, folder: Path) -> dict[str, CommandResult]:
    """Exit code, output, errors and new files of every command line."""
    commands = [("score", flags, text) for flags, text in SCORED.values()]
    results = dict(zip(SCORED, driver.run_all(folder, commands), strict=True))
    in_file = (folder / "scores").read_text()
    return {**results, "one file": results["one file"]._replace(out=in_file)}


def test_two_files_and_one_file_have_equal_scores(results: dict[str, CommandResult]) -> None:
    code, out, err, _ = results["files"]
    assert code == 0 and len(out.splitlines()) == len(PHRASES)
    rows = [row.split("\t") for row in out.splitlines()]
    assert all(float(log_prob) < 0 for log_prob, *_ in rows)
    tokens = sum(int(tokens) for _, tokens, *_ in rows)
    assert err.startswith("perplexity ")
    assert tells(err, f"{tokens} tokens", f"{len(PHRASES)} sentences")
    for line, row in zip(results["one file"].out.splitlines(), rows, strict=True):
        fields = json.loads(line)
        assert (fields["log_prob"], fields["tokens"]) == (float(row[0]), int(row[1]))
        assert fields["score"] == fields["log_prob"]  # a length penalty of 0
        assert len(fields["pieces"]) == len(fields["token_log_probs"]) == fields["tokens"]


def test_an_interrupted_file_continues(
    driver: Driver, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(score, "_BLOCK_PAIRS", 2)
    flags = f"{FILES} --output=out".split()
    first, done = score.score_block, list[str]()

    def until_the_third(name: str, *arguments: Any) -> Any:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(name)
        return first(name, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(score, "score_block", until_the_third)
        assert driver.run(folder, "score", flags, "").code == 130
        done.clear()
        resumed = driver.run(folder, "score", flags, "")
    assert done == ["the block after pair 4"]
    once = driver.run(folder, "score", f"{FILES} --output=once".split(), "")
    assert (folder / "out").read_text() == (folder / "once").read_text()
    assert resumed.left == ["out"] and tells(resumed.err, "resuming")
    summaries = [ended.err.splitlines()[-1].split(" in ")[0] for ended in (resumed, once)]
    assert summaries[0] == summaries[1]


def test_the_line_of_a_target_that_is_too_long_is_named(results: dict[str, CommandResult]) -> None:
    code, out, err, left = results["too long"]
    assert (code, out, left) == (1, "", []) and tells(err, "standard input, line 4098", "4,096")


def test_empty_and_truncated_sources_are_scored_and_reported(
    results: dict[str, CommandResult],
) -> None:
    code, out, err, _ = results["empty and long"]
    assert code == 3 and len(out.splitlines()) == 3
    empty, cut, summary = err.splitlines()
    assert tells(empty, "line 1", "source", "empty")
    assert tells(cut, "line 3", "source", "40")
    assert tells(summary, "3 sentences")
    assert out.splitlines()[1].split("\t")[1] == "1"  # the end token
