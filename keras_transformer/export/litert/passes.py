"""Changes to the model that LiteRT's converter writes: embeddings, duplicates, quantization."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from keras_transformer.export.litert.flatbuffer import (
    add_tensor,
    code_of,
    make_operator,
    op_of,
    shape_of,
    subgraphs_of,
)

QUANTIZATIONS = ("none", "float16", "int8")
_WEIGHTS = {"FULLY_CONNECTED": 1, "EMBEDDING_LOOKUP": 1}  # the input that holds them
# Since when LiteRT has int8 with a scale for each row, and float16 that is made float32
# (op_version.cc).
_INT8_VERSIONS = {
    schema.BuiltinOperator.FULLY_CONNECTED: 12,
    schema.BuiltinOperator.EMBEDDING_LOOKUP: 3,
}
_FLOAT16_VERSION = 3  # of DEQUANTIZE


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


# Weights in fewer bits: those of products and of embeddings.
#
# int8 has a scale for each output of a product, which is a row of the embeddings: the largest
# weight of the row becomes 127. The inputs of a product are rounded to int8 while the model runs
# (dynamic range), so no calibration is needed. float16 is converted to float32 when a model is
# loaded.


def quantize(model: Any, quantization: str) -> None:
    """Changes the weights of a `schema.ModelT`, in place, to one of `QUANTIZATIONS`."""
    if quantization == "none":
        return
    uses, others = _uses(model)
    for buffer, tensors in uses.items():
        if buffer in others:
            continue  # something else reads it as float32
        shape = [int(size) for size in tensors[0][1].shape]
        weights = np.frombuffer(np.asarray(model.buffers[buffer].data).tobytes(), np.float32)
        if quantization == "int8":
            scales, content = _rounded(weights.reshape(shape))
            for _, each in tensors:
                each.type, each.quantization = schema.TensorType.INT8, _parameters(scales)
        else:
            content = weights.astype(np.float16)
            for graph, each in tensors:
                _halve(model, graph, each)
        model.buffers[buffer].data = np.frombuffer(content.tobytes(), np.uint8)
    if quantization == "int8":
        for builtin, version in _INT8_VERSIONS.items():
            code_of(model, builtin, version)
        for graph in model.subgraphs:
            for each in graph.operators:
                if op_of(model, each).name == "FULLY_CONNECTED":
                    each.builtinOptions.asymmetricQuantizeInputs = True


def _uses(model: Any) -> tuple[dict[int, list[tuple[Any, Any]]], set[int]]:
    """Returns subgraph and tensor of all weights by their buffer, and buffers of other use."""
    uses: dict[int, list[tuple[Any, Any]]] = {}
    others = set()
    for graph in model.subgraphs:
        weights = set()
        for each in graph.operators:
            place = _WEIGHTS.get(op_of(model, each).name)
            for number, index in enumerate(each.inputs):
                if index < 0:  # an input that the operation has not
                    continue
                found = graph.tensors[index]
                if not _is_constant(model, found):
                    continue
                if number == place and found.type == schema.TensorType.FLOAT32:
                    weights.add(int(index))
                else:
                    others.add(found.buffer)
        for index in sorted(weights):
            uses.setdefault(graph.tensors[index].buffer, []).append((graph, graph.tensors[index]))
    return uses, others


def _is_constant(model: Any, found: Any) -> bool:
    return model.buffers[found.buffer].data is not None


def _rounded(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns scales float32 `[outputs]` and int8 `[outputs, inputs]` of weights like these."""
    largest = np.abs(weights).max(axis=1)
    scales = np.where(largest > 0, largest / 127, 1).astype(np.float32)
    rounded = np.rint(weights / scales[:, None])
    return scales, np.clip(rounded, -127, 127).astype(np.int8)


def _parameters(scales: np.ndarray) -> Any:
    parameters = schema.QuantizationParametersT()
    parameters.scale = scales
    parameters.zeroPoint = np.zeros(len(scales), np.int64)
    parameters.quantizedDimension = 0
    return parameters


def _halve(model: Any, graph: Any, weights: Any) -> None:
    """Makes weights float16, and lets what reads them read them as float32."""
    index = graph.tensors.index(weights)
    shape = [int(size) for size in weights.shape]
    weights.type = schema.TensorType.FLOAT16
    whole = add_tensor(graph, "float32", schema.TensorType.FLOAT32, shape)
    for each in graph.operators:
        each.inputs = np.where(each.inputs == index, whole, each.inputs).astype(np.int32)
    dequantize = code_of(model, schema.BuiltinOperator.DEQUANTIZE, _FLOAT16_VERSION)
    graph.operators.insert(0, make_operator(dequantize, [index], whole))
