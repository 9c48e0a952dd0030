"""How commands start, help and fail."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from absl import flags

from keras_transformer.cli import app, main
from keras_transformer.console import progress_bar
from keras_transformer.errors import InputError
from keras_transformer.runs.run_directory import RunDirectory
from tests.conftest import PHRASES
from tests.driver import Driver
from tests.messages import mentions, tells

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = sorted(main.command_modules())
# What a shell may set for other programs.
HOSTILE = {
    "KERAS_BACKEND": "jax",
    "LC_ALL": "POSIX",
    "PYTHONIOENCODING": "ascii",
    "PYTHONUNBUFFERED": "1",
    "TERM": "dumb",
    "TF_USE_LEGACY_KERAS": "1",
}


def python(*arguments: str | Path, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, encoding="utf-8", check=False,
        timeout=120, env={**os.environ, "PYTHONPATH": str(ROOT), **settings},
    )  # fmt: skip


def test_a_command_works_in_a_hostile_environment(
    run_directory: RunDirectory, driver: Driver, tmp_path: Path
) -> None:
    (tmp_path / "rün").symlink_to(run_directory.path)
    (tmp_path / "ü.en").write_text("\n".join(PHRASES) + "\n", "utf-8")
    home = tmp_path / "home"
    home.mkdir()
    (home / "keras.json").write_text('{"floatx": "float16", "image_data_format": "x"}')
    flags = [f"--model_dir={tmp_path / 'rün'}", f"--input={tmp_path / 'ü.en'}", "--format=jsonl"]
    command = ("-m", "keras_transformer", "translate", *flags)
    ended = python(*command, **HOSTILE, KERAS_HOME=str(home))
    expected = driver.run(tmp_path, "translate", flags, "")
    assert (ended.returncode, ended.stderr) == (expected.code, expected.err) == (0, "")
    numbers = r"-?\d+\.\d+"  # the last digits depend on the number of threads
    assert re.sub(numbers, "", ended.stdout) == re.sub(numbers, "", expected.out)
    assert "ü" in ended.stdout


def test_scripts_run_the_commands_of_their_clone(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "bin", tmp_path / "bin")
    (tmp_path / "keras_transformer").symlink_to(ROOT / "keras_transformer")
    ended = python(tmp_path / "bin" / "train.py", "--help", PYTHONPATH="")
    assert ended.returncode == 0 and "keras-transformer train " in ended.stdout
    scripts = {path.stem: path for path in (ROOT / "bin").glob("*.py") if path.stem != "clone"}
    assert {*main.CORE} <= scripts.keys() <= {*COMMANDS}
    for command, script in scripts.items():
        assert os.access(script, os.X_OK) and f'run("{command}")' in script.read_text()


def test_help_lists_all_commands_without_loading_a_heavy_package() -> None:
    program = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        "from keras_transformer.cli.main import main; main()"
    )
    ended = python("-c", program, "--help")
    assert ended.returncode == 0
    lines = ended.stdout.splitlines()
    listed = [line.split() for line in lines if line.startswith("    ")]
    assert {words[0] for words in listed} - {"keras-transformer"} == {*COMMANDS}
    assert min(map(len, listed)) >= 3 and max(map(len, lines[:-1])) <= 120
    loaded = set(ended.stderr.split())
    assert not loaded & {"tensorflow", "keras", "numpy", "keras_transformer.cli.train"}
    recipes, deploy = lines[-1].partition(": ")[2].split(", ")
    assert (Path(recipes) / "multi30k_en_de" / "recipe.json").is_file()
    assert (Path(deploy) / "docker-compose.yml").is_file()


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_short_and_shows_an_example(command: str, driver: Driver, tmp_path: Path) -> None:
    code, out, err, _ = driver.run(tmp_path, command, ["--help"], "")
    assert (code, err) == (0, "")
    assert f"keras-transformer {command} " in out
    assert out.count("\n") <= 54 and max(map(len, out.splitlines())) <= 110


def test_help_has_the_flags_of_the_command(driver: Driver, tmp_path: Path) -> None:
    out = driver.run(tmp_path, "score", ["--help"], "").out
    flags = [line.split()[0] for line in out.splitlines() if line.startswith("  --")]
    assert flags[:2] == ["--model_dir", "--source"] and "--set" in flags
    assert "(required)" in out and "(default: tsv)" in out


@pytest.mark.parametrize(
    ("line", "code", "facts"),
    [
        ("trian", 2, ["trian", "train", "keras-transformer --help"]),
        ("translate-corpus", 2, ["translate_corpus", "keras-transformer --help"]),
        ("app", 2, ["app", "keras-transformer --help"]),
        ("train --dat=3", 2, ["--dat is not a flag", "Did you mean --data_dir?"]),
        ("train --run-dir=3", 2, ["--run-dir is not a flag", "Did you mean --run_dir?"]),
        ("train --data_dir=x", 2, ["--run_dir", "missing", "--help"]),
        ("train --data_dir= --run_dir=x", 2, ["--data_dir", "empty", "--help"]),
        ("score --model_dir=x stray", 2, ["stray", "--name=value"]),
        ("score --model_dir=x --format=xml", 2, ["--format=xml"]),
        ("translate --model_dir=x --nodocument=1", 2, ["--nodocument=1"]),
        ("score --model_dir=x --source=a", 1, ["Pairs", "--source"]),
        ("translate --model_dir=x --input=none", 1, ["none", "No such file"]),
    ],
)
def test_invalid_input_gives_a_one_line_error(
    line: str, code: int, facts: list[str], driver: Driver, tmp_path: Path
) -> None:
    name, *arguments = line.split()
    ended = driver.run(tmp_path, name, arguments, "")
    assert (ended.code, ended.out) == (code, "")
    assert ended.err.startswith("error: ") and ended.err.count("\n") == 1
    assert tells(ended.err, *facts)


def test_version(driver: Driver, tmp_path: Path) -> None:
    assert driver.run(tmp_path, "--version", [], "").out.startswith("keras-transformer 0.")


def test_a_defect_keeps_its_stack_trace() -> None:
    with pytest.raises(ZeroDivisionError):
        app.exit_code(lambda: 1 // 0)


@pytest.mark.parametrize(
    ("error", "facts"),
    [
        (ModuleNotFoundError("no", name="not_there.part"), ["not_there", "pip install"]),
        (InputError("line 3 is empty."), ["line 3 is empty."]),
        (OSError(28, "No space left on device", "data/a"), ["data/a", "No space left"]),
    ],
)
def test_expected_errors_are_one_line(
    error: Exception, facts: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    def program() -> int:
        raise error

    assert app.exit_code(program) == 1
    err = capfd.readouterr().err
    assert err.startswith("error: ") and err.count("\n") == 1 and tells(err, *facts)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_end_a_command_with_one_line(
    number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(number)

    def program() -> None:
        os.kill(os.getpid(), number)
        time.sleep(60)

    assert app.exit_code(program) == 130
    assert re.fullmatch(mentions("error:", "Ctrl-C") + ".*\n", capsys.readouterr().err)
    assert signal.getsignal(number) == before


def test_nohup_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert app.exit_code(lambda: os.kill(os.getpid(), signal.SIGHUP)) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("redirect", "code", "facts"),
    [
        ("| true", "141", []),
        (">/dev/full", "1", ["standard output", "No space left"]),
        (">&-", "0", []),
    ],
)
def test_output_that_cannot_be_written(
    redirect: str, code: str, facts: list[str], tmp_path: Path
) -> None:
    command = f"{sys.executable} -m keras_transformer train --help; echo $? >code"
    result = subprocess.run(
        ["bash", "-c", f"(sleep 0.1; {command}) {redirect}"], cwd=tmp_path, check=False,
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (tmp_path / "code").read_text().strip() == code
    assert result.stderr.count("\n") == bool(facts)
    assert not facts or tells(result.stderr, "error:", *facts)


def test_a_dumb_terminal_has_no_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert progress_bar(3, "lines").disable


def test_two_commands_in_one_process_do_not_share_flags(driver: Driver, tmp_path: Path) -> None:
    commands = [("score", "--source=a", ""), ("translate", "--target=b", ""), ("report", "", "")]
    results = driver.run_all(tmp_path, commands)
    assert [result.code for result in results] == [2, 2, 1]
    assert tells(results[0].err, "--model_dir is missing")
    assert tells(results[1].err, "--target is not a flag")


def test_data_folders_are_found_inside_a_wheel_and_beside_a_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert app.data_folder("recipes") == ROOT / "recipes"
    (tmp_path / "keras_transformer" / "recipes").mkdir(parents=True)
    monkeypatch.setattr(app, "__file__", str(tmp_path / "keras_transformer" / "cli" / "app.py"))
    assert app.data_folder("recipes") == tmp_path / "keras_transformer" / "recipes"
    assert app.data_folder("deploy") == tmp_path / "deploy"


# Flags whose help differs between commands, with the reason.
DIFFERENT_HELP = {
    "input": "a conversion reads a model, other commands read text",
    "model_dir": "each command names the kinds of models that it takes",
    "output": "a conversion writes a run, other commands write text",
}


@pytest.fixture(scope="module")
def texts() -> Iterator[dict[str, dict[str, str]]]:
    """The help of every flag, by its name and the command."""
    found: dict[str, dict[str, str]] = {}
    for command, module in main.command_modules().items():
        values = flags.FlagValues()
        with pytest.MonkeyPatch.context() as patch:
            # The flags of a command would collide with those of the others.
            for name in filter(re.compile("DEFINE_").match, dir(flags)):
                patch.setattr(flags, name, partial(getattr(flags, name), flag_values=values))
            patch.setattr(flags, "mark_flags_as_required", lambda names: None)
            importlib.import_module(module).define_flags()
        for name in values:
            # Absl adds the choices before the help, and a line after the help of repeatable flags.
            text = (values[name].help or "").split(">: ")[-1].split(";\n")[0]
            found.setdefault(name, {})[command] = text
    return found


def test_a_flag_means_the_same_in_every_command(texts: dict[str, dict[str, str]]) -> None:
    differing = {name for name, helps in texts.items() if len({*helps.values()}) > 1}
    assert differing == DIFFERENT_HELP.keys()
    assert texts["max_steps"].keys() >= {"train", "sweep"}
