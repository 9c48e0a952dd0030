"""Shared flags, and how a program starts, helps and fails, seen from outside as a subprocess."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.cli import config_flags
from keras_transformer.errors import InputError
from tests.messages import mentions, tells

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = '''"""Shows a configuration.

Example:
  keras-transformer show --data_dir=x
"""
import logging
import time

from absl import flags

from keras_transformer.cli import app, config_flags

config_flags.define_path_flags("data_dir", required=True)
config_flags.define_config_flags("preset", "max_steps", "beam_size")
flags.DEFINE_boolean("lowercase", False, "in lower case")
flags.DEFINE_enum("do", "show", ["show", "load", "sleep", "fail", "print", "import"], "what to do")


def main():
    if flags.FLAGS.do == "load":
        app.load_tensorflow()
    from keras_transformer import presets

    logging.getLogger("keras_transformer.room").info("said by the package")
    logging.getLogger("elsewhere").info("said by a library")
    settings = config_flags.config_settings()
    presets.preset(flags.FLAGS.preset or "tiny").updated(settings)
    print(settings, flush=True)
    if flags.FLAGS.do == "sleep":
        time.sleep(60)
    if flags.FLAGS.do == "fail":
        raise ValueError("a defect")
    if flags.FLAGS.do == "import":
        import not_there
    if flags.FLAGS.do == "print":
        for line in range(1_000_000):
            print(line)


if __name__ == "__main__":
    app.run(main)
'''


@pytest.fixture
def start(tmp_path):
    (tmp_path / "show.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def start_program(*arguments: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, str(tmp_path / "show.py"), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    return start_program


@pytest.fixture
def run(start):
    def run_program(*arguments: str) -> tuple[int, str, str]:
        process = start(*arguments)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    return run_program


class TestParseSettings:
    def test_fields_and_values(self):
        given_settings = ["training.label_smoothing=0.2", "model.norm_position = pre", "a.b=c=d"]
        assert config_flags.parse_settings(given_settings) == {
            "training.label_smoothing": "0.2",
            "model.norm_position": "pre",
            "a.b": "c=d",
        }

    @pytest.mark.parametrize("wrong", ["training.seed", "=3", " = 3", ""])
    def test_no_assignment(self, wrong):
        with pytest.raises(InputError, match=mentions("setting", "--set=section.field=value")):
            config_flags.parse_settings([wrong])

    def test_twice(self):
        with pytest.raises(InputError, match="model.d_ff twice, as 1 and as 2"):
            config_flags.parse_settings(["model.d_ff=1", "model.d_ff=2"])

    @given(st.lists(st.text(max_size=12) | st.from_regex(r"[a-c]\.[a-c]=\w", fullmatch=True)))
    @settings(max_examples=100, deadline=None)
    def test_any_text_is_settings_or_an_input_error(self, assignments):
        try:
            parsed = config_flags.parse_settings(assignments)
        except InputError:
            return
        assert len(parsed) == len(assignments) and all(parsed)


def test_only_what_the_user_gave_becomes_a_setting(run):
    code, out, err = run("--data_dir=x", "--beam_size=2", "--set=training.seed=5", "--do=load")
    assert (code, out) == (0, "{'training.seed': '5', 'decoding.beam_size': '2'}\n")
    assert err == "said by the package\n"


def test_help_is_one_screen_with_only_the_flags_of_the_program(run):
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "Shows a configuration."
    assert "  keras-transformer show --data_dir=x" in lines
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
def test_invalid_input_gives_a_one_line_error(run, arguments, code, message):
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
def test_the_error_names_a_flag_without_a_value(run, value):
    code, out, err = run(f"--data_dir={value}")
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1
    assert tells(err, "--data_dir", "empty", "--help")


def test_a_closed_pipe_is_not_an_error(start):
    process = start("--data_dir=x", "--do=print")
    process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 141
    assert err == "said by the package\n"


def test_a_missing_package_is_named_with_the_command_that_installs_it(run):
    code, _, err = run("--data_dir=x", "--do=import")
    assert code == 1
    assert err.splitlines()[-1].startswith("error: not_there is not installed for ")
    assert err.splitlines()[-1].endswith("run: pip install -e . -c constraints.txt")
