"""The whole command with our engine, and with KerasHub's where KerasHub is installed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PHRASES, ROOT

PREPARE = (
    *("bin/prepare.py", "--source=source", "--target=target", "--output_dir=data"),
    *("--vocab_size=80", "--valid_pairs=4", "--workers=1"),
)
COMPARE = (
    *("benchmarks/kerashub.py", "--data_dir=data", "--sizes=tiny", "--batch_tokens=64"),
    *("--rounds=1", "--steps=1", "--beams=2", "--rows=2", "--sentences=2", "--tokens=3"),
    "--engines=keras:float32,kerashub:float32",
)


def run(folder: Path, script: str, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / script), *flags]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def write_data(folder: Path) -> None:
    """Prepares a small parallel corpus in `folder`/data."""
    for name, phrases in (("source", PHRASES[:3]), ("target", PHRASES[3:])):
        lines = [f"{phrase} {number}" for number in range(8) for phrase in phrases]
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    prepared = run(folder, *PREPARE)
    assert prepared.returncode == 0, prepared.stderr


@pytest.mark.long
def test_both_libraries_compute_the_same(tmp_path: Path) -> None:
    write_data(tmp_path)
    done = run(tmp_path, *COMPARE)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])["sizes"]["tiny"]
    engines = {"keras:float32"}
    if importlib.util.find_spec("keras_hub") is None:
        assert "keras_hub" in found["left_out"]["kerashub:float32"]
    else:
        engines.add("kerashub:float32")
    assert found["processes"].keys() == engines
    assert len({facts["parameters"] for facts in found["processes"].values()}) == 1
    assert max(found["largest_difference"].values()) < 2e-5
    assert found["same_outputs"]["beam_2"] == dict.fromkeys(engines, 1.0)
    for task in ("first_fit", "fit", "beam_2"):
        assert found[task]["engines"].keys() == engines
        assert found[task]["engines"]["keras:float32"]["per_second"]["min"] > 0
        assert bool(found[task]["ratios"]) == (len(engines) == 2)


def test_the_weights_need_our_engine(tmp_path: Path) -> None:
    done = run(tmp_path, *COMPARE[:-1], "--engines=kerashub:float32")
    assert (done.returncode, done.stdout) == (1, "")
    assert "keras:float32" in done.stderr.splitlines()[-1]
