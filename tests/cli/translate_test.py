"""`translate`: tags of target languages, and lines that are translated when they arrive."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from keras_transformer.runs.run_directory import RunDirectory
from tests.builders import PHRASES
from tests.driver import Driver
from tests.messages import tells

ROOT = Path(__file__).resolve().parents[2]


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
    assert tells(err, "<2de> or <2fr>", "source_tag") and "<number>" not in err


# What a shell may set for other programs.
HOSTILE = {
    "KERAS_BACKEND": "jax",
    "LC_ALL": "POSIX",
    "PYTHONIOENCODING": "ascii",
    "PYTHONUNBUFFERED": "1",
    "TERM": "dumb",
    "TF_USE_LEGACY_KERAS": "1",
}


def test_lines_of_a_terminal_are_translated_when_they_arrive_in_a_hostile_environment(
    run_directory: RunDirectory, driver: Driver, tmp_path: Path
) -> None:
    (tmp_path / "rün").symlink_to(run_directory.path)
    (tmp_path / "keras.json").write_text('{"floatx": "float16", "image_data_format": "x"}')
    flags = [f"--model_dir={tmp_path / 'rün'}", "--format=jsonl", "--beam_size=1"]
    expected = driver.run(tmp_path, "translate", flags, "".join(f"{p}\n" for p in PHRASES))
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "keras_transformer", "translate", *flags],
        stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT), **HOSTILE, "KERAS_HOME": str(tmp_path)},
    ) as process:  # fmt: skip
        os.close(theirs)
        assert process.stdout and process.stderr
        lines = []
        for phrase in PHRASES:
            os.write(ours, f"{phrase}\n".encode())
            lines.append(process.stdout.readline().decode())  # blocks if nothing is translated
        os.write(ours, b"\x04")  # end of the input
        assert process.stdout.read() == process.stderr.read() == b""
    os.close(ours)
    assert (process.returncode, expected.code, expected.err) == (0, 0, "")
    numbers = r"-?\d+\.\d+"  # the last digits depend on the number of threads
    assert re.sub(numbers, "", "".join(lines)) == re.sub(numbers, "", expected.out)
    assert "ü" in "".join(lines)
