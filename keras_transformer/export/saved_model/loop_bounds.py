"""How often the loops of a graph may turn: read from the graph, never run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

_LOOPS = ("While", "StatelessWhile")
_UNREADABLE = ("LoopCond", "For")  # TensorFlow 1's loops, and one that Python never makes
# Where an op's inputs become the arguments of the functions that it calls.
_FIRST_ARGUMENT = {
    "PartitionedCall": 0,
    "StatefulPartitionedCall": 0,
    "While": 0,
    "StatelessWhile": 0,
    "If": 1,
    "StatelessIf": 1,
    "Case": 1,
    "StatelessCase": 1,
}


@dataclass
class Body:
    """The nodes of a function, or of the graph itself, whose name is empty."""

    name: str
    nodes: dict[str, Any]
    arguments: dict[str, int] = field(default_factory=dict)  # name → place
    results: list[str] = field(default_factory=list)  # the tensor that each is
    callers: list[tuple[Body, Any]] = field(default_factory=list)  # the nodes that call it


def bodies(graph: Any) -> dict[str, Body]:
    """Returns the bodies of a GraphDef by function name; "" is the graph's own."""
    found = {"": Body("", {node.name: node for node in graph.node})}
    for function in graph.library.function:
        signature = function.signature
        found[signature.name] = Body(
            signature.name,
            {node.name: node for node in function.node_def},
            {argument.name: place for place, argument in enumerate(signature.input_arg)},
            [function.ret[result.name] for result in signature.output_arg],
        )
    for body in found.values():
        for node in body.nodes.values():
            for name in _called(node):
                if name in found:
                    found[name].callers.append((body, node))
    return found


def unbounded_loops(graph: Any) -> Iterator[tuple[Body, Any]]:
    """Yields the loops, with the body each is in, that no constant in the graph bounds.

    A loop is bounded if it counts its turns from a constant on, up to a maximum that is
    a constant too: what `tf.while_loop` makes of `maximum_iterations`, an int. The
    maximum may also be the smaller of a constant and anything, and may have come through
    calls and through loops that hand it on.
    """
    found = bodies(graph)
    for body in found.values():
        for node in body.nodes.values():
            is_loop = node.op in _LOOPS
            if node.op in _UNREADABLE or (is_loop and not _is_bounded(found, body, node)):
                yield body, node


def _is_bounded(found: dict[str, Body], body: Body, loop: Any) -> bool:
    """True where the loop's first variable counts, and its second is a maximum that holds."""
    count, maximum, *_ = _inputs(loop)
    condition, step = (found[loop.attr[key].func.name] for key in ("cond", "body"))
    return (
        _is_limited(condition, condition.results[0])
        and _is_counted(step)
        and _argument(step, step.results[1]) == 1  # handed on as it is
        and _constant(body, count) is not None
        and _largest(found, body, maximum) is not None
    )


def _is_limited(body: Body, tensor: str) -> bool:
    """True if `tensor` is false as soon as the first argument has come up to the second."""
    node = _node(body, tensor)
    if node is None:
        return False
    if node.op == "LogicalAnd":
        return any(_is_limited(body, each) for each in _inputs(node))
    return node.op == "Less" and [_argument(body, each) for each in _inputs(node)] == [0, 1]


def _is_counted(body: Body) -> bool:
    """True if the first result is the first argument and a positive constant."""
    node = _node(body, body.results[0])
    if node is None or node.op not in ("Add", "AddV2"):
        return False
    count, step = _inputs(node)
    return _argument(body, count) == 0 and (_constant(body, step) or 0) > 0


def _largest(
    found: dict[str, Body], body: Body, tensor: str, seen: tuple[str, ...] = ()
) -> int | None:
    """Returns what an integer tensor can be at most, or None where that cannot be told."""
    place = _argument(body, tensor)
    if place is not None:
        if body.name in seen or not body.callers:
            return None
        return _largest_argument(found, body, place, (*seen, body.name))
    node = _node(body, tensor)
    if node is not None and node.op == "Minimum":
        either = [_largest(found, body, each, seen) for each in _inputs(node)]
        return min((each for each in either if each is not None), default=None)
    return _constant(body, tensor)


def _largest_argument(
    found: dict[str, Body], body: Body, place: int, seen: tuple[str, ...]
) -> int | None:
    """The most that any of the body's callers gives it at that place."""
    values = []
    for caller, node in body.callers:
        first = _FIRST_ARGUMENT.get(node.op)
        if first is None:
            return None
        if node.op in _LOOPS:
            step = found[node.attr["body"].func.name]
            if _argument(step, step.results[place]) != place:
                return None  # another value at every turn
        values.append(_largest(found, caller, _inputs(node)[first + place], seen))
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


def _constant(body: Body, tensor: str) -> int | None:
    node = _node(body, tensor)
    if node is None or node.op != "Const" or not tf.as_dtype(node.attr["dtype"].type).is_integer:
        return None
    value = tf.make_ndarray(node.attr["value"].tensor)
    return int(value) if value.ndim == 0 else None


def _argument(body: Body, tensor: str) -> int | None:
    """The place of the argument that `tensor` is, or None."""
    return body.arguments.get(_source(body, tensor))


def _node(body: Body, tensor: str) -> Any | None:
    """The node that `tensor` comes from, or None where it is an argument."""
    return body.nodes.get(_source(body, tensor))


def _source(body: Body, tensor: str) -> str:
    """The name of the node or argument behind `tensor`, past nodes that change nothing."""
    name = tensor.split(":")[0]
    while name in body.nodes and body.nodes[name].op == "Identity":
        name = _inputs(body.nodes[name])[0].split(":")[0]
    return name


def _inputs(node: Any) -> list[str]:
    return [name for name in node.input if not name.startswith("^")]


def _called(node: Any) -> Iterator[str]:
    for value in node.attr.values():
        if value.WhichOneof("value") == "func":
            yield value.func.name
        for function in value.list.func:
            yield function.name
