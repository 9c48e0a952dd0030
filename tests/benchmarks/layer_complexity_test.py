"""Exponents of known powers, memory of known tensors, and the whole command at small sizes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from complexity.layers import KINDS, MAKERS, Sizes
from complexity.measuring import peaks_mb
from complexity.results import exponents, growth

from tests.conftest import ROOT
from tests.messages import mentions

COMMAND = (sys.executable, str(ROOT / "benchmarks" / "layer_complexity.py"))


def test_exponents_of_powers() -> None:
    x = [1.0, 2.0, 4.0, 8.0]
    assert exponents(x, [3 * each**2 for each in x]) == {"all": 2.0, "last three": 2.0}
    found = exponents(x, [1.0, 1.0, 2.0, 8.0])
    assert found["last three"] == 1.5
    assert found["all"] == pytest.approx(np.polyfit([0, 1, 2, 3], [0, 0, 1, 3], 1)[0], abs=1e-3)
    assert exponents(x, [-1.0, 1.0, 2.0, 4.0])["all"] is None
    assert exponents([1.0], [1.0]) == {"all": None, "last three": None}


def test_growth_of_logarithms() -> None:
    assert growth("log_k(n)", {9: 7, 27: 9, 81: 11}, 3) == "9: 7, 81: 11; 2.00 per log_k(n)"
    assert growth("n/k", {8: 3, 16: 6, 32: 12}, 3) == "8: 3, 32: 12; n^1.00"


def test_memory_is_that_of_the_scores() -> None:
    n = 1024
    sizes = Sizes(n, d=64, window=64, kernel=3, head_dim=64)
    scores = n * n * 4 / 2**20  # MB
    full, restricted = (
        peaks_mb(name, sizes, 1, 1) for name in ("self-attention", "restricted self-attention")
    )
    assert scores < full["forward"] < 3 * scores
    assert full["forward"] < full["forward and backward"] < 8 * scores
    # A window of 65 of 1,024 keys: 129 are compared.
    assert 0 < restricted["forward"] < scores


def test_a_process_that_dies_is_told_of() -> None:
    sizes = Sizes(8, d=64, window=64, kernel=3, head_dim=0)  # no heads of no width
    with pytest.raises(RuntimeError, match=mentions("self-attention", "ended")):
        peaks_mb("self-attention", sizes, 1, 1)


def test_the_whole_command(tmp_path: Path) -> None:
    flags = (
        "--lengths=16", "--widths=8", "--length=16", "--width=8", "--head_dim=8", "--window=4",
        "--path_lengths=8,16", "--rounds=1", "--processes=1", "--seconds=0", "--table",
    )  # fmt: skip
    done = subprocess.run([*COMMAND, *flags], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *table, last = done.stdout.splitlines()
    found = json.loads(last)
    points = {point["kind"]: point for point in found["points"]}
    assert points.keys() == MAKERS.keys() and {point["n"] for point in found["points"]} == {16}
    assert points["self-attention"]["flop"]["BatchMatMulV2"] == 2 * 2 * 16**2 * 8
    assert points["GRU"]["sequential_operations"] > points["convolution"]["sequential_operations"]
    assert points["LSTM"]["milliseconds"]["forward and backward"]["median"] > 0
    assert found["exponents"]["LSTM"]["n"]["flop"]["all"] is None  # of one point
    assert found["maximum_path_lengths"]["LSTM"] == {"8": 8, "16": 16}
    for name, kind in KINDS.items():
        assert any(line.startswith(f"| {name} | O({kind.complexity}) |") for line in table)
