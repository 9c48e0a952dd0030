"""Benchmarks start: their help is printed without noise."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

COMMANDS = [
    path
    for path in sorted((ROOT / "benchmarks").glob("*.py"))
    if "command.run(main)" in path.read_text("utf-8")
]


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.stem)
def test_help_is_printed_quietly(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(path), "--help"], capture_output=True, text=True, check=True
    )
    assert f"benchmarks/{path.name}" in done.stdout
    assert done.stderr == ""
    assert path.stat().st_mode & 0o111, f"{path} is not executable"
