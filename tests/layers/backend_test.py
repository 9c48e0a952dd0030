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
from keras_transformer.models.transformer import Transformer
from tests import reference
from tests.layers.layer_check import randomize, to_numpy
config = ModelConfig(
    source_vocab_size=11, target_vocab_size=11, num_encoder_layers=2, num_decoder_layers=2,
    d_model=8, d_ff=12, num_heads=2)
model = Transformer(config)
model.build()
weights = randomize(model)
source = np.array([[5, 6, 7, 8, 3], [9, 10, 3, 0, 0]], np.int32)
target = np.array([[2, 6, 5, 4], [2, 10, 9, 8]], np.int32)
logits = to_numpy(model({"source_ids": source, "target_ids": target}))
expected = reference.transformer(source, target, weights, config)
np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)
assert np.abs(expected).max() > 0.1
print(logits.shape)
"""


def test_model_on_jax_with_no_tensorflow_is_the_papers() -> None:
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
    assert result.stdout.strip() == "(2, 4, 11)"


def test_tests_of_layers_do_not_import_tensorflow() -> None:
    for path in sorted(Path(__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not any(name.startswith("tensorflow") for name in names), path
