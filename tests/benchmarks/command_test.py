"""How benchmarks start and fail."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.messages import mentions, tells


def run(folder: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a benchmark from a directory of its own."""
    command = [sys.executable, ROOT / "benchmarks" / name, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


def plan(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs one that is quick."""
    return run(folder, "training_plan.py", *arguments)


def test_it_ends_with_what_main_returns(tmp_path: Path) -> None:
    done = plan(tmp_path, "--recipes=wmt14_en_de_base")
    assert done.returncode == 0
    assert json.loads(done.stdout)["recipes"].keys() == {"wmt14_en_de_base"}


@pytest.mark.parametrize(
    ("argument", "code", "told"),
    [
        ("wmt14_en_de_big", 2, mentions("wmt14_en_de_big", "--name=value")),
        ("--recipes=nobody", 1, mentions("recipe", "nobody")),
        ("--gpus=8,x", 2, mentions("--gpus=['8', 'x']")),
        ("--parts=0", 2, mentions("--parts=['0']")),
        ("--gpus=none", 2, mentions("--gpus=['none']")),
        ("--utilization=0", 2, mentions("--utilization=0", "0.0")),
    ],
)
def test_mistakes_are_one_sentence(tmp_path: Path, argument: str, code: int, told: str) -> None:
    done = plan(tmp_path, argument)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert re.search(told, done.stderr.splitlines()[-1])
    assert "Traceback" not in done.stderr


def test_a_number_may_be_none_where_that_says_something(tmp_path: Path) -> None:
    arguments = ["--export=nowhere", "--source=nowhere.txt", "--clients=none"]
    done = run(tmp_path, "serve.py", *arguments)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert tells(done.stderr, "error:", "nowhere.txt", "missing")


def test_every_benchmark_starts_so() -> None:
    """But prepare.py, which passes on what is no flag of its own."""
    started = set()
    for path in (ROOT / "benchmarks").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("command.run", "app.run"):
                started.add((path.stem, ast.unparse(node)))
    others = {(name, call) for name, call in started if call != "command.run(main)"}
    assert others == {("prepare", "app.run(main)")}
    assert len(started - others) > 10
