"""A graph without what nobody needs: unused nodes go, and equal constants become one.

TensorFlow writes a graph down as it was traced: sizes of tensors that were asked for in vain,
and each constant as often as it was written. That is a third of the nodes, all of which a
program reads and looks through before its first translation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensorflow.core.protobuf import saved_model_pb2

# What is left out where nobody uses it: these do nothing but return a value.
_VALUES = frozenset(["Cast", "Const", "Identity", "Pack", "Range", "Shape", "StridedSlice"])


def prune(path: Path) -> None:
    """Prunes the functions of the SavedModel at `path`, in place."""
    file = path / "saved_model.pb"
    saved_model = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    for meta_graph in saved_model.meta_graphs:
        for function in meta_graph.graph_def.library.function:
            _merge_constants(function)
            _drop_unused(function)
    file.write_bytes(saved_model.SerializeToString(deterministic=True))
    # It is that of the graph as it was; loaders do without, and the manifest has hashes.
    (path / "fingerprint.pb").unlink(missing_ok=True)


def _merge_constants(function: Any) -> None:
    """Has the first of equal constants used in place of the others."""
    first: dict[bytes, str] = {}
    same: dict[str, str] = {}
    for node in function.node_def:
        if node.op == "Const" and not node.input and not node.device:
            value = node.attr["value"].SerializeToString(deterministic=True)
            same[node.name] = first.setdefault(value, node.name)
    for node in function.node_def:
        for i, tensor in enumerate(node.input):
            node.input[i] = _renamed(tensor, same)
    for name, tensor in function.ret.items():
        function.ret[name] = _renamed(tensor, same)


def _drop_unused(function: Any) -> None:
    nodes = {node.name: node for node in function.node_def}
    left = [name for name, node in nodes.items() if node.op not in _VALUES]
    left += [_node(tensor) for tensor in (*function.ret.values(), *function.control_ret.values())]
    used = set()
    while left:
        name = left.pop()
        if name in nodes and name not in used:  # not an argument
            used.add(name)
            left += map(_node, nodes[name].input)
    kept = [node for name, node in nodes.items() if name in used]
    del function.node_def[:]
    function.node_def.extend(kept)


def _renamed(tensor: str, names: dict[str, str]) -> str:
    """Returns the same output of another node, where there is one for it."""
    node = _node(tensor)
    return tensor.replace(node, names.get(node, node), 1)


def _node(tensor: str) -> str:
    """Returns the node of `node:output:0`, or of `^node`, which is waited for."""
    return tensor.removeprefix("^").partition(":")[0]
