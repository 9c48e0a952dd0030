"""Reads and writes converted LiteRT models, and changes them: lookups, loops, sharing.

A model is a `schema.ModelT` of `ai_edge_litert.schema_py_generated`. Passes work in place.
"""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

_NAMES = {
    code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)
}
_DTYPES = {code: name for name, code in vars(schema.TensorType).items() if isinstance(code, int)}
_IDENTIFIER = b"TFL3"


def read(content: bytes) -> Any:
    """Parses the content of a file to a `schema.ModelT`."""
    return schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0))


def write(model: Any) -> bytes:
    """Serializes a `schema.ModelT` to the content of a file."""
    builder = flatbuffers.Builder(1 << 20)
    builder.Finish(model.Pack(builder), _IDENTIFIER)
    return bytes(builder.Output())


def describe_signatures(model: Any) -> dict[str, Any]:
    """Returns JSON values for each signature, `{"translate": {"inputs": ..., "outputs": ...}}`.

    An input or output is described as `{"text": {"dtype": "string", "shape": [1]}}`. None is a
    dimension that varies.
    """
    result = {}
    for signature in model.signatureDefs:
        tensors = model.subgraphs[signature.subgraphIndex].tensors
        sides = {"inputs": signature.inputs, "outputs": signature.outputs}
        result[signature.signatureKey.decode()] = {
            side: {entry.name.decode(): _describe(tensors[entry.tensorIndex]) for entry in entries}
            for side, entries in sides.items()
        }
    return result


def _describe(tensor: Any) -> dict[str, Any]:
    shape = [None if size < 0 else size for size in shape_of(tensor)]
    return {"dtype": _DTYPES[tensor.type].lower(), "shape": shape}


def shape_of(tensor: Any) -> list[int]:
    """Returns the shape of a tensor, with -1 for dimensions that vary."""
    known = tensor.shape if tensor.shapeSignature is None else tensor.shapeSignature
    return [] if known is None else [int(size) for size in known]


def op_name(model: Any, operator: Any) -> str:
    """Returns the name of a built-in or custom operation of a subgraph."""
    code = model.operatorCodes[operator.opcodeIndex]
    if code.customCode:
        return str(code.customCode.decode())
    return _NAMES[max(code.builtinCode, code.deprecatedBuiltinCode)]


def code_of(model: Any, builtin: int, version: int = 1) -> int:
    """Returns the index of a built-in operation's code, and adds the code if it is missing.

    The code gets at least the given version. Runtimes that lack this version then refuse the
    model instead of computing something else.
    """
    for index, code in enumerate(model.operatorCodes):
        if max(code.builtinCode, code.deprecatedBuiltinCode) == builtin:
            code.version = max(code.version, version)
            return index
    added = schema.OperatorCodeT()
    added.builtinCode = added.deprecatedBuiltinCode = builtin
    added.version = version
    model.operatorCodes.append(added)
    return len(model.operatorCodes) - 1


def look_up_embeddings(model: Any) -> None:
    """Replaces each GATHER of rows of a constant matrix by EMBEDDING_LOOKUP.

    The result is the same. But EMBEDDING_LOOKUP supports int8 tables with a scale per row, like
    FULLY_CONNECTED, so quantized tied embeddings stay in one buffer.
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
    return is_matrix and is_list and is_constant and not options.axis and not options.batchDims


def plan_top_k(model: Any) -> None:
    """Lets LiteRT plan the memory of TOPK_V2 before it runs.

    If the input of TOPK_V2 is declared with an unknown dimension, LiteRT treats its outputs as
    dynamic, even if `k` is constant. Then it plans the memory of all later operations again each
    time that the subgraph runs, which is once per decode step.
    """
    for graph in model.subgraphs:
        for operator in graph.operators:
            if op_name(model, operator) == "TOPK_V2":
                graph.tensors[operator.inputs[0]].shapeSignature = None


def plan_shapes(model: Any) -> None:
    """Lets LiteRT compute the shapes that RESHAPE needs in loops while it prepares them.

    LiteRT computes a shape early if only operations with early results lead to it. PACK has none,
    but CONCATENATION of scalars, which gives the same vector, has one.
    """
    loops = [loop for graph in model.subgraphs for loop in _loops(model, graph)]
    for index in {loop.builtinOptions.bodySubgraphIndex for loop in loops}:
        graph = model.subgraphs[index]
        buffers = [model.buffers[tensor.buffer] for tensor in graph.tensors]
        early = {-1} | {i for i, buffer in enumerate(buffers) if buffer.data is not None}
        for operator in graph.operators:
            name, from_early = op_name(model, operator), early.issuperset(operator.inputs)
            if name == "PACK" and from_early and not shape_of(graph.tensors[operator.inputs[0]]):
                operator.opcodeIndex = code_of(model, schema.BuiltinOperator.CONCATENATION)
                operator.builtinOptionsType = schema.BuiltinOptions.ConcatenationOptions
                operator.builtinOptions = schema.ConcatenationOptionsT()
            if name == "SHAPE" or (from_early and name in ("PACK", "STRIDED_SLICE")):
                early.update(operator.outputs)


def _loops(model: Any, graph: Any) -> list[Any]:
    return [operator for operator in graph.operators if op_name(model, operator) == "WHILE"]


def prepare_loops_twice(model: Any, *, with_outputs: bool = True) -> None:
    """Inserts before each WHILE a copy of it that takes no step.

    It avoids an error of XNNPACK. Each time that LiteRT prepares the body of a loop, XNNPACK may
    need more memory for values within the body. It then moves them, and updates the addresses of
    all operations that are already prepared. At this time, it still has the addresses of inputs
    and outputs of the last run, which LiteRT has freed. If such an address is now that of a value,
    XNNPACK mistakes an operation that copies one to the other for a copy onto itself, and skips it
    (`setup_unary_elementwise_nc`).

    LiteRT frees the memory of a body after each loop, and prepares it for the next. For the second
    of two loops with the same body and shapes, XNNPACK needs no more memory, so nothing moves. This
    takes 2 % of a translation.

    LiteRT must know the shapes of the body while it prepares it (`plan_shapes`). Without
    `with_outputs`, the copies have no outputs. Then they copy less, but only ai-edge-litert 2.3.0
    and newer accept them.
    """
    for graph in list(model.subgraphs):
        for loop in _loops(model, graph):
            unused = copy.deepcopy(loop)
            condition = model.subgraphs[loop.builtinOptions.condSubgraphIndex]
            unused.builtinOptions.condSubgraphIndex = len(model.subgraphs)
            model.subgraphs.append(_never(model, condition))
            unused.outputs = np.full(len(loop.outputs), -1, np.int32)
            if with_outputs:
                unused.outputs = np.arange(len(loop.outputs), dtype=np.int32) + len(graph.tensors)
                graph.tensors += [_renamed(graph.tensors[i], b"unused") for i in loop.outputs]
            graph.operators.insert(graph.operators.index(loop), unused)


def _never(model: Any, condition: Any) -> Any:
    """Returns the condition of a loop that takes no step, for the inputs of `condition`."""
    false = schema.BufferT()
    false.data = np.zeros(1, np.uint8)
    model.buffers.append(false)
    result = schema.SubGraphT()
    result.name, result.operators = b"never", []
    used = [*condition.inputs, *condition.outputs]
    result.tensors = [_renamed(condition.tensors[index], b"never") for index in used]
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
    """
    _share_buffers(model)
    while _share_subgraphs(model):  # the callers of merged subgraphs may now be equal, too
        pass


