"""What TF Serving asks of a SavedModel, read from `saved_model.pb` without loading the model.

A server has the ops that were linked into it, neither Python nor XLA, and it merges
requests into batches: what fails fails for all of them, and what takes long holds up
all. That every op has a kernel for the CPU is not looked up here: an export is read
back and run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.errors import InputError
from keras_transformer.export.saved_model.loop_bounds import unbounded_loops
from keras_transformer.export.saved_model.served_ops import served_ops

# What `saved_model_cli scan` warns of: tensorflow/python/tools/saved_model_cli.py, _OP_DENYLIST.
DANGEROUS_OPS = frozenset({"WriteFile", "ReadFile", "PrintV2"})
_FAILING_OPS = {
    "Assert": "an assertion, which fails a whole batch",
    "CheckNumerics": "a check of numbers, which fails a whole batch",
    "CheckNumericsV2": "a check of numbers, which fails a whole batch",
    "Abort": "which ends the server",
}
_ADDED_BY_TENSORFLOW = "__saved_model_"  # as signatures' names begin that no request can ask for


class _Node(NamedTuple):
    """A node, and the name of the function that it is in, or "" for the graph's own."""

    node: Any
    function: str

    def __str__(self) -> str:
        return f"{_place(self.node, self.function)} is {self.node.op}"


def check(path: Path) -> None:
    """Refuses a SavedModel that TF Serving could not run, or not as it should.

    Args:
        path: directory of the SavedModel.

    Raises:
        InputError: if there is no SavedModel.
        RuntimeError: for the first thing that it must not hold, an op, a function, a
            signature's shape or a loop, which the message names.
    """
    try:
        model = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    except (OSError, DecodeError) as error:
        raise InputError(f"{path} is no SavedModel ({error}); expected saved_model.pb") from error
    for graph in model.meta_graphs:
        check_xla(graph.graph_def)
        check_python(graph.graph_def)
        check_failures(graph.graph_def)
        check_dangers(graph.graph_def)
        check_served(graph.graph_def)
        check_loops(graph.graph_def)
        check_batching(graph.signature_def)


def check_xla(graph: Any) -> None:
    """Refuses functions that XLA must compile, and ops of XLA's."""
    for function in graph.library.function:
        if _must_compile(function.attr):
            raise RuntimeError(
                f"function {function.signature.name} is compiled by XLA, which is off in TF Serving"
            )
    for found in _nodes(graph):
        if _must_compile(found.node.attr):
            raise RuntimeError(f"{found}, compiled by XLA, which is off in TF Serving")
        if found.node.op.startswith("Xla"):
            raise RuntimeError(f"{found}, an op of XLA's, which is off in TF Serving")


def check_python(graph: Any) -> None:
    """Refuses Python functions, which no SavedModel holds: it only refers to them."""
    for found in _nodes(graph):
        if "PyFunc" in found.node.op:
            raise RuntimeError(f"{found}, a Python function, which TF Serving does not have")


def check_failures(graph: Any) -> None:
    """Refuses ops that are there to fail: they fail whoever shares the batch."""
    for found in _nodes(graph):
        if found.node.op in _FAILING_OPS:
            raise RuntimeError(f"{found}, {_FAILING_OPS[found.node.op]}")


def check_dangers(graph: Any) -> None:
    """Refuses what `saved_model_cli scan` would warn of."""
    for found in _nodes(graph):
        if found.node.op in DANGEROUS_OPS:
            raise RuntimeError(f"{found}, an op that saved_model_cli scan calls dangerous")


def check_served(graph: Any) -> None:
    """Refuses ops that are not linked into TF Serving's stock binary."""
    functions = {function.signature.name for function in graph.library.function}
    for found in _nodes(graph):
        if found.node.op not in served_ops() and found.node.op not in functions:
            raise RuntimeError(f"{found}, an op that TF Serving's stock binary does not link")


def check_loops(graph: Any) -> None:
    """Refuses loops that no constant in the graph bounds: one request could hold the server."""
    for body, node in unbounded_loops(graph):
        raise RuntimeError(
            f"{_place(node, body.name)} is {node.op}, a loop whose number of turns no constant "
            "bounds; expected maximum_iterations, an int"
        )


def check_batching(signatures: Any) -> None:
    """Refuses signatures whose requests cannot be merged, or answers split.

    Every input and output has the batch first, of any size. Further dimensions are
    constant, but for one of an input of integers `[batch, any]`, which are ids.
    """
    for name, signature in sorted(signatures.items()):
        if name.startswith(_ADDED_BY_TENSORFLOW):
            continue
        for kind, tensors in (("input", signature.inputs), ("output", signature.outputs)):
            for key, info in sorted(tensors.items()):
                shape = tf.TensorShape(info.tensor_shape)
                place = f"signature {name} has the {kind} {key} of shape {shape}"
                if not shape.rank or shape[0] is not None:
                    raise RuntimeError(f"{place}; expected any number of rows, as batches have")
                ids = kind == "input" and shape.rank == 2 and tf.as_dtype(info.dtype).is_integer
                if not shape[1:].is_fully_defined() and not ids:
                    raise RuntimeError(f"{place}; expected constants after the batch")


def _must_compile(attributes: Any) -> bool:
    return "_XlaMustCompile" in attributes and attributes["_XlaMustCompile"].b


def _nodes(graph: Any) -> Iterator[_Node]:
    for node in graph.node:
        yield _Node(node, "")
    for function in graph.library.function:
        for node in function.node_def:
            yield _Node(node, function.signature.name)


def _place(node: Any, function: str) -> str:
    return f"node {node.name} of " + (f"function {function}" if function else "the graph")
