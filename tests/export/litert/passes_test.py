"""Passes over small converted models keep the results, and share or quantize weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter

from keras_transformer.export.litert import flatbuffer, passes

TABLE = np.random.default_rng(0).normal(size=(300, 32)).astype(np.float32)
ROWS = tf.TensorSpec([3], tf.int32, name="rows")


class Tied(tf.Module):
    """Tied embeddings: a lookup in a loop, then a product."""

    def __init__(self) -> None:
        super().__init__()
        self.table = tf.Variable(TABLE)

    def call(self, rows: tf.Tensor) -> dict[str, tf.Tensor]:
        _, x = tf.while_loop(
            lambda i, x: i < 4,
            lambda i, x: (i + 1, 0.5 * x + tf.gather(self.table, (rows + i) % 300)),
            (0, tf.zeros([3, 32])),
        )
        return {"logits": tf.matmul(x, self.table, transpose_b=True)}


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    module, folder = Tied(), str(tmp_path_factory.mktemp("tied"))
    one = tf.function(module.call, input_signature=[ROWS], autograph=False)
    two = tf.function(
        lambda rows: {"sizes": tf.abs(module.call(rows)["logits"])},
        input_signature=[ROWS], autograph=False,
    )  # fmt: skip
    tf.saved_model.save(module, folder, signatures={"one": one, "two": two})
    return tf.lite.TFLiteConverter.from_saved_model(folder).convert()


def run(model: Any, folder: Path, signature: str = "one") -> np.ndarray:
    path = folder / "model.tflite"
    path.write_bytes(flatbuffer.write(model))
    outputs = Interpreter(str(path)).get_signature_runner(signature)(rows=np.int32([5, 0, 299]))
    [array] = outputs.values()
    return array


def expected() -> np.ndarray:
    x = np.zeros((3, 32), np.float32)
    for i in range(4):
        x = 0.5 * x + TABLE[(np.array([5, 0, 299]) + i) % 300]
    return x @ TABLE.T


def names(model: Any) -> set[str]:
    return {op for ops in flatbuffer.ops_by_signature(model).values() for op in ops}


def prepared(content: bytes) -> Any:
    model = flatbuffer.read(content)
    passes.look_up_embeddings(model)
    passes.share(model)
    return model


def test_reading_and_writing_keeps_the_model(content: bytes, tmp_path: Path) -> None:
    model = flatbuffer.read(content)
    np.testing.assert_allclose(run(model, tmp_path), expected(), atol=1e-4)
    assert {"WHILE", "GATHER", "FULLY_CONNECTED"} <= names(model)
    assert set(flatbuffer.ops_by_signature(model)) == {"one", "two"}
    assert flatbuffer.describe_signatures(model)["one"] == {
        "inputs": {"rows": {"dtype": "int32", "shape": [3]}},
        "outputs": {"logits": {"dtype": "float32", "shape": [3, 300]}},
    }


def test_embedding_lookups_and_sharing(content: bytes, tmp_path: Path) -> None:
    before = flatbuffer.read(content)
    model = prepared(content)
    assert "EMBEDDING_LOOKUP" in names(model)
    assert "GATHER" not in names(model)
    np.testing.assert_allclose(run(model, tmp_path), expected(), atol=1e-4)
    np.testing.assert_allclose(run(model, tmp_path, "two"), np.abs(expected()), atol=1e-4)
    assert len(before.subgraphs) == 6
    assert len(model.subgraphs) == 4  # two signatures, one condition, one body
    tables = [each for each in model.buffers if each.data is not None and len(each.data) > 9999]
    assert len(tables) == 1


def test_different_loops_are_not_shared(content: bytes, tmp_path: Path) -> None:
    model = flatbuffer.read(content)
    bodies = [graph for graph in model.subgraphs if b"body" in graph.name]
    constants = [
        tensor for tensor in bodies[1].tensors
        if model.buffers[tensor.buffer].data is not None and tensor.type == 0
        and not [*tensor.shape]
    ]  # fmt: skip
    half = next(each for each in constants)
    buffer = type(model.buffers[0])()
    buffer.data = np.frombuffer(np.float32(0.25).tobytes(), np.uint8)
    model.buffers.append(buffer)
    half.buffer = len(model.buffers) - 1
    passes.share(model)
    assert sum(b"body" in graph.name for graph in model.subgraphs) == 2
    assert not np.allclose(run(model, tmp_path, "two"), np.abs(run(model, tmp_path)), atol=0.1)


@pytest.mark.parametrize(
    ("quantization", "tolerance"), [("float16", 2e-2), ("int8", 1.0), ("int4", 12.0)]
)
def test_quantized_weights(
    content: bytes, tmp_path: Path, quantization: str, tolerance: float
) -> None:
    model = prepared(content)
    passes.quantize(model, quantization)
    result = run(model, tmp_path)
    assert not np.array_equal(result, expected())
    np.testing.assert_allclose(result, expected(), atol=tolerance)
    # Older runtimes must refuse the model, because they would compute wrong results.
    versions = {
        max(code.builtinCode, code.deprecatedBuiltinCode): code.version
        for code in flatbuffer.read(flatbuffer.write(model)).operatorCodes
    }
    needed = {
        "float16": {schema.BuiltinOperator.DEQUANTIZE: 3},
        "int8": {
            schema.BuiltinOperator.FULLY_CONNECTED: 12,
            schema.BuiltinOperator.EMBEDDING_LOOKUP: 3,
        },
        "int4": {
            schema.BuiltinOperator.FULLY_CONNECTED: 12,
            schema.BuiltinOperator.EMBEDDING_LOOKUP: 4,
        },
    }
    assert versions.items() >= needed[quantization].items()
    bits = {"float16": 16, "int8": 8, "int4": 4}[quantization]
    largest = max(len(each.data) for each in model.buffers if each.data is not None)
    assert largest == TABLE.size * bits // 8
    # The other signature uses the same weights.
    np.testing.assert_allclose(run(model, tmp_path, "two"), np.abs(result), rtol=1e-5)


@pytest.mark.parametrize(("limit", "first"), [(127, [70, -127, 32]), (7, [4, -7, 2])])
def test_rounding_to_integers(limit: int, first: list[int]) -> None:
    weights = np.float32([[1.1, -2.0, 0.5], [0, 0, 0], [1e-30, 0, -1e-30]])
    scales, rounded = passes._rounded(weights, limit)
    assert rounded.tolist() == [first, [0, 0, 0], [limit, 0, -limit]]
    error = np.abs(rounded * scales[:, None] - weights)
    assert np.all(error <= scales[:, None] / 2 * 1.001)


def test_few_steps_are_not_wasted_on_the_largest_weights() -> None:
    weights = np.random.default_rng(3).normal(size=(20, 512)).astype(np.float32)
    for limit, expected in ((127, 0.008), (7, 0.12)):  # 0.135 if the largest weight becomes 7
        scales, rounded = passes._rounded(weights, limit)
        assert np.abs(rounded).max() == limit
        error = rounded * scales[:, None] - weights
        assert np.sqrt(np.mean(error**2)) < expected


def test_two_int4_weights_are_in_a_byte() -> None:
    assert passes._packed(np.int8([[1, -1, 7], [-7, 0, 2], [3, 0, -2]])).tolist() == [
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
    model = flatbuffer.read(tf.lite.TFLiteConverter.from_saved_model(str(tmp_path / "m")).convert())
    before = [None if each.data is None else bytes(each.data) for each in model.buffers]
    shared = {
        graph.tensors[index].buffer
        for graph in model.subgraphs for operator in graph.operators
        if flatbuffer.op_name(model, operator) == "SOFTMAX" for index in operator.inputs
    }  # fmt: skip
    passes.quantize(model, "int8")
    for number in shared:
        data = model.buffers[number].data
        assert (None if data is None else bytes(data)) == before[number]
