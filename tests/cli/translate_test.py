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
from tests.conftest import PHRASES
from tests.driver import Driver
from tests.messages import tells

_COMMAND = [sys.executable, "-m", "keras_transformer", "translate"]


def translate(driver: Driver, run: RunDirectory, text: str, *flags: str) -> tuple[str, str]:
    """Returns the output and the messages."""
    arguments = [f"--model_dir={run.path}", "--set=decoding.beam_size=1", *flags]
    code, out, err, _ = driver.run(run.path.parent, "translate", arguments, text)
    has_empty_line = "\n\n" in text and "--document" not in flags
    assert code == (3 if has_empty_line else 0), err
    return out, err


def test_source_tag_begins_every_line(driver: Driver, tagged_run: RunDirectory) -> None:
    tagged = translate(driver, tagged_run, "<2de> a small dog\n\n<2de> a red ball\n")
    assert translate(driver, tagged_run, "a small dog\n\na red ball\n")[0] != tagged[0]
    given = translate(driver, tagged_run, "a small dog\n\na red ball\n", "--source_tag=<2de>")
    assert given[0] == tagged[0]


def test_lines_without_a_tag_are_counted_once(driver: Driver, tagged_run: RunDirectory) -> None:
    text = "<2de> a small dog\n\na red ball\nthe river\n"
    for flags in ([], ["--document"], ["--interactive"]):
        _, err = translate(driver, tagged_run, text, *flags)
        assert err.count("no target-language tag") == 1
        assert ("2 of 3 lines have" if "--interactive" not in flags else "1 of 1 lines") in err
        assert tells(err, "<2de> or <2fr>", "--source_tag") and "<number>" not in err
    for flags in (["--source_tag=<2de>"], ["--source_tag=<2fr>", "--document"]):
        assert "tag" not in translate(driver, tagged_run, text.replace("<2de> ", ""), *flags)[1]


def test_a_source_tag_may_be_any_symbol(driver: Driver, tagged_run: RunDirectory) -> None:
    flag = "--source_tag=<number>"
    given = "<number> <2de> A dog.\n<number> <2de> A ball.\n"
    single, err = translate(driver, tagged_run, given)
    assert "language tag" not in err
    line, err = translate(driver, tagged_run, "<2de> A dog.\n<2de> A ball.\n", flag)
    assert line == single and "tag" not in err
    document, _ = translate(driver, tagged_run, "<2de> A dog. A ball.\n", flag, "--document")
    assert document == " ".join(single.splitlines()) + "\n"
    assert (
        "1 of 1 lines has no target-language tag"
        in translate(driver, tagged_run, "A dog.\n", flag)[1]
    )


def test_a_model_without_tags_gets_no_remark(driver: Driver, run_directory: RunDirectory) -> None:
    assert "tag" not in translate(driver, run_directory, "a small dog\n")[1]


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
    assert err.startswith("Translating with LiteRT (threads: 2).\n")
    assert out.splitlines() == expected and len({*expected}) > 10


def test_an_unknown_tag_is_an_error_that_lists_the_tags(
    driver: Driver, tagged_run: RunDirectory, run_directory: RunDirectory
) -> None:
    for run, known in ((tagged_run, "<2de>, <2fr>"), (run_directory, "no tags")):
        flags = [f"--model_dir={run.path}", "--source_tag=<2it>"]
        code, out, err, _ = driver.run(run.path.parent, "translate", flags, "a dog\n")
        assert code == 1 and not out and tells(err, "<2it>", known)


def test_document_translates_each_sentence_with_the_tag(
    driver: Driver, tagged_run: RunDirectory
) -> None:
    single, _ = translate(driver, tagged_run, "<2de> A dog.\n<2de> A ball.\n")
    document, _ = translate(driver, tagged_run, "<2de> A dog. A ball.\n", "--document")
    assert document == " ".join(single.splitlines()) + "\n"
    given, _ = translate(driver, tagged_run, "A dog. A ball.\n", "--document", "--source_tag=<2de>")
    assert given == document


def test_interactive_answers_before_the_second_line_arrives(run_directory: RunDirectory) -> None:
    command = [*_COMMAND, f"--model_dir={run_directory.path}", "--interactive"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        for line in ("a small dog\n", "\n"):
            process.stdin.write(line)
            process.stdin.flush()
            assert process.stdout.readline().endswith("\n")  # blocks if nothing is translated
        process.stdin.close()
        assert "Line 2: the source is empty." in process.stderr.read()
    assert process.returncode == 3


def test_lines_of_a_terminal_are_translated_when_they_arrive(run_directory: RunDirectory) -> None:
    ours, theirs = pty.openpty()
    command = [*_COMMAND, f"--model_dir={run_directory.path}"]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE) as process:
        os.close(theirs)
        assert process.stdout
        for _ in range(2):
            os.write(ours, b"a small dog\n")
            assert process.stdout.readline().endswith(b"\n")
        os.write(ours, b"\x04")  # end of the input
        assert process.stdout.read() == b""
    os.close(ours)
    assert process.returncode == 0


@pytest.mark.parametrize("flag", ["--input=some.en", "--document", "--prefix=some.de"])
def test_interactive_excludes_flags_that_need_the_whole_input(
    driver: Driver, tmp_path: Path, flag: str
) -> None:
    flags = ["--model_dir=run", "--interactive", flag]
    code, _, err, _ = driver.run(tmp_path, "translate", flags, "")
    assert code == 1 and tells(err, "--interactive", flag.partition("=")[0])
