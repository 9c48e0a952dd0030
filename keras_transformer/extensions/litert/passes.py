"""Passes over a converted LiteRT model: lookups, loops, sharing. They work in place."""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from keras_transformer.extensions.litert.flatbuffer import (
    code_of,
    op_name,
    shape_of,
    subgraph_options,
)


def look_up_embeddings(model: Any) -> None:
    """Replaces each GATHER of rows of a constant matrix by EMBEDDING_LOOKUP.

    The result is the same. But EMBEDDING_LOOKUP supports int8 tables with a scale per row, like
    FULLY_CONNECTED, so quantized tied embeddings stay in one buffer.

    Example:
    >>> model = schema.ModelT()
    >>> model.operatorCodes, model.subgraphs = [], []
    >>> look_up_embeddings(model)
    >>> model.operatorCodes[0].builtinCode == schema.BuiltinOperator.EMBEDDING_LOOKUP
    True
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
    if op_name(model, operator) != "GATHER":
        return False
    table, ids = (graph.tensors[index] for index in operator.inputs)
    is_matrix = len(shape_of(table)) == 2 and table.type == schema.TensorType.FLOAT32
    is_list = len(shape_of(ids)) == 1 and ids.type == schema.TensorType.INT32
    is_constant = model.buffers[table.buffer].data is not None
    options = operator.builtinOptions
    plain = not options.axis and not options.batchDims
    return is_matrix and is_list and is_constant and plain


def plan_top_k(model: Any) -> None:
    """Lets LiteRT plan the memory of TOPK_V2 before it runs.

    If the input of TOPK_V2 is declared with an unknown dimension, LiteRT treats its outputs as
    dynamic, even if `k` is constant. Then it plans the memory of all later operations again each
    time that the subgraph runs, which is once per decode step.

    Example:
    >>> model, graph, operator = schema.ModelT(), schema.SubGraphT(), schema.OperatorT()
    >>> model.operatorCodes, model.subgraphs, graph.operators = [], [graph], [operator]
    >>> operator.opcodeIndex = code_of(model, schema.BuiltinOperator.TOPK_V2)
    >>> operator.inputs, graph.tensors = [0], [schema.TensorT()]
    >>> graph.tensors[0].shape, graph.tensors[0].shapeSignature = [1, 9], [-1, 9]
    >>> plan_top_k(model)
    >>> graph.tensors[0].shapeSignature is None
    True
    """
    for graph in model.subgraphs:
        for operator in graph.operators:
            if op_name(model, operator) == "TOPK_V2":
                graph.tensors[operator.inputs[0]].shapeSignature = None


def remove_reshapes(model: Any) -> None:
    """Removes each RESHAPE to the shape that its input already has.

    The converter leaves them where one dimension is unknown, such as around the logits. XNNPACK
    copies the whole tensor. This saves 3 % of an int8 search of a `small` model.

    Example:
    >>> model, graph, operator = schema.ModelT(), schema.SubGraphT(), schema.OperatorT()
    >>> model.operatorCodes, model.subgraphs, graph.operators = [], [graph], [operator]
    >>> operator.opcodeIndex = code_of(model, schema.BuiltinOperator.RESHAPE)
    >>> operator.inputs, operator.outputs, graph.outputs = [0], [1], []
    >>> graph.tensors = [schema.TensorT(), schema.TensorT()]
    >>> for tensor in graph.tensors:
    ...     tensor.shapeSignature = [-1, 9]
    >>> remove_reshapes(model)
    >>> graph.operators
    []
    """
    for graph in model.subgraphs:
        for operator in list(graph.operators):
            if op_name(model, operator) != "RESHAPE":
                continue
            source, target = int(operator.inputs[0]), int(operator.outputs[0])
            shape = shape_of(graph.tensors[source])
            # Two unknown dimensions may change, although their product does not.
            is_same = shape == shape_of(graph.tensors[target]) and shape.count(-1) < 2
            if not is_same or target in graph.outputs:
                continue
            graph.operators.remove(operator)
            for each in graph.operators:
                each.inputs = np.where(each.inputs == target, source, each.inputs).astype(np.int32)


def plan_shapes(model: Any) -> None:
    """Lets LiteRT compute the shapes that RESHAPE needs in loops while it prepares them.

    LiteRT computes a shape early if only operations with early results lead to it. PACK has none,
    but CONCATENATION of scalars, which gives the same vector, has one.

    Example:
    >>> model = schema.ModelT()
    >>> model.subgraphs = []
    >>> plan_shapes(model)
    """
    bodies = {
        each.builtinOptions.bodySubgraphIndex
        for graph in model.subgraphs
        for each in graph.operators
        if op_name(model, each) == "WHILE"
    }
    for graph in [model.subgraphs[index] for index in bodies]:
        early = {-1} | {
            index
            for index, tensor in enumerate(graph.tensors)
            if model.buffers[tensor.buffer].data is not None
        }
        for operator in graph.operators:
            name, from_early = op_name(model, operator), early.issuperset(operator.inputs)
            if name == "PACK" and from_early and not shape_of(graph.tensors[operator.inputs[0]]):
                operator.opcodeIndex = code_of(model, schema.BuiltinOperator.CONCATENATION)
                operator.builtinOptionsType = schema.BuiltinOptions.ConcatenationOptions
                operator.builtinOptions = schema.ConcatenationOptionsT()
            if name == "SHAPE" or (from_early and name in ("PACK", "STRIDED_SLICE")):
                early.update(operator.outputs)


def prepare_loops_twice(model: Any, *, with_outputs: bool = True) -> None:
    """Inserts before each WHILE a copy of it that takes no step.

    It avoids an error of XNNPACK. Each time that LiteRT prepares the body of a loop, XNNPACK may
    need more memory for values within the body. It then moves them, and updates the addresses of
    all operations that are already prepared. At this time, it still has the addresses of inputs
    and outputs of the last run, which LiteRT has freed. If such an address is now that of a value,
    XNNPACK takes an operation that copies one to the other for a copy to the same place, and never
    runs it (`setup_unary_elementwise_nc`).

    LiteRT frees the memory of a body after each loop, and prepares it for the next. For the second
    of two loops with the same body and shapes, XNNPACK needs no more memory, so nothing moves. This
    takes 2 % of a translation.

    It helps as far as LiteRT knows the shapes of the body while it prepares it (`plan_shapes`).

    Args:
        model: a `schema.ModelT`.
        with_outputs: give the copies outputs that nothing reads. ai-edge-litert 2.3.0 needs none,
            and then copies less.

    Example:
    >>> model = schema.ModelT()
    >>> model.subgraphs = []
    >>> prepare_loops_twice(model)
    """
    for graph in list(model.subgraphs):
        for loop in [each for each in graph.operators if op_name(model, each) == "WHILE"]:
            unused = copy.deepcopy(loop)
            condition = model.subgraphs[loop.builtinOptions.condSubgraphIndex]
            unused.builtinOptions.condSubgraphIndex = len(model.subgraphs)
            model.subgraphs.append(_never(model, condition))
            unused.outputs = np.full(len(loop.outputs), -1, np.int32)
            if with_outputs:
                unused.outputs = np.arange(len(loop.outputs), dtype=np.int32) + len(graph.tensors)
                graph.tensors += [_renamed(graph.tensors[each], b"unused") for each in loop.outputs]
            graph.operators.insert(graph.operators.index(loop), unused)


def _never(model: Any, condition: Any) -> Any:
    """Returns the condition of a loop that takes no step, for the inputs of `condition`."""
    false = schema.BufferT()
    false.data = np.zeros(1, np.uint8)
    model.buffers.append(false)
    result = schema.SubGraphT()
    result.name, result.operators = b"never", []
    places = [*condition.inputs, *condition.outputs]
    result.tensors = [_renamed(condition.tensors[each], b"never") for each in places]
    result.tensors[-1].buffer = len(model.buffers) - 1
    result.inputs = np.arange(len(condition.inputs), dtype=np.int32)
    result.outputs = np.array([len(condition.inputs)], np.int32)
    return result


def _renamed(tensor: Any, prefix: bytes) -> Any:
    """Returns a tensor without a value, of the same type and shape."""
    result = copy.copy(tensor)
    result.name, result.buffer = prefix + b"/" + tensor.name, 0
    return result


def share(model: Any) -> None:
    """Merges buffers with the same content, and equal loops and branches.

    Signatures then share their weights and their loops. A runtime that packs weights for its
    kernels would otherwise pack them once for each loop.

    Example:
    >>> model = schema.ModelT()
    >>> model.subgraphs, model.signatureDefs = [], []
    >>> model.buffers = [schema.BufferT() for _ in range(3)]
    >>> model.buffers[1].data = model.buffers[2].data = np.ones(4, np.uint8)
    >>> share(model)
    >>> len(model.buffers)
    2
    """
    _share_buffers(model)
    while _share_subgraphs(model):  # the callers of merged subgraphs may now be equal, too
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
            # The converter leaves tensors that nothing reads.
            tensor.buffer = numbers[tensor.buffer] if index in read else 0
    for entry in model.metadata or []:
        entry.buffer = numbers[entry.buffer]
    model.buffers = kept


def _share_subgraphs(model: Any) -> bool:
    """Replaces equal subgraphs by the first one, and returns whether there were any."""
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
    """Moves a signature and its subgraph to the first position.

    `CompiledModel` runs the first signature by default, and many runtimes prepare the first
    subgraph when they open a file. It must not need operations that they lack.

    Args:
        model: a `schema.ModelT`.
        signature: the key of the signature.

    Example:
    >>> model, signature = schema.ModelT(), schema.SignatureDefT()
    >>> signature.signatureKey, signature.subgraphIndex = b"translate_ids", 1
    >>> model.signatureDefs, model.subgraphs = [signature], [schema.SubGraphT(), schema.SubGraphT()]
    >>> for graph in model.subgraphs:
    ...     graph.operators = []
    >>> put_first(model, b"translate_ids")
    >>> signature.subgraphIndex
    0
    """
    model.signatureDefs.sort(key=lambda each: each.signatureKey != signature)  # a stable sort
    first = model.signatureDefs[0].subgraphIndex
    order = [first, *(index for index in range(len(model.subgraphs)) if index != first)]
    _arrange(model, order, [order.index(index) for index in range(len(order))])


def _arrange(model: Any, kept: list[int], numbers: list[int]) -> None:
    """Keeps the subgraphs `kept` in this order; `numbers` are the new indices of all old ones."""
    for graph in model.subgraphs:
        for operator in graph.operators:
            for name in subgraph_options(operator):
                place = numbers[getattr(operator.builtinOptions, name)]
                setattr(operator.builtinOptions, name, place)
    for signature in model.signatureDefs:
        signature.subgraphIndex = numbers[signature.subgraphIndex]
    model.subgraphs = [model.subgraphs[index] for index in kept]


def _digest(graph: Any) -> bytes:
    """Returns a hash of a subgraph that ignores names and the order of its tensors."""
    places: dict[int, int] = {-1: -1}  # -1: a missing optional input

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
    """Returns a part of a model as nested lists of simple values, without names."""
    if isinstance(part, np.ndarray):
        return part.tolist()
    if isinstance(part, (list, tuple)):
        return [_values(each) for each in part]
    if isinstance(part, dict):
        return [(name, _values(each)) for name, each in part.items()]
    if hasattr(part, "__dict__"):
        return [(name, _values(each)) for name, each in vars(part).items() if name != "name"]
    return part
