"""Passes over small converted models keep the results, and share weights and loops."""

from pathlib import Path

import numpy as np
import pytest

from keras_transformer.extensions.litert import passes
from tests.extensions.litert.tied_model import convert, expected, loop_bodies, names, prepared, run


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return convert(tmp_path_factory.mktemp("tied"))


def test_reading_and_writing_keeps_the_model(content: bytes, tmp_path: Path) -> None:
    model = passes.read(content)
    np.testing.assert_allclose(run(model, tmp_path), expected(), atol=1e-4)
    assert {"WHILE", "GATHER", "FULLY_CONNECTED"} <= names(model)
    assert passes.describe_signatures(model)["one"] == {
        "inputs": {"rows": {"dtype": "int32", "shape": [3]}},
        "outputs": {"logits": {"dtype": "float32", "shape": [3, 300]}},
    }


def test_embedding_lookups_and_sharing(content: bytes, tmp_path: Path) -> None:
    before = passes.read(content)
    model = prepared(content)
    assert "EMBEDDING_LOOKUP" in names(model)
    assert "GATHER" not in names(model)
    np.testing.assert_allclose(run(model, tmp_path), expected(), atol=1e-4)
    np.testing.assert_allclose(run(model, tmp_path, "two"), np.abs(expected()), atol=1e-4)
    assert len(before.subgraphs) == 6
    assert len(model.subgraphs) == 4  # two signatures, one condition, one body
    tables = [
        buffer for buffer in model.buffers if buffer.data is not None and len(buffer.data) > 9999
    ]
    assert len(tables) == 1


def test_different_loops_are_not_shared(content: bytes, tmp_path: Path) -> None:
    model = passes.read(content)
    bodies = [graph for graph in model.subgraphs if b"body" in graph.name]
    constants = [
        tensor for tensor in bodies[1].tensors
        if model.buffers[tensor.buffer].data is not None and tensor.type == 0
        and not [*tensor.shape]
    ]  # fmt: skip
    half = next(constant for constant in constants)
    buffer = type(model.buffers[0])()
    buffer.data = np.frombuffer(np.float32(0.25).tobytes(), np.uint8)
    model.buffers.append(buffer)
    half.buffer = len(model.buffers) - 1
    passes.share(model)
    assert sum(b"body" in graph.name for graph in model.subgraphs) == 2
    assert not np.allclose(run(model, tmp_path, "two"), np.abs(run(model, tmp_path)), atol=0.1)


@pytest.mark.parametrize("with_outputs", [False, True])
def test_loops_are_prepared_twice_and_run_once(
    content: bytes, tmp_path: Path, with_outputs: bool
) -> None:
    model = prepared(content)
    bodies, count = loop_bodies(model), len(model.subgraphs)
    passes.prepare_loops_twice(model, with_outputs=with_outputs)
    passes.share(model)
    assert loop_bodies(model) == [body for body in bodies for _ in range(2)]
    assert len(model.subgraphs) == count + 1  # one condition that is never true
    np.testing.assert_allclose(run(model, tmp_path), expected(), atol=1e-4)
