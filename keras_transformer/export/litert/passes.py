"""What LiteRT's converter leaves: embeddings held as products hold them, and nothing twice."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from keras_transformer.export.litert.flatbuffer import code_of, op_of, shape_of, subgraphs_of


def look_up_embeddings(model: Any) -> None:
    """Replaces each GATHER of a list of rows of a constant matrix by EMBEDDING_LOOKUP, in place.

    The rows come out the same. But the table can then be held as int8 with a scale for each
    row, which is how a product with it holds it: tied embeddings stay one buffer.
    """
    look_up = code_of(model, schema.BuiltinOperator.EMBEDDING_LOOKUP)
    for graph in model.subgraphs:
        for operator in graph.operators:
            if _gathers_rows(model, graph, operator):
                operator.opcodeIndex = look_up
                operator.inputs = operator.inputs[::-1]
                operator.builtinOptionsType = schema.BuiltinOptions.NONE
                operator.builtinOptions = None


def _gathers_rows(model: Any, graph: Any, operator: Any) -> bool:
    if op_of(model, operator).name != "GATHER":
        return False
    table, ids = (graph.tensors[index] for index in operator.inputs)
    is_matrix = len(shape_of(table)) == 2 and table.type == schema.TensorType.FLOAT32
    is_list = len(shape_of(ids)) == 1 and ids.type == schema.TensorType.INT32
    is_constant = model.buffers[table.buffer].data is not None
    options = operator.builtinOptions
    plain = not options.axis and not options.batchDims
    return is_matrix and is_list and is_constant and plain


def share(model: Any) -> None:
    """Leaves one of all buffers of the same content, and of all loops and branches that are equal.

    Signatures that do the same then have the same weights, and the same loop: a runtime that
    packs weights for its kernels packs those of each loop anew.
    """
    _share_buffers(model)
    while _share_subgraphs(model):  # until those are equal, too, that call equal ones
        pass


def _share_buffers(model: Any) -> None:
    kept: list[Any] = [model.buffers[0]]  # the empty one
    places: dict[bytes, int] = {}
    numbers = []
    for buffer in model.buffers:
        if buffer.data is None or not len(buffer.data):
            numbers.append(0)
            continue
        digest = hashlib.sha256(np.asarray(buffer.data).tobytes()).digest()
        if digest not in places:
            places[digest] = len(kept)
            kept.append(buffer)
        numbers.append(places[digest])
    for graph in model.subgraphs:
        read = {int(index) for operator in graph.operators for index in operator.inputs}
        read |= {int(index) for index in graph.outputs}
        for index, tensor in enumerate(graph.tensors):
            # The converter leaves tensors that nothing reads any more.
            tensor.buffer = numbers[tensor.buffer] if index in read else 0
    for entry in model.metadata or []:
        entry.buffer = numbers[entry.buffer]
    model.buffers = kept


def _share_subgraphs(model: Any) -> bool:
    """Puts the first of equal subgraphs in the place of all, and says whether there were any."""
    outer = {signature.subgraphIndex for signature in model.signatureDefs}
    places: dict[bytes, int] = {}
    first = [
        index if index in outer else places.setdefault(_digest(graph), index)
        for index, graph in enumerate(model.subgraphs)
    ]
    kept = [index for index, place in enumerate(first) if index == place]
    numbers = [kept.index(place) for place in first]
    _arrange(model, kept, numbers)
    return len(kept) < len(first)


def put_first(model: Any, signature: bytes) -> None:
    """Makes the graph of a signature the first, in place.

    Many runtimes, Java's among them, prepare the first when they open a file, whatever is asked
    for later: what stands there must not need operations that they lack.
    """
    first = next(s.subgraphIndex for s in model.signatureDefs if s.signatureKey == signature)
    order = [first, *(index for index in range(len(model.subgraphs)) if index != first)]
    _arrange(model, order, [order.index(index) for index in range(len(order))])


def _arrange(model: Any, kept: list[int], numbers: list[int]) -> None:
    """Keeps those subgraphs, in that order; `numbers` says what stands for each from now on."""
    for graph in model.subgraphs:
        for operator in graph.operators:
            for name in subgraphs_of(operator):
                place = numbers[getattr(operator.builtinOptions, name)]
                setattr(operator.builtinOptions, name, place)
    for signature in model.signatureDefs:
        signature.subgraphIndex = numbers[signature.subgraphIndex]
    model.subgraphs = [model.subgraphs[index] for index in kept]


def _digest(graph: Any) -> bytes:
    """Returns a hash of all of a subgraph but names, and the order that its tensors stand in."""
    places: dict[int, int] = {-1: -1}  # -1: an input that an operation has not

    def used(tensors: Any) -> list[int]:
        return [places.setdefault(int(index), len(places)) for index in tensors]

    parts: list[Any] = [used(graph.inputs)]
    for operator in graph.operators:
        fields = {**vars(operator), "inputs": None, "outputs": None}
        parts.append([used(operator.inputs), used(operator.outputs), _values(fields)])
    parts.append(used(graph.outputs))
    tensors = [_values(graph.tensors[index]) for index in places if index >= 0]
    return hashlib.sha256(repr((parts, tensors)).encode()).digest()


def _values(part: Any) -> Any:
    """Returns what a part of a model consists of, without names, as lists of simple values."""
    if isinstance(part, np.ndarray):
        return part.tolist()
    if isinstance(part, (list, tuple)):
        return [_values(each) for each in part]
    if isinstance(part, dict):
        return [(name, _values(each)) for name, each in part.items()]
    if hasattr(part, "__dict__"):
        return [(name, _values(each)) for name, each in vars(part).items() if name != "name"]
    return part
