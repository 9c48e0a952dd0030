"""Exponents of known powers, path lengths of the paper, and the whole command at small sizes."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import keras
import layer_complexity
import numpy as np
import pytest
from absl.testing import flagsaver

from keras_transformer.layers import SelfAttention
from tests.conftest import ROOT


def test_exponent_of_powers() -> None:
    x = [1.0, 2.0, 4.0, 8.0]
    assert layer_complexity.exponent(x, [3 * each**2 for each in x]) == 2.0
    assert layer_complexity.exponent(x, [100.0, 1.0, 2.0, 8.0]) == 1.5
    assert layer_complexity.exponent(x[:2], [1.0, 2.0]) is None


def test_dependencies_of_layers() -> None:
    n = 70  # more positions than one gradient computation has rows
    offset = np.arange(n)[:, None] - np.arange(n)
    dependencies = layer_complexity.dependencies
    found = dependencies(keras.layers.Conv1D(3, 3, padding="same"), n, 3)
    np.testing.assert_array_equal(found, np.abs(offset) <= 1)
    causal = keras.layers.Conv1D(3, 2, padding="causal", dilation_rate=4)
    np.testing.assert_array_equal(dependencies(causal, n, 3), np.isin(offset, (0, 4)))
    windowed = SelfAttention(1, 3, window=8, causal=True)
    np.testing.assert_array_equal(dependencies(windowed, n, 3), (offset >= 0) & (offset <= 4))
    assert dependencies(SelfAttention(1, 3), n, 3).all()


@pytest.mark.parametrize("n", [2, 17, 70])
def test_path_lengths_match_the_paper(n: int) -> None:
    with flagsaver.as_parsed(window="8", kernel="3", head_dim="4"):
        assert {name: layer_complexity.path_length(name, n) for name in layer_complexity.PAPER} == {
            "self-attention": 1,
            "restricted self-attention": math.ceil((n - 1) / 4),
            "LSTM": n,
            "GRU": n,
            "convolution": n - 1,
            "dilated convolutions": math.ceil(math.log(n, 3)),
            "separable convolution": n - 1,
        }


@pytest.mark.parametrize("n", [2, 9, 17, 27, 28])
def test_the_dilated_stack_connects_every_output_to_all_earlier_inputs(n: int) -> None:
    with flagsaver.as_parsed(kernel="3", head_dim="4"):
        layers = layer_complexity.make_layers("dilated convolutions", n, 4)
    reached = np.eye(n, dtype=bool)
    for layer in layers:
        assert not np.array_equal(reached, np.tri(n, dtype=bool))  # the layer is needed
        reached = (layer_complexity.dependencies(layer, n, 4).astype(int) @ reached) > 0
    np.testing.assert_array_equal(reached, np.tri(n, dtype=bool))


@pytest.mark.long
def test_the_whole_command(tmp_path: Path) -> None:
    command = [
        sys.executable, str(ROOT / "benchmarks" / "layer_complexity.py"), "--lengths=16,32,64",
        "--widths=8", "--length=16", "--width=8", "--head_dim=8", "--window=4",
        "--path_lengths=8,16", "--rounds=1", "--seconds=0", "--table",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *table, last = done.stdout.splitlines()
    result = json.loads(last)
    assert [(point["n"], point["d"]) for point in result["points"]] == [(16, 8), (32, 8), (64, 8)]
    for name, (complexity, _) in layer_complexity.PAPER.items():
        assert all(point["milliseconds"][name]["median"] > 0 for point in result["points"])
        assert isinstance(result["exponents"][name]["n"], float)
        assert result["exponents"][name]["d"] is None  # one point
        assert any(line.startswith(f"| {name} | O({complexity}) |") for line in table)
    assert result["maximum_path_lengths"]["LSTM"] == {"8": 8, "16": 16}
