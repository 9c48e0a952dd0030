"""Counts operations in a graph that TensorFlow has traced, without running it.

Sequential operations are the longest chain of operations that each need the result of the one
before. An operation is one that computes, of any size: a matrix product, a convolution, a softmax,
a sum or a sigmoid. Operations that only name, move, cut, join, fill or read tensors do not count
(`_FREE`). A loop counts as if it were unrolled: the chain of one iteration continues where that
of the iteration before has ended, separately for each variable of the loop.
"""

from __future__ import annotations

import graphlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.export.saved_model.loop_bounds import Body, bodies

_LOOPS = ("While", "StatelessWhile")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_FREE = frozenset(
    "BatchToSpaceND BroadcastTo Cast ConcatV2 Const ExpandDims Fill Identity IdentityN NoOp "
    "OnesLike Pack Pad PadV2 Placeholder PreventGradient Range Rank ReadVariableOp Reshape "
    "Shape ShapeN Size Slice SpaceToBatchND Split SplitV Squeeze StopGradient StridedSlice "
    "TensorListElementShape TensorListFromTensor TensorListGetItem TensorListLength "
    "TensorListReserve TensorListSetItem TensorListStack Tile Transpose Unpack ZerosLike".split()
)
# The arithmetic of loop counters.
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "AddV2": np.add,
    "Identity": lambda value: value,
    "Less": np.less,
    "LogicalAnd": np.logical_and,
    "Max": lambda value, axes: np.max(value, tuple(np.atleast_1d(axes))),
    "Range": np.arange,
}


class Graph:
    """A traced function and the functions that it calls, without operations that no output needs.

    Args:
        function: a concrete function whose inputs have known shapes.
    """

    def __init__(self, function: Any):
        definition = function.graph.as_graph_def(add_shapes=True)
        self._bodies = bodies(definition)
        main = self._bodies[""]
        main.results = [tensor.name for tensor in function.outputs]
        self._order = {name: list(_in_order(body)) for name, body in self._bodies.items()}
        self._shapes = {"": _shapes(main.nodes.values())}
        for each in definition.library.function:
            arguments = each.attr["_input_shapes"].list.shape
            self._shapes[each.signature.name] = {
                **_shapes(each.node_def),
                **{
                    argument.name: [tf.TensorShape(shape)]
                    for argument, shape in zip(each.signature.input_arg, arguments, strict=False)
                },
            }

    def sequential_operations(self) -> int:
        """Returns the length of the longest chain that ends in an output."""
        main = self._bodies[""]
        return max(self._depths(main, [0] * len(main.arguments)))

    def flop(self) -> dict[str, int]:
        """Returns the floating-point operations of all products and convolutions, by kind of op.

        A multiplication and its addition are two operations. Each iteration of a loop counts.
        """
        return self._flop(self._bodies[""])

    def largest_tensor(self) -> int:
        """Returns the number of elements of the largest tensor that an operation makes.

        Raises:
            ValueError: if a size is unknown.
        """
        largest = 0
        for name, order in self._order.items():
            for node, _ in order:
                for shape in self._shapes[name].get(node.name, []):
                    if shape.num_elements() is None and not _is_handle(node):
                        raise ValueError(f"{node.name} is {node.op} of unknown shape {shape}")
                    largest = max(largest, shape.num_elements() or 0)
        return largest

    def _depths(self, body: Body, arguments: Sequence[int]) -> list[int]:
        """Returns the longest chains that end in each result, given those of the arguments."""
        depths: dict[str, list[int]] = {name: [arguments[i]] for name, i in body.arguments.items()}

        def depth(tensor: str) -> int:
            found = depths[_name(tensor)]
            return found[_place(tensor)] if len(found) > 1 else found[0]

        for node, inputs in self._order[body.name]:
            before = [depth(tensor) for tensor in inputs]
            if node.op in _LOOPS:
                step = self._bodies[node.attr["body"].func.name]
                for _ in range(self._turns(body, node)):
                    before = self._depths(step, before)
                depths[node.name] = before
            elif node.op in _CALLS:
                depths[node.name] = self._depths(self._bodies[node.attr["f"].func.name], before)
            else:
                depths[node.name] = [max(before, default=0) + (node.op not in _FREE)]
        return [depth(tensor) for tensor in body.results]

    def _flop(self, body: Body) -> dict[str, int]:
        total: dict[str, int] = {}

        def add(counted: dict[str, int], times: int = 1) -> None:
            for op, flop in counted.items():
                total[op] = total.get(op, 0) + times * flop

        for node, inputs in self._order[body.name]:
            if node.op in _LOOPS:
                turns = self._turns(body, node)
                add(self._flop(self._bodies[node.attr["body"].func.name]), turns)
            elif node.op in _CALLS:
                add(self._flop(self._bodies[node.attr["f"].func.name]))
            elif node.op in _TERMS:
                shapes = self._shapes[body.name]
                one, other = (shapes[_name(each)][_place(each)] for each in inputs)
                terms = _TERMS[node.op](node, one, other)
                add({node.op: 2 * terms * shapes[node.name][0].num_elements()})
        return total

    def _turns(self, body: Body, loop: Any) -> int:
        """Returns the iterations of a loop whose counters start as constants."""
        condition, step = (self._bodies[loop.attr[key].func.name] for key in ("cond", "body"))
        values = [_value(body, tensor, []) for tensor in _inputs(loop)]
        for turns in range(2**31):
            goes_on = _value(condition, condition.results[0], values)
            if goes_on is None:
                raise ValueError(f"{loop.name} is a loop whose number of iterations is unknown")
            if not goes_on:
                return turns
            values = [
                None if value is None else _value(step, result, values)
                for value, result in zip(values, step.results, strict=True)
            ]
        raise ValueError(f"{loop.name} is a loop without an end")


