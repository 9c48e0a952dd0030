"""bin/quickstart from phrases to a SavedModel, with almost no training."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.messages import tells

# Just enough to learn to end a sentence; otherwise every search runs to its limit.
STEPS = 100


def quickstart(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(ROOT / "bin" / "quickstart"), *arguments],
        cwd=directory, capture_output=True, text=True, check=False, timeout=600,
        env={**os.environ, "QUICKSTART_STEPS": str(STEPS)},
    )  # fmt: skip


@pytest.mark.long  # core_alone_test does the same steps in Python
def test_all_steps_run_and_a_bad_model_is_an_error(tmp_path: Path) -> None:
    if not (ROOT / ".venv" / "installed").is_file():
        pytest.skip("no .venv, which bin/quickstart would install; bin/test makes it")
    result = quickstart(tmp_path, "new/quick start")
    assert result.returncode == 1, result.stderr
    sentence = result.stderr.splitlines()[-1]
    assert re.fullmatch(r"error: .*\b\d?\d\.\d ?%.*\b90 ?%.*", sentence), result.stderr
    assert "Traceback" not in result.stderr

    folder = tmp_path / "new" / "quick start"  # relative to the current folder, not to the project
    assert (folder / "data" / "train" / "store.json").is_file()
    assert [path.name for path in (folder / "run" / "checkpoints").iterdir()] == [
        f"step-{STEPS:08d}"
    ]
    assert (folder / "export" / "1" / "saved_model.pb").is_file()
    assert list(tmp_path.iterdir()) == [tmp_path / "new"]

    assert [line[3:9] for line in result.stdout.splitlines() if line.startswith("== ")] == [
        f"{i} of 6" for i in range(1, 7)
    ]
    found = re.search(
        r"\nHeld-out phrases translated exactly: (\d+\.\d)% of 1,000\n", result.stdout
    )
    assert found, result.stdout
    assert float(found[1]) < 20, "a model of a few steps cannot translate"


def test_help_and_wrong_arguments_do_nothing(tmp_path: Path) -> None:
    shown = quickstart(tmp_path, "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "bin/quickstart [DIR]" in shown.stdout and "#" not in shown.stdout
    wrong = quickstart(tmp_path, "--steps")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("error: ") and wrong.stderr.count("\n") == 1
    assert tells(wrong.stderr, "--steps", "bin/quickstart", "directory")
    assert list(tmp_path.iterdir()) == []