def _share_buffers(model: Any) -> None:
    kept: list[Any] = [model.buffers[0]]  # buffer 0 is empty
    numbers_by_content = {b"": 0}
    numbers = []
    for buffer in model.buffers:
        content = b"" if buffer.data is None else np.asarray(buffer.data).tobytes()
        key = content and hashlib.sha256(content).digest()
        if key not in numbers_by_content:
            numbers_by_content[key] = len(kept)
            kept.append(buffer)
        numbers.append(numbers_by_content[key])
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
    seen: dict[bytes, int] = {}
    first = [
        index if index in outer else seen.setdefault(_digest(graph), index)
        for index, graph in enumerate(model.subgraphs)
    ]
    kept = [index for index, other in enumerate(first) if index == other]
    numbers = [kept.index(other) for other in first]
    _arrange(model, kept, numbers)
    return len(kept) < len(first)


def put_first(model: Any, signature: bytes) -> None:
    """Moves a signature and its subgraph to the first position.

    `CompiledModel` runs the first signature by default, and many runtimes prepare the first
    subgraph when they open a file. It must not need operations that they lack.
    """
    model.signatureDefs.sort(key=lambda found: found.signatureKey != signature)  # a stable sort
    first = model.signatureDefs[0].subgraphIndex
    order = [first, *(index for index in range(len(model.subgraphs)) if index != first)]
    _arrange(model, order, [order.index(index) for index in range(len(order))])


def _arrange(model: Any, kept: list[int], numbers: list[int]) -> None:
    """Keeps the subgraphs `kept` in this order; `numbers` are the new indices of all old ones."""
    for graph in model.subgraphs:
        for operator in graph.operators:
            options = vars(operator.builtinOptions) if operator.builtinOptions else {}
            for name in options:
                if name.endswith("SubgraphIndex"):  # of a loop or a branch
                    options[name] = numbers[options[name]]
    for signature in model.signatureDefs:
        signature.subgraphIndex = numbers[signature.subgraphIndex]
    model.subgraphs = [model.subgraphs[index] for index in kept]


def _digest(graph: Any) -> bytes:
    """Returns a hash of a subgraph that ignores names and the order of its tensors."""
    order: dict[int, int] = {-1: -1}  # -1: a missing optional input

    def used(tensors: Any) -> list[int]:
        return [order.setdefault(int(index), len(order)) for index in tensors]

    parts: list[Any] = [used(graph.inputs)]
    for operator in graph.operators:
        parts.append([used(operator.inputs), used(operator.outputs), _values(operator)])
    parts.append(used(graph.outputs))
    tensors = [_values(graph.tensors[index]) for index in order if index >= 0]
    return hashlib.sha256(repr((parts, tensors)).encode()).digest()


def _values(part: Any) -> Any:
    """Returns a part of a model as nested lists of simple values, without names and indices."""
    if isinstance(part, np.ndarray):
        return part.tolist()
    if isinstance(part, (list, tuple)):
        return [_values(value) for value in part]
    if hasattr(part, "__dict__"):
        ignored = {"name", "inputs", "outputs"}
        return [(name, _values(value)) for name, value in vars(part).items() if name not in ignored]
    return part
