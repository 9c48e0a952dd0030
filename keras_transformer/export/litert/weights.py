"""Weights of a LiteRT model in fewer bits: those of its products and of its embeddings.

int8 has a scale for each output of a product, which is a row of the embeddings: the largest
weight of the row is 127. The inputs of a product are rounded to int8 while the model runs
(dynamic range), so no calibration is needed. float16 is made float32 when a model is loaded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from keras_transformer.export.litert.flatbuffer import add_tensor, code_of, make_operator, op_of

QUANTIZATIONS = ("none", "float16", "int8")
_WEIGHTS = {"FULLY_CONNECTED": 1, "EMBEDDING_LOOKUP": 1}  # the input that holds them
# Since when LiteRT has int8 with a scale for each row, and float16 that is made float32
# (op_version.cc).
_INT8_VERSIONS = {
    schema.BuiltinOperator.FULLY_CONNECTED: 12,
    schema.BuiltinOperator.EMBEDDING_LOOKUP: 3,
}
_FLOAT16_VERSION = 3  # of DEQUANTIZE


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