# The number of terms of the sum that each output element of a product is.
_TERMS: dict[str, Callable[[Any, Any, Any], int]] = {
    "MatMul": lambda node, one, _: one[0 if node.attr["transpose_a"].b else 1],
    "BatchMatMulV2": lambda node, one, _: one[-2 if node.attr["adj_x"].b else -1],
    "Conv2D": lambda _, __, kernel: math.prod(kernel[:3]),
    "DepthwiseConv2dNative": lambda _, __, kernel: math.prod(kernel[:2]),
}


def _value(body: Body, tensor: str, arguments: Sequence[Any]) -> Any:
    """Returns the value of a small integer or boolean tensor, or None if it is unknown."""
    place = body.arguments.get(_name(tensor))
    if place is not None:
        return arguments[place] if place < len(arguments) else None
    node = body.nodes[_name(tensor)]
    if node.op == "Const":
        return tf.make_ndarray(node.attr["value"].tensor)
    if node.op not in _ARITHMETIC:
        return None
    values = [_value(body, each, arguments) for each in _inputs(node)]
    return None if any(value is None for value in values) else _ARITHMETIC[node.op](*values)


def _shapes(nodes: Any) -> dict[str, list[tf.TensorShape]]:
    return {
        node.name: [tf.TensorShape(shape) for shape in node.attr["_output_shapes"].list.shape]
        for node in nodes
    }


def _is_handle(node: Any) -> bool:
    """True if an operation makes a variable or a list of tensors, which have no size."""
    return node.op.startswith("TensorList") or node.op in ("Placeholder", *_LOOPS)


def _in_order(body: Body) -> Iterator[tuple[Any, list[str]]]:
    """Yields the nodes that the results need, with their inputs, in topological order."""
    needed: dict[str, set[str]] = {}
    wanted = {*map(_name, body.results)} & body.nodes.keys()
    while wanted:
        name = wanted.pop()
        needed[name] = {*map(_name, _inputs(body.nodes[name]))} & body.nodes.keys()
        wanted |= needed[name] - needed.keys()
    for name in graphlib.TopologicalSorter(needed).static_order():
        yield body.nodes[name], _inputs(body.nodes[name])


def _inputs(node: Any) -> list[str]:
    return [name for name in node.input if not name.startswith("^")]


def _name(tensor: str) -> str:
    return tensor.split(":")[0]


def _place(tensor: str) -> int:
    """Returns the output index of a tensor: `node:0`, within functions `node:output:0`."""
    last = tensor.rpartition(":")[2]
    return int(last) if last.isdigit() and ":" in tensor else 0
