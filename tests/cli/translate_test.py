"""`translate`: tags of target languages, and lines that are translated when they arrive."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from keras_transformer.inference.batching import string_array
from keras_transformer.inference.loading import load_model
from keras_transformer.runs.run_directory import RunDirectory
from tests.builders import PHRASES
from tests.driver import Driver
from tests.messages import tells


def translate(driver: Driver, run: RunDirectory, text: str, *flags: str) -> tuple[str, str]:
    """Returns the output and the messages."""
    arguments = [f"--model_dir={run.path}", "--set=decoding.beam_size=1", *flags]
    code, out, err, _ = driver.run(run.path.parent, "translate", arguments, text)
    assert code == (3 if "\n\n" in text else 0), err
    return out, err


def test_source_tag_begins_every_line_and_sentence(
    driver: Driver, tagged_run: RunDirectory
) -> None:
    tagged, err = translate(driver, tagged_run, "<2de> A dog.\n\n<2de> A ball.\n")
    assert "tag" not in err
    given, err = translate(driver, tagged_run, "A dog.\n\nA ball.\n", "--source_tag=<2de>")
    assert given == tagged and "tag" not in err
    flags = ("--source_tag=<2de>", "--document")
    document, err = translate(driver, tagged_run, "A dog. A ball.\n", *flags)
    assert document == " ".join(filter(None, tagged.split("\n"))) + "\n" and "tag" not in err


@pytest.mark.parametrize(
    ("flags", "lines"),
    [
        (["--interactive"], "1 of 1 lines has"),  # only the first line is reported
        # Another symbol of the vocabulary is no tag of a language.
        (["--document", "--source_tag=<number>"], "2 of 3 lines have"),
    ],
)
def test_lines_without_a_tag_are_counted_once(
    driver: Driver, tagged_run: RunDirectory, flags: list[str], lines: str
) -> None:
    text = "a red ball\nthe river\n<2de> a small dog\n"
    _, err = translate(driver, tagged_run, text, *flags)
    assert err.count("no target-language tag") == 1 and lines in err
    assert tells(err, "<2de> or <2fr>", "--source_tag") and "<number>" not in err


def test_a_model_for_servers_keeps_the_order_of_several_batches(
    driver: Driver, cpu_version: Path
) -> None:
    model = load_model(cpu_version)
    lines = [" ".join(PHRASES[0].split()[: i * 5 % 9] + ["ball"] * (i % 4)) for i in range(1, 36)]
    lines[20] = ""
    assert len(lines) > 2 * model.max_batch_lines > 2
    expected = [
        model.translate(text=string_array([line]))["translations"][0, 0].decode() if line else ""
        for line in lines
    ]
    flags = [f"--model_dir={cpu_version.parent}", "--threads=2"]
    text = "".join(f"{line}\n" for line in lines)
    code, out, err, _ = driver.run(cpu_version, "translate", flags, text)
    assert code == 3 and tells(err, "Line 21", "empty")
    assert out.splitlines() == expected and len({*expected}) > 10


def test_an_unknown_tag_is_an_error_that_lists_the_tags(
    driver: Driver, tagged_run: RunDirectory, run_directory: RunDirectory
) -> None:
    for run, known in ((tagged_run, "<2de>, <2fr>"), (run_directory, "no tags")):
        flags = [f"--model_dir={run.path}", "--source_tag=<2it>"]
        code, out, err, _ = driver.run(run.path.parent, "translate", flags, "a dog\n")
        assert code == 1 and not out and tells(err, "<2it>", known)


def test_lines_of_a_terminal_are_translated_when_they_arrive(run_directory: RunDirectory) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "keras_transformer", "translate"]
    command.append(f"--model_dir={run_directory.path}")
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=theirs, stdout=pipe, stderr=pipe) as process:
        os.close(theirs)
        assert process.stdout and process.stderr
        for line in (b"a small dog\n", b"\n"):
            os.write(ours, line)
            assert process.stdout.readline().endswith(b"\n")  # blocks if nothing is translated
        os.write(ours, b"\x04")  # end of the input
        assert process.stdout.read() == b""
        assert b"Line 2: the source is empty." in process.stderr.read()
    os.close(ours)
    assert process.returncode == 3


@pytest.mark.parametrize(
    ("flags", "facts"),
    [
        ("--interactive --input=some.en", ("--interactive", "--input")),
        ("--interactive --document", ("--interactive", "--document")),
        ("--interactive --prefix=some.de", ("--interactive", "--prefix")),
        ("--attention", ("--attention", "--format=jsonl")),
        ("--document --format=jsonl", ("--document", "--format")),
    ],
)
def test_flags_that_exclude_each_other(
    driver: Driver, tmp_path: Path, flags: str, facts: tuple[str, ...]
) -> None:
    code, _, err, _ = driver.run(tmp_path, "translate", ["--model_dir=run", *flags.split()], "")
    assert code == 1 and tells(err, *facts)
