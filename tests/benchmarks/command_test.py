"""How benchmarks start and fail."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


def plan(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a benchmark that is quick, from a directory of its own."""
    command = [sys.executable, ROOT / "benchmarks/training_plan.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


def test_it_ends_with_what_main_returns(tmp_path: Path) -> None:
    done = plan(tmp_path, "--recipes=wmt14_en_de_base")
    assert done.returncode == 0
    assert json.loads(done.stdout)["recipes"].keys() == {"wmt14_en_de_base"}


@pytest.mark.parametrize(
    ("argument", "code", "told"),
    [
        ("wmt14_en_de_big", 2, "'wmt14_en_de_big' is no flag; expected --name=value"),
        ("--recipes=nobody", 1, "there is no recipe 'nobody'; expected one of "),
    ],
)
def test_mistakes_are_one_sentence(tmp_path: Path, argument: str, code: int, told: str) -> None:
    done = plan(tmp_path, argument)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.splitlines()[-1].startswith(f"error: {told}")
    assert "Traceback" not in done.stderr


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
