"""Weights in float16, int8 and int4 give nearly the same results."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert import schema_py_generated as schema

from keras_transformer.extensions.litert import passes
from keras_transformer.extensions.litert.quantization import _packed, _rounded, quantize
from tests.extensions.litert.tied_model import TABLE, convert, expected, prepared, run


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return convert(tmp_path_factory.mktemp("tied"))


@pytest.mark.parametrize(
    ("weights", "bits", "tolerance", "ops"),
    [
        ("float16", 16, 2e-2, {"DEQUANTIZE": 3}),
        ("int8", 8, 1.0, {"FULLY_CONNECTED": 12, "EMBEDDING_LOOKUP": 3}),
        ("int4", 4, 12.0, {"FULLY_CONNECTED": 12, "EMBEDDING_LOOKUP": 4}),
    ],
)
def test_quantized_weights(
    content: bytes, tmp_path: Path, weights: str, bits: int, tolerance: float, ops: dict[str, int]
) -> None:
    model = prepared(content)
    quantize(model, weights)
    result = run(model, tmp_path)
    assert not np.array_equal(result, expected())
    np.testing.assert_allclose(result, expected(), atol=tolerance)
    # Older runtimes must refuse the model, because they would compute wrong results.
    versions = {
        max(code.builtinCode, code.deprecatedBuiltinCode): code.version
        for code in passes.read(passes.write(model)).operatorCodes
    }
    needed = {getattr(schema.BuiltinOperator, name): version for name, version in ops.items()}
    assert versions.items() >= needed.items()
    largest = max(len(buffer.data) for buffer in model.buffers if buffer.data is not None)
    assert largest == TABLE.size * bits // 8
    # The other signature uses the same weights.
    np.testing.assert_allclose(run(model, tmp_path, "two"), np.abs(result), rtol=1e-5)


def test_few_steps_are_not_wasted_on_the_largest_weights() -> None:
    weights = np.random.default_rng(3).normal(size=(20, 512)).astype(np.float32)
    for limit, bound in ((127, 0.008), (7, 0.12)):  # 0.135 if the largest weight becomes 7
        scales, rounded = _rounded(weights, limit)
        assert np.abs(rounded).max() == limit
        error = rounded * scales[:, None] - weights
        assert np.sqrt(np.mean(error**2)) < bound


def test_two_int4_weights_are_in_a_byte() -> None:
    assert _packed(np.int8([[1, -1, 7], [-7, 0, 2], [3, 0, -2]])).tolist() == [
        0xF1, 0x97, 0x20, 0x03, 0x0E,
    ]  # fmt: skip


def test_weights_with_other_uses_are_not_quantized(tmp_path: Path) -> None:
    def both(x: tf.Tensor) -> dict[str, tf.Tensor]:
        table = tf.constant(TABLE[:32])
        return {"y": tf.matmul(x, table, transpose_b=True) + tf.nn.softmax(table)[:3]}

    specification = tf.TensorSpec([3, 32], tf.float32, name="x")
    function: Callable[..., Any] = tf.function(both, input_signature=[specification])
    module = tf.Module()
    tf.saved_model.save(module, str(tmp_path / "m"), signatures={"one": function})
    model = passes.read(tf.lite.TFLiteConverter.from_saved_model(str(tmp_path / "m")).convert())
    before = [None if buffer.data is None else bytes(buffer.data) for buffer in model.buffers]
    shared = {
        graph.tensors[index].buffer
        for graph in model.subgraphs for operator in graph.operators
        if passes.op_name(model, operator) == "SOFTMAX" for index in operator.inputs
    }  # fmt: skip
    quantize(model, "int8")
    for number in shared:
        data = model.buffers[number].data
        assert (None if data is None else bytes(data)) == before[number]
