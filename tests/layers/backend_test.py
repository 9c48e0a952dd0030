"""The layers belong to Keras, not to TensorFlow: they load and run where there is none."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
sys.modules["tensorflow"] = None  # importing it raises
import numpy as np
from keras_transformer.config import ModelConfig
from keras_transformer.model import Transformer
model = Transformer(ModelConfig(
    source_vocab_size=11, target_vocab_size=11, num_encoder_layers=1, num_decoder_layers=1,
    d_model=8, d_ff=12, num_heads=2))
ids = np.array([[5, 6, 3]], np.int32)
print(model({"source_ids": ids, "target_ids": ids[:, :2]}).shape)
"""


def test_model_runs_on_jax_with_no_tensorflow() -> None:
    pytest.importorskip("jax")
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "KERAS_BACKEND": "jax"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "(1, 2, 11)"


def test_tests_of_layers_do_not_import_tensorflow() -> None:
    for path in sorted(Path(__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not any(name.startswith("tensorflow") for name in names), path
