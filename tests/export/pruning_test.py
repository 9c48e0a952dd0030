"""Pruned graphs return what they did, with fewer nodes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.export.pruning import prune


class _Model(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = tf.Variable(0)

    @tf.function(input_signature=[tf.TensorSpec([None, None])], autograph=False)
    def double(self, inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        tf.shape(inputs)[1]  # asked for in vain
        self.count.assign_add(1)  # used by no result, and not in vain
        halves = inputs + tf.constant(0.5), tf.constant(0.5) + inputs
        again = tf.while_loop(
            lambda i, _: i < tf.constant(3),
            lambda i, x: (i + tf.constant(1), x + tf.constant(1.0) - tf.constant(1.0)),
            (tf.constant(0), tf.add_n(halves)),
        )[1]
        one = tf.constant(1)
        return {"twice": again - tf.constant(1.0), "one": tf.fill([tf.shape(inputs)[0]], one)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    model = _Model()
    tf.saved_model.save(model, str(tmp_path), signatures={"double": model.double})
    return tmp_path


def _nodes(path: Path) -> dict[str, list[Any]]:
    content = (path / "saved_model.pb").read_bytes()
    [graph] = saved_model_pb2.SavedModel.FromString(content).meta_graphs
    return {
        function.signature.name: list(function.node_def)
        for function in graph.graph_def.library.function
    }


def test_it_returns_the_same(path: Path) -> None:
    prune(path)
    model = tf.saved_model.load(str(path))
    outputs = model.signatures["double"](inputs=tf.constant([[1.0, -2.0]]))
    assert outputs["twice"].numpy().tolist() == [[2.0, -4.0]]
    assert outputs["one"].numpy().tolist() == [1]
    assert model.count.numpy() == 1


def test_constants_are_there_once_and_unused_nodes_are_not(path: Path) -> None:
    before = _nodes(path)
    prune(path)
    after = _nodes(path)
    for name, nodes in after.items():
        values = [node.attr["value"].SerializeToString() for node in nodes if node.op == "Const"]
        assert len(values) == len(set(values))
        dropped = Counter(node.op for node in before[name]) - Counter(node.op for node in nodes)
        assert set(dropped) <= {"Const", "Shape", "StridedSlice"}
    ops = [
        Counter(node.op for nodes in each.values() for node in nodes) for each in (before, after)
    ]
    assert ops[0]["StridedSlice"] > ops[1]["StridedSlice"] > 0
    assert ops[0]["AssignAddVariableOp"] == ops[1]["AssignAddVariableOp"] > 0


def test_a_second_time_changes_nothing(path: Path) -> None:
    prune(path)
    once = (path / "saved_model.pb").read_bytes()
    prune(path)
    assert (path / "saved_model.pb").read_bytes() == once
