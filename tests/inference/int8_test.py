"""Products in int8 against the same arithmetic in NumPy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.export.manifest import write_manifest
from keras_transformer.extensions.paper.baselines.gru import GRU, GRUConfig
from keras_transformer.extensions.serving.engines import open_engine
from keras_transformer.inference import int8, loading
from keras_transformer.models.transformer import Transformer
from tests.builders import refuses
from tests.messages import mentions

RNG = np.random.default_rng(5)
MATRIX = RNG.normal(size=(70, 9)).astype(np.float32)
ROWS = RNG.normal(size=(3, 70)).astype(np.float32)


def test_a_product_equals_its_integers() -> None:
    outputs = int8.int8_product(MATRIX)(ROWS)
    scale = np.abs(MATRIX).max(axis=0) / 63
    row_scale = np.abs(ROWS).max(axis=-1, keepdims=True) / 127
    whole = np.floor(ROWS / row_scale + 0.5) @ np.rint(MATRIX / scale)
    np.testing.assert_allclose(outputs, whole * row_scale * scale, rtol=1e-4, atol=1e-4)
    exact = ROWS @ MATRIX
    error = np.sqrt(np.mean((outputs - exact) ** 2) / np.mean(exact**2))
    assert error < 0.02


def test_rows_do_not_depend_on_each_other() -> None:
    product = int8.int8_product(MATRIX)
    rows = ROWS * [[1e-3], [1.0], [1e4]]
    rows = np.concatenate([rows, np.zeros((1, 70))]).astype(np.float32)
    together = product(rows)
    np.testing.assert_array_equal(together[3], np.zeros(9))
    for i in range(3):
        np.testing.assert_allclose(together[i], product(rows[i : i + 1])[0], rtol=1e-5)


def test_outputs_without_weights_and_long_rows_are_exact() -> None:
    matrix = np.ones((4096, 3), np.float32)
    matrix[:, 1] = 0
    outputs = int8.int8_product(matrix)(np.ones((1, 4096), np.float32))
    np.testing.assert_allclose(outputs, [[4096, 0, 4096]], rtol=1e-6)


def test_only_transformers_are_supported() -> None:
    sizes = {"source_vocab_size": 9, "target_vocab_size": 9, "d_model": 4}
    refuses(int8.use_int8_products, (GRU(GRUConfig(**sizes)),), "gru", "int8")


def test_a_missing_kernel_is_an_error_before_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_kernel(*_: Any) -> Any:
        # The kernel of TensorFlow without oneDNN also fails when the graph runs.
        return tf.function(lambda rows: tf.debugging.check_numerics(rows / 0.0, ""))

    monkeypatch.setattr(int8, "int8_product", without_kernel)
    message = mentions("int8", "oneDNN", "TF_ENABLE_ONEDNN_OPTS=1")
    with pytest.raises(InputError, match=message):
        int8.use_int8_products(Transformer.from_preset("tiny", 9, d_model=4, num_heads=1))
    (tmp_path / "saved_model.pb").touch()
    write_manifest(tmp_path, {"weights": "int8"}, ["saved_model.pb"])
    with pytest.raises(InputError, match=message):
        loading.load_model(tmp_path)
    with pytest.raises(InputError, match=message):
        open_engine(tmp_path, 1)
