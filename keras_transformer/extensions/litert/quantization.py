"""Quantization of the weights of products and embeddings in a converted LiteRT model.

int8 and int4 weights have one scale per output of a matrix product, and per row of embeddings. The
scale maps the largest weight, or a part of it, to 127 or 7. The inputs of a product are rounded to
int8 at run time (dynamic range quantization), so calibration is not needed. float16 weights are
converted to float32 when a model is loaded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from keras_transformer.extensions.litert.passes import code_of, op_name

_LARGEST = {"int8": 127, "int4": 7}  # the integer of the largest weight
_SHARES = np.linspace(1, 0.5, 11)  # ranges that are tried, in parts of the largest weight
_PRODUCTS = ("FULLY_CONNECTED", "EMBEDDING_LOOKUP")  # input 1 has the weights
# The operations' first versions with integer weights that have a scale per row, and with float16
# weights that are converted to float32 (op_version.cc).
_FULLY_CONNECTED_VERSION = 12
_LOOKUP_VERSIONS = {"int8": 3, "int4": 4}
_DEQUANTIZE_VERSION = 3


def quantize(model: Any, number_format: str) -> None:
    """Converts the weights of a model."""
    if number_format == "float32":
        return
    uses, others = _uses(model)
    for buffer, tensors in uses.items():
        if buffer in others:
            continue  # another operation needs float32
        shape = [int(size) for size in tensors[0][1].shape]
        weights = np.frombuffer(np.asarray(model.buffers[buffer].data).tobytes(), np.float32)
        if number_format in _LARGEST:
            scales, content = _rounded(weights.reshape(shape), _LARGEST[number_format])
            dtype = getattr(schema.TensorType, number_format.upper())
            for _, tensor in tensors:
                tensor.type, tensor.quantization = dtype, _parameters(scales)
            if number_format == "int4":
                content = _packed(content)
        else:
            content = weights.astype(np.float16)
            for graph, tensor in tensors:
                _halve(model, graph, tensor)
        model.buffers[buffer].data = np.frombuffer(content.tobytes(), np.uint8)
    if number_format in _LARGEST:
        _require_versions(model, number_format)
        for graph in model.subgraphs:
            for operator in graph.operators:
                if op_name(model, operator) == "FULLY_CONNECTED":
                    operator.builtinOptions.asymmetricQuantizeInputs = True


def _require_versions(model: Any, number_format: str) -> None:
    code_of(model, schema.BuiltinOperator.FULLY_CONNECTED, _FULLY_CONNECTED_VERSION)
    code_of(model, schema.BuiltinOperator.EMBEDDING_LOOKUP, _LOOKUP_VERSIONS[number_format])


def _uses(model: Any) -> tuple[dict[int, list[tuple[Any, Any]]], set[int]]:
    """Returns subgraph and tensor of all weights by buffer, and buffers with other uses."""
    uses: dict[int, list[tuple[Any, Any]]] = {}
    others = set()
    for graph in model.subgraphs:
        weights = set()
        for operator in graph.operators:
            is_product = op_name(model, operator) in _PRODUCTS
            for number, index in enumerate(operator.inputs):
                tensor = graph.tensors[index]
                if index < 0 or model.buffers[tensor.buffer].data is None:  # -1: a missing input
                    continue
                if is_product and number == 1 and tensor.type == schema.TensorType.FLOAT32:
                    weights.add(int(index))
                else:
                    others.add(tensor.buffer)
        for index in sorted(weights):
            uses.setdefault(graph.tensors[index].buffer, []).append((graph, graph.tensors[index]))
    return uses, others


def _rounded(weights: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns scales float32 `[outputs]` and weights int8 `[outputs, inputs]`, at most `limit`.

    Each output has the scale with the smallest squared error. In int4, that is often a scale that
    cuts the largest weights, and makes the steps of the others finer.
    """
    largest = np.abs(weights).max(axis=1, keepdims=True)
    scales, rounded, errors = largest, weights, np.full_like(largest, np.inf)
    for share in _SHARES:
        tried = np.where(largest > 0, share * largest / limit, 1).astype(np.float32)
        values = np.clip(np.rint(weights / tried), -limit, limit)
        error = np.square(values * tried - weights).sum(axis=1, keepdims=True)
        is_better = error < errors
        scales, errors = np.where(is_better, tried, scales), np.where(is_better, error, errors)
        rounded = np.where(is_better, values, rounded)
    return scales[:, 0], rounded.astype(np.int8)


def _packed(weights: np.ndarray) -> np.ndarray:
    """Returns two int4 weights per byte, uint8: the first one is in the low bits."""
    low_bits = weights.reshape(-1).view(np.uint8) & 0xF
    if low_bits.size % 2:
        low_bits = np.append(low_bits, np.uint8(0))
    return low_bits[0::2] | low_bits[1::2] << 4


def _parameters(scales: np.ndarray) -> Any:
    parameters = schema.QuantizationParametersT()
    parameters.scale = scales
    parameters.zeroPoint = np.zeros(len(scales), np.int64)
    parameters.quantizedDimension = 0
    return parameters


def _halve(model: Any, graph: Any, weights: Any) -> None:
    """Makes a tensor float16, and inserts a DEQUANTIZE for its readers."""
    index = graph.tensors.index(weights)
    restored = schema.TensorT()
    restored.name = f"{graph.name.decode()}/float32_{len(graph.tensors)}".encode()  # a unique name
    restored.type, restored.buffer, restored.hasRank = schema.TensorType.FLOAT32, 0, True
    restored.shape = np.array(weights.shape, np.int32)
    graph.tensors.append(restored)
    weights.type = schema.TensorType.FLOAT16
    restored_index = len(graph.tensors) - 1
    for operator in graph.operators:
        inputs = np.where(operator.inputs == index, restored_index, operator.inputs)
        operator.inputs = inputs.astype(np.int32)
    dequantize = schema.OperatorT()
    dequantize.opcodeIndex = code_of(model, schema.BuiltinOperator.DEQUANTIZE, _DEQUANTIZE_VERSION)
    dequantize.inputs = np.array([index], np.int32)
    dequantize.outputs = np.array([restored_index], np.int32)
    graph.operators.insert(0, dequantize)


def multiply_int8_rows(model: Any) -> None:
    """Makes FULLY_CONNECTED read int8 matrices that the model computes, without a CAST to float32.

    The rows of a shortlist are such a matrix. The product is the same, but its inputs are rounded
    to int8. It takes about half of the time of a float32 product.
    """
    for graph in model.subgraphs:
        casts = {int(op.outputs[0]): op for op in graph.operators if op_name(model, op) == "CAST"}
        for operator in list(graph.operators):
            is_product = op_name(model, operator) == "FULLY_CONNECTED"
            cast = casts.get(int(operator.inputs[1])) if is_product else None
            if cast is None or graph.tensors[cast.inputs[0]].type != schema.TensorType.INT8:
                continue
            rows = int(cast.inputs[0])
            operator.inputs = np.array([operator.inputs[0], rows, *operator.inputs[2:]], np.int32)
            # One step is 1. The model multiplies by the scales of the rows later.
            graph.tensors[rows].quantization = _parameters(np.ones(1, np.float32))
            # With an offset, LiteRT would keep the sums of the first matrix.
            operator.builtinOptions.asymmetricQuantizeInputs = False
            _require_versions(model, "int8")
            if not any(cast.outputs[0] in other.inputs for other in graph.operators):
                graph.operators.remove(cast)
