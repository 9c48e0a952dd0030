"""How benchmarks start and fail."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.messages import mentions

COMMANDS = {
    *("train_step", "decode", "litert_model", "serve", "prepare", "layer_complexity", "startup"),
    "gpu_scaling",
    "kerashub",
    "program_size",
    "scaling",
    "training_start",
}
SERVE = ("--export=nowhere", "--source=nowhere.txt")


def run(folder: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "benchmarks" / name, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


@pytest.mark.parametrize(
    ("argument", "code", "told"),
    [
        ("--rounds=1", 1, mentions("nowhere.txt", "missing")),
        ("build/export", 2, mentions("build/export", "--name=value")),
        ("--clients=8,x", 2, mentions("--clients=['8', 'x']")),
        ("--clients=0", 2, mentions("--clients=['0']")),
        ("--seconds=0", 2, mentions("--seconds=0", "0.0")),
    ],
)
def test_errors_are_one_line(tmp_path: Path, argument: str, code: int, told: str) -> None:
    done = run(tmp_path, "serve.py", *SERVE, argument)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert re.search(told, done.stderr.splitlines()[-1])
    assert "Traceback" not in done.stderr


def test_every_benchmark_runs_as_a_command() -> None:
    started = set()
    for path in (ROOT / "benchmarks").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node) == "command.run(main)":
                started.add(path.stem)
                assert path.stat().st_mode & 0o111, f"{path} is not executable"
    assert started == COMMANDS


def test_stress_names_its_tests(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.stress", "nothing"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 1
    names = "exactness, fuzz, kill, mixed_precision, server_load"
    assert done.stderr.splitlines()[-1] == f"error: name one of {names}"
