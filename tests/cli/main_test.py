"""How commands start, help and fail."""

import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from keras_transformer.cli import app, config_flags, main
from keras_transformer.config import Config
from keras_transformer.errors import InputError
from tests.driver import Driver
from tests.messages import mentions, tells

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = sorted(main.command_modules())


def python(*arguments: str | Path, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, encoding="utf-8", check=False,
        timeout=120, env={**os.environ, "PYTHONPATH": str(ROOT), **settings},
    )  # fmt: skip


def test_scripts_run_the_commands_of_their_clone(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "bin", tmp_path / "bin")
    (tmp_path / "keras_transformer").symlink_to(ROOT / "keras_transformer")
    ended = python(tmp_path / "bin" / "train.py", "--help", PYTHONPATH="")
    assert ended.returncode == 0 and "keras-transformer train " in ended.stdout
    scripts = {path.stem: path for path in (ROOT / "bin").glob("*.py") if path.stem != "clone"}
    assert {*main.CORE} <= scripts.keys() <= {*COMMANDS}
    for command, script in scripts.items():
        assert os.access(script, os.X_OK) and f'run("{command}")' in script.read_text()


@pytest.mark.parametrize("module", [*main.CORE, "main"])
def test_modules_run_with_python_m(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = "train" if module == "main" else module
    path = str(ROOT / "keras_transformer" / "cli" / f"{module}.py")
    monkeypatch.setattr(sys, "argv", [path, *[command] * (module == "main"), "--help"])
    with pytest.raises(SystemExit, match="^0$"):
        runpy.run_path(path, run_name="__main__")
    assert f"keras-transformer {command} " in capsys.readouterr().out


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
    out = driver.run(tmp_path, "train", ["--help"], "").out
    flags = [line.split()[0] for line in out.splitlines() if line.startswith("  --")]
    assert flags[:2] == ["--data_dir", "--run_dir"] and "--set" in flags
    fields = Config.declarations().items()
    expected = [f for name, f in fields if name.startswith("training.") and f.metadata["flag"]]
    assert len(expected) > 20 and {f"--{field.name}" for field in expected} - {*flags} == {
        "--deterministic"  # --[no]deterministic
    }
    assert "(required)" in out and "(default: auto)" in out
    assert "loss|bleu" in out  # the choices of a setting


def test_a_defect_keeps_its_stack_trace() -> None:
    with pytest.raises(ZeroDivisionError):
        app.exit_code(lambda: 1 // 0)


@pytest.mark.parametrize(
    ("error", "facts"),
    [
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
    ("flags", "redirect", "code", "facts"),
    [
        ("--help", "| true", "141", []),
        ("--help", ">/dev/full", "1", ["standard output", "No space left"]),
        ("--help", ">&-", "0", []),
        ("--data_dir=", "2>/dev/full", "2", []),
    ],
)
def test_output_that_cannot_be_written(
    flags: str, redirect: str, code: str, facts: list[str], tmp_path: Path
) -> None:
    command = f"{sys.executable} -m keras_transformer train {flags}; echo $? >code"
    result = subprocess.run(
        ["bash", "-c", f"(sleep 0.1; {command}) {redirect}"], cwd=tmp_path, check=False,
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (tmp_path / "code").read_text().strip() == code
    assert result.stderr.count("\n") == bool(facts)
    assert not facts or tells(result.stderr, "error:", *facts)


def test_two_commands_in_one_process_do_not_share_flags(driver: Driver, tmp_path: Path) -> None:
    commands = [("score", "--source=a", ""), ("translate", "--target=b", ""), ("report", "", "")]
    results = driver.run_all(tmp_path, commands)
    assert [result.code for result in results] == [2, 2, 1]
    assert tells(results[0].err, "--model_dir must have a value")
    assert tells(results[1].err, "Unknown command line flag 'target'")


def test_flags_of_several_commands_are_declared_once() -> None:
    """A flag means the same in every command, except for these, which name what they take."""
    commands: dict[str, set[str]] = {}
    for command, module in main.command_modules().items():
        source = ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text("utf-8")
        for name in re.findall(r"flags\.DEFINE_\w+\(\s*\"(\w+)\"", source):
            commands.setdefault(name, set()).add(command)
    shared = {name for name, found in commands.items() if len(found) > 1}
    assert shared <= {"input", "model_dir", "output"}
    declared = {*config_flags.PATHS, *config_flags.OPTIONS, *config_flags.FIELDS}
    assert commands.keys() & declared <= {"input", "model_dir", "output", "num_microbatches"}
