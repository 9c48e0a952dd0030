"""The console command and the scripts of bin/: the same commands by two names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from keras_transformer.cli import app, main
from tests.messages import tells

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(path for path in (ROOT / "bin").glob("*.py") if path.name != "clone.py")
MODULES = {path.stem for path in (ROOT / "keras_transformer" / "cli").glob("*.py")}
SHARED = {"__init__", "app", "config_flags", "environment", "main"}

CONSOLE = (
    "import sys; sys.argv[0] = 'keras-transformer'\n"
    "from keras_transformer.cli.main import main\n"
    "main()"
)


def command_of(script: Path) -> str:
    return {"average_checkpoints": "average"}.get(script.stem, script.stem)


def python(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT), **settings},
    )  # fmt: skip


def console(*arguments: str) -> subprocess.CompletedProcess[str]:
    return python("-c", CONSOLE, *arguments)


def test_every_module_is_a_command_with_a_script() -> None:
    assert set(main.COMMANDS) == MODULES - SHARED
    assert sorted(map(command_of, SCRIPTS)) == sorted(main.COMMANDS)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_help_is_short_shows_an_example_and_is_the_same_by_both_names(script: Path) -> None:
    ended = python(str(script), "--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert len(lines) <= 54 and max(map(len, lines)) <= 100
    assert f"bin/{script.name} " in ended.stdout
    assert os.access(script, os.X_OK) and script.read_text().startswith("#!/usr/bin/env python3\n")

    shown = console(command_of(script), "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert f"keras-transformer {command_of(script)} " in shown.stdout
    assert "bin/" not in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 110
    renamed = ended.stdout
    for each in SCRIPTS:
        renamed = renamed.replace(f"bin/{each.name}", f"keras-transformer {command_of(each)}")
    assert renamed.split() == shown.stdout.split()


def test_help_lists_all_commands_without_loading_a_heavy_package() -> None:
    program = (
        f"import atexit; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); {CONSOLE}"
    )
    ended = python("-c", f"import sys\n{program}", "--help")
    assert ended.returncode == 0
    lines = ended.stdout.splitlines()
    listed = [line.split() for line in lines if line.startswith("    ")]
    assert {words[0] for words in listed} - {"keras-transformer"} == set(main.COMMANDS)
    assert min(map(len, listed)) >= 3 and max(map(len, lines[:-1])) <= 120
    loaded = set(ended.stderr.split())
    assert "keras_transformer.cli.main" in loaded
    assert not loaded & {"tensorflow", "keras", "numpy", "keras_transformer.cli.train"}
    recipes, deploy = lines[-1].partition(": ")[2].split(", ")
    assert (Path(recipes) / "multi30k_en_de" / "recipe.json").is_file()
    assert (Path(deploy) / "docker-compose.yml").is_file()


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["trian"], ["trian", "train", "keras-transformer --help"]),
        (["translate-corpus"], ["translate_corpus", "keras-transformer --help"]),
        (["app"], ["app", "keras-transformer --help"]),
        (["xyz"], ["xyz", "keras-transformer --help"]),
        ([], ["missing", "keras-transformer --help"]),
        (["train", "--dat=3"], ["--dat is not a flag", "Did you mean --data_dir?"]),
        (["train", "--run-dir=3"], ["--run-dir is not a flag", "Did you mean --run_dir?"]),
        (["train", "--max_steps=1", "--max_steps=2"], ["--max_steps=2", "was 1 before"]),
    ],
)
def test_invalid_commands_give_a_one_line_error(arguments: list[str], facts: list[str]) -> None:
    ended = console(*arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: ") and ended.stderr.count("\n") == 1
    assert tells(ended.stderr, *facts)


def test_errors_name_the_commands_of_the_console(tmp_path: Path) -> None:
    flags = [f"--run_dir={tmp_path / 'none'}", "--select=best"]
    assert "as keras-transformer train --run_dir writes" in console("average", *flags).stderr
    script = str(ROOT / "bin" / "average_checkpoints.py")
    assert "as bin/train.py --run_dir writes" in python(script, *flags).stderr


def test_version() -> None:
    assert console("--version").stdout.startswith("keras-transformer 0.")


def test_two_commands_in_one_process_do_not_share_flags(tmp_path: Path) -> None:
    program = (
        "from keras_transformer.cli import main\n"
        "import keras_transformer.cli.score, keras_transformer.cli.translate\n"
        "for command, *flags in (('score', '--source=a'), ('translate', '--target=b'),\n"
        "                        ('score', '--model_dir=x', '--source=a'), ('report',)):\n"
        "    try: main.run(command, [command, *flags])\n"
        "    except SystemExit as ended: print(ended.code)\n"
    )
    ended = python("-c", program)
    assert ended.stdout.split() == ["2", "2", "1", "1"]
    said = ended.stderr.splitlines()
    assert said[0] == "error: --model_dir is missing. --help shows the flags."
    assert said[1] == "error: --target is not a flag. --help shows the flags."
    assert said[2].startswith("error: Pairs are given by --source. Use ")
    assert said[3].startswith("error: --run_dir and --data_dir: neither given")


def test_a_script_finds_the_package_of_its_clone(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "bin", tmp_path / "bin")
    (tmp_path / "keras_transformer").symlink_to(ROOT / "keras_transformer")
    ended = python(str(tmp_path / "bin" / "report.py"), "--help", PYTHONPATH="")
    assert ended.returncode == 0 and "bin/report.py" in ended.stdout


def test_without_packages_a_script_names_the_installation() -> None:
    ended = python("-S", "-E", str(ROOT / "bin" / "train.py"))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("error: absl is not installed for ")
    assert "bin/quickstart" in ended.stderr and ended.stderr.count("\n") == 1


def test_data_folders_are_found_inside_a_wheel_and_beside_a_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert app.data_folder("recipes") == ROOT / "recipes"
    (tmp_path / "keras_transformer" / "recipes").mkdir(parents=True)
    monkeypatch.setattr(app, "__file__", str(tmp_path / "keras_transformer" / "cli" / "app.py"))
    assert app.data_folder("recipes") == tmp_path / "keras_transformer" / "recipes"
    assert app.data_folder("deploy") == tmp_path / "deploy"
