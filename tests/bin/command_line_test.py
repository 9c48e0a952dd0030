"""Shared flags, and how a binary starts, helps and fails, seen from outside as a subprocess."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import command_line

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.errors import InputError
from tests.messages import mentions, tells

ROOT = Path(__file__).resolve().parents[2]
BINARIES = sorted(p for p in (ROOT / "bin").glob("*.py") if p.name != "command_line.py")

BINARY = '''"""Shows a configuration.

Example:
  python bin/show.py --data_dir=x
"""
import logging
import sys
import time

import command_line
from absl import flags

command_line.define_path_flags("data_dir", required=True)
command_line.define_config_flags("preset", "max_steps", "beam_size")
flags.DEFINE_boolean("lowercase", False, "in lower case")
flags.DEFINE_enum("do", "show", ["show", "load", "sleep", "fail", "print"], "what to do")


def main(argv):
    from keras_transformer import presets

    logging.getLogger("keras_transformer.room").info("said by the package")
    logging.getLogger("elsewhere").info("said by a library")
    settings = command_line.config_settings()
    presets.preset(flags.FLAGS.preset or "tiny").updated(settings)
    print(settings, flush=True)
    if flags.FLAGS.do == "sleep":
        time.sleep(60)
    if flags.FLAGS.do == "fail":
        raise ValueError("a defect")
    if flags.FLAGS.do == "print":
        for line in range(1_000_000):
            print(line)


if __name__ == "__main__":
    # The default loads it; where it is not what is tested, that is spared.
    loads = {} if "--do=load" in sys.argv else {"needs_tensorflow": False}
    command_line.run(main, **loads)
'''


@pytest.fixture
def start(tmp_path):
    (tmp_path / "show.py").write_text(BINARY)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'bin'}{os.pathsep}{ROOT}"}

    def start_binary(*arguments: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, str(tmp_path / "show.py"), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    return start_binary


@pytest.fixture
def run(start):
    def run_binary(*arguments: str) -> tuple[int, str, str]:
        process = start(*arguments)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    return run_binary


class TestParseSettings:
    def test_fields_and_values(self):
        given_settings = ["training.label_smoothing=0.2", "model.norm_position = pre", "a.b=c=d"]
        assert command_line.parse_settings(given_settings) == {
            "training.label_smoothing": "0.2",
            "model.norm_position": "pre",
            "a.b": "c=d",
        }

    @pytest.mark.parametrize("wrong", ["training.seed", "=3", " = 3", ""])
    def test_no_assignment(self, wrong):
        with pytest.raises(InputError, match=mentions("setting", "--set=section.field=value")):
            command_line.parse_settings([wrong])

    def test_twice(self):
        with pytest.raises(InputError, match=mentions("model.d_ff", "1", "2")):
            command_line.parse_settings(["model.d_ff=1", "model.d_ff=2"])

    @given(st.lists(st.text(max_size=12) | st.from_regex(r"[a-c]\.[a-c]=\w", fullmatch=True)))
    @settings(max_examples=100, deadline=None)
    def test_any_text_is_settings_or_an_input_error(self, assignments):
        try:
            parsed = command_line.parse_settings(assignments)
        except InputError:
            return
        assert len(parsed) == len(assignments) and all(parsed)


def test_only_what_the_user_gave_becomes_a_setting(run):
    code, out, err = run("--data_dir=x", "--beam_size=2", "--set=training.seed=5", "--do=load")
    assert (code, out) == (0, "{'training.seed': '5', 'decoding.beam_size': '2'}\n")
    assert err == "said by the package\n"


def test_help_is_a_screen_with_the_binarys_own_flags(run):
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "Shows a configuration."
    assert "  python bin/show.py --data_dir=x" in lines
    flags = [line.split()[0] for line in lines if line.startswith("  --")]
    assert flags == (
        "--data_dir --preset --max_steps --beam_size --set --[no]lowercase --do".split()
    )
    assert "(required)" in out and "(default: show)" in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, mentions("error:", "--data_dir", "--help")),
        (["--data_dir=x", "--dat=3"], 2, mentions("error:", "dat")),
        (["--data_dir=x", "stray"], 2, mentions("error:", "stray", "--name=value")),
        (["--data_dir=x", "--do=dance"], 2, mentions("error:", "--do=dance")),
        (["--data_dir=x", "--nolowercase=1"], 2, mentions("error:", "--nolowercase=1")),
        (["--data_dir=x", "--max_steps=few"], 1, mentions("max_steps", "few")),
        (["--data_dir=x", "--preset=huge"], 1, mentions("error:", "huge", "preset")),
        (
            ["--data_dir=x", "--set=training.sed=1"],
            1,
            mentions("error:", "training.sed", "setting"),
        ),
        (
            ["--data_dir=x", "--beam_size=2", "--set=decoding.beam_size=3"],
            1,
            mentions("error:", "decoding.beam_size", "--beam_size=2", "--set="),
        ),
    ],
)
def test_mistakes_are_one_sentence(run, arguments, code, message):
    returned, _, err = run(*arguments)
    (sentence,) = [line for line in err.splitlines() if line != "said by the package"]
    assert returned == code
    assert sentence.startswith("error: ") and re.search(message, sentence)


def test_a_defect_keeps_its_stack_trace(run):
    code, _, err = run("--data_dir=x", "--do=fail")
    assert code == 1
    assert "Traceback" in err and "ValueError: a defect" in err


def test_ctrl_c_is_one_sentence(start):
    process = start("--data_dir=x", "--do=sleep")
    process.stdout.readline()  # it runs
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err and tells(err, "error:", "Ctrl-C")


@pytest.mark.parametrize("value", ["", "a,", ",a"])
def test_a_flag_without_a_value_is_named(run, value):
    code, out, err = run(f"--data_dir={value}")
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1
    assert tells(err, "--data_dir", "empty", "--help")


def test_a_reader_that_leaves_is_no_error(start):
    process = start("--data_dir=x", "--do=print")
    process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 141
    assert err == "said by the package\n"


def test_without_the_package_it_says_how_to_install_it():
    command = [sys.executable, "-S", "-E", str(ROOT / "bin" / "command_line.py")]
    process = subprocess.run(command, capture_output=True, text=True, cwd="/")
    assert process.returncode == 1
    assert process.stderr.startswith("error: ") and tells(process.stderr, "absl", "installed")
    assert "bin/quickstart" in process.stderr and process.stderr.count("\n") == 1


@pytest.mark.parametrize("binary", BINARIES, ids=[path.stem for path in BINARIES])
def test_help_of_every_binary_is_short_and_shows_an_example(binary):
    process = subprocess.run(
        [sys.executable, str(binary), "--help"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (process.returncode, process.stderr) == (0, "")
    lines = process.stdout.splitlines()
    assert len(lines) <= 54 and max(map(len, lines)) <= 100
    assert f"bin/{binary.name} " in process.stdout
    assert os.access(binary, os.X_OK) and binary.read_text().startswith("#!/usr/bin/env python3\n")
