"""Checks of a SavedModel against the limits of TF Serving, without loading the model.

TF Serving has the ops that were linked into it, but neither Python nor XLA. It merges requests
into batches, so a failure fails all of them and a slow row delays all of them. Missing CPU kernels
are not looked up here: they show when the export is compared with the run.
"""

from __future__ import annotations

import functools
import importlib.resources
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

# The warnings of `saved_model_cli scan`: tensorflow/python/tools/saved_model_cli.py, _OP_DENYLIST.
DANGEROUS_OPS = frozenset({"WriteFile", "ReadFile", "PrintV2"})
_REFUSED_OPS = {
    "Assert": "an assertion, which fails a whole batch",
    "CheckNumerics": "a check of numbers, which fails a whole batch",
    "CheckNumericsV2": "a check of numbers, which fails a whole batch",
    "Abort": "which ends the server",
    "PyFunc": "a Python function, which a SavedModel does not contain",
    "EagerPyFunc": "a Python function, which a SavedModel does not contain",
    **dict.fromkeys(DANGEROUS_OPS, "an op that saved_model_cli scan calls dangerous"),
}
_LOOPS_OF_V1 = ("LoopCond", "For")
ADDED_BY_TENSORFLOW = "__saved_model_"  # a prefix of signatures that requests cannot use


@functools.cache
def served_ops() -> frozenset[str]:
    """Returns the ops that TF Serving's stock binary links; BUILD.md explains the list."""
    text = importlib.resources.files(__package__).joinpath("tf_serving_ops.txt").read_text("utf-8")
    return frozenset(line for line in text.splitlines() if not line.startswith("#"))


def check(path: Path) -> None:
    """Refuses a SavedModel that TF Serving cannot run safely, with a `RuntimeError`."""
    content = (path / "saved_model.pb").read_bytes()
    for graph in saved_model_pb2.SavedModel.FromString(content).meta_graphs:
        check_ops(graph.graph_def)
        check_loops(graph.graph_def)
        check_batching(graph.signature_def)


def check_ops(graph: Any) -> None:
    """Refuses ops that are missing in TF Serving, that fail on purpose, or that are dangerous."""
    functions = {function.signature.name: function for function in graph.library.function}
    for node, function_name in _nodes(graph):
        reason = _REFUSED_OPS.get(node.op.removesuffix("Stateless"))
        if _must_compile(node) or (function_name and _must_compile(functions[function_name])):
            reason = "compiled by XLA, which TF Serving disables"
        elif node.op.startswith("Xla"):
            reason = "an op of XLA, which TF Serving disables"
        elif reason is None and node.op not in served_ops() and node.op not in functions:
            reason = "an op that the stock binary of TF Serving does not link"
        if reason:
            raise RuntimeError(f"{_label(node, function_name)} is {node.op}, {reason}")


def check_loops(graph: Any) -> None:
    """Refuses loops without a constant bound: one request could block the server.

    `maximum_iterations` of `tf.while_loop` is the second input of a loop. It is a constant for an
    int, and -1 for None.
    """
    functions = {function.signature.name: function for function in graph.library.function}
    for node, function_name in _nodes(graph):
        if node.op in _LOOPS_OF_V1 or (
            node.op in ("While", "StatelessWhile")
            and not (function_name and _is_bounded(node, functions[function_name]))
        ):
            raise RuntimeError(
                f"{_label(node, function_name)} is {node.op}, a loop without a constant bound for "
                "the number of iterations. Pass maximum_iterations, an int, to tf.while_loop."
            )


def _is_bounded(loop: Any, function: Any) -> bool:
    """True if the second input of a loop is a constant of at least 0, or a copy of one."""
    nodes = {f"{node.name}:output:0": node for node in function.node_def}
    maximum = nodes.get(loop.input[1])
    while maximum is not None and maximum.op == "Identity":
        maximum = nodes.get(maximum.input[0])
    if maximum is None or maximum.op != "Const":
        return False
    return bool(tf.make_ndarray(maximum.attr["value"].tensor) >= 0)


def check_batching(signatures: Any) -> None:
    """Refuses signatures whose requests cannot be merged and whose responses cannot be split.

    The first dimension of every input and output is the batch, of any size. Further dimensions
    are constant, except the second one of an integer input `(batch, any)`, which holds ids.
    """
    for name, signature in sorted(signatures.items()):
        if name.startswith(ADDED_BY_TENSORFLOW):
            continue
        for kind, tensors in (("input", signature.inputs), ("output", signature.outputs)):
            for key, info in sorted(tensors.items()):
                shape = tf.TensorShape(info.tensor_shape)
                label = f"signature {name} has the {kind} {key} of shape {shape}"
                if not shape.rank or shape[0] is not None:
                    raise RuntimeError(f"{label}. It must accept any number of rows.")
                ids = kind == "input" and shape.rank == 2 and tf.as_dtype(info.dtype).is_integer
                if not shape[1:].is_fully_defined() and not ids:
                    raise RuntimeError(f"{label}. Its other dimensions must be constants.")


def _must_compile(node: Any) -> bool:
    return "_XlaMustCompile" in node.attr and node.attr["_XlaMustCompile"].b


def _nodes(graph: Any) -> Iterator[tuple[Any, str]]:
    """Yields each node with the name of its function ("" for nodes of the graph)."""
    for node in graph.node:
        yield node, ""
    for function in graph.library.function:
        for node in function.node_def:
            yield node, function.signature.name


def _label(node: Any, function_name: str) -> str:
    return f"node {node.name} of " + (f"function {function_name}" if function_name else "the graph")
