"""Pruned graphs return what they did, with fewer nodes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.export.saved_model.export import prune


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


def _node(name: str, op: str, inputs: str = "", **fields: Any) -> dict[str, Any]:
    return {"name": name, "op": op, "input": inputs.split(), **fields}


def _function(nodes: list[dict[str, Any]], **results: str) -> Any:
    """A function of nodes with constants of the value that their names' first letter is."""
    function = saved_model_pb2.SavedModel().meta_graphs.add().graph_def.library.function.add()
    for fields in nodes:
        node = function.node_def.add(**fields)
        if node.op == "Const":
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(ord(node.name[0])))
    function.ret.update(results)
    return function


def test_what_is_merged_and_what_is_used_by_hand(tmp_path: Path) -> None:
    function = _function(
        [
            _node("a", "Const"),
            _node("a1", "Const"),  # equal to `a`, whose name it begins with
            _node("a2", "Const", "^write"),  # equal, but it waits
            _node("a3", "Const", device="/GPU:0"),  # equal, but elsewhere
            _node("b", "Const"),
            _node("b1", "Const"),
            _node("shape", "Shape", "input"),  # of no use but to wait for
            _node("unused", "Shape", "b:output:0"),
            _node("write", "AssignVariableOp", "variable a1:output:0 ^shape"),
            _node("sum", "AddN", "a:output:0 a1:output:0 a2:output:0 a3:output:0"),
        ],
        total="sum:sum:0",
        constant="b1:output:0",
    )
    function.control_ret["write"] = "write"
    saved_model = saved_model_pb2.SavedModel()
    saved_model.meta_graphs.add().graph_def.library.function.add().CopyFrom(function)
    (tmp_path / "saved_model.pb").write_bytes(saved_model.SerializeToString())
    prune(tmp_path)
    content = (tmp_path / "saved_model.pb").read_bytes()
    [graph] = saved_model_pb2.SavedModel.FromString(content).meta_graphs
    [pruned] = graph.graph_def.library.function
    nodes = {node.name: list(node.input) for node in pruned.node_def}
    assert nodes == {
        "a": [],
        "a2": ["^write"],
        "a3": [],
        "b": [],
        "shape": ["input"],
        "write": ["variable", "a:output:0", "^shape"],
        "sum": ["a:output:0", "a:output:0", "a2:output:0", "a3:output:0"],
    }
    assert dict(pruned.ret) == {"total": "sum:sum:0", "constant": "b:output:0"}


def test_a_second_time_changes_nothing(path: Path) -> None:
    prune(path)
    once = (path / "saved_model.pb").read_bytes()
    prune(path)
    assert (path / "saved_model.pb").read_bytes() == once
