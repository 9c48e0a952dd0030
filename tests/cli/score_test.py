"""Runs all command lines of keras-transformer score in one process, which loads TensorFlow once."""

from __future__ import annotations

import json
import shutil

import pytest

from keras_transformer.runs.run_directory import RunDirectory
from tests.builders import PHRASES
from tests.driver import Driver, Ended
from tests.messages import tells

MODEL = "--model_dir=run "
FILES = MODEL + "--source=six.en --target=six.de"
PAIRS = [f"{source}\t{target}" for source, target in zip(PHRASES, reversed(PHRASES), strict=True)]
STDIN = "".join(f"{pair}\n" for pair in PAIRS)
SCORED = {
    "files": (FILES, ""),
    "one file": (MODEL + "--output=new --format=jsonl --length_penalty=0", STDIN),
    "empty and long": (MODEL, f"\tein\na\t\n{'ball ' * 100}\tein\n"),
}
# Flags, standard input, and the facts of the error.
MISTAKES = [
    (MODEL + "--source=six.en --target=two.de", "", "six.en", "6", "two.de", "2"),
    (MODEL + "--source=six.en --target=latin1.de", "", "latin1.de", "line 2", "0xe4", "UTF-8"),
    (MODEL, "a\tb\na b\n", "standard input", "line 2", "tabs"),
    (MODEL, "a\tb\tc\n", "standard input", "line 1", "2", "tabs"),
    (MODEL, "", "standard input", "empty", "tab"),
    (MODEL + "--source=six.en", "", "both", "--source", "--target"),
    ("--model_dir=export", STDIN, "export", "keras-transformer train"),
    (MODEL + "--set=model.d_ff=8", STDIN, "model.d_ff", "training"),
]


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
        "two.de": b"ein\nzwei\n",
        "latin1.de": b"a dog\nb\xe4r\n",
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    commands = [("score", flags, text) for flags, text, *_ in (*SCORED.values(), *MISTAKES)]
    names = (*SCORED, *(mistake[0] + mistake[1] for mistake in MISTAKES))
    answers = dict(zip(names, driver.run_all(folder, commands), strict=True))
    in_file = (folder / "new").read_text()
    return {**answers, "one file": answers["one file"]._replace(out=in_file)}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_invalid_input_gives_a_one_line_error_and_no_output(
    results: dict[str, Ended], mistake: tuple[str, ...]
) -> None:
    flags, text, *facts = mistake
    code, out, err, left = results[flags + text]
    assert (code, out, left) == (1, "", [])
    assert err.startswith("error: ") and tells(err, *facts) and err.count("\n") == 1


def test_two_files_and_one_file_have_equal_scores(results: dict[str, Ended]) -> None:
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


def test_empty_and_truncated_sources_are_scored_and_reported(results: dict[str, Ended]) -> None:
    code, out, err, _ = results["empty and long"]
    assert code == 3 and len(out.splitlines()) == 3
    empty, cut, summary = err.splitlines()
    assert tells(empty, "line 1", "source", "empty")
    assert tells(cut, "line 3", "source", "40")
    assert tells(summary, "3 sentences")
    assert out.splitlines()[1].split("\t")[1] == "1"  # the end token
